//! Rules: prose in documents is wrapped, and ARCHITECTURE.md is short.

use super::{File, Finding};

/// Most characters of a line.
const LINE_MAX: usize = 100;

/// Lines of a table, and what tests are told about a block of commands.
const NO_PROSE: [&str; 2] = ["|", "<!-- test:"];

/// Documents that a program writes.
const GENERATED: [&str; 1] = ["docs/configuration.md"];

/// Most words of a document.
const WORDS_MAX: &[(&str, usize)] = &[("ARCHITECTURE.md", 3_000)];

/// Applies the rules.
pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let mut findings = long_lines(files);
    findings.extend(too_many_words(files, WORDS_MAX));
    findings
}

/// Every long line of our documents.
fn long_lines(files: &[File]) -> Vec<Finding> {
    let is_ours = |file: &&File| file.path.ends_with(".md") && !GENERATED.contains(&&*file.path);
    let mut findings = Vec::new();
    for file in files.iter().filter(is_ours) {
        let text = || format!("above {LINE_MAX} characters: wrap it");
        findings.extend(long_lines_of(file).into_iter().map(|line| file.finding(line, text())));
    }
    findings
}

/// Numbers of the long lines outside tables and blocks of code.
fn long_lines_of(file: &File) -> Vec<usize> {
    let mut is_code = false;
    let mut long = Vec::new();
    for (line, number) in file.text.lines().zip(1..) {
        let begins = line.trim_start();
        if begins.starts_with("```") {
            is_code = !is_code;
        } else if !is_code
            && !NO_PROSE.iter().any(|begin| begins.starts_with(begin))
            && width(line) > LINE_MAX
        {
            long.push(number);
        }
    }
    long
}

/// Characters that could be wrapped: all except the targets of links.
fn width(line: &str) -> usize {
    let mut width = 0;
    for (number, part) in line.split("](").enumerate() {
        let text =
            if number == 0 { part } else { part.split_once(')').map_or("", |(_, text)| text) };
        let words = text.split(' ').filter(|word| !word.contains("://"));
        width += words.map(|word| word.chars().count() + 1).sum::<usize>().saturating_sub(1);
    }
    width
}

fn too_many_words(files: &[File], words_max: &[(&str, usize)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, max) in words_max {
        for file in files.iter().filter(|file| file.path == *path) {
            let words = file.text.split_whitespace().count();
            if words > *max {
                findings.push(file.finding(None, format!("{words} words; at most {max}")));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_lines(text: &str, expected: &[usize]) {
        assert_eq!(long_lines_of(&File::new("a.md", text)), expected, "{text}");
    }

    #[test]
    fn prose_is_wrapped() {
        let (short, long) = ("é".repeat(100), "é".repeat(101));
        check_lines(&short, &[]);
        check_lines(&format!("{short}\n{long}\n- {short}\n"), &[2, 3]);
    }

    #[test]
    fn each_long_line_of_our_documents_is_named() {
        let long = "a ".repeat(51);
        let texts = [("a.md", 2), ("b.md", 1), ("docs/configuration.md", 4), ("c.rs", 4)];
        let file = |(path, lines)| File::new(path, &format!("{long}\n").repeat(lines));
        let files = texts.map(file);
        let found = long_lines(&files).into_iter().map(|found| (found.place, found.line));
        let expected = [("a.md", 1), ("a.md", 2), ("b.md", 1)];
        let expected = expected.map(|(place, line)| (place.to_owned(), Some(line)));
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn tables_code_and_links_are_not() {
        let long = "a ".repeat(51);
        check_lines(&format!("| {long} |\n  | {long} |\n<!-- test: {long} -->\n"), &[]);
        check_lines(&format!("```sh\n{long}\n```\n{long}\n"), &[4]);
        check_lines(&format!("see [the page](https://{}) there", "a".repeat(101)), &[]);
        check_lines(&format!("see https://{} there", "a".repeat(101)), &[]);
        check_lines(&format!("{long}[the page](a.md)"), &[1]);
        check_lines(&format!("[the page](a.md) {long}"), &[1]);
    }

    #[test]
    fn a_document_may_have_so_many_words() {
        let files = [File::new("a.md", "one two\n\nthree")];
        assert_eq!(too_many_words(&files, &[("a.md", 3), ("b.md", 1)]), []);
        assert_eq!(too_many_words(&files, &[("a.md", 2)]).len(), 1);
    }
}
