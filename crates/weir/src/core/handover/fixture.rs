//! What a front has handed over in each version of the format is still understood.

use std::fs;

use weir_wire::ProstMessage as _;
use weir_wire::handover::v1;

use super::tests::{connect, start};
use crate::topics::{EarlyRings, Found, Range, SentRings};
use crate::{Payload, Publication, Target};

/// `weir.handover.v1.Front` with two devices, and a topic that retains three messages.
const VERSION_1: &[u8] = include_bytes!("fixtures/front-1.bin");

fn retaining(config: &mut crate::Config) {
    config.threads.shards = 1;
    config.topic_classes = vec![crate::base::config::TopicClass {
        pattern: "feed/*".to_owned(),
        retention_messages: 10,
        ..Default::default()
    }];
}

#[tokio::test]
async fn a_front_of_version_1_is_understood() {
    let (new, there) = start(retaining).await;
    let front = v1::Front::decode(VERSION_1).unwrap();
    let mut rings = EarlyRings::new(there.engine().budget());
    there.router.import(front.topics.unwrap(), &mut rings).unwrap();
    there.import_callers(front.callers.unwrap()).unwrap();
    there.end_take_over();
    for device in ["d1", "d2"] {
        assert_eq!(there.devices.connections_of(device).map(|conns| conns.len()), Some(1));
    }
    let range = Range { after: None, messages_max: 10, bytes_max: 1 << 20 };
    let Found::Here(history) = there.router.history("feed/a", range) else { panic!("it is here") };
    let offsets: Vec<u64> = history.messages.iter().map(|message| message.offset()).collect();
    assert_eq!(offsets, [1, 2, 3]);
    let next = publish(&new, "four").await;
    assert_eq!(next, 4);
    new.shutdown().await;
}

async fn publish(gateway: &crate::Gateway, text: &str) -> u64 {
    let publication = Publication {
        target: Target::Topic("feed/a"),
        payload: Payload::Text(text),
        content_type: "",
        key: "",
        ttl: None,
        sender: None,
        idempotency_key: None,
    };
    let published = gateway.handle().publish(&publication).unwrap();
    published.accepted().unwrap().offset.unwrap()
}

#[tokio::test]
#[ignore = "writes the fixture, once for each version of the format"]
async fn write_the_fixture() {
    let (old, here) = start(retaining).await;
    for number in 1..=2 {
        connect(&here, &format!("d{number}"), number).unwrap();
    }
    for text in ["one", "two", "three"] {
        publish(&old, text).await;
    }
    let front = v1::Front {
        topics: Some(here.router.export(&mut SentRings::default())),
        callers: Some(here.export_callers()),
        ..Default::default()
    };
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/core/handover/fixtures/front-1.bin");
    fs::write(path, front.encode_to_vec()).unwrap();
    old.shutdown().await;
}
