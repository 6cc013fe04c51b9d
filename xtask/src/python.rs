//! Installs the Python packages that tests use, in a separate environment.

use std::fs;
use std::path::Path;

use anyhow::Context;

use crate::process::{beside_programs, program, run};

/// Installs the packages of `tests/requirements.txt`, unless they are already installed.
pub(crate) fn install(root: &Path) -> anyhow::Result<()> {
    let list = root.join("tests/requirements.txt");
    let wanted =
        fs::read_to_string(&list).with_context(|| format!("reading {}", list.display()))?;
    let place = beside_programs(root, "python");
    let installed = place.join("requirements.txt");
    if fs::read_to_string(&installed).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    let environment = program(root, "python3", "-m venv --clear").arg(&place).status();
    environment.context("making an environment for Python packages")?;
    let mut pip = program(root, place.join("bin/python"), "-m pip install --quiet --requirement");
    run(pip.arg(&list))?;
    // Written last, so that an interrupted installation begins again.
    fs::write(&installed, wanted).with_context(|| format!("writing {}", installed.display()))
}
