//! `planish eval`: loss and perplexity of a model on data.

use std::path::PathBuf;

use planish_base::{Error, Result};
use planish_engine::score::{self, Summary, TokenScore};
use planish_engine::{Engine, Model};
use planish_text::{LengthPolicy, Tokenizer};
use serde::Serialize;

use crate::Context;
use crate::flags::{AdapterFlags, ModelFlags, TemplateFlags, length_policy, load_data, longest};
use crate::output::{self, Out};

/// Compute the loss and perplexity of a model on data
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelFlags,

    /// Files of JSON lines (messages, prompt/completion, text, or input_ids), of text, or of token ids (.bin, .toyc);
    /// patterns of files, such as 'data/*.txt'; `-` for standard input
    #[arg(value_name = "DATA", required = true)]
    data: Vec<PathBuf>,

    /// Print each scored token with its log-probability
    #[arg(long)]
    logprobs: bool,

    /// With each token, the N most probable ones
    #[arg(long, value_name = "N", default_value_t = 0, requires = "logprobs")]
    top: usize,

    /// What becomes of examples longer than the context
    #[arg(long, value_name = "POLICY", default_value = "error", value_parser = length_policy())]
    max_length_policy: LengthPolicy,

    #[command(flatten)]
    adapters: AdapterFlags,

    #[command(flatten)]
    template: TemplateFlags,
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
    let limit = args.model.context.unwrap_or(model.spec.context);
    let data = load_data(&args.data, &model, limit, args.max_length_policy)?;
    let longest = longest(&data);
    let mut engine = args.model.engine(model, args.model.context.unwrap_or(longest), longest)?;
    let adapters = args.adapters.attach(&mut engine)?;
    let adapters: Vec<_> = adapters.iter().collect();
    // What cannot fit is refused now, not after half of the examples.
    let examples: Vec<_> = data.examples.iter().collect();
    engine.reserve(score::arena_bytes(&engine, &examples, &adapters, args.top))?;
    let mut summary = Summary::default();
    let mut out = Out::new();
    for (doc, example) in data.examples.iter().enumerate() {
        cx.interrupt.check()?;
        let scores = score::example(&mut engine, example, &adapters, args.top)?;
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
