//! What a run prints while it works, on stderr: a bar on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, Write};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use planish_engine::score::Summary;
use planish_train::{Observer, Plan, StepReport};

use crate::output;

/// Steps over which the speed is averaged.
const WINDOW: f64 = 10.0;

/// Follows a run.
pub struct Progress {
    plan: Option<Plan>,
    bar: Option<ProgressBar>,
    /// With `--json`, and where the plan is the result, nothing is printed.
    quiet: bool,
    /// A program started the run and reads `step N: loss=X` on stdout.
    harness: bool,
    last: Instant,
    seconds_a_step: Option<f64>,
}

impl Progress {
    /// Before the run.
    pub fn new(json: bool, dry_run: bool, harness: bool) -> Progress {
        let quiet = json || dry_run;
        let last = Instant::now();
        Progress { plan: None, bar: None, quiet, harness: harness && !json, last, seconds_a_step: None }
    }

    /// The plan, once there was one.
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// Takes the bar away.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn say(&self, text: &str) {
        match &self.bar {
            _ if self.quiet => {}
            Some(bar) => bar.suspend(|| output::note(text)),
            None => output::note(text),
        }
    }
}

impl Observer for Progress {
    fn plan(&mut self, plan: &Plan) {
        self.say(&super::plan::text(plan));
        if !self.quiet && std::io::stderr().is_terminal() {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}");
            let bar = ProgressBar::new(plan.steps as u64);
            self.bar = Some(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())));
        }
        self.plan = Some(plan.clone());
        self.last = Instant::now();
    }

    fn step(&mut self, step: usize, steps: usize, report: &StepReport) {
        let seconds = self.last.elapsed().as_secs_f64();
        self.last = Instant::now();
        let mean = self.seconds_a_step.map_or(seconds, |m| m + (seconds - m) / WINDOW);
        self.seconds_a_step = Some(mean);
        let left = duration(mean * steps.saturating_sub(step) as f64);
        let speed = report.tokens as f64 / seconds.max(1e-9);
        let loss = report.loss;
        if self.harness {
            let mut stdout = std::io::stdout();
            // A reader that has gone does not end the run.
            _ = writeln!(stdout, "step {step}: loss={loss}").and_then(|()| stdout.flush());
        }
        match &self.bar {
            Some(bar) => {
                bar.set_position(step as u64);
                bar.set_message(format!("loss {loss:.4}  {speed:.0} tokens/s  {left} left"));
            }
            None => {
                let (lr, norm) = (report.lr, report.grad_norm);
                self.say(&format!(
                    "step {step}: loss={loss:.4} lr={lr:.3e} norm={norm:.3} {speed:.0} tokens/s, {left} left"
                ));
            }
        }
    }

    fn eval(&mut self, step: usize, summary: &Summary) {
        let (loss, ppl) = (summary.loss(), summary.perplexity());
        let floor = self.plan.as_ref().and_then(|p| p.floor);
        let above = floor
            .map_or_else(String::new, |f| format!(", {:.1} % above the floor", 100.0 * (loss / f - 1.0)));
        self.say(&format!("held out after {step} steps: loss {loss:.4}, perplexity {ppl:.3}{above}"));
        self.last = Instant::now();
    }

    fn warning(&mut self, text: &str) {
        self.say(&format!("warning: {text}"));
    }

    fn sample(&mut self, step: usize, prompt: &str, text: &str) {
        self.say(&format!("sample after {step} steps: {} -> {}", prompt.trim_end(), text.trim_end()));
        self.last = Instant::now();
    }
}

/// Seconds as people say them.
pub fn duration(seconds: f64) -> String {
    let s = seconds.round() as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        _ => format!("{} h {} min", s / 3600, s / 60 % 60),
    }
}
