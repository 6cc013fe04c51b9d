//! Reloading: the program reads its configuration again, and applies what needs no restart. SIGHUP
//! and the admin API ask for it; `weir reload` asks the admin API.

use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use ::http::{Method, StatusCode};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tracing::{error, info};
use weir::keys::{Change, Difference, Table, adopt, difference};
use weir::{Handle, NotReloaded, Reloaded, Reloader};

use crate::cli::ReloadArgs;
use crate::config::{self, LogSettings, Settings, UpgradeSettings};
use crate::http::{Api, reason};
use crate::log::Control;
use crate::output::{complain, say};

/// Reads the configuration again, from the same file and variables as at the start.
pub(crate) struct OwnReloader {
    file: Option<PathBuf>,
    log: Control,
    /// The program's own settings in use. Held while a configuration is applied.
    own: Mutex<Settings>,
    /// Present once the gateway runs.
    handle: OnceLock<Handle>,
}

impl OwnReloader {
    /// `settings` are in use.
    pub(crate) fn new(file: Option<PathBuf>, settings: Settings, log: Control) -> Arc<OwnReloader> {
        Arc::new(OwnReloader { file, log, own: Mutex::new(settings), handle: OnceLock::new() })
    }

    /// The gateway runs.
    pub(crate) fn begin(&self, handle: Handle) {
        // It is called once.
        let _ = self.handle.set(handle);
    }

    /// Handles SIGHUP, and logs the outcome.
    pub(crate) async fn hang_up(&self) {
        match Box::pin(self.apply()).await {
            Ok(Reloaded { changed, restart, closed, unsubscribed }) => {
                let keys = |changes: &[Change]| {
                    let keys: Vec<&str> =
                        changes.iter().map(|change| change.key.as_str()).collect();
                    keys.join(", ")
                };
                match (keys(&changed), keys(&restart)) {
                    (changed, restart) if changed.is_empty() && restart.is_empty() => {
                        info!("SIGHUP: the configuration has not changed");
                    }
                    (changed, needs_restart) => {
                        info!(changed, needs_restart, closed, unsubscribed, "SIGHUP: reloaded");
                    }
                }
            }
            Err(NotReloaded(reasons)) => {
                for reason in reasons {
                    error!(reason, "SIGHUP: the configuration is refused, and nothing has changed");
                }
                // A mistake in the file must not keep logs from being rotated.
                if let Some(handle) = self.handle.get() {
                    read_files(handle);
                }
            }
        }
    }

    /// The settings of an upgrade that are in use.
    pub(crate) async fn upgrade(&self) -> UpgradeSettings {
        self.own.lock().await.upgrade.clone()
    }

    async fn apply(&self) -> Result<Reloaded, NotReloaded> {
        let Some(handle) = self.handle.get() else {
            return Err(NotReloaded(vec!["the gateway is still starting".to_owned()]));
        };
        let mut own = self.own.lock().await;
        let file = self.file.clone();
        let read = spawn_blocking(|| config::load(file)).await;
        let read = read.map_err(|error| NotReloaded(vec![error.to_string()]))?;
        let mut new = read.map_err(|refused| NotReloaded(refused.reasons()))?;
        // The settings of the gateway need not be kept twice.
        let gateway = std::mem::take(&mut new.gateway);
        let reloaded = handle.reload(gateway).await;
        let mut reloaded = reloaded.map_err(|error| NotReloaded(vec![error.to_string()]))?;
        for (section, before, after) in own.own_sections(&new) {
            let Difference { changed, restart } = difference(section, before, after);
            reloaded.changed.extend(changed);
            reloaded.restart.extend(restart);
        }
        adopt(&mut own.upgrade, &new.upgrade);
        let log = own.log.clone();
        adopt(&mut own.log, &new.log);
        if own.log != log {
            self.log.apply(&own.log);
        }
        read_files(handle);
        Ok(reloaded)
    }
}

impl Reloader for OwnReloader {
    fn reload(&self) -> Pin<Box<dyn Future<Output = Result<Reloaded, NotReloaded>> + Send + '_>> {
        Box::pin(self.apply())
    }
}

/// Reads certificates and keys again, and opens the access log again; the log tells the outcome.
fn read_files(handle: &Handle) {
    handle.reload_certificates();
    handle.reopen_access_log();
}

/// The answer of `POST /v1/reload`.
#[derive(Debug, Deserialize)]
struct Answer {
    changed: Vec<Line>,
    restart: Vec<Line>,
    closed: u64,
    unsubscribed: u64,
}

#[derive(Debug, Deserialize)]
struct Line {
    key: String,
    from: Value,
    to: Value,
}

/// `weir reload`. Exit code 2 if the gateway refuses the configuration.
pub(crate) async fn run(args: ReloadArgs, file: Option<PathBuf>) -> Result<ExitCode> {
    let api = Api::find(args.api, file)?;
    let (status, answer) = api.try_ask(Method::POST, PATH, Some(b"{}".to_vec())).await?;
    if status == StatusCode::UNPROCESSABLE_ENTITY {
        complain(format_args!("refused{}", reason(&answer)));
        return Ok(ExitCode::from(EXIT_REFUSED));
    }
    if !status.is_success() {
        bail!("refused with {status}{}", reason(&answer));
    }
    if args.json {
        say(String::from_utf8_lossy(&answer).trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    let read: Answer = serde_json::from_slice(&answer)
        .context("the answer does not come from a gateway's admin API")?;
    for line in read.lines() {
        say(line)?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Answer {
    fn lines(&self) -> Vec<String> {
        let Answer { changed, restart, closed, unsubscribed } = self;
        let with = |word: &str, lines: &[Line]| {
            lines.iter().map(|line| format!("{word} {line}")).collect::<Vec<_>>()
        };
        let mut all = with("changed", changed);
        all.extend(with("needs a restart:", restart));
        if all.is_empty() {
            all.push("nothing has changed".to_owned());
        }
        if closed + unsubscribed > 0 {
            all.push(format!("{closed} connections closed, {unsubscribed} subscriptions ended"));
        }
        all
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Line { key, from, to } = self;
        match (from, to) {
            (Value::Null, Value::String(to)) if to == "changed" => f.write_str(key),
            (Value::Null, to) => write!(f, "{key}: {to}"),
            (from, Value::Null) => write!(f, "{key}: no longer {from}"),
            (from, to) => write!(f, "{key}: {from} -> {to}"),
        }
    }
}

impl Settings {
    /// The program's own sections, as they are in both.
    fn own_sections<'a>(
        &'a self,
        new: &'a Settings,
    ) -> [(&'static str, &'a dyn Table, &'a dyn Table); 4] {
        [
            ("store", &self.store, &new.store),
            ("cache", &self.cache, &new.cache),
            ("upgrade", &self.upgrade, &new.upgrade),
            ("log", &self.log as &LogSettings, &new.log),
        ]
    }
}

const PATH: &str = "/v1/reload";
/// As for a configuration that a start refuses.
const EXIT_REFUSED: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_say_what_has_changed_and_what_has_not() {
        let check = |answer: &str, lines: &[&str]| {
            let answer: Answer = serde_json::from_str(answer).unwrap();
            assert_eq!(answer.lines(), lines);
        };
        check(
            r#"{"changed":[],"restart":[],"closed":0,"unsubscribed":0}"#,
            &["nothing has changed"],
        );
        check(
            r#"{"changed":[{"key":"limits.topics_max","from":5,"to":7},
                {"key":"admin.token","from":null,"to":"changed"},
                {"key":"auth.tokens[1]","from":{"device":"van"},"to":null}],
                "restart":[{"key":"threads.shards","from":0,"to":2}],
                "closed":1,"unsubscribed":2}"#,
            &[
                "changed limits.topics_max: 5 -> 7",
                "changed admin.token",
                "changed auth.tokens[1]: no longer {\"device\":\"van\"}",
                "needs a restart: threads.shards: 0 -> 2",
                "1 connections closed, 2 subscriptions ended",
            ],
        );
    }
}
