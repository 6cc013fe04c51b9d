//! The stages of an activation.

use std::str::FromStr;

use anyhow::{Error, Result, bail};
use serde::{Deserialize, Serialize};

/// A set of stages of an activation, measured together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stages {
    /// The text of the option.
    pub(crate) name: String,
    all: Vec<Stage>,
    /// One operation per request, without batches.
    pub(crate) is_single: bool,
}

/// A stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stage {
    /// The access log.
    Log,
    /// Redis in front of the store.
    Redis,
    /// The store in a file.
    Embedded,
    /// The store in MongoDB.
    Mongodb,
}

impl Stages {
    pub(crate) fn has(&self, stage: Stage) -> bool {
        self.all.contains(&stage)
    }

    /// Whether a store checks keys.
    pub(crate) fn has_store(&self) -> bool {
        self.has(Stage::Embedded) || self.has(Stage::Mongodb)
    }
}

impl FromStr for Stages {
    type Err = Error;

    fn from_str(name: &str) -> Result<Stages> {
        let (words, is_single) =
            name.strip_suffix("-single").map_or((name, false), |words| (words, true));
        let mut stages = Stages { name: name.to_owned(), all: Vec::new(), is_single };
        for word in words.split('+').filter(|_| words != "nothing") {
            let stage = match word {
                "log" => Stage::Log,
                "redis" => Stage::Redis,
                "embedded" => Stage::Embedded,
                "mongodb" => Stage::Mongodb,
                _ => {
                    bail!("no stage is called {word:?}: there are log, redis, embedded and mongodb")
                }
            };
            if stages.has(stage) {
                bail!("{word} is there twice");
            }
            stages.all.push(stage);
        }
        if stages.has(Stage::Embedded) && stages.has(Stage::Mongodb) {
            bail!("there is one store: embedded or mongodb");
        }
        Ok(stages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_known_by_their_names() {
        let stages: Stages = "log+redis+mongodb-single".parse().unwrap();
        assert_eq!(stages.all, [Stage::Log, Stage::Redis, Stage::Mongodb]);
        assert!(stages.is_single && stages.has_store());
        let nothing: Stages = "nothing".parse().unwrap();
        assert!(nothing.all.is_empty() && !nothing.is_single && !nothing.has_store());
        for wrong in ["", "nothing+log", "log+log", "embedded+mongodb", "sql", "log-single+redis"] {
            assert!(wrong.parse::<Stages>().is_err(), "{wrong}");
        }
    }
}
