//! `planish generate`: continues a prompt.

use std::io::Read;
use std::time::Instant;

use planish_base::{Error, Result};
use planish_engine::{Generated, Model, Sampler, SamplerOptions, Session, StopReason};
use planish_text::{Encoder, Message};
use serde::Serialize;

use crate::Context;
use crate::date::today;
use crate::flags::{AdapterFlags, ModelFlags, SamplingFlags, TemplateFlags, check_ids};
use crate::output::{self, Out};

/// A prompt larger than this is a mistake.
const MAX_PROMPT_BYTES: u64 = 64 << 20;

/// Continue a prompt; the text streams to stdout
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelFlags,

    /// Text to continue; - reads it from stdin, without its last line ending
    #[arg(short, long, value_name = "TEXT", required_unless_present = "prompt_ids")]
    #[arg(allow_hyphen_values = true)]
    prompt: Option<String>,

    /// Token ids to continue, such as 1,2,3, for models without a tokenizer
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with_all = ["prompt", "chat"])]
    prompt_ids: Option<Vec<u32>>,

    /// The prompt is a user's message: put it into the model's chat template
    #[arg(long)]
    chat: bool,

    /// A system message before it
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,

    /// Most tokens to generate
    #[arg(short, long = "tokens", value_name = "N", default_value_t = 256)]
    n: usize,

    #[command(flatten)]
    adapters: AdapterFlags,

    #[command(flatten)]
    sampling: SamplingFlags,

    #[command(flatten)]
    template: TemplateFlags,
}

/// The result with `--json`.
#[derive(Serialize)]
pub struct Report {
    text: Option<String>,
    ids: Vec<u32>,
    reason: &'static str,
    prompt_tokens: usize,
    tokens_per_second: f64,
    seconds: f64,
}

impl Report {
    /// `text` is none where the model has no tokenizer.
    pub fn new(generated: Generated, prompt_tokens: usize, has_text: bool, start: Instant) -> Report {
        let seconds = start.elapsed().as_secs_f64();
        Report {
            tokens_per_second: generated.ids.len() as f64 / seconds.max(1e-9),
            text: has_text.then_some(generated.text),
            ids: generated.ids,
            reason: reason_name(generated.reason),
            prompt_tokens,
            seconds,
        }
    }

    /// The remark on stderr.
    pub fn note(&self) -> String {
        format!(
            "{} prompt tokens, {} generated, {:.1} tokens/s, {}",
            self.prompt_tokens,
            self.ids.len(),
            self.tokens_per_second,
            self.reason
        )
    }
}

/// Runs the command.
///
/// # Errors
/// For wrong files and flags, a prompt that does not fit, and an interrupt.
pub fn run(args: Args, cx: &Context) -> Result<()> {
    let options = args.sampling.options(SamplerOptions::default())?;
    let mut model = Model::open(&args.model.model)?;
    args.template.apply(&mut model, Some(today()))?;
    let prompt = prompt(&args, &model)?;
    let mut engine = args.model.session_engine(model)?;
    let has_text = engine.model.tokenizer.is_some();
    let adapters = args.adapters.attach(&mut engine)?;
    let mut session = Session::new(&mut engine, &adapters.iter().collect::<Vec<_>>())?;
    let mut sampler = Sampler::new(options)?;
    let mut out = Out::new();
    let start = Instant::now();
    let stop = args.sampling.stop(args.n);
    let generated = stream(&mut session, &prompt, &mut sampler, &stop, cx, &mut out)?;
    let report = Report::new(generated, prompt.len(), has_text, start);
    match (cx.json, has_text) {
        (true, _) => out.json(&report)?,
        (false, true) => out.line("")?,
        (false, false) => out.line(&join(&report.ids))?,
    }
    out.flush()?;
    if !cx.json {
        output::note(&report.note());
    }
    cx.interrupt.check()
}

/// Generates; without `--json` the text appears as it comes. A reader that has gone stops the generation.
pub fn stream(
    session: &mut Session,
    prompt: &[u32],
    sampler: &mut Sampler,
    stop: &planish_engine::Stop,
    cx: &Context,
    out: &mut Out,
) -> Result<Generated> {
    let mut failed = None;
    let mut show = |text: &str| {
        if cx.json || failed.is_some() {
            return;
        }
        if let Err(e) = out.text(text).and_then(|()| out.flush()) {
            failed = Some(e);
            cx.cancel().cancel();
        }
    };
    let generated = planish_engine::generate(session, prompt, sampler, stop, cx.cancel(), &mut show)?;
    match failed {
        Some(e) => Err(e),
        None => Ok(generated),
    }
}

fn prompt(args: &Args, model: &Model) -> Result<Vec<u32>> {
    if let Some(ids) = &args.prompt_ids {
        check_ids(ids, model.spec.vocab)?;
        return Ok(ids.clone());
    }
    let tokenizer = model.tokenizer.as_ref().ok_or_else(|| {
        Error::input("no tokenizer", format!("{}: the model has no tokenizer", model.path.display()))
            .with_hint("give token ids with --prompt-ids, or use a GGUF file that has a tokenizer")
    })?;
    let text = match args.prompt.as_deref() {
        Some("-") => read_stdin()?,
        text => text.unwrap_or_default().to_owned(),
    };
    if !args.chat {
        return tokenizer.prompt(&text);
    }
    let template = Some(model.template()?);
    let mut messages: Vec<Message> = Vec::new();
    messages.extend(args.system.as_ref().map(|s| Message::new("system", s)));
    messages.push(Message::new("user", text));
    let encoder = Encoder { tokenizer: Some(tokenizer), template, specials_in_content: false };
    encoder.chat_prompt(&messages, None)
}

fn read_stdin() -> Result<String> {
    let mut bytes = Vec::new();
    let stdin = std::io::stdin().lock();
    stdin
        .take(MAX_PROMPT_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| Error::resource("io", format!("cannot read stdin: {e}")))?;
    if bytes.len() as u64 > MAX_PROMPT_BYTES {
        return Err(Error::input("too large", format!("stdin has more than {MAX_PROMPT_BYTES} bytes")));
    }
    let mut text =
        String::from_utf8(bytes).map_err(|e| Error::input("utf-8", format!("stdin is not UTF-8: {e}")))?;
    // As `$(command)` does in a shell: a file's last line ending is not part of the prompt.
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

fn reason_name(reason: StopReason) -> &'static str {
    match reason {
        StopReason::End => "end",
        StopReason::Text => "stop",
        StopReason::Length => "length",
        StopReason::Context => "context",
        StopReason::Cancelled => "cancelled",
    }
}

fn join(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}
