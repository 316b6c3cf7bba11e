//! One module a command: its flags, and what it does with them.

pub mod bench;
pub mod chat;
pub mod eval;
pub mod generate;
pub mod inspect;
pub mod merge;
pub mod run;
pub mod train;
pub mod tune;
pub mod verify;
