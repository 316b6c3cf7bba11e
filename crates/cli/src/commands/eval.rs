//! `planish eval`: loss and perplexity of a model on data.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser;
use planish_base::{Error, Result};
use planish_engine::score::{self, Summary, TokenScore};
use planish_engine::{Engine, Model};
use planish_text::{LengthPolicy, LoadOptions, Tokenizer};
use serde::Serialize;

use crate::Context;
use crate::flags::{ModelFlags, TemplateFlags};
use crate::output::{self, Out};

/// Compute the loss and perplexity of a model on data
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelFlags,

    /// Files of JSON lines (messages, prompt/completion, text, or input_ids) or of text
    #[arg(value_name = "DATA", required = true)]
    data: Vec<PathBuf>,

    /// Print each scored token with its log-probability
    #[arg(long)]
    logprobs: bool,

    /// With each token, the N most probable ones
    #[arg(long, value_name = "N", default_value_t = 0, requires = "logprobs")]
    top: usize,

    /// What becomes of examples longer than the context
    #[arg(long, value_name = "POLICY", default_value = "error", value_parser = policy())]
    max_length_policy: LengthPolicy,

    #[command(flatten)]
    template: TemplateFlags,
}

fn policy() -> impl TypedValueParser<Value = LengthPolicy> {
    PossibleValuesParser::new(LengthPolicy::ALL.iter().map(|(name, _)| *name)).map(|chosen| {
        let found = LengthPolicy::ALL.iter().find(|(name, _)| *name == chosen);
        found.map_or(LengthPolicy::Error, |(_, policy)| *policy)
    })
}

/// A token with `--logprobs --json`.
#[derive(Serialize)]
struct TokenLine<'a> {
    doc: usize,
    pos: usize,
    id: u32,
    text: Option<String>,
    logprob: f32,
    top: &'a [(u32, f32)],
}

#[derive(Serialize)]
struct SummaryLine {
    summary: Totals,
}

#[derive(Serialize)]
struct Totals {
    loss: f64,
    ppl: f64,
    tokens: u64,
    examples: usize,
    dropped: usize,
    truncated: usize,
    split: usize,
}

/// Runs the command.
///
/// # Errors
/// For wrong files, data and flags, and an interrupt.
pub fn run(args: Args, cx: &Context) -> Result<()> {
    let mut model = Model::open(&args.model.model)?;
    args.template.apply(&mut model, None)?;
    if args.top > model.spec.vocab {
        let message = format!("--top {} is more than the {} tokens there are", args.top, model.spec.vocab);
        return Err(Error::usage("top", message));
    }
    let options = LoadOptions {
        context: args.model.context.unwrap_or(model.spec.context),
        policy: args.max_length_policy,
        ..LoadOptions::default()
    };
    let data = planish_text::load(&args.data, model.tokenizer.as_ref(), model.template.as_ref(), &options)?;
    for e in &data.examples {
        check_vocab(&e.ids, model.spec.vocab).map_err(|err| err.at(&e.place))?;
    }
    let longest = data.examples.iter().map(|e| e.ids.len()).max().unwrap_or(1);
    let context = args.model.context.unwrap_or(longest);
    let mut engine = args.model.engine(model, context, longest)?;
    let mut summary = Summary::default();
    let mut out = Out::new();
    for (doc, example) in data.examples.iter().enumerate() {
        cx.interrupt.check()?;
        let scores = score::example(&mut engine, example, &[], args.top)?;
        if args.logprobs {
            write_tokens(&engine, doc, &scores, cx.json, &mut out)?;
        }
        summary.add(&scores);
    }
    let r = &data.report;
    let totals = Totals {
        loss: summary.loss(),
        ppl: summary.perplexity(),
        tokens: summary.tokens,
        examples: r.examples,
        dropped: r.dropped,
        truncated: r.truncated,
        split: r.split,
    };
    write_totals(totals, cx.json, &mut out)?;
    out.flush()
}

/// Data of token ids need no tokenizer, so only the model knows which ids exist.
fn check_vocab(ids: &[u32], vocab: usize) -> Result<()> {
    match ids.iter().position(|id| *id as usize >= vocab) {
        Some(i) => {
            let message = format!("token {i} is {}, expected an id below {vocab}", ids[i]);
            Err(Error::input("token id", message).with_hint("the data were made for another tokenizer"))
        }
        None => Ok(()),
    }
}

fn write_tokens(engine: &Engine, doc: usize, scores: &[TokenScore], json: bool, out: &mut Out) -> Result<()> {
    let tokenizer = engine.model.tokenizer.as_ref();
    for s in scores {
        let text = tokenizer.map(|t| piece(t, s.id));
        if json {
            let (pos, id, logprob) = (s.position, s.id, s.logprob);
            out.json(&TokenLine { doc, pos, id, text, logprob, top: &s.top })?;
            continue;
        }
        let text = text.unwrap_or_default();
        let mut line = format!("{doc}\t{}\t{}\t{:.4}\t{}", s.position, s.id, s.logprob, text.escape_debug());
        for (id, logprob) in &s.top {
            line += &format!("\t{id}:{logprob:.4}");
        }
        out.line(&line)?;
    }
    Ok(())
}

/// The text of a token by itself; bytes that are part of a character come out as U+FFFD.
fn piece(tokenizer: &Tokenizer, id: u32) -> String {
    String::from_utf8_lossy(tokenizer.piece(id).unwrap_or_default()).into_owned()
}

fn write_totals(totals: Totals, json: bool, out: &mut Out) -> Result<()> {
    if json {
        return out.json(&SummaryLine { summary: totals });
    }
    let Totals { loss, ppl, tokens, examples, dropped, truncated, split } = totals;
    out.line(&format!("loss        {loss:.4}"))?;
    out.line(&format!("perplexity  {ppl:.4}"))?;
    out.line(&format!("tokens      {tokens} in {examples} examples"))?;
    if dropped + truncated + split > 0 {
        output::note(&format!(
            "note: longer than the context: {dropped} dropped, {truncated} truncated, {split} split"
        ));
    }
    Ok(())
}
