//! The house rules: rules about the repository that its text can show.
//!
//! Each file here holds the rules about one subject. A rule takes its input as an argument and
//! returns findings, so that its tests need no repository.

mod book;
mod circles;
mod floors;
mod folders;
mod graph;
mod history;
mod lexicon;
mod licences;
pub(crate) mod links;
mod logs;
mod manifests;
mod maps;
mod modules;
mod prose;
mod rust;
mod sizes;
mod source;
mod text;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::Value;

use crate::process::{cargo, host, output, program, succeeds};

/// The repository as the rules see it.
pub(crate) struct Repository {
    root: PathBuf,
    /// All files that are committed or could be, without ignored files. Sorted by path.
    files: Vec<File>,
    /// `cargo metadata` with all dependencies, for this machine's platform.
    metadata: Value,
    /// `cargo tree` of the packages that are linked on any platform.
    linked: String,
    /// Whether git is available.
    has_git: bool,
}

/// A file of text.
pub(crate) struct File {
    /// From the root, with `/`.
    path: String,
    text: String,
}

/// A violation of a rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The file, or another place.
    place: String,
    /// The line, from 1; `None` for the whole.
    line: Option<usize>,
    /// The fault and its remedy.
    text: String,
}

impl Repository {
    /// Reads all files, and calls git and cargo.
    pub(crate) fn read(root: &Path) -> anyhow::Result<Repository> {
        let has_git = succeeds(&mut program(root, "git", "rev-parse --git-dir"));
        let mut paths = if has_git { listed_by_git(root)? } else { found_on_disk(root)? };
        paths.sort();
        paths.dedup();
        let mut files = Vec::new();
        for path in paths {
            // A file that git still lists may be gone. One that is not text counts as empty: links may
            // lead to it.
            if let Ok(bytes) = fs::read(root.join(&path)) {
                files.push(File { path, text: String::from_utf8(bytes).unwrap_or_default() });
            }
        }
        let host = host(root)?;
        let mut metadata = cargo(root, "metadata --locked --format-version 1 --filter-platform");
        let metadata = output(metadata.arg(host))?;
        let metadata =
            serde_json::from_str(&metadata).context("cargo metadata writes no JSON any more")?;
        let mut linked =
            cargo(root, "tree --locked --workspace --target all -e normal --prefix none");
        let linked = output(&mut linked)?;
        Ok(Repository { root: root.to_path_buf(), files, metadata, linked, has_git })
    }
}

/// Applies every rule.
pub(crate) fn check(repository: &Repository) -> anyhow::Result<Vec<Finding>> {
    let Repository { root, files, metadata, linked, has_git } = repository;
    let mut findings = Vec::new();
    findings.extend(text::check(files));
    findings.extend(links::check(files));
    findings.extend(book::check(files));
    findings.extend(manifests::check(files)?);
    findings.extend(rust::check(files));
    findings.extend(sizes::check(files));
    findings.extend(graph::check(metadata, linked)?);
    findings.extend(floors::check(files));
    findings.extend(folders::check(files));
    findings.extend(circles::check(files));
    findings.extend(maps::check(files));
    findings.extend(lexicon::check(files));
    findings.extend(prose::check(files));
    findings.extend(logs::check(files));
    findings.extend(licences::check(files, metadata)?);
    if *has_git {
        findings.extend(history::check(root)?);
    } else {
        println!("no git here: commit subjects are not checked");
    }
    findings.sort_by(|a, b| (&a.place, a.line).cmp(&(&b.place, b.line)));
    Ok(findings)
}

/// For a limit that shall reach 0: prints the findings, and ignores them while they are within the
/// limit.
fn at_most(max: usize, what: &str, findings: Vec<Finding>) -> Vec<Finding> {
    if !findings.is_empty() {
        println!("{what}: {}, at most {max}", findings.len());
    }
    if findings.len() > max {
        return findings;
    }
    for finding in findings {
        println!("  {finding}");
    }
    Vec::new()
}

fn listed_by_git(root: &Path) -> anyhow::Result<Vec<String>> {
    let listed =
        output(&mut program(root, "git", "ls-files -z --cached --others --exclude-standard"))?;
    Ok(listed.split_terminator('\0').map(str::to_owned).collect())
}

/// Replaces git in an unpacked archive: finds all files except built ones.
fn found_on_disk(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut paths = Vec::new();
    let mut directories = vec![root.to_path_buf()];
    while let Some(directory) = directories.pop() {
        let entries =
            directory.read_dir().with_context(|| format!("cannot list {}", directory.display()))?;
        for entry in entries {
            let entry = entry?;
            let path = entry.path();
            if !entry.file_type()?.is_dir() {
                let relative = path.strip_prefix(root).unwrap_or(&path);
                paths.push(relative.to_string_lossy().into_owned());
            } else if !NEVER_COMMITTED.iter().any(|name| entry.file_name() == *name) {
                directories.push(path);
            }
        }
    }
    Ok(paths)
}

/// Directories that tools create.
const NEVER_COMMITTED: [&str; 4] = [".git", "dist", "node_modules", "target"];

impl File {
    #[cfg(test)]
    fn new(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    fn finding(&self, line: impl Into<Option<usize>>, text: impl Into<String>) -> Finding {
        Finding { place: self.path.clone(), line: line.into(), text: text.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.place, self.text),
            None => write!(f, "{}: {}", self.place, self.text),
        }
    }
}
