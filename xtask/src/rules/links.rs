//! Rule: each link of a document leads to a file of this repository, and each `#anchor` to a heading.

use std::collections::{HashMap, HashSet};

use super::{File, Finding};

/// A link of a document.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) line: usize,
    /// The target's path as it is written, without the anchor. Empty: the same document.
    pub(crate) path: String,
    /// The heading, without `#`. Empty: the whole document.
    pub(crate) anchor: String,
}

/// Applies the rule.
pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let documents = || files.iter().filter(|file| file.path.ends_with(".md"));
    let anchors: HashMap<&str, HashSet<String>> =
        documents().map(|file| (file.path.as_str(), anchors(&file.text))).collect();
    documents().flat_map(|file| dead_links(file, files, &anchors)).collect()
}

/// The links of a document that lead to this repository. Blocks of code have none.
pub(crate) fn links(text: &str) -> Vec<Link> {
    let mut links = Vec::new();
    for (line, number) in prose(text) {
        for rest in without_code(line).split("](").skip(1) {
            let target = rest.split(')').next().unwrap_or_default();
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            if !target.is_empty() && !target.contains("://") {
                let (path, anchor) = (path.to_owned(), anchor.to_owned());
                links.push(Link { line: number, path, anchor });
            }
        }
    }
    links
}

/// A link's target as a path from the root.
pub(crate) fn resolved(from: &str, target: &str) -> String {
    if target.is_empty() {
        return from.to_owned();
    }
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

fn dead_links(
    file: &File,
    files: &[File],
    anchors: &HashMap<&str, HashSet<String>>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for Link { line, path, anchor } in links(&file.text) {
        let target = resolved(&file.path, &path);
        let is_there = files
            .iter()
            .any(|file| file.path == target || file.path.starts_with(&format!("{target}/")));
        if !is_there {
            findings.push(file.finding(line, format!("links to {target}, which does not exist")));
            continue;
        }
        // Only headings of documents are known. A line of a source file has no name.
        let known = anchors.get(target.as_str()).is_some_and(|anchors| anchors.contains(&anchor));
        if !anchor.is_empty() && !known {
            let text = format!("links to #{anchor} of {target}, which has no such heading");
            findings.push(file.finding(line, text));
        }
    }
    findings
}

/// The names of a document's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> HashSet<String> {
    let mut found: HashSet<String> = HashSet::new();
    for (line, _) in prose(text) {
        let Some(heading) = line.strip_prefix('#') else { continue };
        let heading = heading.trim_start_matches('#');
        if !heading.starts_with(' ') {
            continue;
        }
        let name = slug(heading.trim());
        let mut unique = name.clone();
        let mut count = 0;
        while found.contains(&unique) {
            count += 1;
            unique = format!("{name}-{count}");
        }
        found.insert(unique);
    }
    found
}

fn slug(heading: &str) -> String {
    // Of a link, only its text counts.
    let mut text = String::new();
    for (number, part) in heading.split("](").enumerate() {
        text.push_str(if number == 0 { part } else { part.split_once(')').map_or("", |p| p.1) });
    }
    let kept = text.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The numbered lines outside blocks of code.
fn prose(text: &str) -> impl Iterator<Item = (&str, usize)> {
    let mut is_code = false;
    text.lines().zip(1..).filter(move |(line, _)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The line without what stands between backquotes.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_document(path: &str, text: &str, others: &[(&str, &str)], expected: &[&str]) {
        let mut files = vec![File::new(path, text)];
        files.extend(others.iter().map(|(path, text)| File::new(path, text)));
        let found: Vec<String> = check(&files).into_iter().map(|found| found.text).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn links_lead_somewhere() {
        let text =
            "# Here\n[a](../README.md#top) [b](gone.md)\n[c](https://example.org/x) [d](#here)";
        let gone = "links to docs/gone.md, which does not exist";
        check_document("docs/lexicon.md", text, &[("README.md", "# Top")], &[gone]);
    }

    #[test]
    fn a_directory_can_be_linked_to() {
        check_document("README.md", "[docs](docs/)", &[("docs/lexicon.md", "")], &[]);
        let gone = "links to docs, which does not exist";
        check_document("README.md", "[docs](docs/)", &[], &[gone]);
    }

    #[test]
    fn an_anchor_names_a_heading() {
        let other = "# One two\n## `[[x]]`, and [y](z.md)\n# Adding …\n```sh\n# no heading\n```\n# One two\n";
        for good in ["one-two", "one-two-1", "x-and-y", "adding-"] {
            let text = format!("[a](b.md#{good})");
            check_document("a.md", &text, &[("b.md", other), ("z.md", "")], &[]);
        }
        for bad in ["one", "One-two", "no-heading", "one-two-2"] {
            let text = format!("[a](b.md#{bad})");
            let finding = format!("links to #{bad} of b.md, which has no such heading");
            check_document("a.md", &text, &[("b.md", other), ("z.md", "")], &[&finding]);
        }
    }

    #[test]
    fn code_has_no_links() {
        check_document("a.md", "`[a](b.md)`\n```text\n[a](b.md)\n```\n", &[], &[]);
    }
}
