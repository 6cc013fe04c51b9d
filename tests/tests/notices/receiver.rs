//! A receiver of notices as a process of its own, and what it has heard.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;
use weir_tests::{PATIENCE, free_port, now, rest};

pub(crate) const SECRET: &str = "a secret of at least thirty-two bytes";

pub(crate) struct Receiver {
    child: Option<Child>,
    pub(crate) port: u16,
    directory: TempDir,
}

impl Receiver {
    pub(crate) fn new() -> Result<Receiver> {
        Ok(Receiver { child: None, port: free_port()?, directory: TempDir::new()? })
    }

    pub(crate) fn start(&mut self) -> Result<()> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/hooks/receiver.py");
        let child = Command::new("python3")
            .args([script.as_os_str(), self.port.to_string().as_ref()])
            .args([self.directory.path().as_os_str(), SECRET.as_ref()])
            .stdin(Stdio::null())
            .spawn()
            .context("starting the receiver")?;
        self.child = Some(child);
        let deadline = now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            ensure!(now() < deadline, "the receiver does not listen");
            rest();
        }
        Ok(())
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Whether it answers 503.
    pub(crate) fn refuse(&self, is_refusing: bool) -> Result<()> {
        let path = self.directory.path().join("refuse");
        match is_refusing {
            true => std::fs::write(path, "")?,
            false => std::fs::remove_file(path)?,
        }
        Ok(())
    }

    fn heard(&self) -> PathBuf {
        self.directory.path().join("heard")
    }

    /// All notices that came for a receiver of this name, in the order of their coming. All requests
    /// must have been signed.
    pub(crate) fn notices(&self, name: &str) -> Result<Vec<Value>> {
        let text = std::fs::read_to_string(self.heard()).unwrap_or_default();
        let mut notices = Vec::new();
        // The last line may be half written.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for line in whole.lines() {
            let request: Value = serde_json::from_str(line)?;
            ensure!(request["is_signed"] == true, "the signature is wrong: {line}");
            ensure!(request["type"] == "application/json", "{line}");
            if request["body"]["receiver"] == name {
                notices.extend(request["body"]["notices"].as_array().context("a list")?.clone());
            }
        }
        Ok(notices)
    }

    /// The notices without those that came again: the numbers grow one by one from 1, but for those
    /// that a notice `lost` stands for.
    pub(crate) fn once(&self, name: &str) -> Result<Vec<Value>> {
        let mut once: Vec<Value> = Vec::new();
        let mut last = 0;
        for notice in self.notices(name)? {
            let sequence = notice["sequence"].as_u64().context("a number")?;
            if sequence <= last {
                continue;
            }
            let is_gap = notice["event"] == "lost" && notice["reason"] == "queue_full";
            let jump = if is_gap { notice["count"].as_u64().context("a count")? } else { 1 };
            ensure!(sequence == last + jump, "{notice} comes after number {last}");
            last = sequence;
            once.push(notice);
        }
        Ok(once)
    }

    /// Waits until the notices satisfy `condition`.
    pub(crate) fn wait(
        &self,
        name: &str,
        what: &str,
        condition: impl Fn(&[Value]) -> bool,
    ) -> Result<Vec<Value>> {
        let deadline = now() + PATIENCE;
        loop {
            let notices = self.once(name)?;
            if condition(&notices) {
                return Ok(notices);
            }
            if now() > deadline {
                bail!("{name} waited in vain for {what}: {notices:#?}");
            }
            rest();
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.kill();
    }
}
