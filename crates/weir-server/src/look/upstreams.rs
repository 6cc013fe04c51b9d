//! `weir upstreams`: the services that the gateway calls, endpoint by endpoint.

use std::path::PathBuf;

use anyhow::{Context, Result};
use http::Method;
use serde::Deserialize;
use serde_json::Value;

use super::args::UpstreamsArgs;
use super::table::{Table, number, text};
use crate::http::{Api, NO_GATEWAY};
use crate::output::say;

/// The shown part of the figures.
#[derive(Debug, Deserialize)]
struct Figures {
    upstreams: Vec<Value>,
}

/// The shown parts of an upstream.
#[derive(Debug, Deserialize)]
struct Upstream {
    name: String,
    endpoints: Vec<Endpoint>,
}

#[derive(Debug, Deserialize)]
struct Endpoint {
    address: String,
    state: String,
    set_aside_ms: Option<u64>,
    in_flight: u64,
    connections: u64,
    requests: u64,
    failures: u64,
    latency_us: u64,
}

pub(crate) async fn run(args: UpstreamsArgs, file: Option<PathBuf>) -> Result<()> {
    let UpstreamsArgs { json, api } = args;
    let answer = Api::find(api, file)?.ask(Method::GET, "/v1/stats", None).await?;
    let Figures { upstreams } = serde_json::from_slice(&answer).context(NO_GATEWAY)?;
    if json {
        return upstreams.iter().try_for_each(say);
    }
    let mut table = Table::new([
        text("UPSTREAM"),
        text("ENDPOINT"),
        text("STATE"),
        number("IN FLIGHT"),
        number("CONNECTIONS"),
        number("TRIES"),
        number("FAILED"),
        number("LATENCY"),
    ]);
    for upstream in upstreams {
        let Upstream { name, endpoints } = serde_json::from_value(upstream).context(NO_GATEWAY)?;
        for endpoint in endpoints {
            table.add(cells(&name, endpoint));
        }
    }
    say(table.text().trim_end())
}

fn cells(upstream: &str, endpoint: Endpoint) -> [String; 8] {
    let Endpoint { address, state, set_aside_ms, latency_us, .. } = endpoint;
    let state = match set_aside_ms {
        Some(ms) => format!("{state} for {:.1} s", ms as f64 / 1000.0),
        None => state,
    };
    let latency = match latency_us {
        0 => String::new(),
        us => format!("{:.1} ms", us as f64 / 1000.0),
    };
    let Endpoint { in_flight, connections, requests, failures, .. } = endpoint;
    let [in_flight, connections, requests, failures] =
        [in_flight, connections, requests, failures].map(|count| count.to_string());
    [upstream.to_owned(), address, state, in_flight, connections, requests, failures, latency]
}
