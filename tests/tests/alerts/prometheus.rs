//! A real Prometheus with the rules of `packaging/prometheus`, whose times are shorter.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;
use weir_tests::{Answer, PATIENCE, free_addr, now, rest};

/// An alert by name, and the gateway for which it fires.
pub(crate) type Fired = (String, String);

/// All times of the rules are divided by this.
const HASTE: u64 = 100;
const SCRAPE: &str = "250ms";

pub(crate) struct Prometheus {
    child: Child,
    addr: SocketAddr,
    _directory: TempDir,
}

/// The directory `packaging` of the repository.
pub(crate) fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging")
}

pub(crate) fn rules(file: &str) -> Result<String> {
    Ok(fs::read_to_string(packaging().join("prometheus").join(file))?)
}

impl Prometheus {
    /// Starts one that scrapes these gateways, by name.
    pub(crate) fn start(targets: &[(&str, SocketAddr)]) -> Result<Prometheus> {
        let directory = tempfile::tempdir()?;
        for file in ["alerts.yml", "recording.yml"] {
            fs::write(directory.path().join(file), hasten(&rules(file)?))?;
        }
        let mut config = format!(
            "global: {{scrape_interval: {SCRAPE}, scrape_timeout: {SCRAPE}, evaluation_interval: {SCRAPE}}}\n\
             rule_files: [recording.yml, alerts.yml]\nscrape_configs:\n- job_name: weir\n  static_configs:\n"
        );
        for (name, addr) in targets {
            config += &format!("  - targets: [\"{addr}\"]\n    labels: {{instance: \"{name}\"}}\n");
        }
        fs::write(directory.path().join("prometheus.yml"), config)?;
        let addr = free_addr()?;
        let child = Command::new("prometheus")
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
            .args(["--log.level=error", &format!("--web.listen-address={addr}")])
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .spawn()
            .context("running prometheus, which `cargo xtask test` installs")?;
        let mut prometheus = Prometheus { child, addr, _directory: directory };
        let deadline = now() + PATIENCE;
        while !Answer::get(addr, "/-/ready").is_ok_and(|answer| answer.status == 200) {
            ensure!(prometheus.child.try_wait()?.is_none(), "prometheus has ended");
            ensure!(now() < deadline, "prometheus does not start");
            rest();
        }
        Ok(prometheus)
    }

    /// The alerts that fire now. Those of the whole machine are left out: other programs cause them.
    pub(crate) fn firing(&self) -> Result<BTreeSet<Fired>> {
        let answer = self.ask("/api/v1/alerts")?;
        let alerts = answer["data"]["alerts"].as_array().context("alerts")?;
        let firing = alerts
            .iter()
            .filter(|alert| alert["state"] == "firing" && alert["labels"]["limit"] != "machine");
        let label = |alert: &Value, name: &str| {
            alert["labels"][name].as_str().unwrap_or_default().to_owned()
        };
        Ok(firing.map(|alert| (label(alert, "alertname"), label(alert, "instance"))).collect())
    }

    /// What an expression returns.
    pub(crate) fn query(&self, expression: &str) -> Result<Vec<Value>> {
        let mut path = "/api/v1/query?query=".to_owned();
        for byte in expression.bytes() {
            path += &format!("%{byte:02X}");
        }
        let answer = self.ask(&path).with_context(|| expression.to_owned())?;
        Ok(answer["data"]["result"].as_array().context("a vector")?.clone())
    }

    fn ask(&self, path: &str) -> Result<Value> {
        let answer = Answer::get(self.addr, path)?;
        if answer.status != 200 {
            bail!("Prometheus answered {}: {}", answer.status, answer.body);
        }
        Ok(serde_json::from_str(&answer.body)?)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Divides the time of each `for`, range and offset. Names such as `rate5m`, and thresholds, stay.
pub(crate) fn hasten(rules: &str) -> String {
    let mut hastened = String::new();
    for line in rules.split_inclusive('\n') {
        let mut rest = line;
        while let Some(begin) = time_after(rest, &["for: ", "[", "offset "]) {
            let length = rest[begin..].find(|c: char| !c.is_ascii_alphanumeric());
            let end = length.map_or(rest.len(), |length| begin + length);
            hastened += &rest[..begin];
            hastened += &shorter(&rest[begin..end]);
            rest = &rest[end..];
        }
        hastened += rest;
    }
    hastened
}

/// Where the first time begins that stands behind one of these words.
fn time_after(text: &str, words: &[&str]) -> Option<usize> {
    let found = words.iter().flat_map(|word| text.match_indices(word));
    let begins = found.map(|(at, word)| at + word.len());
    begins.filter(|begin| text[*begin..].starts_with(|c: char| c.is_ascii_digit())).min()
}

fn shorter(time: &str) -> String {
    let (number, unit) = time.split_at(time.len() - 1);
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        _ => 3600,
    };
    let millis = number.parse::<u64>().unwrap_or_default() * seconds * 1000 / HASTE;
    format!("{millis}ms")
}
