//! `planish bench`: how fast this machine is, and a model on it.

mod report;

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use clap::builder::PossibleValuesParser;
use planish_base::{Error, Result};
use planish_compute::{CpuBackend, Isa};
use planish_engine::bench::{self, Samples};
use planish_engine::{Engine, EngineOptions, Model, Precision};
use planish_model::Trainable;
use planish_store::process;
use planish_train::RunConfig;
use planish_train::bench::Training;

use crate::Context;
use crate::flags::{PREFILL, available_threads};
use report::{Report, Trained};

/// Tokens of prompts and training sequences unless the model's limit is lower.
const CONTEXT: usize = 512;

/// What the time to the first token is measured with.
const PROMPT: &str = "The capital of France is";

/// What is measured. The variants have no help of their own, so that `--help` stays short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    // Multiply-adds in registers, and reading memory: the limits that the others are compared with.
    Limits,
    // Products of matrices.
    Matrix,
    // From opening the file to the first token.
    Load,
    // Reading a prompt.
    Prefill,
    // Writing tokens, one after the other.
    Decode,
    // A training step of an adapter.
    Train,
    // A training step of every weight.
    Full,
}

/// Measure this machine, and with a model how fast it reads, writes and trains
#[derive(clap::Args)]
pub struct Args {
    /// A GGUF file, or a Hugging Face directory; without it only the machine is measured
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,

    /// Measure only these [default: limits,matrix, and with MODEL load,prefill,decode,train]
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    only: Vec<Part>,

    /// Measure a training step of every weight too
    #[arg(long, requires = "model", conflicts_with = "only")]
    full: bool,

    /// Tokens of the prompt and of a training sequence [default: 512, or the model's limit]
    #[arg(long, value_name = "N")]
    context: Option<usize>,

    /// Tokens that are decoded after the prompt
    #[arg(long, value_name = "N", default_value_t = 64)]
    tokens: usize,

    /// Sequences of a training step
    #[arg(long, value_name = "N", default_value_t = 1)]
    batch: usize,

    /// Rank of the adapter
    #[arg(long, value_name = "N", default_value_t = 16)]
    rank: usize,

    /// Matrices that are adapted: q, k, v, o, gate, up, down, separated by commas, or all
    #[arg(long, value_name = "NAMES", default_value = "all")]
    targets: String,

    /// How often each is measured, after once for nothing; the median counts
    #[arg(long, value_name = "N", default_value_t = 3)]
    repeats: usize,

    /// What matrices are multiplied as, except in decoding; auto is bf16, or for prompts 14-bit integers, where the
    /// machine multiplies them faster
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = PossibleValuesParser::new(Precision::NAMES))]
    precision: String,

    /// Print where the time of a training step goes, by operation
    #[arg(long, requires = "model")]
    ops: bool,

    /// Worker threads [default: as many as the machine runs at once]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

/// Runs the command.
///
/// # Errors
/// For wrong files and flags; for what does not fit into memory; an interrupt.
pub fn run(args: &Args, cx: &Context) -> Result<()> {
    let parts = args.parts()?;
    let mut report = Report::new(cx.json);
    machine(args, &parts, cx, &mut report)?;
    if let Some(path) = &args.model {
        first_token(args, path, &parts, cx, &mut report)?;
        generation(args, path, &parts, cx, &mut report)?;
        for (part, full) in [(Part::Train, false), (Part::Full, true)] {
            if parts.contains(&part) {
                train(args, path, full, cx, &mut report)?;
            }
        }
    }
    report.memory(process::peak_resident_bytes())
}

impl Args {
    fn parts(&self) -> Result<Vec<Part>> {
        let positive = [
            ("repeats", self.repeats),
            ("tokens", self.tokens),
            ("batch", self.batch),
            ("context", self.context.unwrap_or(1)),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(Error::usage("setting", format!("{name} is 0, expected at least 1")));
        }
        let machine = [Part::Limits, Part::Matrix];
        if let Some(part) = self.only.iter().find(|p| self.model.is_none() && !machine.contains(p)) {
            let name = part.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned());
            return Err(Error::usage("no model", format!("--only {name} needs a MODEL")));
        }
        let mut parts = match self.only.is_empty() {
            false => self.only.clone(),
            true if self.model.is_none() => machine.to_vec(),
            true => Part::value_variants().iter().copied().filter(|p| *p != Part::Full).collect(),
        };
        parts.extend(self.full.then_some(Part::Full));
        if self.ops && !parts.contains(&Part::Train) && !parts.contains(&Part::Full) {
            return Err(Error::usage("setting", "--ops is of a training step, and none is measured")
                .with_hint("measure train or full too: --only train"));
        }
        Ok(parts)
    }

    fn threads(&self) -> usize {
        self.threads.unwrap_or_else(available_threads)
    }

    /// For one sequence of up to `context` tokens.
    fn options(&self, context: usize) -> Result<EngineOptions> {
        let isa = Isa::detect();
        Ok(EngineOptions {
            threads: self.threads(),
            isa,
            context,
            tokens: PREFILL,
            trainable: Trainable::Nothing,
            recompute: false,
            precision: Precision::of_prompts(&self.precision, isa)?,
        })
    }

    fn precision(&self, isa: Isa) -> Result<Precision> {
        Precision::of(&self.precision, isa)
    }

    fn context(&self, model: &Model) -> Result<usize> {
        let context = self.context.unwrap_or(CONTEXT.min(model.spec.context));
        model.check_context(context)?;
        Ok(context)
    }
}

fn machine(args: &Args, parts: &[Part], cx: &Context, report: &mut Report) -> Result<()> {
    if !parts.contains(&Part::Limits) && !parts.contains(&Part::Matrix) {
        return Ok(());
    }
    let mut backend = CpuBackend::new(Isa::detect(), args.threads())?;
    if parts.contains(&Part::Limits) {
        let peak = bench::peak_gflops(&mut backend, args.repeats);
        let read = bench::read_gb(&mut backend, args.repeats)?;
        report.limits(&backend, peak, read)?;
    }
    if parts.contains(&Part::Matrix) {
        let precision = args.precision(backend.isa())?;
        for shape in bench::SHAPES {
            let mut rates = Vec::new();
            for (name, order) in bench::Order::ALL {
                cx.interrupt.check()?;
                let seconds = bench::product(&mut backend, shape, order, precision, args.repeats)?;
                let [m, k, n] = shape.map(|x| x as f64);
                rates.push((name, seconds.rates(2e-9 * m * k * n)));
            }
            report.products(shape, precision, &rates)?;
        }
    }
    Ok(())
}

fn first_token(args: &Args, path: &Path, parts: &[Part], cx: &Context, report: &mut Report) -> Result<()> {
    if !parts.contains(&Part::Load) {
        return Ok(());
    }
    let options = args.options(CONTEXT)?;
    // The first is what a user meets; it is told apart, since later ones find the file in memory.
    let first = bench::first_token(path, options.clone(), PROMPT)?;
    let later = (0..args.repeats)
        .map(|_| cx.interrupt.check().and_then(|()| bench::first_token(path, options.clone(), PROMPT)))
        .collect::<Result<Vec<f64>>>()?;
    report.first_token(first, Samples::of(later))
}

fn generation(args: &Args, path: &Path, parts: &[Part], cx: &Context, report: &mut Report) -> Result<()> {
    let (prefill, decode) = (parts.contains(&Part::Prefill), parts.contains(&Part::Decode));
    if !prefill && !decode {
        return Ok(());
    }
    let model = Model::open(path)?;
    let (limit, tokens) = (model.spec.context, if decode { args.tokens } else { 0 });
    let Some(room) = limit.checked_sub(tokens).filter(|room| *room > 0) else {
        let message = format!("{tokens} tokens after a prompt do not fit the model's context of {limit}");
        return Err(Error::usage("tokens", message).with_hint("give fewer --tokens"));
    };
    let prompt = args.context(&model)?.min(room);
    let mut engine = Engine::new(model, args.options(prompt + tokens)?)?;
    let mut check = || cx.interrupt.check();
    let times = bench::generation(&mut engine, prompt, tokens, args.repeats, &mut check)?;
    if prefill {
        let passes = prompt.div_ceil(PREFILL);
        let work = bench::multiplications(&engine.model.spec, prompt, passes);
        report.prefill(prompt, times.prefill, work)?;
    }
    if decode {
        report.decode(prompt, tokens, times.decode, bench::decoded_bytes(&engine.model))?;
    }
    Ok(())
}

fn train(args: &Args, path: &Path, full: bool, cx: &Context, report: &mut Report) -> Result<()> {
    let config = RunConfig {
        full,
        rank: args.rank,
        targets: args.targets.clone(),
        batch_size: args.batch,
        micro_batch: args.batch,
        threads: args.threads(),
        precision: args.precision.clone(),
        ..RunConfig::default()
    };
    let model = Model::open(path)?;
    let context = args.context(&model)?;
    let mut training = Training::new(model, &config, context)?;
    let seconds = Samples::measure(args.repeats, || cx.interrupt.check().and_then(|()| training.step()))?;
    let trained = match full {
        true => Trained::Everything,
        false => Trained::Adapter { rank: args.rank, targets: &args.targets },
    };
    report.train(trained, [args.batch, context], seconds, training.multiplications())?;
    if args.ops {
        report.ops(&training.ops()?)?;
    }
    Ok(())
}
