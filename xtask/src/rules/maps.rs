//! Rule: the root of a crate is its map, with a short head that names the parts.

use super::modules::roots;
use super::{File, Finding};

/// Most lines of the head.
const LINES_MAX: usize = 40;

/// Applies the rule.
pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let roots = roots(files);
    let is_root = |file: &&File| {
        let folder = file.path.strip_suffix("lib.rs").or(file.path.strip_suffix("main.rs"));
        folder.is_some_and(|folder| roots.contains(folder))
    };
    files.iter().filter(is_root).filter_map(check_head).collect()
}

fn check_head(file: &File) -> Option<Finding> {
    let lines = file.text.lines().take_while(|line| line.starts_with("//!")).count();
    match lines {
        0 => Some(file.finding(1, "begin with a //! head that is the map of the crate")),
        1..=LINES_MAX => None,
        _ => Some(file.finding(1, format!("a head of {lines} lines; at most {LINES_MAX}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_one(path: &str, lines: usize, expected: usize) {
        let text = format!("{}mod a;\n", "//! A.\n".repeat(lines));
        assert_eq!(check(&[File::new(path, &text)]).len(), expected, "{path}, {lines} lines");
    }

    #[test]
    fn the_head_of_a_root_is_there_and_short() {
        for path in ["crates/a/src/lib.rs", "tests/src/main.rs"] {
            check_one(path, 0, 1);
            check_one(path, 1, 0);
            check_one(path, 40, 0);
            check_one(path, 41, 1);
        }
        check_one("crates/a/src/b.rs", 41, 0);
        check_one("crates/a/tests/main.rs", 41, 0);
    }
}
