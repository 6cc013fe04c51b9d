//! The dashboard of the program in a real browser.
//!
//! The tests themselves are JavaScript, in `tests/ui`: they start the program and devices, click through each action,
//! and look at what it does. Screenshots are in `target/ui`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use weir_tests::program;

#[test]
fn the_dashboard_in_a_browser() -> Result<()> {
    let weir = program("weir")?;
    let target = weir.ancestors().nth(2).context("a program is in target/debug")?;
    let output = Command::new("npm")
        .args(["run", "pages"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("ui"))
        .env("E2E_PROGRAM", &weir)
        .env("E2E_SCREENSHOTS", target.join("ui"))
        .output()
        .context("running npm, which `cargo xtask test` installs")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{said}{complaint}");
    // Not that all passed because there were none.
    ensure!(said.contains("\nok 1 - ") && said.contains("# fail 0"), "no test was run: {said}");
    Ok(())
}
