//! The client `sdk/js` against the program, in Node and in a page of a real browser.
//!
//! The tests themselves are JavaScript, in `sdk/js/e2e`: a thousand messages while the connection is cut ten times, then
//! another start of the server; eight tabs across outages of 0.3, 3 and 30 s. They start the program, and the proxy that
//! cuts, themselves.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use weir_tests::program;

/// Runs one of the scripts of `sdk/js/package.json`. `name` is that of its screenshots' directory, beside the program.
fn check(script: &str, name: &str) -> Result<()> {
    let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk/js");
    let weir = program("weir")?;
    let screenshots = weir.parent().context("a program is in a directory")?.join(name);
    let output = Command::new("npm")
        .args(["run", script])
        .current_dir(&sdk)
        .env("E2E_PROGRAM", &weir)
        .env("E2E_SCREENSHOTS", &screenshots)
        .output()
        .context("running npm, which `cargo xtask test` installs")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{said}{complaint}");
    // Not that all passed because there were none.
    ensure!(said.contains("\nok 1 - ") && said.contains("# fail 0"), "no test was run: {said}");
    Ok(())
}

#[test]
fn the_client_in_node() -> Result<()> {
    check("e2e:node", "sdk-node")
}

#[test]
fn the_client_in_a_browser() -> Result<()> {
    check("e2e:browser", "sdk-browser")
}

#[test]
fn the_client_in_several_tabs() -> Result<()> {
    check("e2e:tabs", "sdk-tabs")
}
