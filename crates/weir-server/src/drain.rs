//! `weir drain`: empties a node, or sends a share of its connections elsewhere, through the admin
//! API.

use std::path::PathBuf;
use std::time::Duration;

use ::http::Method;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use crate::cli::DrainArgs;
use crate::http::{Api, NO_GATEWAY};
use crate::output::{complain, say};

/// The body of `POST /v1/drain`.
#[derive(Debug, Serialize)]
struct Order<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    share: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lead: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    over: Option<&'a str>,
}

/// The shown parts of the answer.
#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Drain {
    state: String,
    connections: u64,
    #[serde(default)]
    http_connections: u64,
    to_close: u64,
    closed: u64,
}

pub(crate) async fn run(args: DrainArgs, file: Option<PathBuf>) -> Result<()> {
    let order = Order { share: args.share, lead: args.lead.as_deref(), over: args.over.as_deref() };
    let order = serde_json::to_vec(&order).context("cannot write the request")?;
    let api = Api::find(args.api, file)?;
    let mut answer = match (args.cancel, args.status) {
        (true, _) => api.ask(Method::DELETE, PATH, None).await?,
        (_, true) => api.ask(Method::GET, PATH, None).await?,
        _ => api.ask(Method::POST, PATH, Some(order)).await?,
    };
    let mut drain = read(&answer)?;
    if args.wait && drain.is_running() {
        let mut untold = TELL_INTERVAL;
        while drain.is_running() {
            if untold >= TELL_INTERVAL {
                complain(drain.line());
                untold = Duration::ZERO;
            }
            sleep(LOOK_INTERVAL).await;
            answer = api.ask(Method::GET, PATH, None).await?;
            let now = read(&answer)?;
            untold = if now.state == drain.state { untold + LOOK_INTERVAL } else { TELL_INTERVAL };
            drain = now;
        }
        if drain.state != "drained" {
            bail!("{}", drain.line());
        }
    }
    if args.json {
        return say(String::from_utf8_lossy(&answer).trim_end());
    }
    say(drain.line())
}

fn read(answer: &[u8]) -> Result<Drain> {
    serde_json::from_slice(answer).context(NO_GATEWAY)
}

impl Drain {
    fn is_running(&self) -> bool {
        matches!(self.state.as_str(), "announced" | "draining")
    }

    fn line(&self) -> String {
        let Drain { state, connections, http_connections, to_close, closed } = self;
        let left = format!("{connections} connections and {http_connections} of HTTP are open");
        match state.as_str() {
            "idle" => format!("idle: {left}"),
            "announced" => {
                format!("announced: the node is not ready, {to_close} are to be closed; {left}")
            }
            _ => format!("{state}: {closed} of {to_close} are closed; {left}"),
        }
    }
}

const PATH: &str = "/v1/drain";
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// A line for each change of state, and now and then in between.
const TELL_INTERVAL: Duration = Duration::from_secs(5);
