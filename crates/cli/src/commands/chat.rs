//! `planish chat`: a conversation, line by line.

use std::io::{BufRead, IsTerminal, Write};
use std::time::Instant;

use planish_base::Result;
use planish_engine::{Model, Sampler, SamplerOptions, Session, Stop, StopReason};
use planish_store::fs::Lines;
use planish_text::{Encoder, Message};
use serde::Serialize;

use super::generate::{Report, stream};
use crate::Context;
use crate::date::today;
use crate::flags::{AdapterFlags, ModelFlags, SamplingFlags, TemplateFlags};
use crate::output::{self, Out};

/// A longer line is not a message somebody typed.
const MAX_LINE_BYTES: usize = 1 << 20;

const HELP: &str = "\
Each line is a message. Lines that are commands:
  /reset        forget the conversation, keep the system message
  /system TEXT  set the system message; without TEXT, remove it
  /quit         end (as the end of input does)";

/// Talk to a model; each line of stdin is a message
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(flatten)]
    model: ModelFlags,

    /// The system message
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,

    /// Most tokens of an answer [default: what the context holds]
    #[arg(short, long = "tokens", value_name = "N")]
    n: Option<usize>,

    #[command(flatten)]
    adapters: AdapterFlags,

    #[command(flatten)]
    sampling: SamplingFlags,

    #[command(flatten)]
    template: TemplateFlags,
}

/// An answer with `--json`.
#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    report: Report,
    /// Tokens of the prompt that were still in the KV cache.
    reused_tokens: usize,
}

/// The conversation, and the tokens whose keys and values the session holds.
struct Chat<'a> {
    session: Session<'a>,
    cached: Vec<u32>,
    system: Option<String>,
    messages: Vec<Message>,
    sampler: Sampler,
    stop: Stop,
}

/// Runs the command.
///
/// # Errors
/// For wrong files and flags, a model without a chat template, and an interrupt; for a conversation that does not fit
/// when nobody sits at a terminal.
pub fn run(args: Args, cx: &Context) -> Result<()> {
    let default = SamplerOptions { temperature: 0.7, min_p: 0.05, ..SamplerOptions::default() };
    let options = args.sampling.options(default)?;
    let mut model = Model::open(&args.model.model)?;
    model.tokenizer()?;
    model.template()?;
    args.template.apply(&mut model, Some(today()))?;
    let mut engine = args.model.session_engine(model)?;
    let adapters = args.adapters.attach(&mut engine)?;
    let mut chat = Chat {
        session: Session::new(&mut engine, &adapters.iter().collect::<Vec<_>>())?,
        cached: Vec::new(),
        system: args.system.clone(),
        messages: Vec::new(),
        sampler: Sampler::new(options)?,
        stop: args.sampling.stop(args.n.unwrap_or(usize::MAX)),
    };
    let stdin = std::io::stdin();
    let at_terminal = stdin.is_terminal();
    if at_terminal {
        output::note(HELP);
    }
    let mut lines = Lines::new(stdin.lock(), "stdin".to_owned(), MAX_LINE_BYTES);
    let mut out = Out::new();
    while let Some(line) = next_line(&mut lines, at_terminal, cx)? {
        if !chat.command(&line) {
            match chat.answer(&line, cx, &mut out) {
                Err(e) if at_terminal && !output::is_broken_pipe(&e) => {
                    _ = crate::failure::report(&e, cx.json);
                }
                other => other?,
            }
        } else if line.trim() == "/quit" {
            break;
        }
        cx.interrupt.check()?;
    }
    out.flush()
}

/// The next line that is not blank.
fn next_line<R: BufRead>(lines: &mut Lines<R>, at_terminal: bool, cx: &Context) -> Result<Option<String>> {
    loop {
        if at_terminal {
            let mut stderr = std::io::stderr();
            _ = stderr.write_all(b"> ").and_then(|()| stderr.flush());
        }
        let line = cx.interrupt.while_waiting(|| lines.next_line().map(|l| l.map(|(_, t)| t.to_owned())))?;
        match line {
            Some(line) if line.trim().is_empty() => {}
            line => return Ok(line),
        }
    }
}

impl Chat<'_> {
    /// Executes a line that is a command; anything else is a message.
    fn command(&mut self, line: &str) -> bool {
        let (word, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        match (word, rest.trim()) {
            ("/reset", "") => self.messages.clear(),
            ("/system", text) => self.system = Some(text.to_owned()).filter(|t| !t.is_empty()),
            ("/quit", "") => {}
            _ => return false,
        }
        true
    }

    /// Answers a message. A message that could not be answered is forgotten.
    fn answer(&mut self, line: &str, cx: &Context, out: &mut Out) -> Result<()> {
        self.messages.push(Message::new("user", line));
        match self.generate(cx, out) {
            Ok(text) => {
                self.messages.push(Message::new("assistant", text));
                Ok(())
            }
            Err(e) => {
                self.messages.pop();
                Err(e)
            }
        }
    }

    fn generate(&mut self, cx: &Context, out: &mut Out) -> Result<String> {
        let start = Instant::now();
        let prompt = self.prompt()?;
        // At least one token is fed, since its logits are needed.
        let same = prompt.iter().zip(&self.cached).take_while(|(a, b)| a == b).count();
        let same = same.min(prompt.len().saturating_sub(1));
        self.session.truncate(same);
        self.cached.truncate(same);
        let new = &prompt[same..];
        let generated = stream(&mut self.session, new, &mut self.sampler, &self.stop, cx, out)?;
        // The last token may have been chosen without being fed.
        self.cached.extend(new.iter().chain(&generated.ids));
        self.cached.truncate(self.session.len());
        let text = generated.text.clone();
        if generated.reason == StopReason::Context && !cx.json {
            output::note("note: the context is full; /reset begins anew, --context gives more room");
        }
        let report = Report::new(generated, prompt.len(), true, start);
        match cx.json {
            true => out.json(&Answer { report, reused_tokens: same })?,
            false => out.line("")?,
        }
        out.flush()?;
        Ok(text)
    }

    /// The whole conversation as tokens.
    fn prompt(&self) -> Result<Vec<u32>> {
        let model = self.session.engine().model.clone();
        let system = self.system.iter().map(|s| Message::new("system", s));
        let messages: Vec<Message> = system.chain(self.messages.iter().cloned()).collect();
        let encoder = Encoder {
            tokenizer: Some(model.tokenizer()?),
            template: Some(model.template()?),
            specials_in_content: false,
        };
        encoder.chat_prompt(&messages, None)
    }
}
