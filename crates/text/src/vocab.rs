//! The vocabulary as plain data, and the checks that make it safe to use.
//!
//! Keys and defaults: `tokenizer.ggml.*` as llama.cpp reads them.

use std::collections::HashSet;

use planish_base::{Error, Result};
use planish_store::fs;
use planish_store::gguf::{Metadata, OwnedValue};

/// No real vocabulary has a token near this long; it bounds every per-token loop.
const MAX_TOKEN_BYTES: usize = 65_536;
/// Special tokens are compared with the text byte by byte, so their bound is tighter.
const MAX_SPECIAL_BYTES: usize = 1_024;

/// `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// 1, or a number that ggml does not define.
    Normal,
    /// 2: stands for what cannot be written.
    Unknown,
    /// 3: never made from text that a user wrote.
    Control,
    /// 4: always recognised in text, as a whole.
    UserDefined,
    /// 5: not in use.
    Unused,
    /// 6: one byte, written `<0xNN>`.
    Byte,
}

impl TokenKind {
    /// The kind with this number in the file.
    pub fn from_ggml(n: i32) -> TokenKind {
        match n {
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            5 => TokenKind::Unused,
            6 => TokenKind::Byte,
            _ => TokenKind::Normal,
        }
    }

    /// The number of this kind in the file.
    pub fn to_ggml(self) -> i32 {
        match self {
            TokenKind::Normal => 1,
            TokenKind::Unknown => 2,
            TokenKind::Control => 3,
            TokenKind::UserDefined => 4,
            TokenKind::Unused => 5,
            TokenKind::Byte => 6,
        }
    }
}

/// What a GGUF file says about its tokenizer, not yet checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vocab {
    /// `tokenizer.ggml.model`: `gpt2` or `llama`.
    pub model: String,
    /// `tokenizer.ggml.pre`.
    pub pre: Option<String>,
    /// Token texts by id.
    pub tokens: Vec<String>,
    /// Scores by id (SPM); empty when absent.
    pub scores: Vec<f32>,
    /// Kinds by id; empty when absent (all normal).
    pub kinds: Vec<TokenKind>,
    /// Merge rules `left right`, best first (BPE).
    pub merges: Vec<String>,
    /// Beginning of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// End of turn.
    pub eot: Option<u32>,
    /// End of message.
    pub eom: Option<u32>,
    /// Unknown token.
    pub unk: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `add_space_prefix`.
    pub add_space_prefix: Option<bool>,
}

impl Vocab {
    /// SHA-256 of everything that tokens depend on.
    pub(crate) fn fingerprint(&self) -> String {
        let texts = |list: &[String]| list.iter().map(String::len).sum::<usize>() + 8 * list.len();
        let mut bytes = Vec::with_capacity(texts(&self.tokens) + texts(&self.merges) + 8 * self.tokens.len());
        let ids = [self.bos, self.eos, self.eot, self.eom, self.unk, self.pad];
        let flags = [self.add_bos, self.add_space_prefix];
        bytes.extend(format!("{:?}{:?}{ids:?}{flags:?}", self.model, self.pre).bytes());
        // The length before each part keeps parts apart.
        for list in [&self.tokens, &self.merges] {
            bytes.extend((list.len() as u64).to_le_bytes());
            for text in list {
                bytes.extend((text.len() as u64).to_le_bytes());
                bytes.extend(text.as_bytes());
            }
        }
        bytes.extend((self.scores.len() as u64).to_le_bytes());
        bytes.extend(self.scores.iter().flat_map(|s| s.to_le_bytes()));
        bytes.extend(self.kinds.iter().map(|k| *k as u8));
        fs::sha256(&bytes)
    }

    /// Reads the keys. Errors: a key of another type, or without the token list.
    pub fn from_gguf(m: &Metadata) -> Result<Vocab> {
        let owned = |key: &str| -> Result<Vec<String>> {
            Ok(m.strings(key)?.unwrap_or_default().into_iter().map(str::to_owned).collect())
        };
        let tokens = owned("tokenizer.ggml.tokens")?;
        if tokens.is_empty() {
            return Err(Error::input("no tokens", "tokenizer.ggml.tokens is absent or empty")
                .with_hint("this file has no tokenizer; use data of the form {\"input_ids\": [...]}"));
        }
        let kinds = m.i32s("tokenizer.ggml.token_type")?.unwrap_or_default();
        Ok(Vocab {
            model: m.require_str("tokenizer.ggml.model")?.to_owned(),
            pre: m.str("tokenizer.ggml.pre")?.map(str::to_owned),
            tokens,
            scores: m.f32s("tokenizer.ggml.scores")?.unwrap_or_default(),
            kinds: kinds.into_iter().map(TokenKind::from_ggml).collect(),
            merges: owned("tokenizer.ggml.merges")?,
            bos: m.u32("tokenizer.ggml.bos_token_id")?,
            eos: m.u32("tokenizer.ggml.eos_token_id")?,
            eot: m.u32("tokenizer.ggml.eot_token_id")?,
            eom: m.u32("tokenizer.ggml.eom_token_id")?,
            unk: m.u32("tokenizer.ggml.unknown_token_id")?,
            pad: m.u32("tokenizer.ggml.padding_token_id")?,
            add_bos: m.bool("tokenizer.ggml.add_bos_token")?,
            add_space_prefix: m.bool("tokenizer.ggml.add_space_prefix")?,
        })
    }

    /// The keys and values that [`Vocab::from_gguf`] and llama.cpp read back as this vocabulary. What is empty or not set
    /// has no key.
    ///
    /// A vocabulary that came from a GGUF file is better copied with the file's other keys (`Writer::copy_metadata`): some
    /// say what only llama.cpp uses, such as the tokens of fill-in-the-middle.
    pub fn to_gguf(&self) -> Vec<(String, OwnedValue)> {
        let mut out = vec![("tokenizer.ggml.model".to_owned(), OwnedValue::from(self.model.as_str()))];
        let mut set = |key: &str, value: Option<OwnedValue>| {
            out.extend(value.map(|value| (format!("tokenizer.ggml.{key}"), value)));
        };
        set("pre", self.pre.as_deref().map(OwnedValue::from));
        set("tokens", filled(&self.tokens).map(OwnedValue::Strings));
        set("scores", filled(&self.scores).map(OwnedValue::F32s));
        let kinds: Vec<i32> = self.kinds.iter().map(|kind| kind.to_ggml()).collect();
        set("token_type", filled(&kinds).map(OwnedValue::I32s));
        set("merges", filled(&self.merges).map(OwnedValue::Strings));
        for (key, id) in [
            ("bos_token_id", self.bos),
            ("eos_token_id", self.eos),
            ("eot_token_id", self.eot),
            ("eom_token_id", self.eom),
            ("unknown_token_id", self.unk),
            ("padding_token_id", self.pad),
        ] {
            set(key, id.map(OwnedValue::U32));
        }
        set("add_bos_token", self.add_bos.map(OwnedValue::Bool));
        set("add_space_prefix", self.add_space_prefix.map(OwnedValue::Bool));
        out
    }

    /// The kind of `id`.
    pub fn kind(&self, id: u32) -> TokenKind {
        self.kinds.get(id as usize).copied().unwrap_or(TokenKind::Normal)
    }

    /// Whether the text of `id` is recognised as a whole before anything else.
    pub(crate) fn is_matched_whole(&self, id: u32) -> bool {
        matches!(self.kind(id), TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown)
    }

    /// Refuses what later code relies on not to be there: lengths that differ, ids outside, duplicate or huge tokens.
    pub(crate) fn check(&self) -> Result<()> {
        let n = self.tokens.len();
        if u32::try_from(n).is_err() {
            return Err(Error::input("length", format!("vocabulary of {n} tokens, at most 2^32 - 1")));
        }
        for (key, len) in [("scores", self.scores.len()), ("token_type", self.kinds.len())] {
            if len != 0 && len != n {
                let text = format!("tokenizer.ggml.{key} has {len} entries, expected {n} (one a token)");
                return Err(Error::input("length", text));
            }
        }
        if let Some(i) = self.scores.iter().position(|s| !s.is_finite()) {
            return Err(Error::input("score", format!("score of token {i} is not finite")));
        }
        let ids = [
            ("bos", self.bos),
            ("eos", self.eos),
            ("eot", self.eot),
            ("eom", self.eom),
            ("unknown", self.unk),
            ("padding", self.pad),
        ];
        for (name, id) in ids {
            if let Some(id) = id.filter(|id| *id as usize >= n) {
                let text = format!("tokenizer.ggml.{name}_token_id is {id}, expected below {n}");
                return Err(Error::input("token id", text));
            }
        }
        self.check_tokens()
    }

    fn check_tokens(&self) -> Result<()> {
        let mut seen = HashSet::with_capacity(self.tokens.len());
        for (id, token) in (0u32..).zip(&self.tokens) {
            let limit = if self.is_matched_whole(id) { MAX_SPECIAL_BYTES } else { MAX_TOKEN_BYTES };
            if token.len() > limit {
                let text = format!("token {id} is {} bytes long, at most {limit}", token.len());
                return Err(Error::input("token", text));
            }
            // llama.cpp renames empty tokens and goes on: they exist in real files and match nothing.
            if !token.is_empty() && !seen.insert(token.as_str()) {
                return Err(Error::input(
                    "token",
                    format!("token {id} ({token:?}) is in the vocabulary twice"),
                ));
            }
        }
        Ok(())
    }
}

fn filled<T: Clone>(list: &[T]) -> Option<Vec<T>> {
    (!list.is_empty()).then(|| list.to_vec())
}
