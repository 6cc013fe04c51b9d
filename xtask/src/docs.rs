//! `cargo xtask docs`: writes the generated documents and the Rust documentation.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};

use crate::process::{FEATURES, cargo, output, program, run as run_command};
use crate::scaling;

/// Documents that a program writes: the file, and the arguments of `weir` that print it. Files that
/// do not exist are skipped.
const GENERATED: [(&str, &str); 1] = [("docs/configuration.md", "config reference --markdown")];

/// Writes the generated documents, then the Rust documentation of everything public.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    build_programs(root)?;
    for (path, text) in generated(root)? {
        fs::write(root.join(path), text).with_context(|| format!("cannot write {path}"))?;
        println!("wrote {path}");
    }
    scaling::run(root)?;
    run_command(&mut cargo(root, "doc --locked --workspace --lib --no-deps"))?;
    println!("open target/doc/weir/index.html");
    Ok(())
}

/// Checks that the generated documents are up to date.
pub(crate) fn check(root: &Path) -> anyhow::Result<()> {
    for (path, text) in generated(root)? {
        let found =
            fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"))?;
        if found != text {
            bail!("{path} is out of date: run cargo xtask docs");
        }
    }
    scaling::check(root)
}

/// Runs rustdoc on everything with `flags`, including private items, because their links are
/// checked too.
///
/// The library and the program `weir` would write to the same directory, so there are two calls.
pub(crate) fn rustdoc(root: &Path, flags: &str) -> anyhow::Result<()> {
    for packages in ["--package weir-server", "--workspace --exclude weir-server"] {
        let mut doc = cargo(root, "doc --locked --no-deps --document-private-items");
        doc.args(packages.split_whitespace());
        run_command(doc.env("RUSTDOCFLAGS", flags))?;
    }
    Ok(())
}

/// Builds every program and example.
///
/// `--examples` selects the feature set of the tests, so that the test run builds nothing twice.
pub(crate) fn build_programs(root: &Path) -> anyhow::Result<()> {
    let line = format!("build --locked --workspace --bins --examples {FEATURES}");
    run_command(&mut cargo(root, &line))
}

/// The documents as the built programs write them now.
fn generated(root: &Path) -> anyhow::Result<Vec<(&'static str, String)>> {
    let neighbours = std::env::current_exe().context("cannot find the path of xtask")?;
    let weir = neighbours.with_file_name("weir");
    let mut documents = Vec::new();
    for (path, arguments) in GENERATED {
        if root.join(path).exists() {
            documents.push((path, output(&mut program(root, &weir, arguments))?));
        }
    }
    Ok(documents)
}
