//! Rule: the files of a crate do not use each other in a circle.
//!
//! A use is a path in product code to a name that another file defines. The rule follows it through
//! re-exports, so a `mod.rs` that re-exports its children's names does not stand between two of
//! them. A module may use its own children: they are its parts. A child may also use its `mod.rs`.
//! So only a circle that leads past them counts, to a sibling or further away. The crate's root is
//! no such parent: it is a map, and other files use nothing from it.

use std::collections::{BTreeMap, BTreeSet};

use super::modules::{Modules, roots};
use super::{File, Finding};

/// Permitted files in circles, by crate; the aim is 0.
const FILES_MAX: &[(&str, usize)] = &[];

/// Applies the rule to every crate and prints the circles.
pub(super) fn check(files: &[File]) -> Vec<Finding> {
    roots(files).into_iter().flat_map(|root| check_crate(files, root, FILES_MAX)).collect()
}

fn check_crate(files: &[File], root: &str, files_max: &[(&str, usize)]) -> Vec<Finding> {
    let modules = Modules::read(files, root);
    let mut arrows: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut places = BTreeMap::new();
    for found in modules.uses() {
        let (from, to) = (found.from.path.as_str(), found.to.path.as_str());
        let is_part = !found.at.is_empty() && found.target().starts_with(found.at);
        if is_part {
            continue;
        }
        arrows.entry(from).or_default().insert(to);
        places.entry((from, to)).or_insert(found);
    }
    let circles = circles(&arrows);
    let count: usize = circles.iter().map(Vec::len).sum();
    let max = files_max.iter().find(|(path, _)| *path == root).map_or(0, |(_, max)| *max);
    let mut findings = Vec::new();
    for circle in circles {
        let names: Vec<&str> = circle.iter().map(|path| &path[root.len()..]).collect();
        println!("{root}: a circle of {}: {}", names.len(), names.join(", "));
        for ((from, to), found) in &places {
            if circle.contains(&from) && circle.contains(&to) && count > max {
                let text = format!("in a circle of {} files: {} of {to}", names.len(), found.path);
                findings.push(found.from.finding(found.line, text));
            }
        }
    }
    findings
}

/// Groups of two or more that all reach each other.
pub(super) fn circles<T: Ord>(arrows: &BTreeMap<T, BTreeSet<T>>) -> Vec<Vec<&T>> {
    let reached: BTreeMap<&T, BTreeSet<&T>> =
        arrows.keys().map(|from| (from, reached_from(arrows, from))).collect();
    let mut circles: Vec<Vec<&T>> = Vec::new();
    for (from, all) in &reached {
        let is_mutual = |other: &&&T| reached.get(**other).is_some_and(|all| all.contains(from));
        let circle: Vec<&T> = all.iter().filter(is_mutual).copied().collect();
        if circle.len() > 1 && circle.first() == Some(from) {
            circles.push(circle);
        }
    }
    circles
}

fn reached_from<'a, T: Ord>(arrows: &'a BTreeMap<T, BTreeSet<T>>, from: &T) -> BTreeSet<&'a T> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&T> = arrows.get(from).into_iter().flatten().collect();
    while let Some(part) = next.pop() {
        if reached.insert(part) {
            next.extend(arrows.get(part).into_iter().flatten());
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(texts: &[(&str, &str)]) -> Vec<String> {
        let root = "crates/a/src/";
        let files: Vec<File> =
            texts.iter().map(|(path, text)| File::new(&format!("{root}{path}"), text)).collect();
        let findings = check_crate(&files, root, &[]);
        let count = findings.len();
        assert_eq!(check_crate(&files, root, &[(root, texts.len())]), []);
        assert_eq!(check_crate(&files, root, &[(root, 1)]).len(), count);
        findings.iter().map(|finding| finding.place[root.len()..].to_owned()).collect()
    }

    #[test]
    fn circles_of_files_are_found() {
        let lib = ("lib.rs", "mod a; mod b; mod c; mod d;");
        let found = places(&[
            lib,
            ("a.rs", "use crate::b;"),
            ("b.rs", "use crate::{c, d};"),
            ("c.rs", "fn f() { super::a::g() }"),
            ("d.rs", ""),
        ]);
        assert_eq!(found, ["a.rs", "b.rs", "c.rs"]);
        assert!(
            places(&[lib, ("a.rs", "use crate::b;"), ("b.rs", ""), ("d.rs", "use crate::a;")])
                .is_empty()
        );
    }

    #[test]
    fn children_are_parts() {
        let lib = ("lib.rs", "mod a; mod d;");
        let a = ("a/mod.rs", "mod b;\npub use b::B;\npub struct A(crate::d::D, B, b::C);");
        let b = ("a/b.rs", "use super::A;\npub struct B;");
        assert!(places(&[lib, a, b, ("d.rs", "")]).is_empty());
        assert_eq!(places(&[lib, a, b, ("d.rs", "use crate::a::A;")]), ["a/mod.rs", "d.rs"]);
        assert_eq!(
            places(&[lib, a, b, ("d.rs", "use crate::a::B;")]),
            ["a/b.rs", "a/mod.rs", "d.rs"]
        );
    }

    #[test]
    fn the_root_is_no_parent() {
        let lib = ("lib.rs", "mod a;\npub use a::A;\npub struct B;");
        assert!(places(&[lib, ("a.rs", "use crate::A as C;\npub struct A;")]).is_empty());
        assert_eq!(places(&[lib, ("a.rs", "use crate::B;")]), ["a.rs", "lib.rs"]);
    }

    #[test]
    fn re_exports_are_followed() {
        let lib = ("lib.rs", "mod a;\npub use a::B;");
        let a = ("a.rs", "mod b; mod c;\npub use b::*;\npub(crate) use self::c::C as Other;");
        let b = ("a/b.rs", "use super::Other;\npub struct B;");
        for path in ["crate::B", "super::B", "crate::a::B"] {
            let c = format!("use {path};\npub(super) struct C;");
            assert_eq!(places(&[lib, a, b, ("a/c.rs", &c)]), ["a/b.rs", "a/c.rs"], "{path}");
        }
    }

    #[test]
    fn macros_are_followed_to_their_home() {
        let lib = ("lib.rs", "mod a; mod b;\npub use a::A;");
        let a = ("a.rs", "crate::make! {}\npub struct A;");
        assert!(places(&[lib, a, ("b.rs", "#[macro_export]\nmacro_rules! make {}")]).is_empty());
        let b = ("b.rs", "use crate::A;\n#[macro_export]\nmacro_rules! make {}");
        assert_eq!(places(&[lib, a, b]), ["a.rs", "b.rs"]);
    }

    #[test]
    fn a_module_inside_a_file_is_that_file() {
        let lib = ("lib.rs", "mod a; mod b;");
        let a =
            ("a.rs", "mod inner {\n    use super::c;\n    use super::super::b;\n}\nuse super::b;");
        assert!(places(&[lib, a, ("b.rs", "")]).is_empty());
        assert_eq!(places(&[lib, a, ("b.rs", "use crate::a;")]), ["a.rs", "b.rs"]);
    }

    #[test]
    fn paths_of_other_crates_and_scopes_are_none() {
        let lib = ("lib.rs", "mod a; mod b;");
        let a = ("a.rs", "use crate::b;");
        for other in [
            "use ::a::C;",
            "use other::a;",
            "a::f();",
            "pub(in crate::a) fn f() {}",
            "fn f(a: A) { a.b() }",
        ] {
            assert!(places(&[lib, a, ("b.rs", other)]).is_empty(), "{other}");
        }
    }
}
