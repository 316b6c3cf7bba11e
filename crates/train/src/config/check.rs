//! Refusals of settings that mean nothing, or contradict each other.

use planish_base::{Error, Result};
use planish_compute::Isa;
use planish_engine::Precision;
use planish_text::source::is_stdin;

use super::{MIN_KEEP, RunConfig};
use crate::{optim, schedule};

const MAX_BATCH: usize = 1 << 20;
const MAX_KEEP: usize = 1 << 20;
const MAX_STEPS: usize = 1 << 32;

impl RunConfig {
    /// Checks everything that does not depend on files.
    ///
    /// # Errors
    /// Kind `Usage`, naming the setting, its value and what is allowed.
    pub fn check(&self) -> Result<()> {
        self.check_adapter()?;
        self.check_used()?;
        Precision::of(&self.precision, Isa::detect())?;
        self.check_rates()?;
        self.check_counts()?;
        self.check_patterns()?;
        if let Some(model) = &self.model {
            if !self.full {
                let message = "a new model has all its weights to learn, full is false";
                return Err(Error::usage("setting", message));
            }
            model.check()?;
        }
        if [&self.data, &self.eval_data].into_iter().flatten().filter(|p| is_stdin(p)).count() > 1 {
            return Err(Error::usage("stdin", "`-` is given twice, and standard input can be read once"));
        }
        Ok(())
    }

    /// Real numbers.
    fn check_rates(&self) -> Result<()> {
        let (optim, shape) = (self.optim_settings()?, self.shape(1));
        let (lr, share) = (self.peak_lr(), shape.decay_share);
        let above = |x: f64| x.is_finite() && x > 0.0;
        let rate = |x: f64| x.is_finite() && x >= 0.0;
        let part = |x: f64| (0.0..1.0).contains(&x);
        expect("epochs", self.epochs, above(self.epochs), "more than 0")?;
        expect("lr", lr, above(lr), "more than 0")?;
        expect("lr-min", self.lr_min, rate(self.lr_min) && self.lr_min <= lr, "0 to lr")?;
        for (pattern, factor) in &self.lr_groups {
            expect(&format!("lr-groups {pattern}"), factor, rate(*factor), "0 or more")?;
        }
        expect("weight-decay", self.weight_decay, rate(self.weight_decay), "0 or more")?;
        expect("clip", self.clip, rate(self.clip), "0 (never) or more")?;
        let noise = self.neftune.unwrap_or(1.0);
        expect("neftune", noise, above(f64::from(noise)), "more than 0; 5 is usual")?;
        let decay = self.ema.unwrap_or(0.5);
        expect("ema", decay, decay > 0.0 && decay < 1.0, "between 0 and 1")?;
        let (b1, b2) = optim.betas;
        expect("betas", format!("{b1}, {b2}"), part(b1) && part(b2), "in [0, 1)")?;
        expect("momentum", optim.momentum, part(optim.momentum), "in [0, 1)")?;
        expect("decay-share", share, share > 0.0 && share <= 1.0, "more than 0, at most 1")?;
        expect("eps", self.eps, above(self.eps), "more than 0")
    }

    /// Whole numbers.
    fn check_counts(&self) -> Result<()> {
        // The examples of a step are listed in memory.
        let batch = (1..=MAX_BATCH).contains(&self.batch_size);
        expect("batch-size", self.batch_size, batch, &format!("1 to {MAX_BATCH}"))?;
        expect("micro-batch", self.micro_batch, self.micro_batch > 0, "at least 1")?;
        self.steps.map_or(Ok(()), check_steps)?;
        let cycles = self.shape(1).cycles;
        expect("cycles", cycles, cycles > 0, "at least 1")?;
        let every = [
            ("eval-every", self.eval_every),
            ("sample-every", self.sample_every),
            ("save-every", self.save_every),
            ("grad-every", self.grad_every),
            ("drift-every", self.drift_every),
            ("early-stop", self.early_stop),
        ];
        for (name, value) in every {
            expect(name, 0, value != Some(0), "at least 1")?;
        }
        let keep = (MIN_KEEP..=MAX_KEEP).contains(&self.keep);
        expect("keep", self.keep, keep, &format!("{MIN_KEEP} to {MAX_KEEP}"))?;
        if self.early_stop.is_some() && self.eval_every.is_none() {
            return Err(Error::usage("setting", "early-stop needs evaluations during the run")
                .with_hint("say how often with --eval-every"));
        }
        Ok(())
    }

    /// Refuses patterns where the weights themselves are not trained.
    fn check_patterns(&self) -> Result<()> {
        let patterns = [("freeze", &self.freeze), ("train", &self.train)];
        if let Some((name, _)) = patterns.iter().find(|(_, p)| !self.full && !p.is_empty()) {
            return Err(Error::usage("setting", format!("{name} chooses among the model's own weights"))
                .with_hint(
                    "train them with --full; matrices that get an adapter are chosen with --targets",
                ));
        }
        Ok(())
    }

    /// Refuses settings that the optimizer or the schedule does not have.
    fn check_used(&self) -> Result<()> {
        let (optim, schedule) = (optim::of(&self.optimizer)?, schedule::of(&self.schedule)?);
        let of_optim = [
            ("betas", self.betas.is_some()),
            ("momentum", self.momentum.is_some()),
            ("nesterov", self.nesterov),
        ];
        for (name, given) in of_optim {
            let having = optim::OPTIMS.iter().filter(|o| o.uses.contains(&name)).map(|o| o.name).collect();
            check_used(name, given && !optim.uses.contains(&name), optim.name, having)?;
        }
        let of_schedule = [("cycles", self.cycles.is_some()), ("decay-share", self.decay_share.is_some())];
        for (name, given) in of_schedule {
            let all = schedule::SCHEDULES.iter();
            let having = all.filter(|s| s.uses.contains(&name)).map(|s| s.name).collect();
            check_used(name, given && !schedule.uses.contains(&name), schedule.name, having)?;
        }
        Ok(())
    }
}

fn check_used(setting: &str, useless: bool, chosen: &str, having: Vec<&str>) -> Result<()> {
    match useless {
        false => Ok(()),
        true => Err(Error::usage("setting", format!("{setting} is given, {chosen} has no such setting"))
            .with_hint(format!("leave it out, or choose {}", having.join(" or ")))),
    }
}

/// Refuses numbers of steps that nobody means.
///
/// # Errors
/// Kind `Usage`, with what is allowed.
pub(crate) fn check_steps(steps: usize) -> Result<()> {
    match (1..=MAX_STEPS).contains(&steps) {
        true => Ok(()),
        false => Err(Error::usage("setting", format!("steps is {steps}, expected 1 to {MAX_STEPS}"))),
    }
}

fn expect(name: &str, value: impl std::fmt::Display, ok: bool, allowed: &str) -> Result<()> {
    match ok {
        true => Ok(()),
        false => Err(Error::usage("setting", format!("{name} is {value}, expected {allowed}"))),
    }
}
