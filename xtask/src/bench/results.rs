//! Runs pieces, keeps their results in files, and finds figures in them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::pieces::{Piece, Run};
use super::prepare::{self, Programs};
use crate::process::program;

/// Results by name of piece.
pub(super) struct Results {
    directory: PathBuf,
    all: BTreeMap<String, Value>,
}

/// What several rounds gave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
}

impl Results {
    /// Reads what these pieces gave already. A result of another command does not count.
    pub(super) fn open(directory: &Path, pieces: &[Piece]) -> anyhow::Result<Results> {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let mut all = BTreeMap::new();
        for piece in pieces {
            let path = path(directory, &piece.name);
            let Ok(text) = fs::read_to_string(&path) else { continue };
            let value: Value = serde_json::from_str(&text)
                .with_context(|| format!("{} is not a result", path.display()))?;
            if value[COMMAND] == piece.command() {
                all.insert(piece.name.clone(), value);
            }
        }
        Ok(Results { directory: directory.to_path_buf(), all })
    }

    #[cfg(test)]
    pub(super) fn of(all: &[(&str, Value)]) -> Results {
        let all = all.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        Results { directory: PathBuf::new(), all }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.all.contains_key(name)
    }

    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.all.get(name)
    }

    /// All results with their names.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &Value)> + Clone {
        self.all.iter()
    }

    /// A figure of a piece.
    pub(super) fn figure(&self, piece: &str, field: &str) -> Option<f64> {
        self.get(piece)?.get(field)?.as_f64()
    }

    /// Runs a piece and keeps its result.
    pub(super) fn measure(
        &mut self,
        root: &Path,
        programs: &Programs,
        piece: &Piece,
    ) -> anyhow::Result<()> {
        let mut result = match &piece.run {
            Run::Bench { words, settings } => {
                self.run_bench(root, programs, words, settings.as_deref())?
            }
            Run::Script { path, variables } => run_script(root, programs, path, variables)?,
        };
        result[COMMAND] = piece.command().into();
        let path = path(&self.directory, &piece.name);
        // Written whole or not at all: an interrupted run begins this piece again.
        let unfinished = path.with_extension("unfinished");
        fs::write(&unfinished, serde_json::to_string_pretty(&result)?)?;
        fs::rename(&unfinished, &path)?;
        self.all.insert(piece.name.clone(), result);
        Ok(())
    }

    fn run_bench(
        &self,
        root: &Path,
        programs: &Programs,
        words: &str,
        settings: Option<&str>,
    ) -> anyhow::Result<Value> {
        let mut command = program(root, &programs.bench, words);
        let is_apart = words.starts_with("stages");
        if !is_apart {
            command.arg("--spawn").arg(&programs.weir);
        }
        if words.contains("--compare") && !prepare::has(root, "nginx") {
            println!("    nginx is missing, and left out");
        }
        if let Some(settings) = settings {
            let path = self.directory.join("settings.toml");
            fs::write(&path, settings)?;
            command.arg("--config-extra").arg(path);
        }
        command.arg("--json").env("PEERS", &programs.peers);
        let output =
            command.stderr(Stdio::inherit()).output().context("cannot start weir-bench")?;
        let said = String::from_utf8_lossy(&output.stdout);
        let object = said.lines().last().and_then(|line| serde_json::from_str(line).ok());
        let Some(object @ Value::Object(_)) = object else {
            bail!("weir-bench {words} ended with {} and without a report", output.status);
        };
        // A figure of a run that failed a check is kept with the complaint, as long as there is one.
        if !output.status.success() && (programs.is_strict || !has_figures(&object)) {
            bail!("weir-bench {words}: {}", object["errors"]);
        }
        Ok(object)
    }
}

/// Whether a run came as far as its figures.
fn has_figures(object: &Value) -> bool {
    ["contestants", "rounds", "rungs", "lag_ratio"].iter().any(|name| !object[*name].is_null())
}

fn run_script(
    root: &Path,
    programs: &Programs,
    path: &str,
    variables: &str,
) -> anyhow::Result<Value> {
    let mut command = program(root, "bash", path);
    command.env("WEIR", &programs.weir).env("WEIR_BENCH", &programs.bench);
    for (name, value) in variables.split(' ').filter_map(|pair| pair.split_once('=')) {
        command.env(name, value);
    }
    let output = command.stderr(Stdio::inherit()).output().context("cannot start bash")?;
    if !output.status.success() {
        bail!("{path} ended with {}", output.status);
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(json!({ "text": text }))
}

/// The file of a piece's result.
fn path(directory: &Path, piece: &str) -> PathBuf {
    directory.join(format!("{piece}.json"))
}

/// The member of a result that tells its command.
const COMMAND: &str = "command";

impl Spread {
    /// Of values; `None` without any.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len().is_multiple_of(2) {
            (sorted[middle - 1] + sorted[middle]) / 2.0
        } else {
            sorted[middle]
        };
        Some(Spread { median, least, most })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::pieces::Group;

    #[test]
    fn a_spread_has_a_middle_and_two_ends() {
        let spread = |values: &[f64]| Spread::of(values.iter().copied());
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some(Spread { median: 2.0, least: 1.0, most: 3.0 }));
        assert_eq!(spread(&[4.0, 1.0]), Some(Spread { median: 2.5, least: 1.0, most: 4.0 }));
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn a_result_of_another_command_does_not_count() {
        let directory = std::env::temp_dir().join(format!("xtask-results-{}", std::process::id()));
        let piece = |variables| Piece {
            name: "a".to_owned(),
            group: Group::Articles,
            run: Run::Script { path: "a.sh", variables },
        };
        fs::create_dir_all(&directory).expect("a directory");
        fs::write(path(&directory, "a"), r#"{"text":"x","command":"N=1 a.sh"}"#).expect("a result");
        let found = ["N=1", "N=2"].map(|variables| {
            Results::open(&directory, &[piece(variables)]).expect("results").has("a")
        });
        let _ = fs::remove_dir_all(&directory);
        assert_eq!(found, [true, false]);
    }

    #[test]
    fn figures_are_found_by_piece_and_name() {
        let results = Results::of(&[("a", json!({ "x": 1.5, "y": null }))]);
        assert_eq!(results.figure("a", "x"), Some(1.5));
        assert_eq!(results.figure("a", "y"), None);
        assert_eq!(results.figure("b", "x"), None);
    }
}
