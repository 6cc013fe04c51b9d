//! How the parts of `crates/weir/src` use each other: its folders and the files beside them, by the paths in their code.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{code, is_word};
use super::{File, Finding};

/// Where the parts are.
const ROOT: &str = "crates/weir/src/";

/// Parts that may stand in one circle, each of which reaches all others: as many as there are, and no more.
const CIRCLE_MAX: usize = 29;

/// The parts, and which of the others each names.
#[derive(Debug, Default)]
pub(super) struct Parts(BTreeMap<String, BTreeSet<String>>);

impl Parts {
    /// Reads the product's code; tests may name what they like.
    pub(super) fn read(files: &[File]) -> Parts {
        let mut parts = Parts::default();
        for file in files {
            let Some(path) = file.path.strip_prefix(ROOT).filter(|path| is_product(path)) else {
                continue;
            };
            let used = parts.0.entry(part_of(path).to_owned()).or_default();
            let text = code(&file.text);
            let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            used.extend(named(product));
        }
        let all: BTreeSet<String> = parts.0.keys().cloned().collect();
        for (part, used) in &mut parts.0 {
            used.retain(|name| name != part && all.contains(name));
        }
        parts
    }

    /// A circle that has grown.
    pub(super) fn check(&self) -> Vec<Finding> {
        let circle = self.circle();
        if circle.len() <= CIRCLE_MAX {
            return Vec::new();
        }
        let text = format!(
            "{} parts use each other in a circle; at most {CIRCLE_MAX}: {}",
            circle.len(),
            circle.into_iter().collect::<Vec<_>>().join(", ")
        );
        vec![Finding { place: ROOT.to_owned(), line: None, text }]
    }

    /// What there is, in a line.
    pub(super) fn summary(&self) -> String {
        let arrows: usize = self.0.values().map(BTreeSet::len).sum();
        let (parts, circle) = (self.0.len(), self.circle().len());
        format!("{ROOT}: {parts} parts, {arrows} arrows between them, {circle} in one circle")
    }

    /// The largest set of parts of which each reaches all others.
    fn circle(&self) -> BTreeSet<&str> {
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            self.0.keys().map(|part| (part.as_str(), self.reached_from(part))).collect();
        let circle_of = |part: &str| -> BTreeSet<&str> {
            let mutual = |other: &&&str| reached[**other].contains(part);
            reached[part].iter().filter(mutual).copied().collect()
        };
        self.0.keys().map(|part| circle_of(part)).max_by_key(BTreeSet::len).unwrap_or_default()
    }

    fn reached_from(&self, part: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut next: Vec<&str> = self.uses(part).collect();
        while let Some(part) = next.pop() {
            if reached.insert(part) {
                next.extend(self.uses(part));
            }
        }
        reached
    }

    fn uses(&self, part: &str) -> impl Iterator<Item = &str> {
        self.0.get(part).into_iter().flatten().map(String::as_str)
    }
}

fn is_product(path: &str) -> bool {
    path != "lib.rs" && !path.split('/').any(|name| name == "tests" || name == "tests.rs")
}

/// The folder, or the file without its ending.
fn part_of(path: &str) -> &str {
    path.split('/').next().unwrap_or(path).trim_end_matches(".rs")
}

/// The first names of the paths that begin at the crate: `crate::a::b`, `use crate::{a, b::c}`.
fn named(code: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, path) in code.match_indices("crate::") {
        if code[..at].ends_with(is_word) {
            continue;
        }
        let rest = &code[at + path.len()..];
        match rest.strip_prefix('{') {
            Some(group) => names.extend(firsts(group)),
            None => names.extend(word(rest)),
        }
    }
    names
}

/// The first name of each path of a group, whose brace is open.
fn firsts(group: &str) -> Vec<String> {
    let mut names = Vec::new();
    let (mut depth, mut is_first) = (0, true);
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => is_first = true,
            letter if is_first && is_word(letter) => {
                names.extend(word(&group[at..]));
                is_first = false;
            }
            _ => {}
        }
    }
    names
}

fn word(text: &str) -> Option<String> {
    let word: String = text.chars().take_while(|letter| is_word(*letter)).collect();
    (!word.is_empty()).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(files: &[(&str, &str)]) -> Parts {
        let file = |(path, text): &(&str, &str)| File::new(&format!("{ROOT}{path}"), text);
        Parts::read(&files.iter().map(file).collect::<Vec<_>>())
    }

    #[test]
    fn paths_and_groups_are_read_and_comments_and_tests_are_not() {
        let parts = parts(&[
            ("a.rs", "use crate::{b::{C, D}, c, e::F};\n// crate::d\nfn f() { crate::g::h() }"),
            ("b.rs", "fn f() {}\n#[cfg(test)]\nmod tests {\n use crate::a;\n}"),
            ("c/mod.rs", "use crate::Config;"),
            ("c/tests.rs", "use crate::a;"),
            ("d.rs", ""),
            ("e/f.rs", "use crate::e::g;"),
            ("g.rs", "use other_crate::a;"),
        ]);
        let used: Vec<&str> = parts.uses("a").collect();
        assert_eq!(used, ["b", "c", "e", "g"]);
        assert!(["b", "c", "d", "e", "g"].iter().all(|part| parts.uses(part).count() == 0));
        assert!(parts.circle().is_empty());
    }

    #[test]
    fn a_circle_is_found() {
        let parts = parts(&[
            ("a.rs", "use crate::b;"),
            ("b.rs", "use crate::{c, d};"),
            ("c.rs", "use crate::a;"),
            ("d.rs", ""),
        ]);
        assert_eq!(parts.circle().into_iter().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(parts.check().len(), usize::from(CIRCLE_MAX < 3));
        let expected = "4 parts, 4 arrows between them, 3 in one circle";
        assert!(parts.summary().ends_with(expected), "{}", parts.summary());
    }
}
