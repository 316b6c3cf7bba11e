//! `planish tune`: fine-tunes a model.

mod progress;
mod settings;

use std::path::PathBuf;

use planish_base::{Error, Kind, Result};
use planish_engine::score::Summary;
use planish_train::{Outcome, Plan, Tuned};
use serde_json::{Value, json};

use crate::Context;
use crate::date::stamp;
use crate::env;
use crate::output::Out;
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
        (true, false) => out.line(&progress.plan().map_or_else(String::new, plan_text))?,
        (false, true) => out.json(&object(&tuned, &dir))?,
        (false, false) => print(&tuned, &dir, &mut out)?,
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

/// The plan for people.
fn plan_text(plan: &Plan) -> String {
    let (m, t) = (&plan.memory, &plan.tokens);
    let mb = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
    let share = 100.0 * plan.trained_parameters as f64 / plan.base_parameters.max(1) as f64;
    let lengths = &t.data.lengths;
    let mut lines = vec![
        format!(
            "trained     {} values beside {} of the base ({share:.2} %)",
            plan.trained_parameters, plan.base_parameters
        ),
        format!(
            "examples    {} to train on, {} held out; {} dropped, {} truncated, {} split",
            t.train_examples, t.eval_examples, t.data.dropped, t.data.truncated, t.data.split
        ),
        format!(
            "lengths     median {}, 95 % {}, 99 % {}, longest {} tokens",
            lengths.p50, lengths.p95, lengths.p99, lengths.max
        ),
        format!(
            "steps       {}: {} tokens, {} of them in the loss",
            plan.steps, t.run_tokens, t.run_trained_tokens
        ),
        format!(
            "memory      {}: weights {}, activations {}, adapter {}, gradients {}, optimizer {}, KV cache {}, \
             scratch {}, program and data {}",
            mb(m.total_bytes),
            mb(m.weights_bytes),
            mb(m.activations_bytes),
            mb(m.adapter_bytes),
            mb(m.gradients_bytes),
            mb(m.slots_bytes),
            mb(m.kv_bytes),
            mb(m.scratch_bytes),
            mb(m.process_bytes)
        ),
        format!(
            "time        {} at {:.0} tokens/s, without evaluation and samples",
            progress::duration(plan.time.training_seconds),
            plan.time.tokens_per_second
        ),
    ];
    if let Some(e) = &t.data.end_of_turn {
        let line = format!("end of turn {:.1} trained tokens an example, at least {}", e.mean, e.min);
        lines.insert(3, line);
    }
    lines.join("\n")
}

fn object(tuned: &Tuned, dir: &std::path::Path) -> Value {
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
        "run": dir.display().to_string(),
        "adapter": path(&tuned.adapter),
        "peft": path(&tuned.peft),
    }})
}

fn print(tuned: &Tuned, dir: &std::path::Path, out: &mut Out) -> Result<()> {
    out.line(&format!("run       {}", dir.display()))?;
    let loss = tuned.final_loss.map_or_else(String::new, |l| format!(", last loss {l:.4}"));
    out.line(&format!("steps     {}{loss}", tuned.steps))?;
    if let Some((before, after)) = &tuned.eval {
        out.line(&format!("held out  loss {:.4} before, {:.4} after", before.loss(), after.loss()))?;
    }
    for (name, path) in [("adapter", &tuned.adapter), ("peft", &tuned.peft)] {
        if let Some(path) = path {
            out.line(&format!("{name:8}  {}", path.display()))?;
        }
    }
    Ok(())
}
