//! The kernels on AArch64, compiled and run on another machine: the path is NEON there, which no other test reaches.
//!
//! It takes a Rust compiler with the standard library of AArch64, a linker, and qemu. Debian 12 has all three:
//! `dpkg --add-architecture arm64`, then [`PACKAGES`], 1.5 GB installed.
//! On AArch64 itself `cargo test` is enough.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Result;

use crate::run;

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Names the compiler where it is none of [`COMPILERS`].
const COMPILER: &str = "PLANISH_AARCH64_RUSTC";
/// The toolchain's, whose rustup may have the target, and Debian's, which rustup's hides.
const COMPILERS: &[&str] = &["rustc", "/usr/bin/rustc"];
const LINKERS: &[&str] = &["aarch64-linux-gnu-gcc"];
const EMULATORS: &[&str] = &["qemu-aarch64-static", "qemu-aarch64"];
/// AArch64's dynamic linker where its C library is installed beside the machine's own.
const INSTALLED: &str = "/lib/ld-linux-aarch64.so.1";
/// Where the linker's packages have a C library otherwise.
const SYSROOT: &str = "/usr/aarch64-linux-gnu";
const PACKAGES: &str =
    "rustc-web libstd-rust-web-dev:arm64 gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static";

/// Optimised, since qemu is slow: what a debug build checks it checks on the machine's own path.
const TESTS: &[&str] =
    &["test", "--release", "--tests", "--package", "planish-compute", "--package", "planish-tape"];

/// Builds the tests of compute and tape for AArch64 and runs them under qemu, or says what is missing.
pub fn run(root: &Path) -> Result<bool> {
    let compiler = compiler();
    let (linker, emulator) = (present(LINKERS), present(EMULATORS));
    let (Some(compiler), Some(linker), Some(emulator)) = (&compiler, linker, emulator) else {
        let wanted = [
            (compiler.is_some(), format!("a rustc with the standard library of {TARGET} ({COMPILER})")),
            (linker.is_some(), LINKERS.join(" or ")),
            (emulator.is_some(), EMULATORS.join(" or ")),
        ];
        wanted.iter().filter(|(found, _)| !found).for_each(|(_, what)| println!("missing: {what}"));
        println!("Debian 12: dpkg --add-architecture arm64; apt-get update; apt-get install {PACKAGES}");
        return Ok(false);
    };
    println!("neon: {compiler}, {linker}, {emulator}");
    let mut test = run::cargo(root);
    test.args(TESTS).args(["--target", TARGET, "--target-dir"]).arg(root.join("target/neon"));
    test.env("RUSTC", compiler)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", linker)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner(emulator));
    run::succeeds(&mut test)
}

/// The first compiler that has the target's standard library.
fn compiler() -> Option<String> {
    let named = std::env::var(COMPILER).ok();
    let known = COMPILERS.iter().map(|name| name.to_string());
    named.into_iter().chain(known).find(|rustc| has_target(rustc))
}

fn has_target(rustc: &str) -> bool {
    let ask = ["--print", "target-libdir", "--target", TARGET];
    let Ok(out) = Command::new(rustc).args(ask).stderr(Stdio::null()).output() else { return false };
    let libraries = std::fs::read_dir(String::from_utf8_lossy(&out.stdout).trim());
    libraries.is_ok_and(|mut all| {
        all.any(|file| file.is_ok_and(|file| file.file_name().to_string_lossy().starts_with("libstd-")))
    })
}

/// With a sysroot only where there is no other C library: the linker of the one with the library of the other hangs as
/// soon as a thread is started.
fn runner(emulator: &str) -> String {
    if Path::new(INSTALLED).exists() { emulator.to_string() } else { format!("{emulator} -L {SYSROOT}") }
}

/// The first of these programs that can be started.
fn present(names: &[&'static str]) -> Option<&'static str> {
    let starts = |name: &&str| Command::new(name).arg("--version").output().is_ok();
    names.iter().copied().find(starts)
}
