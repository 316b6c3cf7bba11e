//! Training: what is trained, in which order, with which optimizer, and what a run leaves behind.
//!
//! [`tune`] is a run; [`Trainer`] the optimizer step it repeats; [`plan`] what is printed before the first one;
//! [`checkpoint`] what a run goes on from after it was stopped or killed; [`mod@bench`] how fast a step is.
#![forbid(unsafe_code)]

mod base;
pub mod bench;
pub mod checkpoint;
mod config;
mod data;
mod ema;
mod events;
mod identity;
mod numbered;
pub mod optim;
mod patterns;
pub mod plan;
mod recipe;
mod resumed;
mod run;
mod run_dir;
pub mod schedule;
pub mod scratch;
mod sequence;
mod tales;
mod trainer;
mod training;
mod tune;
mod watch;
mod weight_events;

pub use checkpoint::{Checkpoint, State};
pub use config::{Decay, EvalSplit, MemoryLimit, OnNonfinite, RunConfig};
pub use data::Order;
pub use identity::Identity;
pub use optim::{OPTIMS, Optim};
pub use plan::Plan;
pub use resumed::Resumed;
pub use run_dir::RunDir;
pub use schedule::{SCHEDULES, Schedule, Shape};
pub use scratch::preset::PRESETS;
pub use scratch::{ModelConfig, NewModel};
pub use sequence::Sequence;
pub use trainer::{Gradients, StepReport, Trainer};
pub use tune::{Observer, Outcome, Start, Tuned, tune};
pub use watch::{BestWatch, LossWatch};
