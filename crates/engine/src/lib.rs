//! Opening models, running them, and writing what came of them.
//!
//! [`Model`] is a file with its tokenizer and template; [`Engine`] the model on a backend; [`Session`] generates,
//! [`score`] evaluates. [`AdapterFile`] is a LoRA adapter on disk,
//! [`merge`] folds it into its base, [`verify`] looks at what was written, [`modelfile`] tells Ollama of it. [`NonFinite`]
//! is where a training pass first computed something that is not a number; [`mod@bench`] how fast all of it is.
#![forbid(unsafe_code)]

pub mod adapter;
pub mod bench;
mod engine;
mod export;
mod generate;
mod lens;
mod merge;
mod model;
mod modelfile;
mod non_finite;
mod precision;
mod room;
mod sampler;
pub mod score;
mod session;
mod verify;

pub use adapter::{AdapterFile, BaseInfo, Binding, HostPair, Provenance, check_together, gguf_obstacle};
pub use engine::{Engine, EngineOptions};
pub use export::{check_exportable, check_finite, write_model};
pub use generate::{Generated, Stop, StopReason, generate};
pub use merge::{Fallback, MergeReport, MergeType, Touched, merge};
pub use model::Model;
pub use modelfile::{ModelfileOptions, modelfile};
pub use non_finite::NonFinite;
pub use precision::Precision;
pub use sampler::{Sampler, SamplerOptions};
pub use session::Session;
pub use verify::{Check, Report, verify};
