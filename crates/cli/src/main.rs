//! `planish`: trains, fine-tunes, runs and looks into small language models.
//!
//! The only crate that prints, exits, or reads the environment. A command is one module of [`commands`]; flags that
//! several commands share are in [`flags`]. Results go to stdout, everything else to stderr.
#![forbid(unsafe_code)]

mod commands;
mod date;
mod env;
mod failure;
mod flags;
mod interrupt;
mod output;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use planish_base::{CancelToken, Result};

use crate::commands::{bench, chat, eval, generate, inspect, merge, train, tune, verify};
use crate::interrupt::Interrupt;

/// Trains, fine-tunes, runs and looks into small language models, on GGUF files and the CPU.
#[derive(Parser)]
#[command(name = "planish", version, max_term_width = 100, after_help = EXIT_CODES)]
struct Cli {
    /// Print results, and errors, as JSON, one object a line
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "\
Exit codes: 0 ok; 1 a check failed; 2 usage; 3 bad input; 4 resources (memory, disk);
5 training diverged; 130 interrupted";

#[derive(Subcommand)]
enum Command {
    Tune(Box<tune::Args>),
    Train(Box<train::Args>),
    Generate(generate::Args),
    Chat(chat::Args),
    Eval(eval::Args),
    Inspect(inspect::Args),
    Merge(merge::Args),
    Verify(verify::Args),
    Bench(bench::Args),
}

/// What every command gets besides its own flags.
struct Context {
    json: bool,
    interrupt: Interrupt,
}

impl Context {
    fn cancel(&self) -> &CancelToken {
        self.interrupt.token()
    }
}

fn main() -> ExitCode {
    let command = Cli::command().mut_subcommand("train", train::with_own_defaults);
    let cli = match command.try_get_matches().and_then(|m| Cli::from_arg_matches(&m)) {
        Ok(cli) => cli,
        Err(error) => return failure::usage(&error),
    };
    let json = cli.json;
    #[cfg(all(unix, feature = "faults"))]
    if let Some(text) = env::fault() {
        return with_fault(&text, cli);
    }
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error, json),
    }
}

/// Runs with one planned fault and says at the end how many calls there were to choose from.
#[cfg(all(unix, feature = "faults"))]
fn with_fault(text: &str, cli: Cli) -> ExitCode {
    use std::io::Write;

    use planish_store::fs::faults;

    let json = cli.json;
    let done = text.parse().and_then(|plan| {
        faults::arm(plan);
        run(cli)
    });
    _ = writeln!(std::io::stderr(), "faults: {} calls", faults::count());
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error, json),
    }
}

fn run(cli: Cli) -> Result<()> {
    let cx = Context { json: cli.json, interrupt: Interrupt::install()? };
    match cli.command {
        Command::Tune(args) => commands::run::run(&*args, &cx),
        Command::Train(args) => commands::run::run(&*args, &cx),
        Command::Generate(args) => generate::run(args, &cx),
        Command::Chat(args) => chat::run(args, &cx),
        Command::Eval(args) => eval::run(args, &cx),
        Command::Inspect(args) => inspect::run(&args, &cx),
        Command::Merge(args) => merge::run(&args, &cx),
        Command::Verify(args) => verify::run(&args, &cx),
        Command::Bench(args) => bench::run(&args, &cx),
    }
}
