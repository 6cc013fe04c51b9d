//! Limits on sizes. A file that is too large today is listed with its size, and may only shrink.

use super::source::{code, code_lines};
use super::{File, Finding};

/// Most lines of code in a file, without blank lines and comments. Its unit tests (the last `mod
/// tests`) count separately, and may have as many.
const FILE_LINES_MAX: usize = 500;

/// ARCHITECTURE.md must give the reason and the path of a file above this size.
const FILE_LINES_EXPLAINED: usize = 1_000;

/// Files over [`FILE_LINES_MAX`] with their size. An entry may only be lowered or removed.
const LARGE_FILES: &[(&str, usize)] = &[];

/// Functions over clippy's limit (`too-many-lines-threshold` in clippy.toml), each with `#[expect]`
/// and a reason. This number may only be lowered.
const LONG_FUNCTIONS: usize = 0;

/// Applies the rules.
pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let mut findings = large_files(files, LARGE_FILES);
    findings.extend(long_functions(files, LONG_FUNCTIONS));
    findings
}

fn large_files(files: &[File], known: &[(&str, usize)]) -> Vec<Finding> {
    let map = files.iter().find(|file| file.path == "ARCHITECTURE.md");
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        let (product, tests) = parts(&file.text);
        let lines = product.max(tests);
        let known = known.iter().find(|(path, _)| *path == file.path).map(|(_, lines)| *lines);
        if let Some(text) = judge(lines, known) {
            findings.push(file.finding(None, text));
        }
        if lines > FILE_LINES_EXPLAINED && !map.is_some_and(|map| map.text.contains(&file.path)) {
            let text = format!("{lines} lines of code: give the reason in ARCHITECTURE.md");
            findings.push(file.finding(None, text));
        }
    }
    for (path, _) in known {
        if !files.iter().any(|file| file.path == *path) {
            let text = "in LARGE_FILES of xtask/src/rules/sizes.rs, but gone: take it out";
            findings.push(Finding { place: (*path).to_owned(), line: None, text: text.to_owned() });
        }
    }
    findings
}

/// Compares a file's size with its entry in the table.
fn judge(lines: usize, known: Option<usize>) -> Option<String> {
    let table = "LARGE_FILES of xtask/src/rules/sizes.rs";
    match known {
        None if lines <= FILE_LINES_MAX => None,
        None => Some(format!("{lines} lines of code; at most {FILE_LINES_MAX}: split it")),
        Some(_) if lines <= FILE_LINES_MAX => Some(format!("small now: take it out of {table}")),
        Some(known) if lines < known => Some(format!("shrunk: write {lines} in {table}")),
        Some(known) if lines > known => Some(format!("grew from {known} to {lines} lines of code")),
        Some(_) => None,
    }
}

/// Lines of code before the last `mod tests`, and inside it.
fn parts(source: &str) -> (usize, usize) {
    let code = code(source);
    let tests_start = code.rfind("\n#[cfg(test)]\nmod tests {").unwrap_or(code.len());
    let (product, tests) = code.split_at(tests_start);
    (code_lines(product), code_lines(tests))
}

fn long_functions(files: &[File], known: usize) -> Vec<Finding> {
    let count: usize = files
        .iter()
        .filter(|file| file.path.ends_with(".rs"))
        .map(|file| exceptions(&code(&file.text)))
        .sum();
    let place = "LONG_FUNCTIONS of xtask/src/rules/sizes.rs".to_owned();
    match count.cmp(&known) {
        std::cmp::Ordering::Equal => Vec::new(),
        std::cmp::Ordering::Less => {
            vec![Finding { place, line: None, text: format!("only {count} are left: lower it") }]
        }
        std::cmp::Ordering::Greater => {
            let text = format!("{count} functions over the limit, {known} known: split the new");
            vec![Finding { place, line: None, text }]
        }
    }
}

/// Mentions of the lint in code: each is an exception, since nothing else names it.
fn exceptions(code: &str) -> usize {
    code.matches("clippy::too_many_lines").count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(lines: usize) -> File {
        File::new("a.rs", &"f();\n".repeat(lines))
    }

    fn count(files: &[File], known: &[(&str, usize)]) -> usize {
        large_files(files, known).len()
    }

    #[test]
    fn small_files_need_no_entry() {
        assert_eq!(count(&[file(500)], &[]), 0);
        assert_eq!(count(&[file(501)], &[]), 1);
        assert_eq!(count(&[file(500)], &[("a.rs", 600)]), 1);
    }

    #[test]
    fn entries_only_shrink() {
        assert_eq!(count(&[file(600)], &[("a.rs", 600)]), 0);
        assert_eq!(count(&[file(601)], &[("a.rs", 600)]), 1);
        assert_eq!(count(&[file(599)], &[("a.rs", 600)]), 1);
        assert_eq!(count(&[], &[("a.rs", 600)]), 1);
    }

    #[test]
    fn very_large_files_are_explained() {
        let known = [("a.rs", 1001)];
        assert_eq!(count(&[file(1001)], &known), 1);
        let map = File::new("ARCHITECTURE.md", "`a.rs` is one state machine");
        assert_eq!(count(&[file(1001), map], &known), 0);
    }

    #[test]
    fn tests_are_counted_by_themselves() {
        let text = "a();\n// b\n\n#[cfg(test)]\nmod tests {\n    c();\n}\n";
        assert_eq!(parts(text), (1, 4));
        assert_eq!(parts("a();\n"), (1, 0));
    }

    #[test]
    fn exceptions_for_long_functions_only_shrink() {
        let text =
            "#[expect(\n    clippy::too_many_lines,\n    reason = \"clippy::too_many_lines\"\n)]\n";
        let files = [File::new("a.rs", text)];
        assert_eq!(long_functions(&files, 1).len(), 0);
        assert_eq!(long_functions(&files, 0).len(), 1);
        assert_eq!(long_functions(&files, 2).len(), 1);
    }
}
