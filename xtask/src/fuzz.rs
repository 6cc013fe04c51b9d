//! `cargo xtask fuzz`: runs a libFuzzer target of the workspace in `fuzz/` on the stable compiler.
//!
//! The flags below let libFuzzer see which branches an input takes. Sanitizers would need a nightly
//! compiler. The decoders contain no unsafe code, so sanitizers would find little.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::process::{cargo, host, program, run as run_command};

/// The default time of a target.
pub(crate) const SECONDS_DEFAULT: u64 = 60;

const COVERAGE_FLAGS: [&str; 9] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
    "-Ccodegen-units=1",
    "-Cdebug-assertions",
];

/// Builds the target and runs it for `seconds`.
///
/// New inputs go to `fuzz/target/corpus/TARGET`, failing ones to `fuzz/artifacts/TARGET`. The
/// committed corpus in `fuzz/corpus/TARGET` is only read.
pub(crate) fn run(root: &Path, target: &str, seconds: u64) -> anyhow::Result<()> {
    let fuzz = root.join("fuzz");
    let source = fuzz.join("fuzz_targets").join(target).with_extension("rs");
    if !source.is_file() {
        bail!("there is no fuzz target {target}; the targets are {}", targets(&fuzz)?.join(", "));
    }
    let host = host(root)?;
    let mut build = cargo(&fuzz, "build --release --target");
    build.args([&host, "--target-dir", "target", "--bin", target]);
    run_command(build.env("CARGO_ENCODED_RUSTFLAGS", COVERAGE_FLAGS.join("\x1f")))?;

    let discovered = made(fuzz.join("target/corpus").join(target))?;
    let artifacts = made(fuzz.join("artifacts").join(target))?;
    let built = fuzz.join("target").join(&host).join("release").join(target);
    let mut fuzzer = program(&fuzz, built, "");
    fuzzer.arg(format!("-max_total_time={seconds}"));
    fuzzer.arg(format!("-artifact_prefix={}/", artifacts.display()));
    fuzzer.arg(discovered);
    let committed = fuzz.join("corpus").join(target);
    if committed.is_dir() {
        fuzzer.arg(committed);
    }
    run_command(&mut fuzzer)
}

fn targets(fuzz: &Path) -> anyhow::Result<Vec<String>> {
    let directory = fuzz.join("fuzz_targets");
    let mut names = Vec::new();
    let entries =
        directory.read_dir().with_context(|| format!("cannot list {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

fn made(directory: PathBuf) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    Ok(directory)
}
