//! The vocabulary of a Hugging Face `tokenizer.json`, for the byte-level BPE of GPT-2, Llama 3, Qwen and SmolLM.
//!
//! Only what a GGUF file can say too is accepted, so that llama.cpp will give the same ids; everything else is an error.
//! Two differences are llama.cpp's own: text is not brought to the normal form NFC first (Qwen), and an upper-case
//! contraction never holds U+017F.

use std::collections::HashMap;
use std::fmt;

use planish_base::{Error, Result};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::from_slice;

use crate::pre::{Step, name_of};
use crate::tokenizer::END_OF_GENERATION;
use crate::vocab::{TokenKind, Vocab};

/// The largest in use have 35 MB.
const MAX_BYTES: usize = 128 << 20;
const CODE: &str = "tokenizer.json";

/// Read first: what the other kinds of model hold would not fit [`File`].
#[derive(serde::Deserialize)]
struct Head {
    model: Kind,
}

#[derive(serde::Deserialize)]
struct Kind {
    #[serde(rename = "type")]
    name: Option<String>,
}

#[derive(serde::Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Added>,
    normalizer: Option<Normalizer>,
    pre_tokenizer: Option<PreTokenizer>,
    post_processor: Option<PostProcessor>,
    model: Bpe,
}

#[derive(serde::Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
}

#[derive(serde::Deserialize)]
struct Normalizer {
    #[serde(rename = "type")]
    name: String,
    normalizers: Option<Vec<Normalizer>>,
}

#[derive(serde::Deserialize)]
struct PreTokenizer {
    #[serde(rename = "type")]
    name: String,
    pretokenizers: Option<Vec<PreTokenizer>>,
    pattern: Option<Pattern>,
    behavior: Option<String>,
    #[serde(default)]
    invert: bool,
    add_prefix_space: Option<bool>,
    use_regex: Option<bool>,
    #[serde(default)]
    individual_digits: bool,
}

#[derive(serde::Deserialize)]
enum Pattern {
    Regex(String),
    String(String),
}

#[derive(serde::Deserialize)]
struct PostProcessor {
    #[serde(rename = "type")]
    name: String,
    processors: Option<Vec<PostProcessor>>,
    /// Of a template: what stands around one text.
    single: Option<Vec<Piece>>,
    special_tokens: Option<HashMap<String, SpecialToken>>,
}

#[derive(serde::Deserialize)]
enum Piece {
    SpecialToken { id: String },
    Sequence {},
}

#[derive(serde::Deserialize)]
struct SpecialToken {
    ids: Vec<u32>,
}

#[derive(serde::Deserialize)]
struct Bpe {
    dropout: Option<f64>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    vocab: Ids,
    merges: Vec<Merge>,
}

/// Both spellings: `"a b"`, and `["a", "b"]` since 2024.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Merge {
    Text(String),
    Pair(String, String),
}

/// Texts and ids in the order of the file: a map would hide that a text occurs twice.
struct Ids(Vec<(String, u32)>);

impl<'de> Deserialize<'de> for Ids {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Ids;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of token texts and ids")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ids, A::Error> {
                let mut ids = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    ids.push(entry);
                }
                Ok(Ids(ids))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// The part of `tokenizer_config.json` that says what single tokens are for.
#[derive(Default, serde::Deserialize)]
struct Config {
    bos_token: Option<Named>,
    eos_token: Option<Named>,
    unk_token: Option<Named>,
    pad_token: Option<Named>,
    add_bos_token: Option<bool>,
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Named {
    Text(String),
    Token { content: String },
}

impl Vocab {
    /// Reads a `tokenizer.json` of byte-level BPE, and `tokenizer_config.json` where there is one.
    ///
    /// BOS, EOS, unknown and padding tokens are those that the configuration names. Without it BOS is what the
    /// post-processor puts in front, and EOS the one special token that is known to end a text, if there is just one.
    /// Whether BOS is added is what the post-processor does, else what the configuration says, else no.
    ///
    /// Errors: another kind of tokenizer; steps that a GGUF file cannot name; ids with holes, texts or ids that occur twice.
    /// Merges are checked when a [`crate::Tokenizer`] is made of the vocabulary.
    pub fn from_tokenizer_json(bytes: &[u8], config: Option<&[u8]>) -> Result<Vocab> {
        for size in [bytes.len(), config.map_or(0, <[u8]>::len)] {
            if size > MAX_BYTES {
                return Err(Error::input(CODE, format!("a file of {size} bytes, at most {MAX_BYTES}")));
            }
        }
        let head: Head = from_slice(bytes).map_err(|e| syntax(CODE, e))?;
        if let Some(name) = head.model.name.filter(|name| name != "BPE") {
            return Err(unsupported(format!("a model of type {name:?}, expected \"BPE\"")));
        }
        let file: File = from_slice(bytes).map_err(|e| syntax(CODE, e))?;
        let config = match config {
            Some(config) => from_slice(config).map_err(|e| syntax("tokenizer_config.json", e))?,
            None => Config::default(),
        };
        check_model(&file.model)?;
        check_normalizer(file.normalizer.as_ref())?;
        let mut vocab = Vocab {
            model: "gpt2".into(),
            pre: Some(pre_name(file.pre_tokenizer.as_ref(), file.model.ignore_merges)?.into()),
            merges: file.model.merges.into_iter().map(joined).collect::<Result<_>>()?,
            ..Vocab::default()
        };
        set_tokens(&mut vocab, file.model.vocab.0, &file.added_tokens)?;
        set_specials(&mut vocab, &config, file.post_processor.as_ref())?;
        vocab.check()?;
        Ok(vocab)
    }
}

fn syntax(file: &str, e: serde_json::Error) -> Error {
    // It may quote a whole string of the file.
    let why: String = e.to_string().chars().take(200).collect();
    Error::input(CODE, format!("cannot read the {file}: {why}"))
}

fn unsupported(what: String) -> Error {
    Error::input(CODE, format!("the tokenizer.json has {what}"))
        .with_hint("convert the model to GGUF with llama.cpp and take the tokenizer from that file")
}

fn check_model(model: &Bpe) -> Result<()> {
    let affix = |s: &Option<String>| s.as_ref().is_some_and(|s| !s.is_empty());
    let found = [
        (model.dropout.is_some_and(|p| p != 0.0), "dropout"),
        (affix(&model.continuing_subword_prefix), "a prefix of continuing subwords"),
        (affix(&model.end_of_word_suffix), "a suffix at the ends of words"),
        (model.byte_fallback, "byte fallback instead of byte-level tokens"),
    ];
    match found.into_iter().find(|(found, _)| *found) {
        Some((_, what)) => Err(unsupported(what.into())),
        None => Ok(()),
    }
}

fn check_normalizer(normalizer: Option<&Normalizer>) -> Result<()> {
    match normalizer {
        None => Ok(()),
        Some(n) if n.name == "NFC" => Ok(()),
        Some(n) if n.name == "Sequence" => {
            n.normalizers.iter().flatten().try_for_each(|n| check_normalizer(Some(n)))
        }
        Some(n) => Err(unsupported(format!("a normalizer {:?}", n.name))),
    }
}

/// The name that llama.cpp has for the steps.
fn pre_name(pre: Option<&PreTokenizer>, ignore_merges: bool) -> Result<&'static str> {
    let mut steps = Vec::new();
    let mut byte_level = false;
    if let Some(pre) = pre {
        collect_steps(pre, &mut steps, &mut byte_level)?;
    }
    if !byte_level {
        return Err(unsupported("no pre-tokenizer \"ByteLevel\" in last place".into()));
    }
    name_of(&steps, ignore_merges).ok_or_else(|| {
        let texts: Vec<&str> = steps
            .iter()
            .map(|step| match step {
                Step::Words => "ByteLevel",
                Step::Digits => "Digits",
                Step::Split(pattern) => pattern,
            })
            .collect();
        let merges =
            if ignore_merges { "that looks whole words up" } else { "without a look at whole words" };
        unsupported(format!("an unknown pre-tokenizer {merges}: {}", texts.join(", then ")))
    })
}

fn collect_steps<'a>(pre: &'a PreTokenizer, steps: &mut Vec<Step<'a>>, byte_level: &mut bool) -> Result<()> {
    if *byte_level {
        return Err(unsupported(format!("a pre-tokenizer {:?} after \"ByteLevel\"", pre.name)));
    }
    match (pre.name.as_str(), &pre.pattern) {
        ("Sequence", _) => {
            pre.pretokenizers.iter().flatten().try_for_each(|p| collect_steps(p, steps, byte_level))?;
        }
        ("Digits", _) if pre.individual_digits => steps.push(Step::Digits),
        ("Split", Some(Pattern::Regex(pattern)))
            if pre.behavior.as_deref() == Some("Isolated") && !pre.invert =>
        {
            steps.push(Step::Split(pattern));
        }
        ("Split", Some(Pattern::String(text))) => {
            return Err(unsupported(format!("a pre-tokenizer \"Split\" by the text {text:?}")));
        }
        ("ByteLevel", _) if pre.add_prefix_space == Some(false) => {
            *byte_level = true;
            if pre.use_regex != Some(false) {
                steps.push(Step::Words);
            }
        }
        (name, _) => return Err(unsupported(format!("a pre-tokenizer {name:?} with settings of its own"))),
    }
    Ok(())
}

/// One rule in the spelling of GGUF.
fn joined(merge: Merge) -> Result<String> {
    match merge {
        Merge::Text(text) => Ok(text),
        Merge::Pair(left, right) if left.contains(' ') || right.contains(' ') => {
            Err(Error::input(CODE, format!("the merge of {left:?} and {right:?} has a blank inside")))
        }
        Merge::Pair(left, right) => Ok(format!("{left} {right}")),
    }
}

/// Tokens and kinds by id, which must be all of 0 to n - 1.
fn set_tokens(vocab: &mut Vocab, ids: Vec<(String, u32)>, added: &[Added]) -> Result<()> {
    // More slots than entries would only be holes.
    let most = ids.len() + added.len();
    let mut slots: Vec<Option<(String, TokenKind)>> = vec![None; most];
    let outside =
        |id: u32| Error::input(CODE, format!("token id {id}, expected ids without holes, so below {most}"));
    for (text, id) in ids {
        let slot = slots.get_mut(id as usize).ok_or_else(|| outside(id))?;
        if let Some((other, _)) = slot.replace((text, TokenKind::Normal)) {
            return Err(Error::input(
                CODE,
                format!("token id {id} is that of {other:?} and of another text"),
            ));
        }
    }
    for token in added {
        if token.single_word || token.lstrip || token.rstrip {
            let text = format!("a token {:?} that depends on what is beside it", token.content);
            return Err(unsupported(text));
        }
        let slot = slots.get_mut(token.id as usize).ok_or_else(|| outside(token.id))?;
        let kind = if token.special { TokenKind::Control } else { TokenKind::UserDefined };
        match slot.replace((token.content.clone(), kind)) {
            Some((other, _)) if other != token.content => {
                let text = format!("token id {} is that of {other:?} and {:?}", token.id, token.content);
                return Err(Error::input(CODE, text));
            }
            _ => {}
        }
    }
    let n = slots.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    for (id, slot) in slots.into_iter().take(n).enumerate() {
        let (token, kind) = slot.ok_or_else(|| Error::input(CODE, format!("no token has the id {id}")))?;
        vocab.tokens.push(token);
        vocab.kinds.push(kind);
    }
    Ok(())
}

fn set_specials(vocab: &mut Vocab, config: &Config, post: Option<&PostProcessor>) -> Result<()> {
    let id_of = |what: &str, token: &Option<Named>| -> Result<Option<u32>> {
        let Some(Named::Text(text) | Named::Token { content: text }) = token else { return Ok(None) };
        match vocab.tokens.iter().position(|t| t == text) {
            Some(id) => Ok(u32::try_from(id).ok()),
            None => {
                let text = format!("{what} of the tokenizer_config.json is {text:?}, which is not a token");
                Err(Error::input(CODE, text))
            }
        }
    };
    let bos = id_of("bos_token", &config.bos_token)?;
    let eos = id_of("eos_token", &config.eos_token)?;
    let unk = id_of("unk_token", &config.unk_token)?;
    let pad = id_of("pad_token", &config.pad_token)?;
    let in_front = post.map_or(Ok(None), in_front)?;
    let eos = eos.or_else(|| only_end(vocab));
    (vocab.bos, vocab.eos, vocab.unk, vocab.pad) = (in_front.or(bos), eos, unk, pad);
    vocab.add_bos = Some(match in_front {
        Some(_) => true,
        None => config.add_bos_token.unwrap_or(false),
    });
    Ok(())
}

/// The token that a post-processor puts in front of a text. What a template puts behind it is left to whoever makes
/// training examples, as a prompt must not end with it.
fn in_front(post: &PostProcessor) -> Result<Option<u32>> {
    match post.name.as_str() {
        "ByteLevel" => Ok(None),
        "Sequence" => {
            let found = post.processors.iter().flatten().map(in_front);
            let found: Vec<Option<u32>> = found.collect::<Result<_>>()?;
            Ok(found.into_iter().flatten().next())
        }
        "TemplateProcessing" => match post.single.as_deref().unwrap_or_default() {
            [Piece::Sequence {}, ..] => Ok(None),
            [Piece::SpecialToken { id }, Piece::Sequence {}, ..] => {
                let token = post.special_tokens.as_ref().and_then(|tokens| tokens.get(id));
                match token.map(|t| t.ids.as_slice()) {
                    Some([id]) => Ok(Some(*id)),
                    _ => Err(unsupported(format!("a template without a single id of {id:?}"))),
                }
            }
            _ => Err(unsupported("a template with more than one token in front of a text".into())),
        },
        name => Err(unsupported(format!("a post-processor {name:?}"))),
    }
}

fn only_end(vocab: &Vocab) -> Option<u32> {
    let ends = |id: &u32| {
        vocab.kind(*id) == TokenKind::Control
            && vocab.tokens.get(*id as usize).is_some_and(|t| END_OF_GENERATION.contains(&t.as_str()))
    };
    let mut found = (0..vocab.tokens.len() as u32).filter(ends);
    found.next().filter(|_| found.next().is_none())
}
