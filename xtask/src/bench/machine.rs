//! The machine and the state of the tree that figures belong to.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::run;

/// The flags that decide which kernels a program can take.
const FLAGS: [&str; 11] = [
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
];

/// What a report begins with.
pub struct Machine {
    /// The day, in UTC.
    pub date: String,
    pub commit: String,
    /// Model of the processor, and its number of CPUs.
    pub cpu: String,
    pub flags: String,
    /// Memory in GB.
    pub memory: String,
    pub kernel: String,
    /// Processes that ran beside, as the load average says.
    pub load: String,
}

impl Machine {
    /// # Errors
    /// When git or date cannot be run.
    pub fn look(root: &Path) -> Result<Machine> {
        let git = |args: &[&str]| line(Command::new("git").current_dir(root).args(args));
        let mut commit = git(&["rev-parse", "--short=12", "HEAD"])?;
        if !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty() {
            commit += " with changes";
        }
        let cpus = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
        let memory =
            field("/proc/meminfo", "MemTotal").and_then(|m| m.split(' ').next()?.parse::<f64>().ok());
        let flags: Vec<&str> = FLAGS.into_iter().filter(|f| has_flag(f)).collect();
        Ok(Machine {
            date: line(Command::new("date").args(["-u", "+%F"]))?,
            commit,
            cpu: format!("{}, {cpus} CPUs", field("/proc/cpuinfo", "model name").unwrap_or("unknown".into())),
            flags: if flags.is_empty() { "none of note".into() } else { flags.join(" ") },
            memory: memory.map_or("unknown".into(), |kb| format!("{:.1} GB", kb * 1024e-9)),
            kernel: line(Command::new("uname").args(["-sr"]))?,
            load: std::fs::read_to_string("/proc/loadavg").unwrap_or("unknown".into()).trim().to_owned(),
        })
    }
}

/// Whether the processor has this flag; no on systems that do not say.
fn has_flag(flag: &str) -> bool {
    field("/proc/cpuinfo", "flags").is_some_and(|flags| flags.split(' ').any(|f| f == flag))
}

/// The first `key : value` of a file.
fn field(path: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let of_line = |line: &str| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim().to_owned())
    };
    text.lines().find_map(of_line)
}

fn line(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&run::output(command)?).trim().to_owned())
}
