//! `weir closes`: the last ends of connections, and why they ended.

use std::path::PathBuf;

use anyhow::{Context, Result};
use http::Method;
use serde::Deserialize;
use serde_json::Value;

use super::args::ClosesArgs;
use super::connections::{from, spoken};
use super::pages::with_parameters;
use super::table::{Table, number, text};
use crate::http::{Api, NO_GATEWAY};
use crate::output::{age_of, complain, say};

/// The answer of `GET /v1/closes`.
#[derive(Debug, Deserialize)]
pub(super) struct Closes {
    pub(super) closes: Vec<Value>,
    kept: u64,
}

/// The shown parts of an end.
#[derive(Debug, Deserialize)]
struct Close {
    at_ms: u64,
    connection: Option<String>,
    device: Option<String>,
    peer: Option<String>,
    source: Option<String>,
    client: Option<String>,
    protocol: String,
    transport: String,
    reason: String,
    code: u16,
    age_ms: u64,
}

pub(crate) async fn run(args: ClosesArgs, file: Option<PathBuf>) -> Result<()> {
    let ClosesArgs { device, reason, limit, json, api } = args;
    let api = Api::find(api, file)?;
    let found = ask(&api, device, reason, limit).await?;
    if json {
        return found.closes.iter().try_for_each(say);
    }
    say(found.table(weir::unix_millis())?.trim_end())?;
    if found.closes.is_empty() {
        complain(format_args!("none of the {} ends that the gateway keeps", found.kept));
    }
    Ok(())
}

/// The newest ends of this device, or of all, for this reason, or for all.
pub(super) async fn ask(
    api: &Api,
    device: Option<String>,
    reason: Option<String>,
    limit: usize,
) -> Result<Closes> {
    let parameters = [("device", device), ("reason", reason), ("limit", Some(limit.to_string()))];
    let answer = api.ask(Method::GET, &with_parameters("/v1/closes", &parameters), None).await?;
    serde_json::from_slice(&answer).context(NO_GATEWAY)
}

impl Closes {
    pub(super) fn table(&self, now_ms: u64) -> Result<String> {
        let mut table = Table::new([
            number("AGO"),
            text("DEVICE"),
            text("CLIENT"),
            text("FROM"),
            text("PROTOCOL"),
            text("REASON"),
            number("CODE"),
            number("AGE"),
            text("CONNECTION"),
        ]);
        for close in &self.closes {
            let close = Close::deserialize(close).context(NO_GATEWAY)?;
            table.add([
                age_of(now_ms.saturating_sub(close.at_ms)),
                close.device.unwrap_or_default(),
                close.client.unwrap_or_default(),
                from(close.peer, close.source),
                spoken(&close.protocol, &close.transport),
                close.reason,
                close.code.to_string(),
                age_of(close.age_ms),
                close.connection.unwrap_or_default(),
            ]);
        }
        Ok(table.text())
    }
}
