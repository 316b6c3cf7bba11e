//! From text to token batches: the tokenizer of a GGUF file, its chat template, dataset formats, loss masks, batches.
//!
//! Every input here was written by a stranger (metadata, template, data lines): it can only give an [`Error`].
//! Token ids follow llama.cpp, since that is where the trained file will run.
#![forbid(unsafe_code)]

pub mod batch;
mod bpe;
mod cache;
pub mod chat;
mod corpus;
pub mod dataset;
mod date;
mod decode;
pub mod guard;
pub mod learn;
mod length;
mod pack;
mod pre;
pub mod report;
pub mod source;
mod special;
mod spm;
pub mod tales;
pub mod template;
mod texts;
pub mod tokenizer;
mod tokenizer_json;
pub mod vocab;

pub use batch::{Batch, Segment, batch, order, split};
pub use chat::{Encoder, Message, Turn};
pub use dataset::{Dataset, FORMATS, Format, LoadOptions, load};
pub use decode::Decoder;
pub use learn::{WordCounts, train_bpe};
pub use length::LengthPolicy;
pub use pack::pack;
pub use planish_base::{Error, Kind, Result};
pub use report::{EndOfTurn, Lengths, Report};
pub use template::ChatTemplate;
pub use texts::each_text;
pub use tokenizer::{Pieces, Tokenizer};
pub use vocab::{TokenKind, Vocab};

/// One training example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// Token ids, BOS and end-of-turn tokens included.
    pub ids: Vec<u32>,
    /// `trained[i]`: token `i` is a target of the loss. As long as `ids`; `trained[0]` is always false.
    pub trained: Vec<bool>,
    /// Where the example came from, such as `data.jsonl:3`.
    pub place: String,
}

impl Example {
    /// Number of targets of the loss.
    pub fn trained_tokens(&self) -> usize {
        self.trained.iter().filter(|t| **t).count()
    }
}
