//! What `tune` and `train` share: their settings, and how a run is started, followed and reported.

mod plan;
mod progress;
pub mod settings;

use std::path::{Path, PathBuf};

use planish_base::{Error, Kind, Result};
use planish_engine::score::Summary;
use planish_train::{Outcome, Resumed, RunConfig, RunDir, Start, Tuned};
use serde_json::{Value, json};

use crate::Context;
use crate::date::stamp;
use crate::env;
use crate::output::Out;
pub use plan::mb;
use progress::Progress;
use settings::Settings;

/// Flags of a run.
#[derive(clap::Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub settings: Settings,

    /// The run directory [env: TAO_RUN_DIR] [default: runs/ID]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// The name of the run [env: TOY_RUN_ID] [default: the command and the time]
    #[arg(long, value_name = "ID")]
    run_id: Option<String>,

    /// Go on with a run, bit for bit, from its newest good checkpoint; nothing else is needed [without RUN: the newest
    /// in runs/]
    #[arg(long, value_name = "RUN", num_args = 0..=1, conflicts_with_all = ["config", "out", "run_id", "dry_run"])]
    resume: Option<Option<PathBuf>>,

    /// With --resume: a setting, or base, data, eval_data, isa, that may differ from the checkpoint's; may be given
    /// more than once
    #[arg(long, value_name = "NAME", requires = "resume")]
    allow: Vec<String>,

    /// Print the plan (memory, tokens, time) and stop
    #[arg(long)]
    dry_run: bool,
}

/// A command that begins or continues runs.
pub trait Command {
    /// Its name.
    const NAME: &'static str;

    /// The settings of the run: the flags of the command, else `stored`, those of a run that goes on.
    ///
    /// # Errors
    /// Kind `Usage`.
    fn config(&self, stored: Option<RunConfig>) -> Result<RunConfig>;

    /// The flags that both commands have.
    fn shared(&self) -> &RunArgs;
}

/// Runs a command.
///
/// # Errors
/// For wrong settings, model and data; without memory or disk; when training diverges; on an interrupt, after what
/// was trained has been written.
pub fn run<C: Command>(command: &C, cx: &Context) -> Result<()> {
    let args = command.shared();
    let (config, dir, start) = match &args.resume {
        Some(named) => resumed(command, named.as_deref())?,
        None => fresh(command)?,
    };
    // A program that names the directory by the environment reads the steps on stdout.
    let harness = args.resume.is_none() && args.out.is_none() && env::run_dir().is_some();
    let mut progress = Progress::new(cx.json, args.dry_run, harness);
    let tuned = planish_train::tune(&config, start, cx.cancel(), &mut progress);
    progress.finish();
    let tuned = tuned?;
    let mut out = Out::new();
    match (args.dry_run, cx.json) {
        (true, true) => out.json(&json!({"plan": progress.plan()}))?,
        (true, false) => out.line(&progress.plan().map_or_else(String::new, plan::text))?,
        (false, true) => out.json(&json!({C::NAME: object(&tuned, &dir)}))?,
        (false, false) => print(&tuned, &config, &dir, &mut out)?,
    }
    out.flush()?;
    match tuned.outcome {
        Outcome::Interrupted => {
            let message = format!("interrupted after {} steps; a checkpoint is written", tuned.steps);
            Err(Error::new(Kind::Interrupted, "interrupted", message).with_hint(format!(
                "go on with: planish {} --resume {}",
                C::NAME,
                dir.display()
            )))
        }
        _ => Ok(()),
    }
}

fn fresh<C: Command>(command: &C) -> Result<(RunConfig, PathBuf, Start)> {
    let args = command.shared();
    let config = command.config(None)?;
    let run_id =
        args.run_id.clone().or_else(env::run_id).unwrap_or_else(|| format!("{}-{}", C::NAME, stamp()));
    check_id(&run_id)?;
    let dir = args.out.clone().or_else(env::run_dir).unwrap_or_else(|| PathBuf::from("runs").join(&run_id));
    let out = dir.clone();
    let start = if args.dry_run { Start::Plan { out } } else { Start::New { out, run_id } };
    Ok((config, dir, start))
}

/// An id names a directory.
fn check_id(id: &str) -> Result<()> {
    let sound = |c: char| c.is_alphanumeric() || "._-".contains(c);
    match (1..=100).contains(&id.len()) && !id.starts_with(['.', '-']) && id.chars().all(sound) {
        true => Ok(()),
        false => Err(Error::usage("run id", format!("{id:?} cannot be the name of a run")).with_hint(
            "letters, digits, `_`, `-` and `.`, up to 100, the first not `.` or `-`; the directory is --out",
        )),
    }
}

fn resumed<C: Command>(command: &C, named: Option<&Path>) -> Result<(RunConfig, PathBuf, Start)> {
    let dir = match named.map(Path::to_path_buf).or_else(env::run_dir) {
        Some(dir) => dir,
        None => RunDir::newest(Path::new("runs"))?,
    };
    let run = Box::new(Resumed::open(&dir)?);
    let config = command.config(Some(run.config().clone()))?;
    Ok((config, dir, Start::Resume { run, allow: command.shared().allow.clone() }))
}

fn object(tuned: &Tuned, dir: &Path) -> Value {
    let outcome = match tuned.outcome {
        Outcome::Completed => "completed",
        Outcome::EarlyStopped => "early_stopped",
        Outcome::Planned => "planned",
        Outcome::Interrupted => "interrupted",
    };
    let path = |p: &Option<PathBuf>| p.as_ref().map(|p| p.display().to_string());
    let loss = |s: &Summary| json!({"loss": s.loss(), "ppl": s.perplexity(), "tokens": s.tokens});
    json!({
        "outcome": outcome,
        "steps": tuned.steps,
        "skipped": tuned.skipped,
        "best": tuned.best.map(|(step, loss)| json!({"step": step, "loss": loss})),
        "final_loss": tuned.final_loss,
        "eval": tuned.eval.as_ref().map(|(before, after)| json!({"before": loss(before), "after": loss(after)})),
        "peak_bytes": tuned.peak_bytes,
        "planned_bytes": tuned.planned_bytes,
        "run": dir.display().to_string(),
        "weights": path(&tuned.weights),
        "adapter": path(&tuned.weights.clone().filter(|_| tuned.peft.is_some())),
        "peft": path(&tuned.peft),
    })
}

fn print(tuned: &Tuned, config: &RunConfig, dir: &Path, out: &mut Out) -> Result<()> {
    out.line(&format!("run       {}", dir.display()))?;
    let loss = tuned.final_loss.map_or_else(String::new, |l| format!(", last loss {l:.4}"));
    let skipped = if tuned.skipped > 0 { format!(", {} left out", tuned.skipped) } else { String::new() };
    out.line(&format!("steps     {}{skipped}{loss}", tuned.steps))?;
    if let Some((before, after)) = &tuned.eval {
        out.line(&format!("held out  loss {:.4} before, {:.4} after", before.loss(), after.loss()))?;
    }
    if let Some((step, loss)) = tuned.best {
        out.line(&format!(
            "best      loss {loss:.4} after {step} steps: {}/weights/best.gguf",
            dir.display()
        ))?;
    }
    out.line(&format!("memory    {} at most, {} planned", mb(tuned.peak_bytes), mb(tuned.planned_bytes)))?;
    let Some(weights) = &tuned.weights else { return Ok(()) };
    let (base, weights) = (config.base.display(), weights.display());
    let modelfile = dir.join("Modelfile");
    match &tuned.peft {
        Some(peft) => {
            out.line(&format!("adapter   {weights}"))?;
            out.line(&format!("peft      {}", peft.display()))?;
            out.line("\nnext")?;
            out.line(&format!("  planish chat {base} --adapter {weights}"))?;
            let merged = dir.join("merged.gguf");
            out.line(&format!("  planish merge {base} {weights} {} --type q8_0", merged.display()))?;
            out.line(&format!("  llama-cli -m {base} --lora {weights}"))?;
        }
        None => {
            out.line(&format!("model     {weights}"))?;
            out.line("\nnext")?;
            // A new model has no chat template.
            match config.model {
                Some(_) => out.line(&format!("  planish generate {weights} -p \"\" --temp 0.5 -n 100"))?,
                None => out.line(&format!("  planish chat {weights}"))?,
            }
            out.line(&format!("  llama-cli -m {weights}"))?;
        }
    }
    out.line(&format!("  ollama create NAME -f {}", modelfile.display()))
}
