//! Rule: the book (docs/SUMMARY.md) has each page of docs/ once.

use super::links::{links, resolved};
use super::{File, Finding};

/// The contents of the book.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Applies the rule. That the pages of the book exist is a matter of its links.
pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let Some(summary) = files.iter().find(|file| file.path == SUMMARY) else { return Vec::new() };
    let listed: Vec<(String, usize)> = links(&summary.text)
        .into_iter()
        .map(|link| (resolved(SUMMARY, &link.path), link.line))
        .collect();
    let mut findings = Vec::new();
    for (number, (path, line)) in listed.iter().enumerate() {
        if listed[..number].iter().any(|(earlier, _)| earlier == path) {
            findings.push(summary.finding(*line, format!("{path} is in the book already")));
        }
        if !path.ends_with(".md") {
            findings.push(summary.finding(*line, format!("{path} is no page")));
        }
    }
    for file in files.iter().filter(|file| file.path.starts_with("docs/")) {
        let is_page = file.path.ends_with(".md") && file.path != SUMMARY;
        if is_page && !listed.iter().any(|(path, _)| *path == file.path) {
            findings.push(file.finding(None, format!("add a line for it to {SUMMARY}")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_summary(text: &str, expected: &[&str]) {
        let paths = ["README.md", "docs/a.md", "docs/b/c.md", "docs/d.svg"];
        let mut files = vec![File::new(SUMMARY, text)];
        files.extend(paths.map(|path| File::new(path, "")));
        let found: Vec<String> = check(&files).iter().map(ToString::to_string).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn each_page_is_in_the_book_once() {
        check_summary("[W](../README.md)\n- [A](a.md)\n- [C](b/c.md)\n", &[]);
        let missing = "docs/b/c.md: add a line for it to docs/SUMMARY.md";
        check_summary("- [A](a.md)\n", &[missing]);
        let twice = "docs/SUMMARY.md:2: docs/a.md is in the book already";
        check_summary("- [A](a.md)\n- [A](a.md)\n- [C](b/c.md)\n", &[twice]);
        let picture = "docs/SUMMARY.md:3: docs/d.svg is no page";
        check_summary("- [A](a.md)\n- [C](b/c.md)\n- [D](d.svg)\n", &[picture]);
    }

    #[test]
    fn a_repository_without_a_book_has_no_pages_to_list() {
        assert_eq!(check(&[File::new("docs/a.md", "")]), []);
    }
}
