//! The bench's own processes, as the directing process sees them.

pub(crate) mod lines;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::process::Cpus;
use crate::sys;

/// A process of this program with another subcommand. It is killed when this is dropped.
pub(crate) struct Peer {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
    name: &'static str,
}

impl Peer {
    /// Starts `weir-bench NAME ARGUMENTS`, bound to `cpus`. Call it from a thread that outlives the
    /// process.
    pub(crate) fn start(
        name: &'static str,
        arguments: &[&str],
        cpus: Option<&Cpus>,
    ) -> Result<Peer> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(program);
        command.arg(name).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        sys::die_with_parent(&mut command);
        let mut child = match cpus {
            Some(cpus) => cpus.bind(|| Ok(command.spawn()?)),
            None => command.spawn().map_err(Into::into),
        }
        .with_context(|| format!("cannot start {name}"))?;
        let orders = child.stdin.take().context("no standard input")?;
        let output = child.stdout.take().context("no standard output")?;
        let (sender, answers) = sync_channel(ANSWERS_MAX);
        thread::Builder::new().name(format!("{name} answers")).spawn(move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        })?;
        Ok(Peer { child, orders, answers, name })
    }

    /// Sends an order.
    pub(crate) fn say(&mut self, order: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_string(order)?;
        line.push('\n');
        self.orders
            .write_all(line.as_bytes())
            .with_context(|| format!("the {} process is gone", self.name))
    }

    /// Waits for the next answer.
    pub(crate) fn hear<T: DeserializeOwned>(&mut self, patience: Duration) -> Result<T> {
        match self.answers.recv_timeout(patience) {
            Ok(line) => {
                serde_json::from_str(&line).with_context(|| format!("{} said {line:?}", self.name))
            }
            Err(RecvTimeoutError::Timeout) => {
                Err(anyhow!("no answer of {} within {patience:?}", self.name))
            }
            Err(RecvTimeoutError::Disconnected) => match self.child.wait() {
                Ok(status) => bail!("the {} process ended: {status}", self.name),
                Err(error) => bail!("the {} process ended: {error}", self.name),
            },
        }
    }

    /// The next answer, if it comes in time.
    pub(crate) fn poll<T: DeserializeOwned>(&mut self, patience: Duration) -> Result<Option<T>> {
        match self.answers.recv_timeout(patience) {
            Ok(line) => serde_json::from_str(&line)
                .with_context(|| format!("{} said {line:?}", self.name))
                .map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => self.hear(patience).map(Some),
        }
    }

    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Answers that may wait to be read: more than a process sends between two orders.
const ANSWERS_MAX: usize = 1024;
