//! Builds programs with Go, each from a module that pins its versions: the conformance suite for
//! HTTP/2 that tests start, and the NATS server that `bench` measures.

use std::fs;
use std::path::Path;

use anyhow::Context;

use crate::process::{beside_programs, program, run};

/// Builds the conformance suite.
pub(crate) fn build(root: &Path) -> anyhow::Result<()> {
    build_module(root, "tests/h2spec", "h2spec", SUITE)
}

/// Builds a program of a module into a place beside the programs, unless this version is already
/// built. The program is named as the package, without a version at its end.
pub(crate) fn build_module(
    root: &Path,
    folder: &str,
    place: &str,
    package: &str,
) -> anyhow::Result<()> {
    let module = root.join(folder);
    let mut wanted = String::new();
    for file in ["go.mod", "go.sum"] {
        let path = module.join(file);
        wanted +=
            &fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    }
    let place = beside_programs(root, place);
    let built = place.join("built-from");
    if fs::read_to_string(&built).is_ok_and(|built| built == wanted) {
        return Ok(());
    }
    fs::create_dir_all(&place).with_context(|| format!("making {}", place.display()))?;
    let mut go = program(root, "go", "build -buildvcs=false -mod=readonly -o");
    let name = package.rsplit('/').find(|part| !part.starts_with('v')).unwrap_or(package);
    go.arg(place.join(name)).arg(package).current_dir(&module).env("GOTOOLCHAIN", "local");
    run(&mut go)?;
    // Written last, so that an interrupted build begins again.
    fs::write(&built, wanted).with_context(|| format!("writing {}", built.display()))
}

const SUITE: &str = "github.com/summerwind/h2spec/cmd/h2spec";
