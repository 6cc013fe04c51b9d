//! Rules about any text: documents that must exist, names that must not appear.

use super::{File, Finding};

/// Files that a newcomer needs.
const REQUIRED: [&str; 14] = [
    ".ci/run",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "LICENSE",
    "README.md",
    "SECURITY.md",
    "SPECIFICATION.md",
    "clippy.toml",
    "docs/configuration.md",
    "docs/lexicon.md",
    "docs/protocol.md",
    "rustfmt.toml",
];

/// Hosts of package registries, in two halves so that this file does not contain them. The settings
/// of each tool decide where packages come from.
const REGISTRY_HOSTS: [(&str, &str); 8] = [
    ("crates", ".io"),
    ("npmjs", ".org"),
    ("npmjs", ".com"),
    ("pypi", ".org"),
    ("pythonhosted", ".org"),
    ("proxy.golang", ".org"),
    ("rubygems", ".org"),
    ("repo1.maven", ".org"),
];

/// Applies the rules.
pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let mut findings = missing_documents(files, &REQUIRED);
    for file in files.iter().filter(|file| !is_lock_file(&file.path)) {
        findings.extend(registry_hosts(file));
    }
    findings
}

fn missing_documents(files: &[File], required: &[&str]) -> Vec<Finding> {
    let is_missing = |path: &&&str| !files.iter().any(|file| file.path == **path);
    required
        .iter()
        .filter(is_missing)
        .map(|path| Finding { place: (*path).to_owned(), line: None, text: "missing".to_owned() })
        .collect()
}

fn registry_hosts(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, number) in file.text.lines().zip(1..) {
        for (start, end) in REGISTRY_HOSTS {
            if line.contains(&format!("{start}{end}")) {
                findings.push(file.finding(number, "names the host of a package registry"));
            }
        }
    }
    findings
}

/// Whether tools write the file.
fn is_lock_file(path: &str) -> bool {
    path.ends_with(".lock") || path.ends_with("package-lock.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn required_documents_are_there() {
        let files = [File::new("README.md", "")];
        let findings = missing_documents(&files, &["README.md", "LICENSE"]);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].place, "LICENSE");
    }

    #[test]
    fn registries_are_not_named() {
        let (start, end) = REGISTRY_HOSTS[0];
        let text = format!("a\nfrom {start}{end}\n");
        assert_eq!(registry_hosts(&File::new("README.md", &text)).len(), 1);
        assert!(is_lock_file("fuzz/Cargo.lock"));
        assert!(!is_lock_file("README.md"));
    }
}
