//! Calls other programs and handles their failure.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// The repository's root.
///
/// The variable at run time comes first: worktrees that share a target directory also share this
/// program.
pub(crate) fn root() -> PathBuf {
    let manifest_dir =
        std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let manifest_dir = PathBuf::from(manifest_dir);
    manifest_dir.parent().map(Path::to_path_buf).unwrap_or(manifest_dir)
}

/// A call of cargo in `root`, with the words of `line` as arguments.
pub(crate) fn cargo(root: &Path, line: &str) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    program(root, cargo, line)
}

/// A call of `program` in `root`, with the words of `line` as arguments.
///
/// Removes `WEIR_*`, which would configure the server that tests start, and the variables that
/// `cargo run` sets for this program.
pub(crate) fn program(root: &Path, program: impl Into<OsString>, line: &str) -> Command {
    let mut command = Command::new(program.into());
    command.args(line.split_whitespace()).current_dir(root);
    for (key, _) in std::env::vars_os() {
        let own = key.to_str().is_some_and(|key| {
            ["WEIR_", "CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|start| key.starts_with(start))
        });
        if own {
            command.env_remove(key);
        }
    }
    command
}

/// Runs a command with its output on the terminal.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    println!("$ {}", shown(command));
    let status = command.status().with_context(|| format!("cannot start {}", shown(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", shown(command));
    }
    Ok(())
}

/// Runs a command. Shows its output line by line, both kinds in one order, and passes each line to
/// `look`.
pub(crate) fn run_watched(command: &mut Command, mut look: impl FnMut(&str)) -> anyhow::Result<()> {
    println!("$ {}", shown(command));
    let (reader, writer) = std::io::pipe()?;
    command.stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("cannot start {}", shown(command)))?;
    // Our ends of the pipe close here, so that the reader ends with the child.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    for line in BufReader::new(reader).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        look(&line);
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("{} ended with {status}", shown(command));
    }
    Ok(())
}

/// Runs a command and returns what it wrote to standard output; standard error goes to the terminal.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {}", shown(command)))?;
    if !output.status.success() {
        bail!("{} ended with {}", shown(command), output.status);
    }
    String::from_utf8(output.stdout)
        .with_context(|| format!("the output of {} is not UTF-8", shown(command)))
}

/// Runs a command without output; returns whether it started and succeeded.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The machine's target triple, as rustc names it.
pub(crate) fn host(root: &Path) -> anyhow::Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = output(&mut program(root, rustc, "--version --verbose"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not name its host")?.to_owned())
}

/// The directory for a tool that tests start: beside the directory of the programs, where tests
/// look for it.
pub(crate) fn beside_programs(root: &Path, name: &str) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), |target| root.join(target));
    target.join(name)
}

pub(crate) fn shown(command: &Command) -> String {
    let name = Path::new(command.get_program()).file_stem().unwrap_or(command.get_program());
    let words = std::iter::once(name).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Features that the shipped programs lack by default, for all steps that build code. They need no
/// further crates.
pub(crate) const FEATURES: &str =
    "--features weir-server/otlp,weir-server/next-format,weir-tests/otlp";
