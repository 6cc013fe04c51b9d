//! Upgrades of a running server.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;

use crate::program::{Server, program};
use crate::wait::{PATIENCE, now, rest};

/// The process that serves after an upgrade. It ends with this value.
pub struct Newest(Pid);

impl Newest {
    /// Its number.
    pub fn pid(&self) -> Pid {
        self.0
    }
}

impl Drop for Newest {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
        let deadline = now() + PATIENCE;
        while test_kill_process(self.0).is_ok() && now() < deadline {
            rest();
        }
    }
}

/// Upgrades the server. Returns the process that serves then, and what is said of what has moved.
pub fn upgrade(server: &Server) -> Result<(Newest, Value)> {
    UnderWay::begin(server, &[])?.finish(server)
}

/// A `weir upgrade` that is running.
pub struct UnderWay {
    command: Child,
    output: BufReader<ChildStdout>,
    lines: Vec<Value>,
    newest: Option<Newest>,
}

impl UnderWay {
    /// Begins it with these further words.
    pub fn begin(server: &Server, words: &[&str]) -> Result<UnderWay> {
        let mut command = Command::new(program("weir")?);
        command.args(["upgrade", "--json", "--config"]).arg(server.config()).args(words);
        command.env("STATE_DIRECTORY", server.directory());
        Self::begin_with(command)
    }

    /// Begins it with this command, which must have `--json`.
    pub fn begin_with(mut command: Command) -> Result<UnderWay> {
        command.env_remove("WEIR_CONFIG").stdin(Stdio::null());
        let mut command = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let output = BufReader::new(command.stdout.take().context("a pipe")?);
        Ok(UnderWay { command, output, lines: Vec::new(), newest: None })
    }

    /// The next line; `None`: that was the last one.
    pub fn line(&mut self) -> Result<Option<&Value>> {
        let mut text = String::new();
        if self.output.read_line(&mut text)? == 0 {
            return Ok(None);
        }
        self.lines.push(serde_json::from_str(&text).with_context(|| text.clone())?);
        let line = self.lines.last().context("a line")?;
        if line["stage"]["name"] == "started" {
            let words = line["stage"]["text"].as_str().context("a text")?;
            let pid = words.split(' ').nth(1).and_then(|pid| pid.parse().ok());
            self.newest = pid.and_then(Pid::from_raw).map(Newest);
        }
        Ok(Some(line))
    }

    /// Reads the lines up to a stage. Returns the number of the new process.
    pub fn await_stage(&mut self, name: &str) -> Result<Pid> {
        while let Some(line) = self.line()? {
            if line["stage"]["name"] == name {
                return self.newest.as_ref().map(Newest::pid).context("no process was started");
            }
        }
        let mut complaint = String::new();
        if let Some(stderr) = self.command.stderr.take() {
            std::io::Read::read_to_string(&mut { stderr }, &mut complaint)?;
        }
        bail!("it does not come to {name}: {:?} {complaint}", self.lines)
    }

    /// Waits for its end. Returns the process that serves then and what has moved, or else the
    /// reason why nothing has.
    pub fn end(mut self) -> Result<Result<(Newest, Value), String>> {
        while self.line()?.is_some() {}
        let UnderWay { command, lines, newest, .. } = self;
        let output = command.wait_with_output()?;
        if !output.status.success() {
            drop(newest);
            return Ok(Err(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        let moved = lines.iter().find_map(|line| line.get("moved")).cloned();
        let moved = moved.context("nothing is said of what has moved")?;
        Ok(Ok((newest.context("no process was started")?, moved)))
    }

    /// The new process, for a test that ends the command early.
    pub fn take_newest(&mut self) -> Result<Newest> {
        self.newest.take().context("no process was started")
    }

    /// Waits for its end, which must be a good one.
    pub fn finish(self, server: &Server) -> Result<(Newest, Value)> {
        self.end()?.map_err(|reason| anyhow!("{reason}\n{}", server.log()))
    }
}
