//! Rule: the module of a folder is its `mod.rs`, never a file beside it.

use std::collections::BTreeSet;

use super::{File, Finding, at_most};

/// Permitted folders without `mod.rs`.
const FOLDERS_MAX: usize = 0;

/// Applies the rule.
pub(super) fn check(files: &[File]) -> Vec<Finding> {
    at_most(FOLDERS_MAX, "folders without mod.rs", without_module(files))
}

fn without_module(files: &[File]) -> Vec<Finding> {
    let paths = files.iter().map(|file| file.path.as_str()).filter(|path| path.ends_with(".rs"));
    let folders: BTreeSet<&str> = paths
        .filter_map(|path| path.rsplit_once('/'))
        .map(|(folder, _)| folder)
        .filter(|folder| folder.contains("/src/"))
        .collect();
    let has = |path: String| files.iter().any(|file| file.path == path);
    let finding = |folder: &str| {
        let text = "has no mod.rs: move the file of its module there".to_owned();
        Finding { place: folder.to_owned(), line: None, text }
    };
    folders.into_iter().filter(|folder| !has(format!("{folder}/mod.rs"))).map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_folder_below_src_has_its_module() {
        let paths = [
            "crates/a/src/lib.rs",
            "crates/a/src/b.rs",
            "crates/a/src/b/c.rs",
            "crates/a/src/d/mod.rs",
            "crates/a/src/d/e.rs",
            "crates/a/src/guide/f.md",
            "crates/a/tests/g/h.rs",
        ];
        let files: Vec<File> = paths.iter().map(|path| File::new(path, "")).collect();
        let found: Vec<String> =
            without_module(&files).into_iter().map(|found| found.place).collect();
        assert_eq!(found, ["crates/a/src/b"]);
    }
}
