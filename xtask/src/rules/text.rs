//! Rules about any text: documents that must exist, links that must lead somewhere, names that must
//! not appear.

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
    for file in files.iter().filter(|file| file.path.ends_with(".md")) {
        findings.extend(dead_links(file, files));
    }
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

/// Links from a document to missing files of this repository.
fn dead_links(file: &File, files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, number) in file.text.lines().zip(1..) {
        for rest in line.split("](").skip(1) {
            let target = rest.split(')').next().unwrap_or_default();
            let target = target.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let target = resolved(&file.path, target);
            let is_there = files
                .iter()
                .any(|file| file.path == target || file.path.starts_with(&format!("{target}/")));
            if !is_there {
                findings
                    .push(file.finding(number, format!("links to {target}, which does not exist")));
            }
        }
    }
    findings
}

/// A link's target as a path from the root.
fn resolved(from: &str, target: &str) -> String {
    let directory = from.rsplit_once('/').map_or("", |(directory, _)| directory);
    let mut parts: Vec<&str> = directory.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    parts.join("/")
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
    fn links_lead_somewhere() {
        let text = "[a](../README.md#top) [b](gone.md)\n[c](https://example.org/x) [d](#here)";
        let lexicon = File::new("docs/lexicon.md", text);
        let files = [File::new("README.md", ""), File::new("docs/lexicon.md", "")];
        let findings = dead_links(&lexicon, &files);
        assert_eq!(findings, [lexicon.finding(1, "links to docs/gone.md, which does not exist")]);
    }

    #[test]
    fn a_directory_can_be_linked_to() {
        let readme = File::new("README.md", "[docs](docs/)");
        assert!(dead_links(&readme, &[File::new("docs/lexicon.md", "")]).is_empty());
        assert_eq!(dead_links(&readme, &[]).len(), 1);
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
