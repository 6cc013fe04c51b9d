//! Builds the conformance suite for HTTP/2 that tests start, with Go, from the module that
//! `tests/h2spec` pins.

use std::fs;
use std::path::Path;

use anyhow::Context;

use crate::process::{beside_programs, program, run};

/// Builds the suite, unless this version is already built.
pub(crate) fn build(root: &Path) -> anyhow::Result<()> {
    let module = root.join("tests/h2spec");
    let mut wanted = String::new();
    for file in ["go.mod", "go.sum"] {
        let path = module.join(file);
        wanted +=
            &fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    }
    let place = beside_programs(root, "h2spec");
    let built = place.join("built-from");
    if fs::read_to_string(&built).is_ok_and(|built| built == wanted) {
        return Ok(());
    }
    fs::create_dir_all(&place).with_context(|| format!("making {}", place.display()))?;
    let mut go = program(root, "go", "build -buildvcs=false -mod=readonly -o");
    go.arg(place.join("h2spec")).arg(SUITE).current_dir(&module).env("GOTOOLCHAIN", "local");
    run(&mut go)?;
    // Written last, so that an interrupted build begins again.
    fs::write(&built, wanted).with_context(|| format!("writing {}", built.display()))
}

const SUITE: &str = "github.com/summerwind/h2spec/cmd/h2spec";
