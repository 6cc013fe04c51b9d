//! Hooks: a backend decides who may connect, subscribe and publish.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod acts;
mod backend;
#[path = "../common/mod.rs"]
mod common;
mod credentials;
mod failures;

use std::time::Duration;

use common::{Peer, Says};
use weir::{Actor, Config, Gateway, TokenConfig, TopicClass};
use weir_wire::v1::{Publish, Subscribe, publish};

/// A gateway on free ports with HTTP and datagrams, whose `room/*` is open to devices.
fn config() -> Config {
    let mut config = common::config();
    let free = "127.0.0.1:0".parse().unwrap();
    config.listen.http = vec![free];
    config.listen.udp = vec![free];
    config.auth.anonymous = Some(true);
    config.limits.connections_per_device_max = 8;
    // Only labels of tokens can have rights.
    config.auth.tokens = vec![TokenConfig {
        token: "vip".to_owned(),
        labels: vec!["vip".to_owned()],
        ..TokenConfig::default()
    }];
    config.topic_classes = vec![class("room/*", "devices"), class("vip/*", "label:vip")];
    config
}

fn class(pattern: &str, actor: &str) -> TopicClass {
    let actors = vec![Actor::parse(actor).unwrap()];
    let (publish, subscribe) = (actors.clone(), actors);
    TopicClass { pattern: pattern.to_owned(), publish, subscribe, ..TopicClass::default() }
}

/// The value of a metric, 0 if it is absent.
fn metric(gateway: &Gateway, line: &str) -> u64 {
    let metrics = gateway.handle().metrics();
    let found = metrics.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok());
    found.unwrap_or(0)
}

fn questions(gateway: &Gateway, hook: &str, outcome: &str) -> u64 {
    let labels = format!("{{hook=\"{hook}\",outcome=\"{outcome}\"}}");
    metric(gateway, &format!("weir_hook_questions_total{labels}"))
}

fn saved(gateway: &Gateway, hook: &str, how: &str) -> u64 {
    let labels = format!("{{hook=\"{hook}\",how=\"{how}\"}}");
    metric(gateway, &format!("weir_hook_questions_saved_total{labels}"))
}

fn subscribe(topic: &str) -> Says {
    Says::Subscribe(Subscribe { topic: topic.to_owned(), position: None, presence: false })
}

fn publishing(topic: &str, text: &str, request: u32) -> Says {
    let payload = Some(publish::Payload::Text(text.to_owned()));
    Says::Publish(Publish { topic: topic.to_owned(), payload, request, ..Publish::default() })
}

/// The text of the next push.
async fn hear_text(peer: &mut Peer) -> String {
    match peer.push().await.payload {
        Some(weir_wire::v1::push::Payload::Text(text)) => text,
        other => panic!("no text but {other:?}"),
    }
}

/// So short that a test may wait for it.
const MOMENT: Duration = Duration::from_millis(50);
