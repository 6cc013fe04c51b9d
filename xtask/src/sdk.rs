//! The client in `sdk/js`: built and tested with the tools that its lock file names.

use std::path::Path;

use crate::process::{program, run};

/// Installs its tools, builds it, runs its unit tests. Those against the gateway are in `tests/tests/sdk.rs`.
pub(crate) fn check(root: &Path) -> anyhow::Result<()> {
    let sdk = root.join("sdk/js");
    // The same whether anything is there already or not; what npm has fetched before it does not fetch again.
    run(&mut program(&sdk, "npm", "ci --prefer-offline --no-audit --no-fund"))?;
    run(&mut program(&sdk, "npm", "run build"))?;
    run(&mut program(&sdk, "npm", "test"))
}
