//! Rule: `docs/logs.md` lists each line that the gateway logs: its level, its text, and its fields.
//!
//! Programs look for these texts and fields, so a change of one must be seen.

use std::collections::BTreeMap;

use super::source::{code, product};
use super::{File, Finding};

const PAGE: &str = "docs/logs.md";
const MACROS: [&str; 3] = ["error!(", "warn!(", "info!("];
/// The crates of which the program `weir` is made.
const CRATES: [&str; 6] =
    ["weir", "weir-broker", "weir-engine", "weir-server", "weir-store", "weir-upstream"];

/// Applies the rule.
pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let Some(page) = files.iter().find(|file| file.path == PAGE) else {
        return vec![Finding { place: PAGE.to_owned(), line: None, text: "missing".to_owned() }];
    };
    let mut logged = BTreeMap::new();
    for file in files.iter().filter(|file| is_product(&file.path)) {
        for (row, line) in rows(&file.text) {
            logged.entry(row).or_insert((file.path.clone(), line));
        }
    }
    let listed: BTreeMap<&str, usize> = page.text.lines().zip(1..).filter(is_row).collect();
    let missing = logged.iter().filter(|(row, _)| !listed.contains_key(row.as_str()));
    let missing = missing.map(|(row, (path, line))| Finding {
        place: path.clone(),
        line: Some(*line),
        text: format!("{PAGE} lacks this line: {row}"),
    });
    let stale = listed.iter().filter(|(row, _)| !logged.contains_key(**row));
    let stale = stale.map(|(row, line)| Finding {
        place: PAGE.to_owned(),
        line: Some(*line),
        text: format!("no code logs this: {row}"),
    });
    missing.chain(stale).collect()
}

fn is_product(path: &str) -> bool {
    let is_ours = CRATES.iter().any(|name| {
        path.strip_prefix("crates/").is_some_and(|rest| {
            rest.strip_prefix(name).is_some_and(|rest| rest.starts_with("/src/"))
        })
    });
    is_ours && path.ends_with(".rs") && !path.contains("/tests") && !path.contains("/sim/")
}

fn is_row((line, _): &(&str, usize)) -> bool {
    MACROS.iter().any(|name| line.starts_with(&format!("| {} |", name.trim_end_matches("!("))))
}

/// The rows of the lines that a file logs, with the places in the file.
fn rows(source: &str) -> Vec<(String, usize)> {
    // Literals are filled and tests are blank there, and each character has its place.
    let code: Vec<char> = product(&code(source)).chars().collect();
    let source: Vec<char> = source.chars().collect();
    let mut rows = Vec::new();
    for name in MACROS {
        let name: Vec<char> = name.chars().collect();
        for at in 0..code.len().saturating_sub(name.len()) {
            let is_call = code[at..].starts_with(&name)
                && (at == 0 || !(code[at - 1].is_alphanumeric() || code[at - 1] == '_'));
            if is_call {
                let level: String = name[..name.len() - 2].iter().collect();
                let begin = at + name.len();
                let line = code[..at].iter().filter(|c| **c == '\n').count() + 1;
                rows.push((row(&level, &arguments(&code, &source, begin)), line));
            }
        }
    }
    rows
}

/// The arguments of a call that begin here.
fn arguments(code: &[char], source: &[char], begin: usize) -> Vec<String> {
    let mut arguments = Vec::new();
    let (mut depth, mut from) = (0_usize, begin);
    for at in begin..code.len() {
        let is_end = depth == 0 && code[at] == ')';
        if is_end || depth == 0 && code[at] == ',' {
            let argument: String = source[from..at].iter().collect();
            arguments.push(argument.trim().to_owned());
            from = at + 1;
        }
        match code[at] {
            _ if is_end => break,
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
    }
    arguments
}

fn row(level: &str, arguments: &[String]) -> String {
    let (mut text, mut fields) = (String::new(), Vec::new());
    for argument in arguments.iter().filter(|argument| !argument.is_empty()) {
        if let Some(literal) = argument.strip_prefix('"') {
            let lines =
                literal.strip_suffix('"').unwrap_or(literal).split("\\\n").map(str::trim_start);
            text = lines.collect();
            // Further arguments are parts of the text.
            break;
        } else if !argument.starts_with("target:") {
            let name = argument.split_once('=').map_or(argument.as_str(), |(name, _)| name);
            fields.push(format!("`{}`", name.trim().trim_start_matches(['%', '?'])));
        }
    }
    format!("| {level} | {text} | {} |", fields.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_log_has_its_level_text_and_fields() {
        let source = r#"
            fn f() { tracing::warn!(target: T, what, of = self.name(1, 2), %error, ?over,
                "gone (for now), \
                 and \"more\"",
            ); }
            #[cfg(test)]
            mod tests { fn g() { info!("not told") } }
        "#;
        let expected =
            "| warn | gone (for now), and \\\"more\\\" | `what`, `of`, `error`, `over` |";
        assert_eq!(rows(source), [(expected.to_owned(), 2)]);
    }

    #[test]
    fn the_page_and_the_code_are_compared() {
        let file = |path: &str, text: &str| File { path: path.to_owned(), text: text.to_owned() };
        let source = file("crates/weir/src/a.rs", "fn f() { info!(n, \"a\"); }");
        let page = file(PAGE, "| info | a | `n` |\n");
        assert_eq!(check(&[source, page]), []);
        let source = file("crates/weir/src/a.rs", "fn f() { info!(m, \"a\"); }");
        let page = file(PAGE, "| info | a | `n` |\n");
        assert_eq!(check(&[source, page]).len(), 2);
    }
}
