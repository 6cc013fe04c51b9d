//! `weir publish`: sends one message through the admin API.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use ::http::Method;
use anyhow::Context;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::cli::PublishArgs;
use crate::http::{Api, NO_GATEWAY};
use crate::output::say;

/// The body of `POST /v1/publish`.
#[derive(Debug, Serialize)]
struct Message<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    all: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Accepted {
    id: String,
    connections: u32,
    offset: Option<u64>,
}

pub(crate) async fn run(args: PublishArgs, file: Option<PathBuf>) -> anyhow::Result<()> {
    let data = match &args.file {
        Some(path) => Some(STANDARD.encode(read(path)?)),
        None => args.data.clone(),
    };
    let message = Message {
        topic: args.topic.as_deref(),
        device: args.device.as_deref(),
        all: args.all.then_some(true),
        text: args.text.as_deref(),
        data: data.as_deref(),
        content_type: args.content_type.as_deref(),
        key: args.key.as_deref(),
        ttl_ms: args.ttl_ms,
    };
    let body = serde_json::to_vec(&message).context("cannot write the request")?;
    let answer = Api::find(args.api, file)?.ask(Method::POST, "/v1/publish", Some(body)).await?;
    if args.json {
        return say(String::from_utf8_lossy(&answer).trim_end());
    }
    let accepted: Accepted = serde_json::from_slice(&answer).context(NO_GATEWAY)?;
    let Accepted { id, connections, offset } = accepted;
    let offset = offset.map_or_else(String::new, |offset| format!(", offset {offset}"));
    let plural = if connections == 1 { "" } else { "s" };
    say(format_args!("queued for {connections} connection{plural}: id {id}{offset}"))
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).context("cannot read standard input")?;
        return Ok(bytes);
    }
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}
