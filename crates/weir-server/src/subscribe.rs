//! `weir subscribe`: a device on the command line.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::bail;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use tokio::time::{Instant, sleep};
use weir_client::{
    Backoff, Client, ClientError, Event, Options, Payload, Position, Push, Subscription,
};

use crate::cli::SubscribeArgs;
use crate::{complain, say};

/// One message as `--json` prints it.
#[derive(Debug, Serialize)]
struct Line<'a> {
    topic: &'a str,
    offset: u64,
    /// As the admin API writes it: 16 hexadecimal digits.
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    /// Base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    #[serde(skip_serializing_if = "str::is_empty")]
    content_type: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    sender: Option<String>,
}

/// What outlives a connection.
struct Subscriber {
    args: SubscribeArgs,
    options: Options,
    /// The position after which each topic goes on.
    positions: HashMap<String, Position>,
    left: Option<u64>,
}

/// Why a connection is over.
enum End {
    /// All that was wanted has arrived.
    Done,
    /// Try again after this long.
    Retry { why: String, delay: Duration },
    /// Trying again would not help.
    GiveUp(String),
}

pub(crate) async fn run(args: SubscribeArgs) -> anyhow::Result<()> {
    let token = args.token.clone().or_else(|| std::env::var("WEIR_TOKEN").ok());
    let token = token.unwrap_or_default();
    let device = args.device.clone().unwrap_or_else(|| device_without_a_name(&token));
    let mut options = Options::device(device).token(token);
    options.client = concat!("weir-subscribe/", env!("CARGO_PKG_VERSION")).to_owned();
    let left = args.count;
    let mut subscriber = Subscriber { args, options, positions: HashMap::new(), left };
    let mut backoff = Backoff::default();
    loop {
        match subscriber.hold(&mut backoff).await? {
            End::Done => return Ok(()),
            End::Retry { why, delay } => {
                complain(format_args!("{why}; connecting again in {delay:.1?}"));
                sleep(delay).await;
            }
            End::GiveUp(why) => bail!(why),
        }
    }
}

impl Subscriber {
    /// One connection, from `Hello` to its end.
    async fn hold(&mut self, backoff: &mut Backoff) -> anyhow::Result<End> {
        if self.left == Some(0) {
            return Ok(End::Done);
        }
        let mut options = self.options.clone();
        options.topics = self.args.topics.iter().map(|topic| self.subscription(topic)).collect();
        let mut client = match Client::connect(self.args.addr.as_str(), options).await {
            Ok(client) => client,
            Err(error) => return Ok(self.end_by_error(&error, backoff)),
        };
        let device = match self.options.device_id.as_str() {
            "" => "the device of the token",
            device => device,
        };
        let (addr, id) = (&self.args.addr, client.connection_id());
        complain(format_args!("connected to {addr} as {device}, connection {id:016x}"));
        let since = Instant::now();
        let end = loop {
            match client.next().await {
                Ok(Some(Event::Goodbye(goodbye))) => {
                    let why = format!("the server said goodbye: {goodbye}");
                    break match backoff.after_goodbye(&goodbye) {
                        Some(delay) => End::Retry { why, delay },
                        None => End::GiveUp(why),
                    };
                }
                Ok(Some(event)) => self.handle(event)?,
                Ok(None) => {
                    let why = "the server closed the connection".to_owned();
                    break End::Retry { why, delay: backoff.after_close() };
                }
                Err(error) => break self.end_by_error(&error, backoff),
            }
            if self.left == Some(0) {
                break End::Done;
            }
        };
        if since.elapsed() >= LASTING {
            backoff.reset();
        }
        Ok(end)
    }

    fn handle(&mut self, event: Event) -> anyhow::Result<()> {
        match event {
            Event::Push(push) => {
                if let Some(position) = self.positions.get_mut(&push.topic) {
                    position.offset = push.offset;
                }
                say(if self.args.json { json_line(&push)? } else { text_line(&push) })?;
                self.left = self.left.map(|left| left.saturating_sub(1));
            }
            Event::Subscribed(told) => {
                let asked = self.positions.get(&told.topic).copied();
                if let (Some(asked), Some(now), false) = (asked, told.position, told.recovered)
                    && asked != now
                {
                    complain(format_args!("{:?}: what came while away is lost", told.topic));
                }
                complain(format_args!("subscribed to {:?}", told.topic));
                self.positions.extend(told.position.map(|position| (told.topic, position)));
            }
            Event::Unsubscribed(told) => {
                complain(format_args!("no longer in {:?}: {}", told.topic, told.reason));
                self.positions.remove(&told.topic);
            }
            Event::Error(told) => {
                complain(format_args!("the server refuses: {} ({})", told.message, told.code));
            }
            Event::Expiring(told) => {
                complain(format_args!("the token ends at {} ms", told.expires_at_ms));
            }
            // Answers to what is never asked for here, and what `hold` has handled.
            Event::Published(_) | Event::Pong(_) | Event::Goodbye(_) | _ => {}
        }
        Ok(())
    }

    fn subscription(&self, topic: &str) -> Subscription {
        let from = self.positions.get(topic).copied();
        Subscription { topic: topic.to_owned(), from }
    }

    fn end_by_error(&self, error: &ClientError, backoff: &mut Backoff) -> End {
        let hint = if self.options.device_id.is_empty() && is_malformed(error) {
            "; the token may be bound to no device: give --device ID"
        } else {
            ""
        };
        let why = format!("{}: {error}{hint}", self.args.addr);
        match backoff.after_error(error) {
            Some(delay) => End::Retry { why, delay },
            None => End::GiveUp(why),
        }
    }
}

/// `topic offset content`; what would break the line or move a terminal's cursor is escaped.
fn text_line(push: &Push) -> String {
    let Push { topic, offset, .. } = push;
    let topic = if topic.is_empty() { "-" } else { topic };
    match &push.payload {
        Payload::Text(text) => format!("{topic} {offset} {}", printable(text)),
        Payload::Data(data) => {
            format!("{topic} {offset} base64:{}", STANDARD.encode(data))
        }
    }
}

fn json_line(push: &Push) -> anyhow::Result<String> {
    let (text, data) = match &push.payload {
        Payload::Text(text) => (Some(text.as_str()), None),
        Payload::Data(data) => (None, Some(STANDARD.encode(data))),
    };
    let line = Line {
        topic: &push.topic,
        offset: push.offset,
        id: format!("{:016x}", push.message_id),
        text,
        data,
        content_type: &push.content_type,
        key: &push.key,
        sender: (push.sender != 0).then(|| format!("{:016x}", push.sender)),
    };
    Ok(serde_json::to_string(&line)?)
}

fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        if char.is_control() {
            out.extend(char.escape_default());
        } else {
            out.push(char);
        }
    }
    out
}

/// The id to send where none is given: with a token none, for the token may name it; without, one of its own.
fn device_without_a_name(token: &str) -> String {
    if token.is_empty() {
        format!("subscribe-{:08x}", rand::random::<u32>())
    } else {
        String::new()
    }
}

/// Whether the server refused what `Hello` says, as it does with an id that is missing.
fn is_malformed(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(goodbye) if goodbye.reason == "malformed")
}

/// A connection that held this long was no failure: the next wait is a short one again.
const LASTING: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    fn push(payload: Payload) -> Push {
        Push {
            topic: "news".to_owned(),
            payload,
            content_type: String::new(),
            key: String::new(),
            message_id: 255,
            offset: 7,
            sender: 0,
        }
    }

    #[test]
    fn a_message_is_one_line_whatever_it_holds() {
        let hostile = push(Payload::Text("a\nb\x1b[2J\tä".to_owned()));
        assert_eq!(text_line(&hostile), "news 7 a\\nb\\u{1b}[2J\\tä");
        assert_eq!(text_line(&push(Payload::Data(vec![0, 255]))), "news 7 base64:AP8=");
    }

    #[test]
    fn json_carries_what_is_there() {
        let text = json_line(&push(Payload::Text("a\nb".to_owned()))).unwrap();
        let expected = r#"{"topic":"news","offset":7,"id":"00000000000000ff","text":"a\nb"}"#;
        assert_eq!(text, expected);
        let data = json_line(&push(Payload::Data(vec![1]))).unwrap();
        assert!(data.contains(r#""data":"AQ==""#), "{data}");
    }
}
