//! Receivers of notices: each wrong value is named.

use super::*;
use crate::base::config::{NoticeEvent, ReceiverConfig, UpstreamConfig};

fn receiver() -> ReceiverConfig {
    ReceiverConfig {
        name: "audit".to_owned(),
        upstream: "api".to_owned(),
        events: vec![NoticeEvent::Connected, NoticeEvent::Occupied],
        topics: vec!["room/*".to_owned()],
        ..ReceiverConfig::default()
    }
}

fn config(receivers: Vec<ReceiverConfig>) -> Config {
    let upstreams = vec![UpstreamConfig {
        name: "api".to_owned(),
        addresses: vec!["127.0.0.1:8080".to_owned()],
        ..UpstreamConfig::default()
    }];
    let mut config = Config { upstreams, ..Config::default() };
    config.hooks.receivers = receivers;
    config
}

#[test]
fn a_receiver_may_be_configured() {
    assert_eq!(config(vec![receiver()]).validate(), Ok(()));
    let other = ReceiverConfig { name: "other".to_owned(), ..receiver() };
    assert_eq!(config(vec![receiver(), other]).validate(), Ok(()));
}

#[test]
fn a_wrong_receiver_is_named() {
    let check = |change: fn(&mut ReceiverConfig), key: &str, says: &str| {
        let mut wrong = receiver();
        change(&mut wrong);
        let error = config(vec![wrong]).validate().unwrap_err();
        assert_eq!(error.key, format!("hooks.receivers[0].{key}"), "{error}");
        assert!(error.to_string().contains(says), "{error}");
    };
    check(|one| one.name = String::new(), "name", "1 to 64 of a-z");
    check(|one| one.name = "a/b".to_owned(), "name", "\"a/b\"");
    check(|one| one.upstream = "none".to_owned(), "upstream", "[[upstreams]]: api");
    check(|one| one.path = "notices".to_owned(), "path", "begins with /");
    check(|one| one.events = Vec::new(), "events", "at least one of connected, disconnected");
    check(|one| one.events = vec![NoticeEvent::Published; 2], "events", "each event once");
    check(|one| one.topics = vec!["room/#".to_owned()], "topics[0]", "without +, #");
    check(|one| one.secret = "short".to_owned(), "secret", "(5 bytes)");
    check(|one| one.queue_notices_max = 1, "queue_notices_max", "100 to");
    let twice = config(vec![receiver(), receiver()]).validate().unwrap_err();
    assert_eq!(twice.key, "hooks.receivers[1].name");
}

#[test]
fn topics_of_the_cluster_may_be_told_of() {
    let mut config = config(vec![receiver()]);
    config.cluster.redis.0 = vec!["redis://127.0.0.1".to_owned()];
    assert_eq!(config.validate(), Ok(()));
}
