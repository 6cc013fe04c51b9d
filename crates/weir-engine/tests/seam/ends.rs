//! Ends: eviction and draining behind the queue, and what a closed connection still gets.

use std::time::Duration;

use weir_engine::sim::PeerView;
use weir_engine::{Command, Drain, DrainWhat, DropRule};

use crate::stage::Stage;

/// Who is evicted gets `Goodbye` behind all that stood before it in the queue, messages that still walk included.
///
/// Fails when an eviction is carried out as it is dequeued (`end_behind`).
#[test]
fn goodbye_comes_behind_what_was_queued() {
    let mut stage = Stage::new();
    let devices = stage.members(1, 600);
    let (first, last) = (devices[0], devices[599]);
    stage.publish(1, "one");
    stage.send(last, "sent");
    stage.publish(1, "two");
    stage.evict(last);
    stage.publish(1, "three");
    stage.settle();
    assert_eq!(stage.heard(last), ["sent", "one", "two", "goodbye replaced"]);
    assert_eq!(stage.heard(first), ["one", "two", "three"]);
    assert_eq!(stage.reported(), ["closed 599 replaced [1]"]);
}

/// The same when the device takes its time: what waited in the outbox goes first.
///
/// Fails when `Replaced` drops the queue (`keeps_queue` in close.rs).
#[test]
fn who_is_evicted_still_gets_what_waited_for_its_socket() {
    let mut stage = Stage::new();
    let device = stage.join();
    stage.shard.net().set_send_buffer(device.peer, 4, 1);
    for text in ["one", "two", "three"] {
        stage.send(device, text);
    }
    stage.evict(device);
    let mut bytes = Vec::new();
    for _ in 0..200 {
        stage.settle();
        bytes.extend(stage.shard.peer_read(device.peer));
    }
    let text = String::from_utf8_lossy(&bytes);
    let places = ["one", "two", "three", "replaced"].map(|word| text.find(word));
    assert!(places.is_sorted() && places[0].is_some(), "{text}");
    assert_eq!(stage.shard.peer_view(device.peer), PeerView::Ended);
}

/// Draining tells everybody, behind what was queued, and says when it is over; nobody slips in.
///
/// Fails when a drain begins as it is dequeued (`end_behind`), or adoptions go on (`adopt`).
#[test]
fn a_drain_ends_everybody_behind_the_queue() {
    let mut stage = Stage::new();
    let devices = stage.members(1, 600);
    stage.publish(1, "last");
    let over = Duration::from_millis(500);
    let (number, what) = (1, DrainWhat::All);
    stage.shard.push(Command::Drain(Drain { number, what, over, retry_after_ms: (5, 9), seed: 1 }));
    let late = stage.offer(&[]);
    stage.shard.advance(Duration::from_millis(700));
    for device in &devices {
        assert_eq!(stage.heard(*device), ["last", "goodbye draining"]);
    }
    let reported = stage.reported();
    assert!(reported.contains(&format!("adopted {}", late.1)));
    let closed = reported.iter().filter(|report| report.contains("draining")).count();
    assert_eq!(closed, 601);
    assert!(!reported.contains(&"drained 1".to_string()), "sockets still wait for their peers");
    let too_late = stage.offer(&[]);
    stage.settle();
    assert_eq!(
        stage.reported(),
        [format!("adopted {}", too_late.1), "closed 601 draining []".to_string()]
    );
    stage.shard.advance(Duration::from_secs(2));
    assert_eq!(stage.reported(), ["drained 1"]);
    assert_eq!(stage.shard.stats().table_entries.get(), 0);
    assert_eq!(stage.shard.budget().used(), 0);
}

/// What is committed goes out whole; what is not is dropped and counted; then comes `Goodbye`.
///
/// Fails when the rest of a begun frame is not kept (`send_bytes` in write.rs).
#[test]
fn no_frame_is_cut_by_a_close() {
    let mut stage = Stage::new();
    let device = stage.join();
    stage.shard.net().set_send_buffer(device.peer, 4, 1);
    stage.send(device, "committed");
    stage.send(device, "dropped");
    stage.settle();
    stage.close(device);
    let mut bytes = Vec::new();
    for _ in 0..100 {
        stage.settle();
        bytes.extend(stage.shard.peer_read(device.peer));
    }
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.contains("committed") && !text.contains("dropped"), "{text}");
    assert!(text.contains("closed_by_operator"), "{text}");
    assert_eq!(stage.shard.stats().dropped[DropRule::Closed as usize].get(), 1);
}

/// Nobody is called silent for what the kernel holds, though the clock has jumped.
///
/// Fails when a deadline ends a connection without another look (`look_once_more`).
#[test]
fn a_jump_of_the_clock_ends_only_who_said_nothing() {
    let mut stage = Stage::new();
    let devices: Vec<_> = (0..3).map(|_| stage.join()).collect();
    stage.settle();
    stage.shard.net().jump(Duration::from_secs(121));
    // Of two that speak only one is announced at once.
    stage.shard.net().faults.short_wait = 1 << 16;
    stage.ping(devices[0], "here");
    stage.ping(devices[1], "here");
    stage.ping(devices[2], "here");
    stage.settle();
    for device in devices {
        assert_eq!(stage.heard(device), ["pong here"]);
    }
    assert!(stage.reported().is_empty());
}
