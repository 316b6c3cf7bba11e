//! Pre-tokenizers of byte-level BPE: how text is cut into words before merging.
//!
//! The patterns are those of llama.cpp. They run on a linear-time engine, which has no look-ahead; `\s+(?!\S)`, the
//! only one in use, is made by [`Stage::next`] instead.

use planish_base::{Error, Result};
use regex::Regex;

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
const LLAMA3: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const QWEN2: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const QWEN35: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";

/// A family of `tokenizer.ggml.pre` names that cut text alike.
struct Rule {
    names: &'static [&'static str],
    /// Applied one after the other, each inside the pieces of the one before.
    patterns: &'static [&'static str],
    /// A word that is a token as it stands is not merged.
    ignore_merges: bool,
    /// The default of `add_bos_token`.
    add_bos: bool,
}

static RULES: &[Rule] = &[
    Rule {
        names: &["default"],
        patterns: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
        ignore_merges: false,
        add_bos: false,
    },
    Rule {
        names: &["gpt-2", "phi-2", "olmo", "mpt", "jais", "trillion", "exaone4"],
        patterns: &[GPT2],
        ignore_merges: false,
        add_bos: false,
    },
    Rule {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"],
        patterns: &[r"\p{N}", GPT2],
        ignore_merges: false,
        add_bos: false,
    },
    Rule {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"],
        patterns: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
    },
    Rule { names: &["dbrx", "smaug-bpe"], patterns: &[LLAMA3], ignore_merges: false, add_bos: false },
    Rule {
        names: &["qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan"],
        patterns: &[QWEN2],
        ignore_merges: false,
        add_bos: false,
    },
    Rule { names: &["qwen35"], patterns: &[QWEN35], ignore_merges: false, add_bos: false },
];

/// What a Hugging Face pre-tokenizer does, one step after the other, in the terms of the table above.
pub(crate) enum Step<'a> {
    /// `ByteLevel` with its own expression, which is GPT-2's.
    Words,
    /// `Digits`, each on its own.
    Digits,
    /// `Split` by an expression.
    Split(&'a str),
}

/// The name of the rule that does these steps and looks whole words up or not, if the table has one.
pub(crate) fn name_of(steps: &[Step<'_>], ignore_merges: bool) -> Option<&'static str> {
    let patterns: Vec<String> = steps
        .iter()
        .map(|step| match step {
            Step::Words => GPT2.to_owned(),
            Step::Digits => r"\p{N}".to_owned(),
            Step::Split(pattern) => without_look_ahead(pattern),
        })
        .collect();
    let same = |r: &&Rule| r.ignore_merges == ignore_merges && r.patterns.iter().eq(patterns.iter());
    RULES.iter().find(same).map(|r| r.names[0])
}

/// Hugging Face's spelling of an expression in the spelling of the table: the look-ahead left to [`Stage::next`], and
/// letters of both cases written out, as llama.cpp has them.
fn without_look_ahead(pattern: &str) -> String {
    pattern
        .replace(r"\s+(?!\S)|\s+", r"\s+")
        .replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]")
}

/// A compiled rule.
#[derive(Debug)]
pub(crate) struct Pre {
    stages: Vec<Stage>,
    pub(crate) ignore_merges: bool,
    pub(crate) add_bos: bool,
}

#[derive(Debug)]
struct Stage {
    regex: Regex,
    spaces: bool,
    newlines: bool,
}

impl Pre {
    /// The rule called `name`; an absent name is `default`, as in llama.cpp. Errors: an unknown name.
    pub(crate) fn new(name: Option<&str>) -> Result<Pre> {
        let name = name.filter(|n| !n.is_empty()).unwrap_or("default");
        let Some(rule) = RULES.iter().find(|r| r.names.contains(&name)) else {
            let known: Vec<&str> = RULES.iter().flat_map(|r| r.names.iter().copied()).collect();
            let text = format!("tokenizer.ggml.pre is {name:?}, a pre-tokenizer that is not supported");
            return Err(Error::input("pre-tokenizer", text).with_hint(format!("known: {}", known.join(", "))));
        };
        let stages = rule.patterns.iter().map(|p| Stage::new(p)).collect::<Result<_>>()?;
        Ok(Pre { stages, ignore_merges: rule.ignore_merges, add_bos: rule.add_bos })
    }

    /// Calls `word` with each word of `text`, in order; the words joined give `text`.
    pub(crate) fn words<'t>(&self, text: &'t str, word: &mut dyn FnMut(&'t str) -> Result<()>) -> Result<()> {
        cut(&self.stages, text, word)
    }
}

fn cut<'t>(stages: &[Stage], text: &'t str, word: &mut dyn FnMut(&'t str) -> Result<()>) -> Result<()> {
    let Some((stage, rest)) = stages.split_first() else { return word(text) };
    let mut at = 0;
    while let Some((start, end)) = stage.next(text, at) {
        if at < start {
            cut(rest, &text[at..start], word)?;
        }
        cut(rest, &text[start..end], word)?;
        at = end;
    }
    if at < text.len() {
        cut(rest, &text[at..], word)?;
    }
    Ok(())
}

impl Stage {
    fn new(pattern: &str) -> Result<Stage> {
        let regex = Regex::new(pattern)
            .map_err(|e| Error::input("pre-tokenizer", "pattern does not compile").with_source(e))?;
        let newlines = pattern.contains(r"\s*[\r\n]+");
        Ok(Stage { regex, spaces: pattern.ends_with(r"|\s+"), newlines })
    }

    /// The next match at or after byte `at`.
    fn next(&self, text: &str, at: usize) -> Option<(usize, usize)> {
        let found = self.regex.find_at(text, at)?;
        let (start, end) = (found.start(), found.end());
        if end == start {
            return None;
        }
        // `\s+(?!\S)`: white space before a word leaves its last character to that word. What ends in a line break
        // was matched by `\s*[\r\n]+`, where there is one, and has no look-ahead.
        let taken = found.as_str();
        let by_line_break = self.newlines && taken.ends_with(['\r', '\n']);
        if self.spaces && !by_line_break && end < text.len() && taken.chars().all(char::is_whitespace) {
            let last = taken.chars().next_back().map_or(0, char::len_utf8);
            if last < taken.len() {
                return Some((start, end - last));
            }
        }
        Some((start, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(pre: &str, text: &str) -> Vec<String> {
        let mut out = Vec::new();
        let mut push = |w: &str| {
            out.push(w.to_owned());
            Ok(())
        };
        Pre::new(Some(pre)).unwrap().words(text, &mut push).unwrap();
        out
    }

    #[test]
    fn white_space_leaves_its_last_blank_to_the_word() {
        assert_eq!(words("gpt-2", "a   b \n c  "), ["a", "  ", " b", " \n", " c", "  "]);
        assert_eq!(words("llama-bpe", "a\n\n  b"), ["a", "\n\n", " ", " b"]);
        assert_eq!(words("smollm", "x  12"), ["x", "  ", "1", "2"]);
        assert_eq!(words("llama-bpe", "1234"), ["123", "4"]);
        assert_eq!(words("qwen2", "I'LL 12"), ["I", "'LL", " ", "1", "2"]);
    }

    #[test]
    fn unknown_names_are_refused_with_the_known_ones() {
        let e = Pre::new(Some("nope")).unwrap_err();
        assert_eq!(e.code(), "pre-tokenizer");
        assert!(e.hint().unwrap().contains("smollm"));
    }
}
