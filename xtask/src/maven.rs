//! Builds servers in Java with Maven: the one of MongoDB's protocol that tests start, and the one of
//! Netty that `bench` measures.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::process::{beside_programs, program, run};

/// Builds the server of MongoDB's protocol.
pub(crate) fn build(root: &Path) -> anyhow::Result<()> {
    build_module(root, "tests/mongo", "mongo")
}

/// Builds the server in a folder into a place beside the programs, unless it is already built from
/// these sources.
pub(crate) fn build_module(root: &Path, folder: &str, place: &str) -> anyhow::Result<()> {
    let mut wanted = String::new();
    for path in sources(&root.join(folder))? {
        wanted +=
            &fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    }
    let place = beside_programs(root, place);
    let built = place.join("built-from");
    if fs::read_to_string(&built).is_ok_and(|built| built == wanted) {
        return Ok(());
    }
    // Files of an older build would be loaded beside the new ones.
    let _ = fs::remove_dir_all(&place);
    let line = format!("--quiet --batch-mode --file {folder}/pom.xml package");
    let mut maven = program(root, "mvn", &line);
    run(maven.arg(format!("-Dweir.target={}", place.display())))?;
    // Written last, so that an interrupted build begins again.
    fs::write(&built, wanted).with_context(|| format!("writing {}", built.display()))
}

/// The description of a module and its classes, in order.
fn sources(module: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let java = module.join("src/main/java");
    let files = fs::read_dir(&java).with_context(|| format!("reading {}", java.display()))?;
    let mut sources = vec![module.join("pom.xml")];
    for file in files {
        sources.push(file?.path());
    }
    sources.sort();
    Ok(sources)
}
