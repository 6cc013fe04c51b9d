//! Builds and tests the client in `sdk/js`, with the tools in its lock file.

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
