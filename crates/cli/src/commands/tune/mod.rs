//! `planish tune`: fine-tunes a model.

mod plan;
mod progress;
mod settings;

use std::path::{Path, PathBuf};

use planish_base::{Error, Kind, Result};
use planish_engine::score::Summary;
use planish_train::{Outcome, TuneConfig, Tuned};
use serde_json::{Value, json};

use crate::Context;
use crate::date::stamp;
use crate::env;
use crate::output::Out;
use plan::mb;
use progress::Progress;
use settings::Settings;

/// Fine-tune a model on data with LoRA
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    settings: Settings,

    /// The run directory [env: TAO_RUN_DIR] [default: runs/ID]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// The name of the run [env: TOY_RUN_ID] [default: tune- and the time]
    #[arg(long, value_name = "ID")]
    run_id: Option<String>,

    /// Print the plan (memory, tokens, time) and stop
    #[arg(long)]
    dry_run: bool,
}

/// Runs the command.
///
/// # Errors
/// For wrong settings, model and data; without memory or disk; when training diverges; on an interrupt, after what
/// was trained has been written.
pub fn run(args: &Args, cx: &Context) -> Result<()> {
    let config = args.settings.resolve()?;
    let id = args.run_id.clone().or_else(env::run_id).unwrap_or_else(|| format!("tune-{}", stamp()));
    let given = args.out.is_none().then(env::run_dir).flatten();
    let harness = given.is_some();
    let dir = args.out.clone().or(given).unwrap_or_else(|| PathBuf::from("runs").join(&id));
    let mut progress = Progress::new(cx.json, args.dry_run, harness);
    let tuned = planish_train::tune(&config, &dir, &id, args.dry_run, cx.cancel(), &mut progress);
    progress.finish();
    let tuned = tuned?;
    let mut out = Out::new();
    match (args.dry_run, cx.json) {
        (true, true) => out.json(&json!({"plan": progress.plan()}))?,
        (true, false) => out.line(&progress.plan().map_or_else(String::new, plan::text))?,
        (false, true) => out.json(&object(&tuned, &dir))?,
        (false, false) => print(&tuned, &config, &dir, &mut out)?,
    }
    out.flush()?;
    match tuned.outcome {
        Outcome::Interrupted => {
            let message = format!("interrupted after {} steps; what was trained is written", tuned.steps);
            Err(Error::new(Kind::Interrupted, "interrupted", message))
        }
        _ => Ok(()),
    }
}

fn object(tuned: &Tuned, dir: &Path) -> Value {
    let outcome = match tuned.outcome {
        Outcome::Completed => "completed",
        Outcome::Planned => "planned",
        Outcome::Interrupted => "interrupted",
    };
    let path = |p: &Option<PathBuf>| p.as_ref().map(|p| p.display().to_string());
    let loss = |s: &Summary| json!({"loss": s.loss(), "ppl": s.perplexity(), "tokens": s.tokens});
    json!({"tune": {
        "outcome": outcome,
        "steps": tuned.steps,
        "final_loss": tuned.final_loss,
        "eval": tuned.eval.as_ref().map(|(before, after)| json!({"before": loss(before), "after": loss(after)})),
        "peak_bytes": tuned.peak_bytes,
        "planned_bytes": tuned.planned_bytes,
        "run": dir.display().to_string(),
        "adapter": path(&tuned.adapter),
        "peft": path(&tuned.peft),
    }})
}

fn print(tuned: &Tuned, config: &TuneConfig, dir: &Path, out: &mut Out) -> Result<()> {
    out.line(&format!("run       {}", dir.display()))?;
    let loss = tuned.final_loss.map_or_else(String::new, |l| format!(", last loss {l:.4}"));
    out.line(&format!("steps     {}{loss}", tuned.steps))?;
    if let Some((before, after)) = &tuned.eval {
        out.line(&format!("held out  loss {:.4} before, {:.4} after", before.loss(), after.loss()))?;
    }
    out.line(&format!("memory    {} at most, {} planned", mb(tuned.peak_bytes), mb(tuned.planned_bytes)))?;
    let (Some(adapter), Some(peft)) = (&tuned.adapter, &tuned.peft) else { return Ok(()) };
    out.line(&format!("adapter   {}", adapter.display()))?;
    out.line(&format!("peft      {}", peft.display()))?;
    let (base, adapter) = (config.model.display(), adapter.display());
    let merged = dir.join("merged.gguf");
    out.line("\nnext")?;
    out.line(&format!("  planish chat {base} --adapter {adapter}"))?;
    out.line(&format!("  planish merge {base} {adapter} {} --type q8_0", merged.display()))?;
    out.line(&format!("  llama-cli -m {base} --lora {adapter}"))?;
    out.line(&format!("  ollama create NAME -f {}", dir.join("Modelfile").display()))
}
