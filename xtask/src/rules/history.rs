//! Rule: commit subjects have the form `area: what it does` and fit one line.

use std::path::Path;

use super::Finding;
use crate::process::{output, program};

/// Most characters of a subject.
const SUBJECT_CHARS_MAX: usize = 72;

/// Applies the rule to all commits of this branch, except merges, whose subjects git writes.
pub(super) fn check(root: &Path) -> anyhow::Result<Vec<Finding>> {
    let log = output(&mut program(root, "git", "log --no-merges --format=%h%x09%s"))?;
    let commits = log.lines().filter_map(|line| line.split_once('\t'));
    let faults = commits.filter_map(|(id, subject)| fault(subject).map(|text| (id, text)));
    Ok(faults
        .map(|(id, text)| Finding { place: format!("commit {id}"), line: None, text })
        .collect())
}

fn fault(subject: &str) -> Option<String> {
    let chars = subject.chars().count();
    if chars > SUBJECT_CHARS_MAX {
        return Some(format!("subject of {chars} characters; at most {SUBJECT_CHARS_MAX}"));
    }
    let is_area = |area: &str| {
        area.starts_with(|c: char| c.is_ascii_lowercase() || c == '.')
            && area
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_./, ".contains(c))
    };
    match subject.split_once(": ") {
        Some((area, what)) if is_area(area) && !what.trim().is_empty() && !what.ends_with('.') => {
            None
        }
        _ => Some(format!("subject {subject:?} is not of the form \"area: what it does\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_name_an_area_and_a_deed() {
        for good in ["engine: close the longest-stalled first", "wire, client: add Refresh"] {
            assert_eq!(fault(good), None, "{good}");
        }
        for bad in ["fix", "Engine: close", "engine:close", "engine: ", "engine: close.", ": a"] {
            assert!(fault(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn subjects_fit_a_line() {
        assert_eq!(fault(&format!("a: {}", "b".repeat(69))), None);
        assert!(fault(&format!("a: {}", "b".repeat(70))).is_some());
    }
}
