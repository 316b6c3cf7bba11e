//! The program as a user meets it: exit code, stdout and stderr. Snapshots lie in `tests/snapshots`;
//! `INSTA_UPDATE=always cargo test -p planish` writes them anew.
// Tests make files of their own, and unwrap in helpers too.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod bench;
mod chat;
mod eval;
mod generate;
mod help;
mod inspect;
mod interrupt;
mod reject;
mod shipped;
mod stories;
mod train;
mod tune;
mod verify;
