//! What was measured, as lines that appear as soon as they are known.

use planish_base::Result;
use planish_compute::CpuBackend;
use planish_engine::Precision;
use planish_engine::bench::Samples;
use planish_train::bench::OpSeconds;
use serde_json::{Value, json};

use crate::commands::run::mb;
use crate::output::Out;

/// Operations of a step that are listed one by one.
const LISTED: usize = 40;

/// What a training step trains.
pub enum Trained<'a> {
    /// A LoRA adapter.
    Adapter {
        /// Its rank.
        rank: usize,
        /// The matrices it adapts.
        targets: &'a str,
    },
    /// Every weight.
    Everything,
}

/// Prints measurements, compared with the machine's limits where these were measured.
pub struct Report {
    json: bool,
    out: Out,
    /// GFLOP/s.
    peak: Option<f64>,
    /// GB/s.
    read: Option<f64>,
    /// Whether products have their heading.
    headed: bool,
}

impl Report {
    /// Nothing measured yet.
    pub fn new(json: bool) -> Report {
        Report { json, out: Out::new(), peak: None, read: None, headed: false }
    }

    fn print(&mut self, name: &str, object: Value, text: &str) -> Result<()> {
        match self.json {
            true => self.out.json(&json!({ name: object }))?,
            false => self.out.line(text)?,
        }
        self.out.flush()
    }

    /// What the machine does at most.
    pub fn limits(&mut self, backend: &CpuBackend, peak: Samples, read: Samples) -> Result<()> {
        (self.peak, self.read) = (Some(peak.median), Some(read.median));
        let (threads, isa) = (backend.threads(), backend.isa().name());
        let object = json!({"threads": threads, "isa": isa, "peak_gflops": all(&peak),
                            "read_gb_per_second": all(&read)});
        let text = format!(
            "machine      {isa}, threads {threads}: {:.1} GFLOP/s in registers, {:.1} GB/s from memory",
            peak.median, read.median
        );
        self.print("limits", object, &text)
    }

    /// Products of one shape, in GFLOP/s.
    pub fn products(
        &mut self,
        [m, k, n]: [usize; 3],
        precision: Precision,
        rates: &[(&str, Samples)],
    ) -> Result<()> {
        let precision = precision.name();
        if self.json {
            return rates.iter().try_for_each(|(order, rate)| {
                let object = json!({"m": m, "k": k, "n": n, "order": order, "precision": precision,
                                    "gflops": all(rate), "share_of_peak": share(rate.median, self.peak)});
                self.print("matrix", object, "")
            });
        }
        if !self.headed {
            let orders: String = rates.iter().map(|(order, _)| format!("{order:>15}")).collect();
            self.out.line(&format!("{:23}{orders}", format!("{precision} products, GFLOP/s")))?;
            self.headed = true;
        }
        let each = |(_, rate): &(&str, Samples)| match share(rate.median, self.peak) {
            Some(share) => format!("{:>8.1}  {:>3.0} %", rate.median, 100.0 * share),
            None => format!("{:>15.1}", rate.median),
        };
        let rates: String = rates.iter().map(each).collect();
        self.out.line(&format!("  {:21}{rates}", format!("{m} x {k} x {n}")))?;
        self.out.flush()
    }

    /// Opening a model and making its first token: the seconds of the first time, and of later ones.
    pub fn first_token(&mut self, first: f64, later: Samples) -> Result<()> {
        let object = json!({"first_seconds": first, "seconds": all(&later)});
        let text = format!(
            "first token  {first:.3} s after opening the file, {:.3} s ({:.3} to {:.3}) once it is in memory",
            later.median, later.min, later.max
        );
        self.print("first_token", object, &text)
    }

    /// Reading a prompt.
    pub fn prefill(&mut self, tokens: usize, seconds: Samples, multiplications: u64) -> Result<()> {
        let speed = seconds.rates(tokens as f64);
        let (object, of_peak) = self.of_peak(&seconds, multiplications);
        let object = merged(json!({"tokens": tokens, "tokens_per_second": all(&speed)}), object);
        let text = format!("prefill      {}{of_peak}, {tokens} tokens", rate(&speed));
        self.print("prefill", object, &text)
    }

    /// Writing tokens, each of which reads `bytes` of weights.
    pub fn decode(&mut self, after: usize, tokens: usize, seconds: Samples, bytes: u64) -> Result<()> {
        let speed = seconds.rates(tokens as f64);
        let gb = bytes as f64 * 1e-9 * speed.median;
        let part = share(gb, self.read);
        let object = json!({"tokens": tokens, "after": after, "tokens_per_second": all(&speed),
                            "weight_bytes": bytes, "gb_per_second": gb, "share_of_read": part});
        let of_read = part.map_or_else(String::new, |s| format!(" {:>3.0} %", 100.0 * s));
        let text = format!(
            "decode       {}, {gb:>6.1} GB/s   {of_read}, {tokens} tokens after {after}",
            rate(&speed)
        );
        self.print("decode", object, &text)
    }

    /// A training step of so many sequences of so many tokens.
    pub fn train(
        &mut self,
        trained: Trained,
        [sequences, context]: [usize; 2],
        seconds: Samples,
        multiplications: u64,
    ) -> Result<()> {
        let speed = seconds.rates((sequences * context) as f64);
        let (what, text) = match trained {
            Trained::Adapter { rank, targets } => (
                json!({"trained": "adapter", "rank": rank, "targets": targets}),
                format!("LoRA of rank {rank} on {targets}"),
            ),
            Trained::Everything => (json!({"trained": "everything"}), "every weight".to_owned()),
        };
        let (object, of_peak) = self.of_peak(&seconds, multiplications);
        let sizes = json!({"sequences": sequences, "context": context, "tokens_per_second": all(&speed)});
        let text = format!("train        {}{of_peak}, {text}, {sequences} x {context} tokens", rate(&speed));
        self.print("train", merged(merged(what, sizes), object), &text)
    }

    /// Where the time of a step goes.
    pub fn ops(&mut self, ops: &[OpSeconds]) -> Result<()> {
        let total: f64 = ops.iter().map(|o| o.seconds).sum();
        let products: f64 = ops.iter().filter(|o| o.multiplications > 0).map(|o| o.seconds).sum();
        let head = format!(
            "  of {:.1} ms, {:.1} % in matrix products:",
            1e3 * total,
            100.0 * products / total.max(1e-12)
        );
        if !self.json {
            self.out.line(&head)?;
        }
        let listed = if self.json { ops.len() } else { LISTED };
        for o in ops.iter().take(listed) {
            let (part, op, calls, seconds) = (o.part, o.op.as_str(), o.calls, o.seconds);
            let gflops = (o.multiplications > 0).then(|| 2e-9 * o.multiplications as f64 / seconds);
            let object = json!({"part": part, "op": op, "calls": calls, "seconds": seconds,
                                "share": seconds / total.max(1e-12), "gflops": gflops});
            let rate = gflops.map_or_else(String::new, |g| format!("  {g:.1} GFLOP/s"));
            let text = format!(
                "  {:5.1} % {:9.1} ms {calls:5} x {part:10} {op}{rate}",
                100.0 * seconds / total.max(1e-12),
                1e3 * seconds
            );
            self.print("op", object, &text)?;
        }
        Ok(())
    }

    /// The most memory at one time, of everything that was measured.
    pub fn memory(&mut self, peak_bytes: u64) -> Result<()> {
        let text = format!("memory       {} at most", mb(peak_bytes));
        self.print("memory", json!({"peak_bytes": peak_bytes}), &text)
    }

    /// The rate of matrix products alone in all of the time, as JSON and as the end of a line.
    fn of_peak(&self, seconds: &Samples, multiplications: u64) -> (Value, String) {
        let gflops = 2e-9 * multiplications as f64 / seconds.median.max(1e-12);
        let part = share(gflops, self.peak);
        let text = part.map_or_else(String::new, |s| format!(" {:>3.0} %", 100.0 * s));
        (
            json!({"multiplications": multiplications, "gflops": gflops, "share_of_peak": part}),
            format!("{gflops:>6.1} GFLOP/s{text}"),
        )
    }
}

fn share(value: f64, of: Option<f64>) -> Option<f64> {
    of.map(|limit| value / limit)
}

fn all(samples: &Samples) -> Value {
    json!({"median": samples.median, "min": samples.min, "max": samples.max})
}

/// `123.4 tokens/s (120.1 to 125.0)`, aligned.
fn rate(speed: &Samples) -> String {
    let range = format!("({:.1} to {:.1})", speed.min, speed.max);
    format!("{:>7.1} tokens/s {range:20}", speed.median)
}

fn merged(mut a: Value, b: Value) -> Value {
    if let (Value::Object(a), Value::Object(b)) = (&mut a, b) {
        a.extend(b);
    }
    a
}
