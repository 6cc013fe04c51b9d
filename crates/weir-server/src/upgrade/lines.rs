//! What `weir upgrade` and the running process write to each other: one JSON object a line.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use weir::{Forecast, Left, Moved, Stage};

/// The first and only line of `weir upgrade`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Request {
    /// The program to start; absent: the one that runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) program: Option<PathBuf>,
    /// Its configuration file; absent: the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) config: Option<PathBuf>,
    /// Only say what would happen.
    #[serde(default)]
    pub(super) dry_run: bool,
}

/// A line of the answer. The last one is `forecast`, `refused` or `left`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    /// A stage is done.
    Stage {
        /// Its name.
        name: String,
        /// A sentence about it.
        text: String,
        /// Since the request.
        after_ms: u64,
    },
    /// What would move.
    Forecast {
        /// Connections by transport.
        moves: Vec<Count>,
        /// What would stay, by cause.
        stays: Vec<Count>,
        /// Why the upgrade would be refused.
        refused: Option<String>,
    },
    /// The new process serves.
    Moved {
        /// Connections by transport.
        moved: Vec<Count>,
        /// What has stayed, by cause.
        stayed: Vec<Count>,
        /// For so long nobody was served.
        pause_ms: f64,
        /// Bytes of the state.
        bytes: u64,
        /// Sockets that have moved.
        descriptors: u64,
        /// Memory of the old process.
        old_bytes: u64,
        /// Memory of the new process.
        new_bytes: u64,
    },
    /// The upgrade has failed, and the old process serves on.
    Refused {
        /// A sentence.
        why: String,
    },
    /// The old process has finished, and ends now.
    Left {
        /// Connections that have ended by themselves.
        finished: u64,
        /// Connections that were closed.
        closed: u64,
    },
}

/// A number of things of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Count {
    pub(super) kind: String,
    pub(super) count: u64,
}

fn counts(all: &[(&'static str, u64)]) -> Vec<Count> {
    all.iter().map(|(kind, count)| Count { kind: (*kind).to_owned(), count: *count }).collect()
}

impl Line {
    pub(super) fn stage(stage: &Stage, after_ms: u64) -> Line {
        Line::Stage { name: stage.name().to_owned(), text: stage.to_string(), after_ms }
    }

    pub(super) fn forecast(forecast: Forecast) -> Line {
        let Forecast { connections, stays, refused } = forecast;
        Line::Forecast { moves: counts(&connections), stays: counts(&stays), refused }
    }

    pub(super) fn moved(moved: &Moved, (old_bytes, new_bytes): (u64, u64)) -> Line {
        let Moved { connections, stayed, pause, bytes, descriptors } = moved;
        Line::Moved {
            moved: counts(connections),
            stayed: counts(stayed),
            pause_ms: pause.as_secs_f64() * 1000.0,
            bytes: *bytes,
            descriptors: *descriptors,
            old_bytes,
            new_bytes,
        }
    }

    pub(super) fn left(left: &Left) -> Line {
        Line::Left { finished: left.finished, closed: left.closed }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn lines_are_read_as_they_are_written() {
        let moved = Moved {
            connections: vec![("tcp", 3)],
            stayed: vec![("http", 1)],
            pause: Duration::from_micros(1_500),
            bytes: 9,
            descriptors: 5,
        };
        let forecast = Forecast { refused: Some("no".to_owned()), ..Forecast::default() };
        let stage = Stage::Started { pid: 7 };
        let cases = [
            (
                Line::stage(&stage, 4),
                r#"{"stage":{"name":"started","text":"process 7 runs","after_ms":4}}"#,
            ),
            (
                Line::moved(&moved, (1, 2)),
                r#"{"moved":{"moved":[{"kind":"tcp","count":3}],"stayed":[{"kind":"http","count":1}],"pause_ms":1.5,"bytes":9,"descriptors":5,"old_bytes":1,"new_bytes":2}}"#,
            ),
            (Line::forecast(forecast), r#"{"forecast":{"moves":[],"stays":[],"refused":"no"}}"#),
            (Line::left(&Left { finished: 1, closed: 2 }), r#"{"left":{"finished":1,"closed":2}}"#),
        ];
        for (line, text) in cases {
            assert_eq!(serde_json::to_string(&line).unwrap(), text);
            assert_eq!(serde_json::from_str::<Line>(text).unwrap(), line);
        }
        assert_eq!(serde_json::from_str::<Request>("{}").unwrap(), Request::default());
    }
}
