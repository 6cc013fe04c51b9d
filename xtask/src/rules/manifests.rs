//! Rules about Cargo.toml: lints and versions come from the root, and the lock file is committed.

use anyhow::Context;
use toml::{Table, Value};

use super::{File, Finding};

/// Applies the rules to every manifest except the workspaces' roots.
pub(super) fn check(files: &[File]) -> anyhow::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for file in files {
        if file.path != "Cargo.toml" && !file.path.ends_with("/Cargo.toml") {
            continue;
        }
        let manifest: Table = file.text.parse().with_context(|| file.path.clone())?;
        if manifest.contains_key("workspace") {
            let lock = file.path.replace("Cargo.toml", "Cargo.lock");
            if !files.iter().any(|file| file.path == lock) {
                findings.push(file.finding(None, format!("commit {lock}")));
            }
        } else {
            findings.extend(check_member(file, &manifest));
        }
    }
    Ok(findings)
}

fn check_member(file: &File, manifest: &Table) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !inherits(manifest.get("lints")) {
        findings.push(file.finding(None, "inherit the lints: [lints] workspace = true"));
    }
    let targets = manifest.get("target").and_then(Value::as_table);
    let platforms = targets.into_iter().flat_map(|targets| targets.values());
    for table in std::iter::once(manifest).chain(platforms.filter_map(Value::as_table)) {
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            for (name, dependency) in
                table.get(kind).and_then(Value::as_table).into_iter().flatten()
            {
                if !inherits(Some(dependency)) {
                    let text =
                        format!("{name}: versions stand in the root; {name}.workspace = true");
                    findings.push(file.finding(None, text));
                }
            }
        }
    }
    findings
}

fn inherits(value: Option<&Value>) -> bool {
    value.and_then(|value| value.get("workspace")).and_then(Value::as_bool) == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(manifest: &str) -> usize {
        check(&[File::new("crates/a/Cargo.toml", manifest)]).expect("TOML").len()
    }

    #[test]
    fn lints_are_inherited() {
        assert_eq!(count("[lints]\nworkspace = true"), 0);
        assert_eq!(count("[package]\nname = \"a\""), 1);
        assert_eq!(count("[lints.clippy]\ntodo = \"warn\""), 1);
    }

    #[test]
    fn versions_stand_in_the_root() {
        let lints = "[lints]\nworkspace = true\n";
        assert_eq!(count(&format!("{lints}[dependencies]\na.workspace = true")), 0);
        assert_eq!(count(&format!("{lints}[dependencies]\na = \"1\"\nb = {{ path = \"b\" }}")), 2);
        let features = "[dev-dependencies]\na = { workspace = true, features = [\"b\"] }";
        assert_eq!(count(&format!("{lints}{features}")), 0);
        assert_eq!(count(&format!("{lints}[target.'cfg(loom)'.dev-dependencies]\na = \"1\"")), 1);
    }

    #[test]
    fn a_workspace_has_its_lock_file() {
        let root = || File::new("Cargo.toml", "[workspace]\n[workspace.dependencies]\na = \"1\"");
        assert_eq!(check(&[root()]).expect("TOML").len(), 1);
        assert_eq!(check(&[root(), File::new("Cargo.lock", "")]).expect("TOML").len(), 0);
    }
}
