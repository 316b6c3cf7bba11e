//! Runs of `tune` on the tiny model, as processes that are killed, resumed and compared.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use planish_base::TypeId;
use planish_train::checkpoint;

use super::{Place, Tiny};

/// What distinguishes runs of one comparison.
#[derive(Clone, Copy)]
pub struct Shape {
    pub steps: usize,
    pub save_every: usize,
    pub full: bool,
    pub precision: &'static str,
}

/// A tiny quantised model, data, and a command line.
pub struct Runs {
    pub place: Place,
    shape: Shape,
}

impl Runs {
    pub fn new(shape: Shape) -> Runs {
        let place = Place::new();
        place.tiny(&Tiny { ty: TypeId::Q8_0, ..Tiny::default() });
        let line = |i: usize| {
            let words = ["ba", "be", "ca", "da", "de", "ho"];
            let text: Vec<&str> = (0..3 + i % 4).map(|j| words[(i + j * j) % 6]).collect();
            format!("{{\"prompt\": \"{}\", \"completion\": \"{}\"}}\n", words[i % 6], text.join(" "))
        };
        place.write("data.jsonl", (0..23).map(line).collect::<String>());
        Runs { place, shape }
    }

    /// `planish tune`, begun or gone on with, whichever the directory is ready for.
    pub fn command(&self, run: &str, threads: usize) -> Command {
        let dir = self.place.path(run);
        let mut command = Command::new(env!("CARGO_BIN_EXE_planish"));
        for name in ["TAO_RUN_DIR", "TOY_RUN_ID", "CHECKPOINT_EVERY"] {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).arg("tune");
        let Shape { steps, save_every, full, precision } = self.shape;
        match dir.join("config.toml").exists() && dir.join("events.jsonl").exists() {
            true => command.arg("--resume").arg(&dir),
            false => {
                command.arg(self.place.path("tiny.gguf")).arg(self.place.path("data.jsonl"));
                command.arg("--out").arg(&dir);
                command.args(["--steps", &steps.to_string(), "--save-every", &save_every.to_string()]);
                command.args(["--lr", "0.01", "--batch-size", "3", "--precision", precision]);
                command.args(if full { &["--full"][..] } else { &["--rank", "2", "--dropout", "0.1"] })
            }
        };
        command.args(["--threads", &threads.to_string()]);
        command
    }

    /// Runs to the end, and gives the SHA-256 of the last weights.
    pub fn finish(&self, run: &str, threads: usize) -> String {
        let output = self.command(run, threads).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        planish_store::fs::sha256_file(&self.weights(run)).unwrap()
    }

    /// The last weights.
    pub fn weights(&self, run: &str) -> PathBuf {
        self.place.path(run).join(format!("weights/step_{}.gguf", self.shape.steps))
    }

    /// Step of the newest checkpoint that passes its checks.
    pub fn newest(&self, run: &str) -> Option<usize> {
        let dir = self.place.path(run).join("checkpoints");
        checkpoint::latest(&dir).unwrap_or_else(|e| panic!("{e}")).0.map(|c| c.state.step)
    }
}

/// Kills the process (SIGKILL) when it reports a step.
pub fn kill_at(mut child: Child, step: usize) {
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let wanted = format!("step {step}:");
    let seen = stderr.lines().map_while(Result::ok).any(|line| line.starts_with(&wanted));
    assert!(seen, "the run ended before step {step}");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A number that asks for the long form of a test.
pub fn long(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|n| n.parse().unwrap())
}
