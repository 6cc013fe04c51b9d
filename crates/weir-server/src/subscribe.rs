//! `weir subscribe`: connects as a device and prints its messages.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use tokio::time::{Instant, sleep};
use weir_client::{
    Backoff, Client, ClientError, Event, Member, Options, Payload, Position, Presence, Push,
    Subscribed, Subscription, Unsubscribed,
};

use crate::addresses::{self, ForDevices};
use crate::cli::SubscribeArgs;
use crate::output::{complain, say};

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

/// Who has entered and left a topic, as `--json` prints it.
#[derive(Debug, Serialize)]
struct PresenceLine<'a> {
    topic: &'a str,
    joined: Vec<MemberLine<'a>>,
    left: Vec<MemberLine<'a>>,
    missed: bool,
}

#[derive(Debug, Serialize)]
struct MemberLine<'a> {
    device: &'a str,
    /// As the admin API writes it: 16 hexadecimal digits.
    connection: String,
}

/// The state that outlives a connection.
struct Subscriber {
    args: SubscribeArgs,
    addr: String,
    /// The options, with the topics, each from the position after which it continues.
    options: Options,
    left: Option<u64>,
}

/// The end of a connection.
enum End {
    /// All wanted messages have arrived.
    Done,
    /// Connect again after this time.
    Retry { why: String, delay: Duration },
    /// Another attempt would not help.
    GiveUp(String),
}

pub(crate) async fn run(args: SubscribeArgs, file: Option<PathBuf>) -> anyhow::Result<()> {
    let shown = args.token.clone().or_else(|| std::env::var("WEIR_TOKEN").ok());
    let needs_token = shown.is_none() && args.tls.certificate.is_none();
    let found = match &args.addr {
        Some(addr) => ForDevices { addr: addr.clone(), token: None },
        None => addresses::of_devices(file, args.tls.tls, needs_token, args.device.as_deref())?,
    };
    let addr = found.addr;
    // Without --device, a token of the configuration is one for any device.
    let device = args.device.clone();
    let device = device.unwrap_or_else(|| device_without_a_name(shown.as_deref().unwrap_or("")));
    let token = shown.or(found.token).unwrap_or_default();
    let mut options = Options::device(device).token(token);
    options.client = concat!("weir-subscribe/", env!("CARGO_PKG_VERSION")).to_owned();
    options.tls = crate::tls::options(&args.tls, &addr)?;
    let subscription =
        |topic: &String| Subscription { presence: args.presence, ..Subscription::from(topic) };
    options.topics = args.topics.iter().map(subscription).collect();
    let left = args.count;
    let mut subscriber = Subscriber { args, addr, options, left };
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
        let connecting = Client::connect(self.addr.as_str(), self.options.clone());
        let mut client = match connecting.await {
            Ok(client) => client,
            Err(error) => return Ok(self.end_by_error(&error, backoff)),
        };
        let device = match self.options.device_id.as_str() {
            "" => "the device of the token",
            device => device,
        };
        let (addr, id) = (&self.addr, client.connection_id());
        complain(format_args!("connected to {addr} as {device}, connection {id:016x}"));
        let since = Instant::now();
        let end = loop {
            let next = client.next().await;
            backoff.handle_lasted(since.elapsed());
            match next {
                Ok(Some(Event::Goodbye(goodbye))) => {
                    let why = format!("the server said goodbye: {goodbye}");
                    break match backoff.after_goodbye(&goodbye) {
                        Some(delay) => End::Retry { why, delay },
                        None => End::GiveUp(why),
                    };
                }
                Ok(Some(Event::Unsubscribed(told))) => {
                    complain(left_line(&told));
                    if let Err(error) = self.handle_left(&mut client, told).await {
                        break self.end_by_error(&error, backoff);
                    }
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
        self.options.topics = client.positions();
        Ok(end)
    }

    fn handle(&mut self, event: Event) -> anyhow::Result<()> {
        match event {
            Event::Push(push) => {
                say(if self.args.json { json_line(&push)? } else { text_line(&push) })?;
                self.left = self.left.map(|left| left.saturating_sub(1));
            }
            Event::Subscribed(told) => complain(subscribed_line(self.asked(&told.topic), &told)),
            Event::Presence(told) => {
                let lines = match self.args.json {
                    true => vec![presence_json(&told)?],
                    false => presence_lines(&told),
                };
                lines.iter().try_for_each(say)?;
            }
            Event::Error(told) => {
                complain(format_args!("error from the server: {} ({})", told.message, told.code));
            }
            Event::Expiring(told) => {
                complain(format_args!("the token ends at {} ms", told.expires_at_ms));
            }
            // This program never asks for these answers, or `hold` has handled the event.
            Event::Published(_)
            | Event::Pong(_)
            | Event::Unsubscribed(_)
            | Event::Goodbye(_)
            | _ => {}
        }
        Ok(())
    }

    /// The server ended a topic. After `fell_behind` the subscription continues from its position,
    /// and the messages in between are lost.
    async fn handle_left(
        &mut self,
        client: &mut Client,
        told: Unsubscribed,
    ) -> Result<(), ClientError> {
        if told.reason != FELL_BEHIND {
            return Ok(());
        }
        let presence = self.args.presence;
        let again = Subscription { topic: told.topic, from: told.position, presence };
        for asked in self.options.topics.iter_mut().filter(|asked| asked.topic == again.topic) {
            asked.from = again.from;
        }
        client.subscribe(again).await
    }

    /// The position of the last subscription to a topic.
    fn asked(&self, topic: &str) -> Option<Position> {
        self.options.topics.iter().find(|asked| asked.topic == topic)?.from
    }

    fn end_by_error(&self, error: &ClientError, backoff: &mut Backoff) -> End {
        let hint = if self.options.device_id.is_empty() && is_malformed(error) {
            "; perhaps the token is bound to no device: add --device ID"
        } else {
            ""
        };
        let why = format!("{}: {error}{hint}", self.addr);
        match backoff.after_error(error) {
            Some(delay) => End::Retry { why, delay },
            None => End::GiveUp(why),
        }
    }
}

/// Describes the answer to a subscription from `asked` on, or a loss that the server reports later.
fn subscribed_line(asked: Option<Position>, told: &Subscribed) -> String {
    let Subscribed { topic, position, recovered, lost_after } = told;
    match (lost_after, position) {
        (Some(seen), Some(now)) if seen.epoch == now.epoch => {
            return format!(
                "subscribed to {topic:?} again: missed messages are lost, offsets {} to {}",
                seen.offset.saturating_add(1),
                now.offset
            );
        }
        (Some(seen), _) => {
            return format!(
                "subscribed to {topic:?} again: the messages after offset {} are lost, and offsets begin anew",
                seen.offset
            );
        }
        (None, _) => {}
    }
    match asked {
        None => format!("subscribed to {topic:?}"),
        Some(asked) if *recovered => {
            format!(
                "subscribed to {topic:?} again: the messages after offset {} follow",
                asked.offset
            )
        }
        Some(_) => format!("subscribed to {topic:?} again: no messages were missed"),
    }
}

/// A line about the end of a topic.
fn left_line(told: &Unsubscribed) -> String {
    let Unsubscribed { topic, reason, position } = told;
    let after = position.map(|at| format!(" after offset {}", at.offset)).unwrap_or_default();
    if reason == FELL_BEHIND {
        format!(
            "fell behind in {topic:?}{after}: the next messages are no longer kept; subscribing again"
        )
    } else {
        format!("no longer in {topic:?}{after}: {reason}")
    }
}

/// `topic offset content`. Control characters are escaped: they could break the line or move a
/// terminal's cursor.
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

/// `topic + device connection` for each connection that has entered, and with `-` for each that has
/// left.
fn presence_lines(told: &Presence) -> Vec<String> {
    let topic = &told.topic;
    let line = |sign, member: &Member| {
        let Member { device_id, connection_id } = member;
        format!("{topic} {sign} {} {connection_id:016x}", printable(device_id))
    };
    let missed = told.missed.then(|| format!("{topic} ? some may be missing"));
    let left = told.left.iter().map(|member| line('-', member));
    missed
        .into_iter()
        .chain(left)
        .chain(told.joined.iter().map(|member| line('+', member)))
        .collect()
}

fn presence_json(told: &Presence) -> anyhow::Result<String> {
    let (joined, left) = (member_lines(&told.joined), member_lines(&told.left));
    let line = PresenceLine { topic: &told.topic, joined, left, missed: told.missed };
    Ok(serde_json::to_string(&line)?)
}

fn member_lines(members: &[Member]) -> Vec<MemberLine<'_>> {
    members
        .iter()
        .map(|member| MemberLine {
            device: &member.device_id,
            connection: format!("{:016x}", member.connection_id),
        })
        .collect()
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

/// The device id to send if no option gives one: none with a token, which may name it; otherwise a
/// random id.
fn device_without_a_name(token: &str) -> String {
    if token.is_empty() {
        format!("subscribe-{:08x}", rand::random::<u32>())
    } else {
        String::new()
    }
}

/// Whether the server refused the content of `Hello`, as it does when the device id is missing.
fn is_malformed(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(goodbye) if goodbye.reason == "malformed")
}

/// Reason why a topic ends whose missed messages went out more slowly than new ones arrived.
const FELL_BEHIND: &str = "fell_behind";

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
    fn presence_is_a_line_for_each_connection() {
        let member = |id: &str, connection_id| Member { device_id: id.to_owned(), connection_id };
        let told = Presence {
            topic: "room".to_owned(),
            joined: vec![member("a", 1)],
            left: vec![member("b\n", u64::MAX)],
            missed: true,
        };
        assert_eq!(
            presence_lines(&told),
            [
                "room ? some may be missing",
                "room - b\\n ffffffffffffffff",
                "room + a 0000000000000001"
            ]
        );
        assert_eq!(
            presence_json(&told).unwrap(),
            "{\"topic\":\"room\",\"joined\":[{\"device\":\"a\",\"connection\":\"0000000000000001\"}],\
             \"left\":[{\"device\":\"b\\n\",\"connection\":\"ffffffffffffffff\"}],\"missed\":true}"
        );
    }

    #[test]
    fn it_is_plain_whether_something_is_lost() {
        let asked = Some(Position { epoch: 1, offset: 7 });
        let told = |epoch, offset, lost_after, recovered| Subscribed {
            topic: "t".to_owned(),
            position: Some(Position { epoch, offset }),
            recovered,
            lost_after,
        };
        for (asked, told, expected) in [
            (None, told(1, 7, None, false), "subscribed to \"t\""),
            (
                asked,
                told(1, 7, None, true),
                "subscribed to \"t\" again: the messages after offset 7 follow",
            ),
            (asked, told(1, 7, None, false), "subscribed to \"t\" again: no messages were missed"),
            (
                asked,
                told(1, 9, asked, false),
                "subscribed to \"t\" again: missed messages are lost, offsets 8 to 9",
            ),
            (
                asked,
                told(2, 9, asked, false),
                "subscribed to \"t\" again: the messages after offset 7 are lost, and offsets begin anew",
            ),
            // In a subscription that was never lost.
            (
                None,
                told(2, 0, asked, false),
                "subscribed to \"t\" again: the messages after offset 7 are lost, and offsets begin anew",
            ),
        ] {
            assert_eq!(subscribed_line(asked, &told), expected);
        }
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
