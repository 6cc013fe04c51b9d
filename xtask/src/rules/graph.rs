//! Rule: which crate may use which. It compares the boundaries of ARCHITECTURE.md with cargo's
//! resolution.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use serde_json::Value;

use super::Finding;

/// Each of our crates with those of our crates that it may name, as a dependency of any kind. (A
/// crate may always name itself, to turn its own features on in tests.)
const MAY_USE: [(&str, &[&str]); 11] = [
    ("weir-wire", &[]),
    ("weir-store", &["weir-tests"]),
    ("weir-broker", &["weir-tests"]),
    ("weir-engine", &["weir-wire"]),
    ("weir-upstream", &["weir-tests"]),
    ("weir", &["weir-broker", "weir-engine", "weir-store", "weir-upstream", "weir-wire"]),
    ("weir-client", &["weir-wire"]),
    ("weir-server", &["weir", "weir-client", "weir-engine", "weir-store", "weir-wire"]),
    ("weir-bench", &["weir", "weir-broker", "weir-store", "weir-wire"]),
    ("weir-tests", &["weir-client", "weir-wire"]),
    ("xtask", &[]),
];

/// Our crates that must never link certain foreign crates, directly or indirectly: the first list,
/// and everything that begins with a name of the second.
const NEVER_REACH: [(&[&str], &[&str], &str); 1] = [(
    &["weir-wire", "weir-engine"],
    &["tokio", "hyper", "tracing"],
    "the wire format and the shards know no runtime",
)];

/// Crates that none of our programs links: there is one TLS library, and it is another one.
const NEVER_LINKED: [&str; 2] = ["openssl-sys", "ring"];

/// Packages that may have only one version: otherwise two C libraries with the same symbols would
/// be linked.
const ONCE: [&str; 1] = ["aws-lc-sys"];

/// Applies the rules to the output of `cargo metadata`.
///
/// `linked` is the output of `cargo tree`, one linked package per line. The metadata also contain
/// packages that only a disabled feature would link.
pub(super) fn check(metadata: &Value, linked: &str) -> anyhow::Result<Vec<Finding>> {
    let graph = Graph::read(metadata)?;
    let mut findings = direction(&graph);
    findings.extend(absences(&graph));
    findings.extend(doubles(&graph));
    findings.extend(strangers(linked));
    Ok(findings)
}

/// Packages and their uses.
#[derive(Default)]
struct Graph {
    /// Package id to name.
    names: BTreeMap<String, String>,
    /// Ids of our packages.
    members: BTreeSet<String>,
    /// The dependencies in a member's manifest, of any kind and for any platform.
    named: BTreeMap<String, BTreeSet<String>>,
    /// The packages that are linked into a package: ids by id, as resolved.
    linked: BTreeMap<String, BTreeSet<String>>,
}

impl Graph {
    fn read(metadata: &Value) -> anyhow::Result<Graph> {
        let mut graph = Graph::default();
        for id in array(metadata, "workspace_members")? {
            graph.members.insert(id.as_str().context("a member without an id")?.to_owned());
        }
        for package in array(metadata, "packages")? {
            let id = text(package, "id")?;
            graph.names.insert(id.clone(), text(package, "name")?);
            let mut named = BTreeSet::new();
            for dependency in array(package, "dependencies")? {
                named.insert(text(dependency, "name")?);
            }
            graph.named.insert(id, named);
        }
        for node in array(&metadata["resolve"], "nodes")? {
            let linked = graph.linked.entry(text(node, "id")?).or_default();
            for dependency in array(node, "deps")? {
                // A dependency without a kind is a normal, linked one.
                if array(dependency, "dep_kinds")?.iter().any(|kind| kind["kind"].is_null()) {
                    linked.insert(text(dependency, "pkg")?);
                }
            }
        }
        Ok(graph)
    }

    fn name<'a>(&'a self, id: &'a str) -> &'a str {
        self.names.get(id).map_or(id, String::as_str)
    }

    /// The shortest way from `start` to a package whose name begins with one of `forbidden`, as names.
    fn way<'a>(&'a self, start: &'a str, forbidden: &[&str]) -> Option<Vec<&'a str>> {
        let mut ways = vec![vec![start]];
        let mut seen = BTreeSet::from([start]);
        while !ways.is_empty() {
            let mut longer = Vec::new();
            for way in ways {
                let last = way.last().copied().unwrap_or(start);
                for next in self.linked.get(last).into_iter().flatten() {
                    if !seen.insert(next) {
                        continue;
                    }
                    let mut way = way.clone();
                    way.push(next);
                    if forbidden.iter().any(|name| is_of_family(self.name(next), name)) {
                        return Some(way.into_iter().map(|id| self.name(id)).collect());
                    }
                    longer.push(way);
                }
            }
            ways = longer;
        }
        None
    }
}

/// Whether a package is `family` itself or one of its companions, such as `tokio-util`.
fn is_of_family(package: &str, family: &str) -> bool {
    package.strip_prefix(family).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

fn direction(graph: &Graph) -> Vec<Finding> {
    let ours: BTreeSet<&str> = graph.members.iter().map(|id| graph.name(id)).collect();
    let mut findings = Vec::new();
    for id in &graph.members {
        let name = graph.name(id);
        let Some((_, allowed)) = MAY_USE.iter().find(|(member, _)| *member == name) else {
            let text = "a crate without a place in MAY_USE of xtask/src/rules/graph.rs";
            findings.push(finding(name, text.to_owned()));
            continue;
        };
        for used in graph.named.get(id).into_iter().flatten() {
            let used = used.as_str();
            if used != name && ours.contains(used) && !allowed.contains(&used) {
                let allowed = if allowed.is_empty() { &["none"] } else { *allowed };
                let text = format!("uses {used}; of ours it may use: {}", allowed.join(", "));
                findings.push(finding(name, text));
            }
        }
    }
    findings
}

fn absences(graph: &Graph) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (members, forbidden, why) in NEVER_REACH {
        for id in graph.members.iter().filter(|id| members.contains(&graph.name(id))) {
            if let Some(way) = graph.way(id, forbidden) {
                let text = format!("reaches what it must not ({why}): {}", way.join(" -> "));
                findings.push(finding(graph.name(id), text));
            }
        }
    }
    findings
}

fn strangers(linked: &str) -> Vec<Finding> {
    let names = linked.lines().filter_map(|line| line.split(' ').next());
    let strangers: BTreeSet<&str> = names.filter(|name| NEVER_LINKED.contains(name)).collect();
    let text = "is linked; `cargo tree --workspace -e normal -i` with its name shows by whom";
    strangers.into_iter().map(|name| finding(name, text.to_owned())).collect()
}

fn doubles(graph: &Graph) -> Vec<Finding> {
    let mut findings = Vec::new();
    for once in ONCE {
        let count = graph.names.values().filter(|name| *name == once).count();
        if count > 1 {
            let text = format!("{count} versions; name the one in Cargo.toml that the others use");
            findings.push(finding(once, text));
        }
    }
    findings
}

fn finding(member: &str, text: String) -> Finding {
    Finding { place: format!("crate {member}"), line: None, text }
}

fn array<'a>(value: &'a Value, key: &str) -> anyhow::Result<&'a Vec<Value>> {
    value[key].as_array().with_context(|| format!("cargo metadata: no list {key}"))
}

fn text(value: &Value, key: &str) -> anyhow::Result<String> {
    let text = value[key].as_str().with_context(|| format!("cargo metadata: no string {key}"))?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A graph in which each line `a: b c` makes `a` name and link `b` and `c`; the members come first.
    fn graph(members: &[&str], lines: &[&str]) -> Graph {
        let mut graph = Graph::default();
        graph.members.extend(members.iter().map(|member| (*member).to_owned()));
        for line in lines {
            let (name, used) = line.split_once(':').expect("a line has a colon");
            let used: BTreeSet<String> = used.split_whitespace().map(str::to_owned).collect();
            graph.names.insert(name.to_owned(), name.to_owned());
            graph.named.insert(name.to_owned(), used.clone());
            graph.linked.insert(name.to_owned(), used);
        }
        graph
    }

    #[test]
    fn the_wire_uses_nothing_of_ours() {
        let members = ["weir-engine", "weir-wire"];
        assert!(direction(&graph(&members, &["weir-engine: weir-wire"])).is_empty());
        let findings = direction(&graph(&members, &["weir-wire: weir-engine"]));
        assert_eq!(findings.len(), 1);
        assert!(findings[0].text.contains("may use: none"), "{findings:?}");
    }

    #[test]
    fn a_new_crate_needs_a_place() {
        assert_eq!(direction(&graph(&["weir-more"], &[])).len(), 1);
    }

    #[test]
    fn the_bench_embeds_a_gateway_and_uses_no_engine() {
        let members = ["weir", "weir-bench", "weir-engine"];
        assert_eq!(direction(&graph(&members, &["weir-bench: weir weir-engine"])).len(), 1);
    }

    #[test]
    fn the_engine_reaches_no_runtime_through_others() {
        let lines = ["weir-engine: a", "a: b", "b: tokio-util"];
        let findings = absences(&graph(&["weir-engine"], &lines));
        assert_eq!(findings.len(), 1);
        assert!(findings[0].text.ends_with("weir-engine -> a -> b -> tokio-util"));
        let lines = ["weir-engine: a", "a: b", "b: a tokiox"];
        assert!(absences(&graph(&["weir-engine"], &lines)).is_empty());
    }

    #[test]
    fn a_second_tls_library_is_a_finding() {
        assert!(strangers("weir v0.1.0 (/a/ring)\nringbuf v1.0.0\n").is_empty());
        assert_eq!(strangers("weir v0.1.0\nring v0.17.14\nring v0.17.14 (*)\n").len(), 1);
    }

    #[test]
    fn one_library_of_c() {
        let mut graph = graph(&["weir-engine"], &["weir-engine: a", "a:"]);
        graph.names.insert("aws-lc-sys 1".to_owned(), "aws-lc-sys".to_owned());
        assert!(doubles(&graph).is_empty());
        graph.names.insert("aws-lc-sys 2".to_owned(), "aws-lc-sys".to_owned());
        assert_eq!(doubles(&graph).len(), 1);
    }

    #[test]
    fn metadata_is_read_as_cargo_writes_it() {
        let metadata = serde_json::json!({
            "workspace_members": ["1"],
            "packages": [
                {"id": "1", "name": "weir-engine", "dependencies": [{"name": "tokio"}]},
                {"id": "2", "name": "tokio", "dependencies": []},
            ],
            "resolve": {"nodes": [
                {"id": "1", "deps": [{"pkg": "2", "dep_kinds": [{"kind": "dev"}, {"kind": null}]}]},
                {"id": "2", "deps": []},
            ]},
        });
        assert_eq!(check(&metadata, "").expect("well-formed").len(), 1);
        let mut of_tests = metadata;
        of_tests["resolve"]["nodes"][0]["deps"][0]["dep_kinds"] =
            serde_json::json!([{"kind": "dev"}]);
        assert_eq!(check(&of_tests, "").expect("well-formed").len(), 0);
    }
}
