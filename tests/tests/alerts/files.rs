//! The files of rules, the dashboard and the runbook fit together, and fit the metrics of gateways.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_tests::installed;

use super::faults::{EXPECTED, Faults, IN_CGROUP, TRACED};
use super::prometheus::{Prometheus, hasten, packaging, rules};

const DASHBOARD: &str = "grafana/weir.json";
/// The names of all series of the gateways.
pub(crate) fn names(faults: &Faults) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for (_, server) in faults.gateways() {
        // The peer is dead.
        let Ok(metrics) = server.metrics() else { continue };
        let samples = metrics.text().lines().filter(|line| !line.starts_with('#'));
        names.extend(samples.filter_map(|line| line.split(['{', ' ']).next().map(str::to_owned)));
    }
    Ok(names)
}

/// Each metric of the rules and of the dashboard is a metric of a gateway or a recorded series.
pub(crate) fn check_names(metrics: &BTreeSet<String>) -> Result<()> {
    let recording = rules("recording.yml")?;
    let recorded = values(&recording, "- record: ");
    for file in ["prometheus/alerts.yml", "prometheus/recording.yml", DASHBOARD] {
        let text = fs::read_to_string(packaging().join(file))?;
        for name in words(&text) {
            let is_recorded = recorded.contains(&name.as_str());
            let is_metric = ["weir_", "process_"].iter().any(|begin| name.starts_with(begin));
            let is_known = match (is_metric, name.contains(':')) {
                (true, false) => metrics.contains(&name) || is_group(&text, &name),
                (_, true) => is_recorded,
                (false, false) => true,
            };
            ensure!(is_known, "{file} names {name}, and no gateway has that");
        }
    }
    Ok(())
}

fn is_group(text: &str, name: &str) -> bool {
    text.contains(&format!("- name: {name}\n"))
}

/// Words of letters, digits, `_` and `:`, as names of series are; those with a colon have a letter
/// behind it.
fn words(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    let whole = words.filter(|word| !word.ends_with(':') && !word.starts_with(':'));
    whole.map(str::to_owned).collect()
}

/// What stands behind `key` in the lines that begin with it.
fn values<'t>(text: &'t str, key: &str) -> Vec<&'t str> {
    text.lines().filter_map(|line| line.trim_start().strip_prefix(key)).collect()
}

/// Prometheus answers each expression of the dashboard.
pub(crate) fn check_dashboard(prometheus: &Prometheus) -> Result<()> {
    let dashboard = fs::read_to_string(packaging().join(DASHBOARD))?;
    let dashboard: Value = serde_json::from_str(&dashboard)?;
    let panels = dashboard["panels"].as_array().context("panels")?;
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let mut count = 0;
    for target in targets {
        let expression = target["expr"].as_str().context("an expression")?;
        let expression = expression.replace("$__rate_interval", "5s").replace("$instance", ".*");
        ensure!(!expression.contains('$'), "{expression}");
        prometheus.query(&expression)?;
        count += 1;
    }
    ensure!(count > 30, "{count} expressions");
    Ok(())
}

/// Each line that the gateways have logged as JSON is listed in `docs/logs.md`, with its fields.
/// Returns how many different ones there were.
pub(crate) fn check_logs(faults: &Faults) -> Result<usize> {
    let page = fs::read_to_string(packaging().join("../docs/logs.md"))?;
    let mut seen = BTreeSet::new();
    for (name, server) in faults.gateways() {
        for line in server.log().lines().filter(|line| line.starts_with('{') && line.ends_with('}'))
        {
            let said: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
            let text = |member: &str| said[member].as_str().unwrap_or_default();
            let is_ours = text("target").starts_with("weir");
            if !is_ours && !["audit", "ends"].contains(&text("target")) {
                continue;
            }
            let (level, message) = (text("level").to_lowercase(), text("message"));
            let row = page.lines().filter_map(|row| row.strip_prefix(&format!("| {level} | ")));
            let row = row.filter_map(|row| row.split_once(" | "));
            let fits = row.filter(|(pattern, _)| fits(message, &pattern.replace("\\\"", "\"")));
            // A row whose text is not told fits only a line with all its fields.
            let has_all = |fields: &str| {
                fields.split('`').skip(1).step_by(2).all(|field| !said[field].is_null())
            };
            let fits = fits.filter(|(pattern, fields)| *pattern != "{what}" || has_all(fields));
            let fields = fits.map(|(_, fields)| fields).collect::<Vec<_>>().join(",");
            ensure!(!fields.is_empty(), "{name} logs a line that is not listed: {line}");
            let members = said.as_object().context("an object")?.keys();
            for member in members.filter(|member| !COMMON.contains(&member.as_str())) {
                ensure!(fields.contains(&format!("`{member}`")), "{member} is not listed: {line}");
            }
            seen.insert(message.to_owned());
        }
    }
    Ok(seen.len())
}

/// Whether a text is as the pattern says, in which names in braces stand for any text.
fn fits(text: &str, pattern: &str) -> bool {
    let mut parts = pattern.split('{');
    let first = parts.next().unwrap_or_default();
    let rests: Vec<&str> =
        parts.map(|part| part.split_once('}').map_or(part, |(_, rest)| rest)).collect();
    let Some(mut left) = text.strip_prefix(first) else { return false };
    for rest in &rests {
        let Some(at) = left.find(rest) else { return false };
        left = &left[at + rest.len()..];
    }
    let is_open = rests.last().is_some_and(|last| last.is_empty());
    left.is_empty() || is_open
}

/// The members of each line.
const COMMON: [&str; 4] = ["timestamp", "level", "target", "message"];

#[test]
fn each_alert_has_a_section_in_the_runbook_and_a_test() -> Result<()> {
    let text = rules("alerts.yml")?;
    let alerts = values(&text, "- alert: ");
    let links = values(&text, "runbook: ");
    let expected: Vec<String> =
        alerts.iter().map(|alert| format!("docs/runbook.md#{}", alert.to_lowercase())).collect();
    assert_eq!(links, expected);
    let runbook = packaging().join("../docs/runbook.md");
    let runbook = fs::read_to_string(runbook)?;
    let sections: BTreeSet<&str> = values(&runbook, "### ").into_iter().collect();
    let alerts: BTreeSet<&str> = alerts.into_iter().collect();
    assert_eq!(sections, alerts);
    for section in runbook.split("### ").skip(1) {
        for part in ["Means", "Users notice", "Look", "Do", "Wake"] {
            ensure!(section.contains(&format!("- **{part}:**")), "{part} is missing: {section}");
        }
    }
    let made = EXPECTED.iter().chain([&IN_CGROUP, &TRACED]).map(|(alert, _)| *alert);
    assert_eq!(made.collect::<BTreeSet<_>>(), alerts);
    Ok(())
}

#[test]
fn promtool_finds_no_fault_and_the_rules_do_what_their_test_says() -> Result<()> {
    let run = |arguments: &[&str]| -> Result<()> {
        let mut command = Command::new("promtool");
        let output =
            command.args(arguments).current_dir(packaging().join("prometheus")).output()?;
        let said =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{said}");
        Ok(())
    };
    run(&["check", "rules", "alerts.yml", "recording.yml"])?;
    run(&["test", "rules", "test.yml"])
}

#[test]
fn grafana_knows_every_member_of_the_dashboard() -> Result<()> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/grafana/check.py");
    let mut command = Command::new(installed("python/bin/python")?);
    let output = command.arg(script).arg(packaging().join(DASHBOARD)).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[test]
fn braces_stand_for_any_text() {
    let fitting = ["keys reloaded", "a of b: c"].map(|text| {
        ["{} reloaded", "a of {b}: {}", "keys", "{what}"].map(|pattern| fits(text, pattern))
    });
    assert_eq!(fitting, [[true, false, false, true], [false, true, false, true]]);
}

#[test]
fn only_times_are_shorter() {
    let rule = "for: 5m\nexpr: a:rate5m < 14 * x[5m] offset 1h and b[30s] > 300\n";
    let expected =
        "for: 3000ms\nexpr: a:rate5m < 14 * x[3000ms] offset 36000ms and b[300ms] > 300\n";
    assert_eq!(hasten(rule), expected);
}
