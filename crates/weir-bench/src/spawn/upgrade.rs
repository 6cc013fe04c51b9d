//! `weir upgrade` of a started server.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use toml::Table;

use super::running::{Running, adopt_orphans};
use super::server::wait;
use super::{STOP_TIMEOUT, Target};
use crate::clock;
use crate::sys;

/// What an upgrade has told, and how long it took.
#[derive(Debug, Clone, Default)]
pub(crate) struct Upgraded {
    /// What has moved, what has stayed, and for how long.
    pub(crate) moved: Moved,
    /// What has become of that which has stayed.
    pub(crate) left: Left,
    /// From the start of the command to its end.
    pub(crate) took: Duration,
}

/// The line `moved` of the command.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Moved {
    /// Connections by transport.
    pub(crate) moved: Vec<Count>,
    /// What has stayed, by cause.
    pub(crate) stayed: Vec<Count>,
    /// For so long nobody was served.
    pub(crate) pause_ms: f64,
    /// Bytes of the state.
    pub(crate) bytes: u64,
    /// Resident memory of both processes, just after the new one serves.
    pub(crate) old_bytes: u64,
    pub(crate) new_bytes: u64,
}

/// The line `left` of the command.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(crate) struct Left {
    /// Of what has stayed, that which has ended by itself.
    pub(crate) finished: u64,
    /// What was closed.
    pub(crate) closed: u64,
}

/// A number of connections of one kind.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Count {
    pub(crate) kind: String,
    pub(crate) count: u64,
}

/// A line of the command; others do not matter here.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Stage { name: String, text: String },
    Moved(Moved),
    Left(Left),
    Refused { why: String },
}

/// Settings of a server that can be upgraded: where it waits for the command.
pub(crate) fn settings() -> Table {
    let mut upgrade = Table::new();
    upgrade.insert("socket".to_owned(), SOCKET.into());
    Table::from_iter([("upgrade".to_owned(), upgrade.into())])
}

/// In the directory of the server.
const SOCKET: &str = "upgrade.sock";

impl Upgraded {
    /// Connections that have moved.
    pub(crate) fn connections(&self) -> u64 {
        self.moved.moved.iter().map(|kind| kind.count).sum()
    }
}

impl Target {
    /// Runs `weir upgrade` with the program that was started. Afterwards the server is the new
    /// process, and the old one has ended.
    pub(crate) fn upgrade(&mut self) -> Result<Upgraded> {
        adopt_orphans()?;
        let server = self.server.as_mut().context("only a server of our own can be upgraded")?;
        let began = clock::monotonic();
        let mut command = Command::new(&server.program);
        command.args(["upgrade", "--json", "--socket", SOCKET, "--config"]);
        command.arg(server.directory.join("weir.toml")).current_dir(&server.directory);
        for (key, _) in std::env::vars_os() {
            if key.to_string_lossy().starts_with("WEIR_") {
                command.env_remove(key);
            }
        }
        sys::die_with_parent(command.stdin(Stdio::null()));
        let output = command.output().context("cannot run weir upgrade")?;
        let said = String::from_utf8_lossy(&output.stdout);
        let (upgraded, pid) = match read(&said) {
            Ok(read) if output.status.success() => read,
            found => {
                // A process that was started and does not serve would outlive this program.
                if let Some(pid) = started(&said) {
                    let _ = Running::adopted(pid).kill();
                }
                let error = found.err().map(|error| format!("{error:#}: ")).unwrap_or_default();
                let complaint = String::from_utf8_lossy(&output.stderr);
                bail!("weir upgrade: {error}{}{}", complaint.trim(), server.log_tail());
            }
        };
        let mut before = server.replace(pid);
        self.pid = pid;
        match wait(&mut before, STOP_TIMEOUT)? {
            Some(status) if status.success() => {}
            Some(status) => bail!("the old process ended with {status}{}", server.log_tail()),
            None => bail!("the old process still runs after {STOP_TIMEOUT:?}"),
        }
        if let Some(status) = server.child.try_wait().context("the new process is no orphan")? {
            bail!("the new process has ended: {status}{}", server.log_tail());
        }
        Ok(Upgraded { took: clock::monotonic() - began, ..upgraded })
    }
}

/// What the command has said, and the number of the new process.
fn read(said: &str) -> Result<(Upgraded, u32)> {
    let (mut upgraded, mut has_moved) = (Upgraded::default(), false);
    for text in said.lines() {
        match serde_json::from_str(text).with_context(|| format!("an unknown line {text:?}"))? {
            Line::Stage { .. } => {}
            Line::Moved(moved) => (upgraded.moved, has_moved) = (moved, true),
            Line::Left(left) => upgraded.left = left,
            Line::Refused { why } => bail!("refused: {why}"),
        }
    }
    if !has_moved {
        bail!("nothing has moved");
    }
    Ok((upgraded, started(said).context("no process was started")?))
}

/// The number of the new process.
fn started(said: &str) -> Option<u32> {
    said.lines().find_map(|text| match serde_json::from_str(text) {
        Ok(Line::Stage { name, text }) if name == "started" => {
            text.split(' ').find_map(|word| word.parse().ok())
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STARTED: &str = r#"{"stage":{"name":"started","text":"process 77 runs","after_ms":4}}"#;
    const MOVED: &str = r#"{"moved":{"moved":[{"kind":"tcp","count":3},{"kind":"tls","count":2}],"stayed":[],"pause_ms":1.5,"bytes":9,"descriptors":5,"old_bytes":1,"new_bytes":2}}"#;
    const LEFT: &str = r#"{"left":{"finished":1,"closed":2}}"#;

    #[test]
    fn what_the_command_says_is_understood() {
        let (upgraded, pid) = read(&format!("{STARTED}\n{MOVED}\n{LEFT}\n")).unwrap();
        assert_eq!((pid, upgraded.connections()), (77, 5));
        assert_eq!((upgraded.moved.pause_ms, upgraded.left.closed), (1.5, 2));
    }

    #[test]
    fn an_upgrade_that_did_not_happen_is_an_error() {
        let refused = format!("{STARTED}\n{{\"refused\":{{\"why\":\"no room\"}}}}\n");
        assert!(read(&refused).unwrap_err().to_string().contains("no room"));
        assert!(read(STARTED).is_err() && read(MOVED).is_err() && read("hello").is_err());
    }
}
