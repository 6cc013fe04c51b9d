//! The result of a run: a table for people, and one JSON object for programs.

use std::io::{self, Write};
use std::path::Path;
use std::process::Command;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Value, json};

use crate::process::{cpu_model, kernel_line, raise_open_files};
use crate::stats::milli;
use crate::workers::Totals;

/// The result of a scenario: fields in order, and errors.
#[derive(Debug)]
pub(crate) struct Report {
    fields: Vec<(&'static str, Value)>,
    errors: Vec<String>,
}

impl Report {
    /// An empty report.
    pub(crate) fn new(scenario: &'static str) -> Report {
        Report { fields: vec![("scenario", scenario.into())], errors: Vec::new() }
    }

    /// Adds a field.
    pub(crate) fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        self.fields.push((name, value.into()));
    }

    /// Adds a figure, rounded to three decimal places; `None` becomes null.
    pub(crate) fn figure(&mut self, name: &'static str, value: Option<f64>) {
        self.set(name, value.map(milli));
    }

    /// Fails the run unless `holds`.
    pub(crate) fn check(&mut self, holds: bool, complaint: impl FnOnce() -> String) {
        if !holds {
            self.fail(complaint());
        }
    }

    /// Fails the run.
    pub(crate) fn fail(&mut self, complaint: String) {
        self.errors.push(complaint);
    }

    /// Fails the run if a message was lost, repeated or damaged, or a connection was closed; `what`
    /// names the phase.
    pub(crate) fn check_messages(&mut self, what: &str, totals: &Totals) {
        let tally = &totals.tally;
        self.check(tally.wrong == 0, || format!("{what}: {} wrong messages", tally.wrong));
        self.check(tally.duplicates == 0, || {
            format!("{what}: {} messages twice or out of order", tally.duplicates)
        });
        self.check(tally.lost() == 0, || format!("{what}: {} messages lost", tally.lost()));
        self.check(tally.closed == 0, || {
            format!("{what}: {} connections closed: {:?}", tally.closed, tally.closed_by)
        });
        // Without messages there is no result.
        self.check(tally.delivered > 0, || format!("{what}: no message was delivered"));
        self.check(tally.delivered == 0 || tally.unstamped < tally.delivered, || {
            format!("{what}: the kernel stamped no message")
        });
        for error in &tally.errors {
            self.fail(format!("{what}: {error}"));
        }
    }

    /// Whether the run has no error.
    pub(crate) fn is_ok(&self) -> bool {
        self.errors.is_empty()
    }

    /// The errors.
    pub(crate) fn errors(&self) -> &[String] {
        &self.errors
    }

    /// Adds the verdict and the environment.
    pub(crate) fn close(&mut self) {
        self.set("ok", self.errors.is_empty());
        self.set("errors", self.errors.clone());
        self.set("environment", environment());
    }

    /// Writes the table.
    pub(crate) fn write_table(&self, out: &mut impl Write) -> io::Result<()> {
        let width = self.fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, value) in &self.fields {
            let rows = value
                .as_array()
                .filter(|items| !items.is_empty() && items.iter().all(Value::is_object));
            let Some(rows) = rows else {
                writeln!(out, "{name:width$}  {}", shown(value))?;
                continue;
            };
            writeln!(out, "{name}")?;
            for row in rows {
                writeln!(out, "  {}", shown(row))?;
            }
        }
        Ok(())
    }
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.fields.len()))?;
        for (name, value) in &self.fields {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        Value::Object(map) => {
            let pairs: Vec<String> =
                map.iter().map(|(key, value)| format!("{key}={}", shown(value))).collect();
            pairs.join(" ")
        }
        Value::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join("; "),
        other @ (Value::Bool(_) | Value::Number(_)) => other.to_string(),
    }
}

/// The machine and the program.
fn environment() -> Value {
    let (soft, hard) = raise_open_files().unwrap_or_default();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "commit": commit(),
        "kernel": kernel_line("/proc/sys/kernel/osrelease"),
        "cpu": cpu_model(),
        "cpus_online": kernel_line("/sys/devices/system/cpu/online"),
        "load_average": kernel_line("/proc/loadavg"),
        "open_files_soft": soft,
        "open_files_hard": hard,
        "command": std::env::args().collect::<Vec<_>>().join(" "),
    })
}

/// Commit of the sources around the program, if git knows one.
fn commit() -> Option<String> {
    let program = std::env::current_exe().ok()?;
    let here = std::env::current_dir().ok();
    let places = [program.parent(), here.as_deref()];
    places.into_iter().flatten().find_map(commit_at)
}

fn commit_at(directory: &Path) -> Option<String> {
    let mut command = Command::new("git");
    command.arg("-C").arg(directory).args(["describe", "--always", "--dirty", "--abbrev=12"]);
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_messages_fails() {
        let mut report = Report::new("broadcast");
        report.check_messages("broadcast", &Totals::default());
        assert_eq!(report.errors(), ["broadcast: no message was delivered"]);
    }

    #[test]
    fn the_object_is_one_line_in_order_and_the_table_readable() {
        let mut report = Report::new("idle");
        report.set("connections", 3);
        report.figure("ratio", Some(1.000_499));
        report.figure("none", None);
        report.set("rounds", json!([{"a": 1}, {"a": 2}]));
        report.check(true, || "fine".to_owned());
        report.check(false, || "lost\nsome".to_owned());
        report.close();
        assert!(!report.is_ok());
        let line = serde_json::to_string(&report).unwrap();
        assert!(
            line.starts_with(r#"{"scenario":"idle","connections":3,"ratio":1.0,"none":null,"#),
            "{line}"
        );
        assert!(
            line.contains(r#""ok":false,"errors":["lost\nsome"]"#) && !line.contains('\n'),
            "{line}"
        );
        let mut table = Vec::new();
        report.write_table(&mut table).unwrap();
        let table = String::from_utf8(table).unwrap();
        assert!(table.contains("connections  3\n") && table.contains("\n  a=2\n"), "{table}");
    }
}
