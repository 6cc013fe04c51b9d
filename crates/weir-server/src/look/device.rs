//! `weir device`: what the gateway knows of a device: its connections, its record in the store, and
//! its last ends.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::args::DeviceArgs;
use super::closes;
use super::connections::{self, Connection};
use super::table::visible;
use crate::http::{Api, NO_GATEWAY, percent_encoded, reason};
use crate::output::{complain, say};

/// The shown parts of `GET /v1/devices/{id}`.
#[derive(Debug, Deserialize)]
struct Device {
    connections: Vec<Connection>,
    stored: Option<Stored>,
    #[serde(default)]
    missing_nodes: Vec<u16>,
}

/// The shown parts of a record in the store.
#[derive(Debug, Deserialize)]
struct Stored {
    state: String,
    labels: Value,
}

pub(crate) async fn run(args: DeviceArgs, file: Option<PathBuf>) -> Result<()> {
    let DeviceArgs { id, json, api } = args;
    let api = Api::find(api, file)?;
    let path = format!("/v1/devices/{}", percent_encoded(&id));
    let (status, answer) = api.try_ask(Method::GET, &path, None).await?;
    let ends = closes::ask(&api, Some(id.clone()), None, ENDS_SHOWN).await?;
    let mut known = match status {
        StatusCode::NOT_FOUND if !ends.closes.is_empty() => {
            json!({ "device": id, "connections": [], "stored": null })
        }
        StatusCode::NOT_FOUND => {
            bail!(
                "device {id:?} is not connected, not stored and has not ended lately{}; \
                 `weir connections` and `weir devices list` show which there are",
                reason(&answer)
            );
        }
        _ => serde_json::from_slice(&answer).context(NO_GATEWAY)?,
    };
    if json {
        known["closes"] = ends.closes.into();
        return say(known);
    }
    let device = Device::deserialize(known).context(NO_GATEWAY)?;
    say(visible(&id))?;
    match &device.stored {
        Some(Stored { state, labels }) => say(format_args!("stored: {state}, labels {labels}"))?,
        None => say("stored: no")?,
    }
    match device.connections.len() {
        0 => say("connections: none")?,
        _ => {
            say("\nconnections")?;
            say(connections::table(device.connections).trim_end())?;
        }
    }
    if !ends.closes.is_empty() {
        say("\nlast ends")?;
        say(ends.table(weir::unix_millis())?.trim_end())?;
    }
    if !device.missing_nodes.is_empty() {
        complain(format_args!("nodes {:?} do not answer", device.missing_nodes));
    }
    Ok(())
}

const ENDS_SHOWN: usize = 10;
