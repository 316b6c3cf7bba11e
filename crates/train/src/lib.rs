//! Recipes of training: what is trained, in which order, with which optimizer, and what a run leaves behind.
//!
//! [`tune`] is the recipe; [`Trainer`] the optimizer step it repeats; [`plan`] what is printed before the first one.
#![forbid(unsafe_code)]

mod config;
mod data;
mod events;
pub mod optim;
pub mod plan;
mod run_dir;
pub mod schedule;
mod trainer;
mod tune;

pub use config::{Decay, EvalSplit, TuneConfig};
pub use data::Order;
pub use optim::{OPTIMS, Optim};
pub use plan::Plan;
pub use run_dir::RunDir;
pub use schedule::{SCHEDULES, Schedule};
pub use trainer::{StepReport, Trainer};
pub use tune::{Observer, Outcome, Tuned, tune};
