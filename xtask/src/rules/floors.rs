//! Rule: the folders of `crates/weir/src` stand on floors, and each uses lower floors only.
//!
//! Every path in product code through another folder counts, also a re-export. A path through names
//! that the crate's root re-exports counts for the folder from which the root has them. Unit tests
//! may use any folder.

use std::collections::{BTreeMap, BTreeSet};

use super::modules::Modules;
use super::{File, Finding};

/// The place of the folders.
const ROOT: &str = "crates/weir/src/";

/// The floors, the lowest first. Folders on the same floor may not use each other.
const FLOORS: [&[&str]; 14] = [
    &["base", "handover"],
    &["observe"],
    &["limits"],
    &["tls"],
    &["backends"],
    &["auth"],
    &["provisioning"],
    &["topics"],
    &["cluster"],
    &["core"],
    &["connection"],
    &["http", "udp"],
    &["admin"],
    &["gateway"],
];

/// Most files and folders at the top, including `lib.rs`.
const ENTRIES_MAX: usize = 17;

/// Applies the rules and prints a summary.
pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let house = House::read(files);
    println!("{}", house.summary());
    let mut findings = house.too_many_entries(ENTRIES_MAX);
    findings.extend(house.unplaced());
    findings.extend(circles(&house.arrows));
    findings.extend(house.upwards);
    findings
}

/// The files and folders at the top, and their uses.
#[derive(Default)]
struct House {
    /// Without `lib.rs`. A file that is a module counts like a folder.
    parts: BTreeSet<String>,
    /// Files and folders.
    entries: BTreeSet<String>,
    /// The parts that each part uses.
    arrows: BTreeMap<String, BTreeSet<String>>,
    /// Pairs in which the first part uses the second although that is not below it.
    pairs_upwards: BTreeSet<(String, String)>,
    upwards: Vec<Finding>,
}

impl House {
    fn read(files: &[File]) -> House {
        let mut house = House::default();
        for path in files.iter().filter_map(|file| file.path.strip_prefix(ROOT)) {
            house.entries.insert(path.split('/').next().unwrap_or(path).to_owned());
            if path != "lib.rs" {
                house.parts.insert(part_of(path).to_owned());
            }
        }
        for found in Modules::read(files, ROOT).uses() {
            let Some(from) = found.from.path.strip_prefix(ROOT).map(part_of) else { continue };
            let ways: BTreeSet<&String> =
                found.way.iter().filter_map(|module| module.first()).collect();
            for to in ways.into_iter().filter(|to| from != "lib" && *to != from) {
                house.arrows.entry(from.to_owned()).or_default().insert(to.clone());
                if is_upwards(from, to) {
                    house.pairs_upwards.insert((from.to_owned(), to.clone()));
                    if !found.is_repeated {
                        let text = format!("{from} may not use {to}: {}", found.path);
                        house.upwards.push(found.from.finding(found.line, text));
                    }
                }
            }
        }
        house
    }

    fn summary(&self) -> String {
        let arrows: usize = self.arrows.values().map(BTreeSet::len).sum();
        let floors =
            FLOORS.iter().filter(|floor| floor.iter().any(|name| self.parts.contains(*name)));
        format!(
            "{ROOT}: entries: {}, floors: {}, parts: {}, arrows: {arrows}, upwards: {}, circles: {}",
            self.entries.len(),
            floors.count(),
            self.parts.len(),
            self.pairs_upwards.len(),
            circles(&self.arrows).len(),
        )
    }

    fn too_many_entries(&self, max: usize) -> Vec<Finding> {
        let count = self.entries.len();
        let text = format!("{count} files and folders; at most {max}");
        let finding = Finding { place: ROOT.to_owned(), line: None, text };
        (count > max).then_some(finding).into_iter().collect()
    }

    fn unplaced(&self) -> Vec<Finding> {
        let parts = self.parts.iter().filter(|part| floor_of(part).is_none());
        let text = "on no floor of xtask/src/rules/floors.rs";
        parts
            .map(|part| Finding {
                place: format!("{ROOT}{part}"),
                line: None,
                text: text.to_owned(),
            })
            .collect()
    }
}

/// The folder, or the file without its extension.
fn part_of(path: &str) -> &str {
    path.split('/').next().unwrap_or(path).trim_end_matches(".rs")
}

fn floor_of(part: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&part))
}

/// Whether a part uses a part that is not below it. Parts on no floor do not count.
fn is_upwards(from: &str, to: &str) -> bool {
    floor_of(from).zip(floor_of(to)).is_some_and(|(from, to)| from <= to)
}

fn circles(arrows: &BTreeMap<String, BTreeSet<String>>) -> Vec<Finding> {
    let circle = |parts: Vec<&String>| {
        let parts: Vec<&str> = parts.into_iter().map(String::as_str).collect();
        let text =
            format!("{} parts use each other in a circle: {}", parts.len(), parts.join(", "));
        Finding { place: ROOT.to_owned(), line: None, text }
    };
    super::circles::circles(arrows).into_iter().map(circle).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(texts: &[(&str, &str)]) -> Vec<File> {
        texts.iter().map(|(path, text)| File::new(&format!("{ROOT}{path}"), text)).collect()
    }

    fn upwards(texts: &[(&str, &str)]) -> Vec<String> {
        House::read(&files(texts))
            .upwards
            .iter()
            .map(|finding| finding.to_string()[ROOT.len()..].to_owned())
            .collect()
    }

    const LIB: (&str, &str) =
        ("lib.rs", "mod base; mod core; mod http; mod udp;\npub use core::Handle;");

    #[test]
    fn folders_use_lower_floors_only() {
        let found = upwards(&[
            LIB,
            ("base/mod.rs", "mod clock;\nuse crate::{\n    core::{Hub, Handle},\n    base::B,\n};"),
            ("base/clock.rs", "fn f() { super::super::core::g() }"),
            ("core/mod.rs", "use crate::base::B; // crate::http"),
            ("http/mod.rs", "use crate::{base::B, core::C, udp::D};"),
            ("udp/mod.rs", "#[cfg(test)]\nmod tests {\n    use crate::http::E;\n}"),
        ]);
        let expected = [
            "base/mod.rs:3: base may not use core: crate::core::Hub",
            "base/mod.rs:3: base may not use core: crate::core::Handle",
            "base/clock.rs:1: base may not use core: super::super::core::g",
            "http/mod.rs:1: http may not use udp: crate::udp::D",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn names_of_the_root_count_for_the_folder_that_it_has_them_from() {
        let found = upwards(&[
            LIB,
            ("base/mod.rs", "use crate::Handle;"),
            ("core/mod.rs", ""),
            ("http/mod.rs", "use crate::Handle;"),
            ("udp/mod.rs", ""),
        ]);
        assert_eq!(found, ["base/mod.rs:1: base may not use core: crate::Handle"]);
    }

    #[test]
    fn a_name_counts_for_each_folder_on_its_way() {
        let found = upwards(&[
            LIB,
            ("base/mod.rs", "mod clock;\nuse crate::core::Clock;"),
            ("base/clock.rs", "pub struct Clock;"),
            ("core/mod.rs", "pub use crate::base::clock::Clock;"),
            ("http/mod.rs", ""),
            ("udp/mod.rs", ""),
        ]);
        assert_eq!(found, ["base/mod.rs:2: base may not use core: crate::core::Clock"]);
    }

    #[test]
    fn entries_are_counted_and_placed() {
        let house =
            House::read(&files(&[LIB, ("base/mod.rs", ""), ("hub.rs", ""), ("hub/a.rs", "")]));
        let places: Vec<String> =
            house.unplaced().into_iter().map(|finding| finding.place).collect();
        assert_eq!(places, [format!("{ROOT}hub")]);
        assert_eq!(house.too_many_entries(4), []);
        assert_eq!(house.too_many_entries(3).len(), 1);
    }

    #[test]
    fn circles_of_folders_are_found() {
        let house = House::read(&files(&[
            LIB,
            ("base/mod.rs", "use crate::core::A;"),
            ("core/mod.rs", "use crate::{base::B, http::C};"),
            ("http/mod.rs", "use crate::base::B;"),
            ("udp/mod.rs", "use crate::core::A;"),
        ]));
        let circles = circles(&house.arrows);
        assert_eq!(circles.len(), 1);
        assert!(circles[0].text.ends_with(": base, core, http"), "{}", circles[0].text);
        let expected = "entries: 5, floors: 3, parts: 4, arrows: 5, upwards: 2, circles: 1";
        assert!(house.summary().ends_with(expected), "{}", house.summary());
    }
}
