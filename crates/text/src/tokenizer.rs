//! The tokenizer of a GGUF file.

use planish_base::{Error, Result};
use planish_store::gguf::Metadata;

use crate::bpe::{self, Bpe};
use crate::decode::Decoder;
use crate::special::{Fragment, Recognise, Specials};
use crate::spm::{self, Spm};
use crate::vocab::{TokenKind, Vocab};

/// Bounds memory: the tables of one text are several times its size.
const MAX_TEXT_BYTES: usize = 1 << 30;

/// Texts that end a generation wherever they are in the vocabulary (llama.cpp's list).
pub(crate) const END_OF_GENERATION: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<｜end▁of▁sentence｜>",
];

/// Texts that stand for the end of a turn when the file names no such token, in order of preference.
const END_OF_TURN: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<turn|>",
    "<end_of_utterance>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
];

/// Tokens of a text, and where each ends in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Byte offset in the text just after each token; a token begins where the one before it ends.
    pub ends: Vec<usize>,
}

/// Takes each token with the offset where it ends.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(u32, usize);

#[derive(Debug)]
enum Model {
    Bpe(Box<Bpe>),
    Spm(Spm),
}

/// Text to token ids and back, with the results of llama.cpp. One that exists is valid.
#[derive(Debug)]
pub struct Tokenizer {
    model: Model,
    vocab: Vocab,
    pieces: Vec<Box<[u8]>>,
    specials: Specials,
    add_bos: bool,
    add_space_prefix: bool,
    end_of_generation: Vec<u32>,
    fingerprint: String,
}

impl Tokenizer {
    /// Reads the tokenizer of a GGUF file. Errors: a missing or ill-typed key, an unknown model or pre-tokenizer, or
    /// vocabulary data that contradict themselves.
    pub fn from_gguf(m: &Metadata) -> Result<Tokenizer> {
        Self::from_vocab(Vocab::from_gguf(m)?)
    }

    /// Builds the tokenizer from plain data, checking it. It keeps no merges and no scores: who writes the vocabulary
    /// into a file later ([`Vocab::to_gguf`]) hands over a clone. Errors: as [`Tokenizer::from_gguf`].
    pub fn from_vocab(mut vocab: Vocab) -> Result<Tokenizer> {
        vocab.check()?;
        let fingerprint = vocab.fingerprint();
        let spm = vocab.model == "llama";
        if spm {
            set_spm_defaults(&mut vocab);
        }
        set_kinds_by_text(&mut vocab);
        let model = match vocab.model.as_str() {
            "gpt2" => Model::Bpe(Box::new(Bpe::new(&vocab)?)),
            "llama" => Model::Spm(Spm::new(&vocab, vocab.unk)?),
            other => {
                let text = format!("tokenizer.ggml.model is {other:?}, a tokenizer that is not supported");
                return Err(Error::input("tokenizer", text)
                    .with_hint("known: gpt2 (byte-level BPE), llama (SentencePiece BPE)"));
            }
        };
        // The model has its own copies.
        vocab.merges = Vec::new();
        vocab.scores = Vec::new();
        let default_bos = match &model {
            Model::Bpe(bpe) => bpe.add_bos(),
            Model::Spm(_) => true,
        };
        let add_bos = vocab.add_bos.unwrap_or(default_bos);
        if add_bos && vocab.bos.is_none() {
            return Err(Error::input("token id", "add_bos_token is true, but bos_token_id is not set"));
        }
        Ok(Tokenizer {
            pieces: (0u32..).zip(&vocab.tokens).map(|(id, t)| piece_bytes(&vocab, spm, id, t)).collect(),
            specials: Specials::new(&vocab),
            add_bos,
            add_space_prefix: spm && vocab.add_space_prefix.unwrap_or(true),
            end_of_generation: end_of_generation(&vocab),
            fingerprint,
            model,
            vocab,
        })
    }

    /// Tokens of `text`; texts of special tokens in it become those tokens. No BOS or EOS is added.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.ids_of(text, Recognise::All { blocked: &[] }, true)
    }

    /// Tokens of `text` where control tokens are ordinary text, as what a user wrote must be.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        self.ids_of(text, Recognise::UserDefined, true)
    }

    /// [`Tokenizer::encode`], with the offset where each token ends.
    pub fn encode_with_offsets(&self, text: &str) -> Result<Pieces> {
        self.encode_blocked(text, &[])
    }

    /// Tokens of text that continues another: SPM puts no blank in front.
    pub(crate) fn encode_continuation(&self, text: &str) -> Result<Vec<u32>> {
        self.ids_of(text, Recognise::All { blocked: &[] }, false)
    }

    /// As [`Tokenizer::encode_with_offsets`], but no control token is recognised across a byte of `blocked`.
    pub(crate) fn encode_blocked(&self, text: &str, blocked: &[usize]) -> Result<Pieces> {
        let mut out = Pieces::default();
        self.tokens_of(text, Recognise::All { blocked }, true, &mut |id, end| {
            out.ids.push(id);
            out.ends.push(end);
        })?;
        Ok(out)
    }

    /// Of a long text the offsets would take twice the memory of the ids.
    fn ids_of(&self, text: &str, what: Recognise<'_>, at_start: bool) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        self.tokens_of(text, what, at_start, &mut |id, _| ids.push(id))?;
        Ok(ids)
    }

    /// [`Tokenizer::encode`], with exactly one BOS in front where the model wants one. Errors: `text` has two.
    pub fn prompt(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = self.encode(text)?;
        self.begin(&mut ids)?;
        Ok(ids)
    }

    /// Puts BOS in front of `ids` where the model wants one and it is not there. Returns whether it was added.
    /// Errors: two BOS tokens in a row.
    pub(crate) fn begin(&self, ids: &mut Vec<u32>) -> Result<bool> {
        let Some(bos) = self.vocab.bos else { return Ok(false) };
        let add = self.add_bos && ids.first() != Some(&bos);
        if add {
            ids.insert(0, bos);
        }
        // Where one token is BOS and EOS at once, an empty document may well begin with two.
        if ids.starts_with(&[bos, bos]) && self.vocab.eos != Some(bos) {
            return Err(Error::input("double bos", "the text begins with two beginning-of-sequence tokens")
                .with_hint("remove the BOS token from the data; it is added once by itself"));
        }
        Ok(add)
    }

    fn tokens_of(&self, text: &str, what: Recognise<'_>, at_start: bool, out: Sink<'_>) -> Result<()> {
        if text.len() > MAX_TEXT_BYTES {
            let message = format!("a text of {} bytes, at most {MAX_TEXT_BYTES}", text.len());
            return Err(Error::input("text too long", message).with_hint("split it into several examples"));
        }
        let mut after_special = at_start;
        for fragment in self.specials.fragments(text, what) {
            match fragment {
                Fragment::Token(id, range) => {
                    out(id, range.end);
                    after_special = true;
                }
                Fragment::Text(range) => {
                    let prefix = self.add_space_prefix && after_special;
                    after_special = false;
                    match &self.model {
                        Model::Bpe(bpe) => bpe.encode(&text[range.clone()], range.start, out)?,
                        Model::Spm(spm) => {
                            spm.encode(&text[range.clone()], range.start, prefix, out)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// SHA-256 of the vocabulary with all that tokens depend on.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Byte offsets in `text` where the text of a control token begins.
    pub(crate) fn control_starts(&self, text: &str) -> Vec<usize> {
        self.specials.control_starts(text)
    }

    /// The bytes that token `id` stands for (SPM: U+2581 as a blank, `<0xNN>` as the byte).
    pub fn piece(&self, id: u32) -> Option<&[u8]> {
        self.pieces.get(id as usize).map(|p| &**p)
    }

    /// The text of `id` as it stands in the vocabulary.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.vocab.tokens.get(id as usize).map(String::as_str)
    }

    /// The text of a whole sequence: control tokens skipped, broken UTF-8 as U+FFFD, and without the blank that SPM
    /// puts in front.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut decoder = self.stream_from_start();
        let mut out: String = ids.iter().map(|id| decoder.push(*id)).collect();
        out.push_str(&decoder.finish());
        out
    }

    /// A decoder for text that continues a prompt: a leading blank is kept.
    pub fn stream(&self) -> Decoder<'_> {
        Decoder::new(self, false)
    }

    /// A decoder for text from its very beginning: the blank that SPM puts in front is dropped.
    pub fn stream_from_start(&self) -> Decoder<'_> {
        Decoder::new(self, self.add_space_prefix)
    }

    /// Number of tokens.
    pub fn vocab_size(&self) -> usize {
        self.vocab.tokens.len()
    }

    /// Beginning of sequence.
    pub fn bos(&self) -> Option<u32> {
        self.vocab.bos
    }

    /// End of sequence.
    pub fn eos(&self) -> Option<u32> {
        self.vocab.eos
    }

    /// End of turn: the file's key, or a token recognised by its text.
    pub fn eot(&self) -> Option<u32> {
        self.vocab.eot
    }

    /// Whether a sequence begins with BOS.
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether generation ends at `id`.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.end_of_generation.binary_search(&id).is_ok()
    }

    /// All ids for which [`Tokenizer::is_end_of_generation`] holds, ascending.
    pub fn end_of_generation(&self) -> &[u32] {
        &self.end_of_generation
    }

    /// Whether `id` is a control or unknown token, which has no text of its own.
    pub fn is_special(&self, id: u32) -> bool {
        matches!(self.vocab.kind(id), TokenKind::Control | TokenKind::Unknown)
    }
}

/// SPM files may leave out the ids that SentencePiece itself uses.
fn set_spm_defaults(vocab: &mut Vocab) {
    let n = vocab.tokens.len();
    for (slot, id) in [(&mut vocab.unk, 0u32), (&mut vocab.bos, 1), (&mut vocab.eos, 2)] {
        if slot.is_none() && (id as usize) < n {
            *slot = Some(id);
        }
    }
}

/// Some converters mark end tokens as normal or user-defined; llama.cpp makes them control tokens by their text.
fn set_kinds_by_text(vocab: &mut Vocab) {
    if vocab.kinds.is_empty() {
        vocab.kinds = vec![TokenKind::Normal; vocab.tokens.len()];
    }
    for (token, kind) in vocab.tokens.iter().zip(&mut vocab.kinds) {
        if END_OF_GENERATION.contains(&token.as_str()) {
            *kind = TokenKind::Control;
        }
    }
    if vocab.eot.is_none() {
        let find = |text: &&str| vocab.tokens.iter().zip(0u32..).find(|(t, _)| t == text).map(|(_, id)| id);
        vocab.eot = END_OF_TURN.iter().find_map(find);
    }
}

fn end_of_generation(vocab: &Vocab) -> Vec<u32> {
    let by_text = vocab.tokens.iter().zip(0u32..);
    let by_text = by_text.filter(|(t, _)| END_OF_GENERATION.contains(&t.as_str())).map(|(_, id)| id);
    let mut ids: Vec<u32> = by_text.chain([vocab.eos, vocab.eot, vocab.eom].into_iter().flatten()).collect();
    ids.sort_unstable();
    ids.dedup();
    // Harmony's `<|end|>` ends a message, not the answer, where `<|return|>` and `<|call|>` do.
    let has = |text: &str| ids.iter().any(|id| vocab.tokens.get(*id as usize).is_some_and(|t| t == text));
    if has("<|return|>") && has("<|call|>") {
        ids.retain(|id| vocab.tokens.get(*id as usize).is_none_or(|t| t != "<|end|>"));
    }
    ids
}

fn piece_bytes(vocab: &Vocab, spm: bool, id: u32, token: &str) -> Box<[u8]> {
    match vocab.kind(id) {
        TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown => token.as_bytes().into(),
        TokenKind::Byte if spm => spm::byte_of(token).map(|b| vec![b]).unwrap_or_default().into(),
        _ if spm => token.replace(spm::BLANK, " ").into_bytes().into(),
        _ => {
            let mut bytes = Vec::with_capacity(token.len());
            for c in token.chars() {
                match bpe::char_byte(c) {
                    Some(byte) => bytes.push(byte),
                    None => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
                }
            }
            bytes.into()
        }
    }
}
