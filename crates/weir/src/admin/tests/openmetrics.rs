//! The rules of OpenMetrics and the naming guide, as far as the text of a scrape can show them.

use std::collections::HashSet;

/// A family, by its descriptor lines.
#[derive(Default)]
struct Family<'a> {
    name: &'a str,
    kind: &'a str,
    has_help: bool,
    unit: Option<&'a str>,
}

/// Panics with the first line that breaks a rule.
pub(super) fn check_text(text: &str) {
    let lines = text.strip_suffix("# EOF\n").expect("the end is marked");
    let (mut family, mut names, mut samples) = (Family::default(), HashSet::new(), HashSet::new());
    let mut bucket_before = 0;
    for line in lines.lines() {
        if let Some(descriptor) = line.strip_prefix("# ") {
            let mut words = descriptor.splitn(3, ' ');
            let (what, name, rest) =
                (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
            if name != family.name {
                assert!(names.insert(name), "families stand together: {line}");
                family = Family { name, ..Family::default() };
            }
            match what {
                "HELP" => family.has_help = rest.ends_with('.'),
                "TYPE" => family.kind = rest,
                "UNIT" => family.unit = Some(rest),
                _ => panic!("no descriptor: {line}"),
            }
            continue;
        }
        check_family(&family);
        let (series, value) = line.rsplit_once(' ').expect("a value");
        assert!(samples.insert(series), "twice: {line}");
        let value: f64 = value.parse().expect("a number");
        let name = series.split('{').next().unwrap();
        let suffix = name.strip_prefix(family.name).expect("a sample of its family");
        let known: &[&str] = match family.kind {
            "counter" => &["_total"],
            "gauge" => &[""],
            "info" => &["_info"],
            "histogram" => &["_bucket", "_sum", "_count"],
            kind => panic!("unknown kind {kind}"),
        };
        assert!(known.contains(&suffix), "{line} in a {}", family.kind);
        if suffix == "_count" {
            bucket_before = 0;
        }
        if suffix == "_bucket" {
            #[expect(clippy::cast_possible_truncation, reason = "a count in a test")]
            let count = value as i64;
            assert!(count >= bucket_before, "buckets are cumulated: {line}");
            bucket_before = count;
        }
    }
}

/// The same for the text format of Prometheus, by the rules of `promtool check metrics`.
pub(super) fn check_plain(text: &str) {
    assert!(text.ends_with('\n') && !text.contains("# EOF") && !text.contains("# UNIT"));
    let (mut help, mut family, mut names) = ("", ("", ""), HashSet::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, sentence) = rest.split_once(' ').expect("a sentence of help");
            assert!(sentence.ends_with('.'), "{line}");
            help = name;
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            family = rest.split_once(' ').expect("a kind");
            assert_eq!(help, family.0, "a family has its help before it: {line}");
            assert!(names.insert(family.0), "families stand together: {line}");
            assert!(["counter", "gauge", "histogram"].contains(&family.1), "{line}");
            assert_eq!(family.0.ends_with("_total"), family.1 == "counter", "{line}");
        } else {
            let series = line.split([' ', '{']).next().unwrap();
            let endings: &[&str] = match family.1 {
                "histogram" => &["_bucket", "_sum", "_count"],
                _ => &[""],
            };
            let ending = series.strip_prefix(family.0).expect("a sample of its family");
            assert!(endings.contains(&ending), "{line}");
        }
    }
}

fn check_family(family: &Family<'_>) {
    let name = family.name;
    assert!(family.has_help, "{name} has a sentence of help");
    assert!(name.starts_with("weir_") || name.starts_with("process_"), "{name}");
    assert!(!name.ends_with("_total"), "{name}: the encoder adds _total");
    if let Some(unit) = family.unit {
        assert!(name.ends_with(&format!("_{unit}")), "{name} ends with its unit");
    }
    if family.kind == "histogram" {
        assert_eq!(family.unit, Some("seconds"), "{name}");
    }
}
