//! The conformance kit for authors of clients: sdk/js and weir-client pass it, and it finds each of twenty planted faults.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use weir_tests::program;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Begins a run of the kit.
fn kit(options: &[&str], adapter: &[&str]) -> Result<Child> {
    let mut command = Command::new("python3");
    command.arg("-B").arg(root().join("sdk/conformance/kit.py"));
    command.arg("--weir").arg(program("weir")?);
    command.args(options).arg("--").args(adapter);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().context("starting python3")
}

fn passes(options: &[&str], adapter: &[&str]) -> Result<()> {
    let output = kit(options, adapter)?.wait_with_output()?;
    let said = text(&output);
    ensure!(output.status.success() && said.contains("19 conversations, 0 failed"), "{said}");
    ensure!(!said.contains("skipped"), "{said}");
    Ok(())
}

fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

fn adapter(name: &str) -> Result<String> {
    let path = root().join("sdk/conformance/adapters").join(name);
    Ok(path.to_str().context("a path in UTF-8")?.to_owned())
}

#[test]
fn the_rust_client_passes() -> Result<()> {
    passes(&["--transport", "tcp"], &[env!("CARGO_BIN_EXE_conformance_client")])
}

#[test]
fn the_javascript_client_passes() -> Result<()> {
    let js = adapter("js.mjs")?;
    let node = ["node", "--experimental-websocket", "--no-warnings", js.as_str()];
    passes(&["--transport", "websocket"], &node)
}

#[test]
fn the_example_passes_and_each_of_its_planted_faults_is_found() -> Result<()> {
    let example = adapter("example.py")?;
    passes(&["--transport", "tcp"], &["python3", "-B", &example])?;
    let list = Command::new("python3").args(["-B", &example, "--faults"]).output()?;
    let list = String::from_utf8(list.stdout)?;
    let faults: Vec<(&str, &str)> = list.lines().filter_map(|line| line.split_once(' ')).collect();
    ensure!(faults.len() == 20, "{list}");
    // All at once: most of the time they wait.
    let runs = faults.iter().map(|(fault, conversation)| {
        let options = ["--only", conversation, "--patience", "8"];
        kit(&options, &["python3", "-B", &example, "--fault", fault])
    });
    let runs: Vec<Child> = runs.collect::<Result<_>>()?;
    for ((fault, conversation), child) in faults.iter().zip(runs) {
        let output = child.wait_with_output()?;
        let said = text(&output);
        let verdict = format!("FAILED  {conversation}: ");
        let code = output.status.code();
        ensure!(code == Some(1) && said.starts_with(&verdict), "{fault}: {said}");
        ensure!(!said.contains("Traceback") && !said.contains("exited"), "{fault}: {said}");
    }
    Ok(())
}
