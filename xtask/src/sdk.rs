//! Builds and tests what is JavaScript, with the tools in its lock files: the client in `sdk/js`, and
//! the figures of the dashboard.

use std::path::Path;

use crate::process::{program, run};

/// Installs the tools, builds the client and runs its unit tests. The tests against the gateway are
/// in `tests/tests/sdk.rs`.
pub(crate) fn check(root: &Path) -> anyhow::Result<()> {
    let sdk = root.join("sdk/js");
    // The result does not depend on earlier runs. npm does not download a package twice.
    run(&mut program(&sdk, "npm", "ci --prefer-offline --no-audit --no-fund"))?;
    run(&mut program(&sdk, "npm", "run build"))?;
    run(&mut program(&sdk, "npm", "test"))
}

/// Installs the tools that test the dashboard, and tests its figures. The tests in a browser are in
/// `tests/tests/ui.rs`.
pub(crate) fn check_dashboard(root: &Path) -> anyhow::Result<()> {
    let tests = root.join("tests/ui");
    run(&mut program(&tests, "npm", "ci --prefer-offline --no-audit --no-fund"))?;
    run(&mut program(&tests, "npm", "run figures"))
}
