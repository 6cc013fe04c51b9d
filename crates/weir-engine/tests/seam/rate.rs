//! How fast a connection may publish.

use std::time::Duration;

use weir_engine::{Command, Inspect, InspectWhat, ShardSettings, TopicId, Urgent};
use weir_wire::hot::{Payload, Publish};

use crate::stage::{Device, Stage};

fn stage() -> Stage {
    Stage::with_settings(ShardSettings {
        publishes_per_second: 10,
        publish_burst: 3,
        ..ShardSettings::default()
    })
}

fn received(stage: &mut Stage) -> usize {
    let reported = stage.reported();
    assert!(reported.iter().all(|report| report.starts_with("received")), "{reported:?}");
    reported.len()
}

/// What comes too fast is answered here, with its number; what the front gets is within the rate. Time heals.
///
/// Fails when a refusal is passed on, or costs nothing (`handle_publish`).
#[test]
fn what_is_published_too_fast_is_refused_by_number() {
    let mut stage = stage();
    let device = stage.join();
    stage.publish_from(device, 1..=5);
    stage.settle();
    assert_eq!(received(&mut stage), 3);
    let refused = ["error rate_limited to 4 of t", "error rate_limited to 5 of t"];
    assert_eq!(stage.heard(device), refused);
    assert_eq!(stage.shard.stats().publishes_rate_limited.get(), 2);
    // Two are owed, and one more comes: three tenths of a second.
    stage.shard.advance(Duration::from_millis(310));
    stage.publish_from(device, 6..=6);
    stage.settle();
    assert_eq!((received(&mut stage), stage.heard(device).len()), (1, 0));
    stage.shard.advance(Duration::from_secs(60));
    stage.publish_from(device, 7..=10);
    stage.settle();
    assert_eq!(received(&mut stage), 3);
    assert_eq!(stage.heard(device), ["error rate_limited to 10 of t"]);
}

/// Who goes on is told of every refusal, and closed; pings do not count.
///
/// Fails when the answers wait in vain behind the close (`send_replies` in `handle_publish`).
#[test]
fn who_goes_on_publishing_too_fast_is_closed() {
    let mut stage = stage();
    let device = stage.join();
    for _ in 0..100 {
        stage.ping(device, "");
    }
    stage.publish_from(device, 1..=50);
    stage.settle();
    let heard = stage.heard(device);
    let refused: Vec<String> =
        (4..=6).map(|request| format!("error rate_limited to {request} of t")).collect();
    assert_eq!(heard[..100], vec!["pong "; 100]);
    assert_eq!(heard[100..103], refused);
    assert_eq!(heard[103..], ["goodbye rate_limited"]);
    let reported = stage.reported();
    assert_eq!(reported.len(), 4);
    assert_eq!(reported[3], "closed 0 rate_limited []");
}

/// What cannot be a name is not said back: the answer would be longer than any frame may be.
///
/// Fails when the topic of a refused message is answered unread (`refuse_publish`).
#[test]
fn a_refusal_does_not_say_back_what_is_no_name() {
    let mut stage = stage();
    let device = stage.join();
    stage.publish_from(device, 1..=3);
    let topic = "t".repeat(60_000);
    let payload = Payload::Text("");
    let mut frame = Vec::new();
    Publish { topic: &topic, payload, content_type: "", key: "", request: 4 }
        .encode_frame(&mut frame);
    stage.shard.peer_write(device.peer, &frame);
    stage.settle();
    assert_eq!(stage.heard(device), ["error rate_limited to 4 of "]);
}

/// A message that the front has no room for is held back, and costs the bucket once.
///
/// Fails when the bucket pays before the front has taken the message (`handle_publish`).
#[test]
fn what_is_held_back_is_paid_for_once() {
    let mut stage = stage();
    let device = stage.join();
    stage.shard.front_mut().set_room(0);
    stage.publish_from(device, 1..=4);
    for _ in 0..50 {
        stage.shard.turn();
    }
    stage.shard.front_mut().set_room(100);
    stage.shard.advance(Duration::from_millis(20));
    assert_eq!(received(&mut stage), 3);
    assert_eq!(stage.heard(device), ["error rate_limited to 4 of t"]);
}

/// Who keeps to the rate is not closed because all that it has said meanwhile is read at once, nor owes it; the next
/// that it says counts again.
///
/// Fails when what is read late is judged as what comes at once (`handle_publish`), or `read_late` is never cleared
/// (`read_open`), or not set (`offer_held_back_of`).
#[test]
fn what_the_front_had_no_room_for_closes_nobody() {
    let mut stage = stage();
    let device = stage.join();
    stage.shard.front_mut().set_room(0);
    for request in 1..=50 {
        stage.publish_from(device, request..=request);
        stage.shard.advance(Duration::from_millis(100));
    }
    stage.shard.front_mut().set_room(100);
    stage.shard.advance(Duration::from_millis(20));
    check_read_late(&mut stage, device, 47);
}

/// The same of a connection that was stalled.
///
/// Fails when `read_late` is not set by `end_stall`.
#[test]
fn what_was_said_during_a_stall_closes_nobody() {
    let settings = ShardSettings {
        publishes_per_second: 10,
        publish_burst: 3,
        low_watermark_bytes: 100,
        high_watermark_bytes: 200,
        ..ShardSettings::default()
    };
    let mut stage = Stage::with_settings(settings);
    let device = stage.join();
    stage.shard.net().set_send_buffer(device.peer, 30, 10);
    let text = "x".repeat(400);
    stage.send(device, &text);
    stage.settle();
    for request in 1..=50 {
        stage.publish_from(device, request..=request);
        stage.shard.advance(Duration::from_millis(100));
    }
    assert_eq!((received(&mut stage), stage.shard.stats().stalled.get()), (0, 1));
    let heard = stage.heard_slowly(device);
    assert_eq!((heard.len(), &heard[0]), (48, &text));
    stage.shard.net().set_send_buffer(device.peer, 1 << 16, 1 << 16);
    check_read_late(&mut stage, device, 0);
}

/// Of fifty that were read late a burst has passed, nothing is owed, and from now on the rate holds.
fn check_read_late(stage: &mut Stage, device: Device, told: usize) {
    assert_eq!(stage.heard(device).len(), told);
    assert_eq!(received(stage), 3);
    assert_eq!(stage.shard.stats().publishes_rate_limited.get(), 47);
    stage.shard.advance(Duration::from_millis(310));
    stage.publish_from(device, 51..=53);
    stage.settle();
    assert_eq!((received(stage), stage.heard(device).len()), (3, 0), "a refusal cost nothing");
    stage.publish_from(device, 54..=60);
    stage.settle();
    assert_eq!(stage.heard(device).last().map(|last| &last[..]), Some("goodbye rate_limited"));
}

/// The rate holds for whom the front says, and if there is one.
#[test]
fn without_a_limit_everything_is_passed_on() {
    for (publishes_per_second, publish_limited) in [(10, false), (0, true)] {
        let mut stage = Stage::with_settings(ShardSettings {
            publishes_per_second,
            publish_burst: 1,
            ..ShardSettings::default()
        });
        stage.publish_limited = publish_limited;
        let device = stage.join();
        stage.publish_from(device, 1..=1000);
        stage.settle();
        assert_eq!(received(&mut stage), 1000);
        assert!(stage.heard(device).is_empty());
    }
}

/// Settings under which ten frames a second may come, and twenty at once.
fn frames_stage() -> Stage {
    Stage::with_settings(ShardSettings {
        frames_per_second: 10,
        frame_burst: 20,
        topics_per_connection_max: 5,
        publishes_per_second: 1000,
        publish_burst: 1000,
        ..ShardSettings::default()
    })
}

/// Whoever sends faster than it may is read from more slowly: every frame is answered, at the rate. Publishes do not
/// count, and a client that waits is current again.
///
/// Fails when a connection beyond its burst is read on (`read_open`), or is never read again (`next_deadline`).
#[test]
fn whoever_sends_too_fast_is_read_from_more_slowly() {
    let mut stage = frames_stage();
    let device = stage.join();
    for _ in 0..60 {
        stage.ping(device, "");
        stage.settle();
    }
    assert_eq!(stage.heard(device).len(), 21, "a burst, and one that shows that it was one");
    let stats = std::sync::Arc::clone(stage.shard.stats());
    assert_eq!(stats.reads_rate_limited.get(), 1);
    stage.shard.advance(Duration::from_millis(50));
    assert_eq!(stage.heard(device).len(), 0);
    // One read takes all that has come; then it owes more.
    stage.shard.advance(Duration::from_millis(250));
    assert_eq!(stage.heard(device).len(), 39);
    stage.ping(device, "late");
    stage.shard.advance(Duration::from_secs(3));
    assert_eq!(stage.heard(device).len(), 0);
    stage.shard.advance(Duration::from_secs(2));
    assert_eq!(stage.heard(device), ["pong late"]);
    stage.shard.advance(Duration::from_secs(5));
    stage.publish_from(device, 1..=200);
    stage.settle();
    assert_eq!((received(&mut stage), stats.reads_rate_limited.get()), (200, 2));
    assert_eq!(stats.connections.get(), 1);
}

/// Whoever sends very much more than a burst at once is closed, and told so behind the answers.
///
/// Fails when the debt has no end (`charge_frames`).
#[test]
fn whoever_sends_a_flood_at_once_is_closed() {
    let mut stage = frames_stage();
    let (calm, flooder) = (stage.join(), stage.join());
    for _ in 0..99 {
        stage.ping(calm, "");
    }
    for _ in 0..200 {
        stage.ping(flooder, "");
    }
    stage.settle();
    assert_eq!(stage.heard(calm).len(), 99);
    let heard = stage.heard(flooder);
    assert_eq!(
        (heard.len(), heard.last().map(String::as_str)),
        (101, Some("goodbye rate_limited"))
    );
    assert_eq!(stage.shard.stats().connections.get(), 1);
}

/// A connection that is not read from for its rate is not silent, however long that takes.
///
/// Fails when its heartbeat counts during the pause (`next_deadline_of_listener`), or right after it (`pauses_reading`).
#[test]
fn nobody_is_silent_during_a_pause() {
    let mut stage = Stage::with_settings(ShardSettings {
        frames_per_second: 1,
        frame_burst: 40,
        topics_per_connection_max: 5,
        ..ShardSettings::default()
    });
    let device = stage.join();
    for _ in 0..190 {
        stage.ping(device, "");
    }
    stage.settle();
    assert_eq!(stage.heard(device).len(), 190);
    stage.ping(device, "at last");
    // Longer than two heartbeats.
    stage.shard.advance(Duration::from_secs(145));
    assert_eq!(stage.heard(device).len(), 0);
    stage.shard.advance(Duration::from_secs(10));
    assert_eq!(stage.heard(device), ["pong at last"]);
    stage.shard.advance(Duration::from_secs(125));
    assert_eq!(stage.heard(device), ["goodbye heartbeat_missed"]);
}

/// Bytes that come one by one cost something too, though less than frames; what comes in usual pieces costs nothing.
///
/// Fails when reads that complete nothing are not charged for (`charge_read`).
#[test]
fn bytes_one_by_one_are_read_more_slowly() {
    for (bytes, is_paused) in [(1, true), (600, false)] {
        let mut stage = frames_stage();
        let device = stage.join();
        let frame = [&[0xff, 0xff, 3][..], &[b'x'; 60_000]].concat();
        let mut pieces = frame.chunks(bytes).cycle();
        for _ in 0..16 * 22 {
            stage.shard.peer_write(device.peer, pieces.next().expect("they go on for ever"));
            stage.shard.turn();
        }
        assert_eq!(stage.shard.stats().reads_rate_limited.get() > 0, is_paused, "{bytes}");
    }
}

/// A connection that is there has the new rate at once, and a full burst: what it owed counted by the old one.
///
/// Fails when a debt is read by another rate (`fill_buckets` in `limit`), or when lower limits close what is there.
#[test]
fn a_rate_changes_for_those_who_are_there() {
    let mut stage = stage();
    let [device, other] = [stage.join(), stage.join()];
    stage.publish_from(device, 1..=5);
    stage.settle();
    assert_eq!((received(&mut stage), stage.heard(device).len()), (3, 2));
    let limit = |publishes_per_second, publish_burst| {
        let connections_max = 1;
        let settings = ShardSettings {
            publishes_per_second,
            publish_burst,
            connections_max,
            ..ShardSettings::default()
        };
        Urgent::Limit(Box::new(settings))
    };
    for (rate, burst, passed) in [(1, 2, 2), (1_000_000, 4, 4), (0, 1, 6), (10, 1, 1)] {
        stage.shard.push_urgent(limit(rate, burst));
        stage.settle();
        for device in [device, other] {
            stage.publish_from(device, 1..=passed);
            stage.settle();
            assert_eq!(received(&mut stage), passed as usize, "{rate} a second");
            assert_eq!(stage.heard(device), Vec::<String>::new());
        }
    }
    assert_eq!(stage.shard.stats().connections.get(), 2, "a lower limit closes nobody");
    let (_, ticket) = stage.offer(b"");
    stage.settle();
    let refused = format!("refused {ticket}");
    assert!(stage.reported().iter().any(|report| report.starts_with(&refused)));
}

/// Fails when the look overtakes the commands before it.
#[test]
fn a_look_in_the_queue_sees_what_was_asked_before() {
    let mut stage = Stage::new();
    let device = stage.join();
    let (sender, page) = std::sync::mpsc::sync_channel(1);
    let reply = Box::new(move |page| sender.send(page).expect("somebody waits for the page"));
    stage.subscribe(device, 7, "subscribed");
    let what = InspectWhat::All { cursor: 0, limit: 10 };
    stage.shard.push(Command::Inspect(Inspect { what, reply }));
    stage.settle();
    assert_eq!(page.recv().expect("a page comes").connections[0].topics, [TopicId(7)]);
    assert_eq!(stage.shard.mailbox().depth(), 0, "the credit is back");
}
