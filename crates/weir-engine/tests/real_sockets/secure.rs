//! TLS on the shard, against a client of rustls.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use rustls::AlertDescription;
use rustls::version::{TLS12, TLS13};
use weir_engine::tls::Alert;
use weir_engine::{Command, Item, ShardSettings, TopicId, Urgent};
use weir_wire::CloseReason;
use weir_wire::v1::client_message::Kind;
use weir_wire::{ProstMessage, v1};

use crate::rig::{Heard, NEVER, Rest, Rig, ping, publish, send};
use crate::secure_rig::{Agreed, shake_hands};

#[test]
fn pings_are_answered_and_messages_come() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    for version in [&TLS12, &TLS13] {
        let (mut peer, conn) = rig.secure_device(0, version);
        rig.subscribe(conn, TopicId(1));
        assert!(matches!(peer.hear(), Heard::Message(_)));
        for round in 0..10 {
            peer.ping(&[round; 100]);
            rig.push(0, Command::Publish(TopicId(1), rig.message("hello", 7, None)));
            assert_eq!(peer.hear_push().offset, 7);
        }
        rig.push(0, Command::Evict(conn, CloseReason::Replaced));
        peer.hear_goodbye(CloseReason::Replaced);
        assert_eq!(rig.closed(conn).0, CloseReason::Replaced);
        drop(peer);
        rig.wait_until_at_rest();
    }
    assert!(rig.stats(0).tls_records_sealed.get() >= 40);
    assert_eq!(rig.stats(0).tls_alerts_sent[alert(Alert::CloseNotify)].get(), 2);
}

#[test]
fn large_frames_cross_in_many_records_both_ways() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    for version in [&TLS12, &TLS13] {
        let (mut peer, conn) =
            rig.secure_device_of(0, shake_hands(version, Some(100)), Rest::default(), Vec::new());
        let data: Vec<u8> = (0..60_000).map(|at| u8::try_from(at % 251).expect("small")).collect();
        peer.write(&publish(data.clone()));
        let body = rig.received(conn);
        let message = v1::ClientMessage::decode(&*body).expect("it is whole");
        let Some(Kind::Publish(publish)) = message.kind else { panic!("not a Publish") };
        assert_eq!(publish.payload, Some(v1::publish::Payload::Data(data)));

        let text = "weir".repeat(25_000);
        send(&rig, conn, &rig.message(&text, 1, None));
        assert_eq!(peer.hear_push().payload, Some(v1::push::Payload::Text(text)));
        peer.ping(b"behind it");
    }
}

#[test]
fn who_does_not_read_for_a_while_gets_all_in_order() {
    let settings = ShardSettings {
        high_watermark_bytes: 64 << 20,
        stall_timeout: NEVER,
        ..ShardSettings::default()
    };
    let mut rig = Rig::start(1, &settings);
    for version in [&TLS12, &TLS13] {
        let (mut peer, conn) = rig.secure_device(0, version);
        let text = "m".repeat(40_000);
        for offset in 0..400 {
            let message = Item::Message(rig.message(&text, offset, None));
            while rig.engine.mailbox(0).try_push(Command::Send(conn, message.clone())).is_err() {
                rig.take_in(Duration::from_millis(1));
            }
        }
        rig.wait_until("the socket to be full", |rig| rig.stats(0).queued_items.get() > 0);
        for offset in 0..400 {
            assert_eq!(peer.hear_push().offset, offset);
        }
        peer.ping(b"as before");
        drop(peer);
        rig.closed(conn);
        rig.wait_until_at_rest();
    }
}

#[test]
fn keys_change_when_the_device_asks() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let (mut peer, conn) = rig.secure_device(0, &TLS13);
    for round in 1..=5 {
        peer.stream.conn.refresh_traffic_keys().expect("TLS 1.3 can");
        peer.ping(b"under new keys");
        send(&rig, conn, &rig.message("and so", round, None));
        assert_eq!(peer.hear_push().offset, round);
    }
    assert_eq!(rig.stats(0).tls_key_changes.get(), 10, "five of each direction");
}

#[test]
fn a_change_of_keys_alone_is_answered() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let (mut peer, _) = rig.secure_device(0, &TLS13);
    let sent = rig.stats(0).sent_bytes.get();
    peer.stream.conn.refresh_traffic_keys().expect("TLS 1.3 can");
    peer.stream.flush().expect("the server reads");
    rig.wait_until("the answer", |rig| rig.stats(0).sent_bytes.get() > sent);
    peer.ping(b"under new keys");
}

#[test]
fn what_was_read_ahead_comes_first() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    for version in [&TLS12, &TLS13] {
        let Agreed { mut client, session } = shake_hands(version, None);
        let mut sealed = Vec::new();
        for data in [b"two", b"six"] {
            client.writer().write_all(&ping(data)).expect("there is room");
            client.write_tls(&mut sealed).expect("a vector takes all");
        }
        let late = sealed.split_off(sealed.len() - 9);
        let plain = ping(b"one");
        let rest = Rest { read_ahead: &plain, ..Rest::default() };
        let (mut peer, _) = rig.secure_device_of(0, Agreed { client, session }, rest, sealed);
        for data in [b"one", b"two"] {
            assert_eq!(pong(peer.hear()), data);
        }
        peer.stream.sock.write_all(&late).expect("the server reads");
        assert_eq!(pong(peer.hear()), b"six");
    }
}

#[test]
fn close_notify_ends_a_connection_and_is_answered() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    for version in [&TLS12, &TLS13] {
        let (mut peer, conn) = rig.secure_device(0, version);
        let message = publish(vec![7; 10]);
        peer.stream.conn.writer().write_all(&message).expect("there is room");
        peer.stream.conn.send_close_notify();
        peer.stream.flush().expect("the server reads");
        rig.received(conn);
        assert_eq!(rig.closed(conn).0, CloseReason::PeerClosed);
        assert_eq!(peer.hear(), Heard::End);
        rig.wait_until_at_rest();
    }
}

#[test]
fn who_breaks_a_record_is_told_so() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    for version in [&TLS12, &TLS13] {
        let (mut peer, conn) = rig.secure_device(0, version);
        let mut record = vec![23, 3, 3, 0, 64];
        record.extend([7; 64]);
        peer.stream.sock.write_all(&record).expect("the server reads");
        assert_eq!(rig.closed(conn).0, CloseReason::TlsRecord);
        peer.hear_alert(CloseReason::TlsRecord, AlertDescription::BadRecordMac);
    }
    assert_eq!(rig.stats(0).tls_alerts_sent[alert(Alert::BadRecordMac)].get(), 2);
}

#[test]
fn a_record_that_drips_ends_its_connection() {
    let settings =
        ShardSettings { frame_timeout: Duration::from_millis(300), ..ShardSettings::default() };
    let mut rig = Rig::start(1, &settings);
    let (mut peer, conn) = rig.secure_device(0, &TLS13);
    peer.stream.sock.write_all(&[23, 3, 3, 0, 64, 1]).expect("the server reads");
    assert_eq!(rig.closed(conn).0, CloseReason::FrameTimeout);
    peer.hear_goodbye(CloseReason::FrameTimeout);
    drop(peer);
    rig.wait_until_at_rest();
}

#[test]
fn operators_close_and_stop_as_without_tls() {
    let mut rig = Rig::start(1, &ShardSettings::default());
    let (mut peer, conn) = rig.secure_device(0, &TLS13);
    let urgent = Urgent::Close(conn, CloseReason::ClosedByOperator);
    assert!(rig.engine.mailbox(0).try_urgent(urgent).is_ok(), "the queue has room");
    peer.hear_goodbye(CloseReason::ClosedByOperator);
    let (mut other, _) = rig.secure_device(0, &TLS12);
    rig.engine.stop();
    let mut bytes = [0; 1];
    assert!(other.stream.sock.read(&mut bytes).is_ok_and(|count| count == 0), "without a word");
    assert_eq!(Arc::strong_count(&rig.budget), 2, "the shard has gone");
}

fn pong(heard: Heard) -> Vec<u8> {
    let Heard::Message(weir_wire::v1::server_message::Kind::Pong(pong)) = heard else {
        panic!("not a Pong: {heard:?}")
    };
    pong.data
}

fn alert(alert: Alert) -> usize {
    Alert::ALL.iter().position(|other| *other == alert).expect("it is sent")
}

#[test]
fn a_flood_of_key_changes_or_of_tiny_records_is_read_more_slowly() {
    let settings = ShardSettings {
        frames_per_second: 10,
        frame_burst: 100,
        topics_per_connection_max: 5,
        ..ShardSettings::default()
    };
    for changes_keys in [true, false] {
        let mut rig = Rig::start(1, &settings);
        let (mut peer, _) = rig.secure_device(0, &TLS13);
        let mut sealed = Vec::new();
        let message = publish(vec![7; 1000]);
        for byte in message.iter().take(300) {
            if changes_keys {
                peer.stream.conn.refresh_traffic_keys().expect("TLS 1.3 can");
            }
            // So that rustls writes a record for each.
            peer.stream.conn.writer().write_all(&[*byte]).expect("there is room");
            while peer.stream.conn.wants_write() {
                peer.stream.conn.write_tls(&mut sealed).expect("a vector takes all");
            }
        }
        let last = sealed.split_off(sealed.len() - 1);
        peer.stream.sock.write_all(&sealed).expect("the server reads");
        rig.wait_until("the records", |rig| rig.stats(0).received_bytes.get() > 0);
        peer.stream.sock.write_all(&last).expect("the server reads");
        rig.wait_until("the pause", |rig| rig.stats(0).reads_rate_limited.get() == 1);
        assert_eq!(rig.stats(0).connections.get(), 1, "keys change: {changes_keys}");
    }
}
