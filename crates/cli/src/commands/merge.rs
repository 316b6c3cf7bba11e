//! `planish merge`: adapters folded into their base.

use std::path::PathBuf;

use planish_base::Result;
use planish_engine::score::{self, Summary};
use planish_engine::{AdapterFile, MergeReport, MergeType, Model};
use planish_text::{Dataset, LengthPolicy};
use serde_json::{Value, json};

use crate::Context;
use crate::flags::{AdapterArg, BindingFlags, ModelFlags, attach, length_policy, load_data, longest};
use crate::output::{self, Out};

/// Fold adapters into their base and write a whole model
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelFlags,

    /// LoRA adapters (GGUF or PEFT directory), each with a factor on its effect
    #[arg(value_name = "ADAPTER[:SCALE]", required = true)]
    adapters: Vec<AdapterArg>,

    /// The GGUF file to write
    #[arg(value_name = "OUT", required = true)]
    out: PathBuf,

    /// Type of the matrices: same, f32, f16, bf16, q8_0, .. [default: same as in the base]
    #[arg(long = "type", value_name = "TYPE", value_parser = merge_type, default_value = "same")]
    #[arg(hide_default_value = true)]
    ty: MergeType,

    #[command(flatten)]
    binding: BindingFlags,

    /// Held-out data: print the loss of the base, of base and adapters, and of the merged file
    #[arg(long, value_name = "DATA", num_args = 1)]
    eval_data: Vec<PathBuf>,

    /// What becomes of held-out examples longer than the context
    #[arg(long, value_name = "POLICY", default_value = "error", value_parser = length_policy())]
    max_length_policy: LengthPolicy,
}

fn merge_type(text: &str) -> Result<MergeType, String> {
    MergeType::parse(text).map_err(|e| match e.hint() {
        Some(hint) => format!("{e}; {hint}"),
        None => e.to_string(),
    })
}

/// Held-out loss of the three models.
struct Losses {
    base: Summary,
    adapted: Summary,
    merged: Summary,
}

/// Runs the command.
///
/// # Errors
/// For wrong files, adapters of another model, data, and a file that cannot be written.
pub fn run(args: &Args, cx: &Context) -> Result<()> {
    let model = Model::open(&args.model.model)?;
    let files = args.binding.read(&args.adapters, &model)?;
    let limit = args.model.context.unwrap_or(model.spec.context);
    let data = match args.eval_data.is_empty() {
        true => None,
        false => Some(load_data(&args.eval_data, &model, limit, args.max_length_policy)?),
    };
    let report = planish_engine::merge(&model, &files, &args.out, args.ty)?;
    cx.interrupt.check()?;
    let losses = match &data {
        Some(data) => Some(losses(args, model, &files, data, cx)?),
        None => None,
    };
    let mut out = Out::new();
    match cx.json {
        true => out.json(&object(args, &report, losses.as_ref()))?,
        false => print(args, &report, losses.as_ref(), &mut out)?,
    }
    out.flush()
}

fn losses(
    args: &Args,
    model: Model,
    files: &[(AdapterFile, f32)],
    data: &Dataset,
    cx: &Context,
) -> Result<Losses> {
    let tokens = longest(data);
    let context = args.model.context.unwrap_or(tokens);
    let mut engine = args.model.engine(model, context, tokens)?;
    let sets = attach(files, &mut engine)?;
    let base = score::examples(&mut engine, &data.examples, &[])?;
    cx.interrupt.check()?;
    let adapted = score::examples(&mut engine, &data.examples, &sets.iter().collect::<Vec<_>>())?;
    cx.interrupt.check()?;
    drop(engine);
    let mut merged = args.model.engine(Model::open(&args.out)?, context, tokens)?;
    let merged = score::examples(&mut merged, &data.examples, &[])?;
    Ok(Losses { base, adapted, merged })
}

fn object(args: &Args, report: &MergeReport, losses: Option<&Losses>) -> Value {
    let touched = report.touched.iter().map(|t| json!({"name": t.name, "change": t.change}));
    let fallbacks = report
        .fallbacks
        .iter()
        .map(|f| json!({"name": f.name, "wanted": f.wanted.name(), "got": f.got.name(), "why": f.why}));
    json!({"merge": {
        "out": args.out.display().to_string(),
        "bytes": report.bytes,
        "touched": touched.collect::<Vec<_>>(),
        "untied": report.untied,
        "fallbacks": fallbacks.collect::<Vec<_>>(),
        "loss": losses.map(|l| {
            json!({"base": l.base.loss(), "adapted": l.adapted.loss(), "merged": l.merged.loss()})
        }),
    }})
}

fn print(args: &Args, report: &MergeReport, losses: Option<&Losses>, out: &mut Out) -> Result<()> {
    out.line(&format!("wrote    {} ({} bytes)", args.out.display(), report.bytes))?;
    let changes = || report.touched.iter().map(|t| t.change);
    let (least, most) = (changes().fold(f64::INFINITY, f64::min), changes().fold(0.0, f64::max));
    out.line(&format!(
        "changed  {} tensors, each by {:.3} % to {:.3} % of its norm",
        report.touched.len(),
        least.min(most) * 100.0,
        most * 100.0
    ))?;
    if most < 1e-6 {
        output::note("warning: the adapters change almost nothing; they may not have been trained");
    }
    if report.untied {
        output::note(
            "note: the base had one matrix as embedding and head; the adapters change them apart, so the file has two",
        );
    }
    for f in &report.fallbacks {
        let (name, got, wanted) = (&f.name, f.got.name(), f.wanted.name());
        output::note(&format!("note: {name} is {got}, not {wanted}: {}", f.why));
    }
    if let Some(l) = losses {
        out.line(&format!("loss     base {:.4}", l.base.loss()))?;
        out.line(&format!("         base and adapters {:.4}", l.adapted.loss()))?;
        out.line(&format!("         merged {:.4}", l.merged.loss()))?;
    }
    Ok(())
}
