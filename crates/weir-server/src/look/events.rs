//! `weir events`: what happens to connections and to the gateway, as it happens.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::args::EventsArgs;
use super::pages::with_parameters;
use super::table::visible;
use crate::http::{Api, NO_GATEWAY};
use crate::output::{complain, say};
use crate::sse::EventStream;

/// The shown parts of an event.
#[derive(Debug, Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    time_ms: u64,
    connection: Option<String>,
    device: Option<String>,
    topic: Option<String>,
    reason: Option<String>,
    /// Of an upgrade: the program of before.
    before: Option<String>,
    pause_ms: Option<f64>,
    connections: Option<u64>,
}

/// The data of the event `overflow`.
#[derive(Debug, Deserialize)]
struct Overflow {
    dropped: u64,
}

pub(crate) async fn run(args: EventsArgs, file: Option<PathBuf>) -> Result<()> {
    let EventsArgs { types, device, topic, sample, count, json, api } = args;
    let api = Api::find(api, file)?;
    let types: Vec<&str> = types.into_iter().map(|kind| kind.name()).collect();
    let parameters = [
        ("type", (!types.is_empty()).then(|| types.join(","))),
        ("device", device),
        ("topic", topic),
        ("sample", sample.map(|share| share.to_string())),
    ];
    let mut stream = EventStream::open(&api, &with_parameters("/v1/events", &parameters)).await?;
    complain(format_args!("listening to {}", api.addr()));
    let mut left = count;
    while left != Some(0) {
        let Some(event) = stream.next().await? else {
            bail!("the gateway has ended the stream: it shuts down, or has ended");
        };
        if event.kind == "overflow" {
            let Overflow { dropped } = serde_json::from_str(&event.data).context(NO_GATEWAY)?;
            bail!(
                "this reader was too slow, and {dropped} events are lost: choose fewer with \
                 --type, --device, --topic or --sample"
            );
        }
        if json {
            say(&event.data)?;
        } else {
            say(serde_json::from_str::<Event>(&event.data).context(NO_GATEWAY)?.line())?;
        }
        left = left.map(|left| left - 1);
    }
    Ok(())
}

impl Event {
    fn line(self) -> String {
        let Event { kind, time_ms, connection, device, topic, reason, .. } = self;
        let upgrade = self.before.zip(self.pause_ms).zip(self.connections);
        let upgrade = upgrade.map(|((before, pause), connections)| {
            format!("{connections} connections from {before}, after a pause of {pause:.1} ms")
        });
        let words = [connection, device, topic.or(reason).or(upgrade)];
        let words: Vec<String> = words.into_iter().flatten().collect();
        visible(&format!("{}  {kind:<12}  {}", clock_of(time_ms), words.join("  ")))
    }
}

/// The time of the day, in UTC.
fn clock_of(ms: u64) -> String {
    let (seconds, ms) = (ms / 1000 % 86_400, ms % 1000);
    format!("{:02}:{:02}:{:02}.{ms:03}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line() {
        let event = r#"{"type":"disconnected","time_ms":1795259461007,"connection":"0000000000000001",
            "device":"d\u001b1","reason":"peer_closed"}"#;
        let line = serde_json::from_str::<Event>(event).unwrap().line();
        assert_eq!(line, "11:11:01.007Z  disconnected  0000000000000001  d\u{fffd}1  peer_closed");
        let event = r#"{"type":"upgraded","time_ms":1795259461007,"pid":7,"before":"weir 0.0.1",
            "pause_ms":2.54,"connections":7,"stayed":1}"#;
        let line = serde_json::from_str::<Event>(event).unwrap().line();
        let expected = "7 connections from weir 0.0.1, after a pause of 2.5 ms";
        assert_eq!(line, format!("11:11:01.007Z  upgraded      {expected}"));
    }
}
