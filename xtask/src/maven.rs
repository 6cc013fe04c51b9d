//! Builds the server of MongoDB's protocol that tests start, with Maven, from `tests/mongo`.

use std::fs;
use std::path::Path;

use anyhow::Context;

use crate::process::{beside_programs, program, run};

/// Builds the server, unless it is already built from these sources.
pub(crate) fn build(root: &Path) -> anyhow::Result<()> {
    let mut wanted = String::new();
    for source in SOURCES {
        let path = root.join(source);
        wanted +=
            &fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    }
    let place = beside_programs(root, "mongo");
    let built = place.join("built-from");
    if fs::read_to_string(&built).is_ok_and(|built| built == wanted) {
        return Ok(());
    }
    // Files of an older build would be loaded beside the new ones.
    let _ = fs::remove_dir_all(&place);
    let mut maven = program(root, "mvn", "--quiet --batch-mode --file tests/mongo/pom.xml package");
    run(maven.arg(format!("-Dweir.target={}", place.display())))?;
    // Written last, so that an interrupted build begins again.
    fs::write(&built, wanted).with_context(|| format!("writing {}", built.display()))
}

const SOURCES: [&str; 3] = [
    "tests/mongo/pom.xml",
    "tests/mongo/src/main/java/ById.java",
    "tests/mongo/src/main/java/Main.java",
];
