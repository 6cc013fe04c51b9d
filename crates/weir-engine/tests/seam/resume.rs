//! Resuming: parts of what was missed, against everything that may come between.

use weir_engine::{ShardSettings, TopicId};

use crate::stage::{Device, Part, Stage};

const FIRST: Part<'_> =
    Part { number: 1, begin: "subscribed", texts: &[], after: 0, is_last: false };
const LAST: Part<'_> = Part { begin: "", is_last: true, ..FIRST };

/// What is published behind the last part follows it, and what was published before comes in the parts alone.
///
/// Fails when the first part enters the connection (`resume` in resume.rs), or the last one does not.
#[test]
fn live_messages_stand_directly_behind_the_last_part() {
    let mut stage = Stage::new();
    let other = stage.members(1, 1)[0];
    let device = stage.join();
    stage.publish(1, "1");
    stage.resume(device, 1, Part { texts: &["1"], after: 1, ..FIRST });
    stage.publish(1, "2");
    stage.settle();
    assert_eq!(stage.reported(), ["resume 1 after 1"]);
    stage.publish(1, "3");
    stage.resume(device, 1, Part { texts: &["2", "3"], after: 3, ..LAST });
    stage.publish(1, "4");
    stage.settle();
    assert_eq!(stage.heard(device), ["subscribed", "1", "2", "3", "4"]);
    assert_eq!(stage.heard(other), ["1", "2", "3", "4"]);
    assert!(stage.reported().is_empty());
    stage.shard.peer_end(device.peer);
    stage.settle();
    assert_eq!(stage.reported(), ["closed 1 peer_closed [1]"]);
}

/// A resume that was called off stays so, whatever still comes of it, though another one has begun since.
///
/// Fails when the number of a resume is not compared (`resume` in resume.rs), or unsubscribing does not end it.
#[test]
fn parts_of_a_resume_that_was_called_off_are_let_go_of() {
    let mut stage = Stage::new();
    let device = stage.join();
    stage.resume(device, 1, Part { texts: &["1"], after: 1, ..FIRST });
    stage.unsubscribe(device, 1, "out");
    stage.resume(device, 1, Part { texts: &["too late"], after: 2, ..LAST });
    let second = Part { number: 2, begin: "again", texts: &["1"], after: 1, is_last: false };
    stage.resume(device, 1, second);
    stage.resume(device, 1, Part { texts: &["too late"], after: 2, is_last: false, ..LAST });
    stage.resume(device, 1, Part { texts: &["too late"], after: 3, ..LAST });
    stage.publish(1, "not yet");
    stage.resume(device, 1, Part { number: 2, texts: &["2"], after: 2, ..LAST });
    stage.settle();
    assert_eq!(stage.heard(device), ["subscribed", "1", "out", "again", "1", "2"]);
    let reported = stage.reported();
    assert_eq!(
        reported,
        ["resume 1 after 1", "not entered 1", "resume 1 after 1", "not entered 1"],
        "nobody has left, as nobody was counted"
    );
}

/// Who is in the topic is told so, and gets nothing twice.
///
/// Fails when a resume does not look whether its connection is a member (`begin_resume`), or the front is not told of
/// a beginning that leads to nothing (`resume`).
#[test]
fn a_member_resumes_nothing() {
    let mut stage = Stage::new();
    let device = stage.members(1, 1)[0];
    stage.resume(device, 1, Part { texts: &["1"], after: 1, ..FIRST });
    stage.resume(device, 1, Part { texts: &["2"], after: 2, ..LAST });
    stage.resume(device, 1, Part { texts: &["1"], after: 1, is_last: true, ..FIRST });
    stage.publish(1, "3");
    stage.settle();
    assert_eq!(stage.heard(device), ["is member", "is member", "3"]);
    assert_eq!(stage.reported(), ["refused 1 of 1", "not entered 1", "not entered 1"]);
}

/// One resume of a topic at a time, and no membership beside it.
///
/// Fails when a running resume is not looked for (`refuses_topic`), or a refusal beside it is reported (`resume`).
#[test]
fn who_resumes_a_topic_can_neither_subscribe_to_it_nor_resume_it_again() {
    let mut stage = Stage::new();
    let device = stage.join();
    stage.resume(device, 1, Part { texts: &["1"], after: 1, ..FIRST });
    stage.subscribe(device, 1, "in");
    stage.resume(device, 1, Part { number: 2, texts: &["1"], after: 1, is_last: true, ..FIRST });
    stage.resume(device, 1, Part { number: 3, texts: &["1"], after: 1, ..FIRST });
    stage.resume(device, 1, Part { texts: &["2"], after: 2, ..LAST });
    stage.settle();
    let busy = "error busy";
    assert_eq!(stage.heard(device), ["subscribed", "1", busy, busy, busy, "2"]);
    assert_eq!(stage.reported(), ["resume 1 after 1", "not entered 1", "not entered 1"]);
}

/// What a connection resumes counts as a topic that it is in.
///
/// Fails when running resumes are not counted (`refuses_topic`), or not given back (`end_resume`).
#[test]
fn a_running_resume_counts_as_a_topic() {
    let settings = ShardSettings { topics_per_connection_max: 2, ..ShardSettings::default() };
    let mut stage = Stage::with_settings(settings);
    let device = stage.join();
    for topic in [1, 2, 3] {
        stage.resume(device, topic, Part { texts: &["1"], after: 1, ..FIRST });
    }
    stage.subscribe(device, 4, "in");
    stage.unsubscribe(device, 1, "out");
    stage.subscribe(device, 4, "in");
    stage.settle();
    let refused = "error too_many_topics";
    let heard = stage.heard(device);
    assert_eq!(heard, ["subscribed", "1", "subscribed", "1", refused, refused, "out", "in"]);
    let refused = "refused 1 of 3";
    let reported = stage.reported();
    assert_eq!(reported, ["resume 1 after 1", refused, "not entered 4", "resume 2 after 1"]);
}

/// The end of a connection ends what it resumes; a last part that still comes gives its count back.
///
/// Fails when closing leaves resumes behind (`end_resumes`), or only those who are found give counts back.
#[test]
fn a_close_in_the_middle_of_a_resume_leaves_nothing() {
    let mut stage = Stage::new();
    let device = stage.join();
    stage.resume(device, 1, Part { texts: &["1"], after: 1, ..FIRST });
    stage.resume(device, 2, Part { texts: &["1"], after: 1, ..FIRST });
    stage.settle();
    stage.close(device);
    stage.resume(device, 1, Part { texts: &["2"], after: 2, is_last: false, ..LAST });
    stage.resume(device, 2, Part { texts: &["2"], after: 2, ..LAST });
    stage.settle();
    let heir = stage.join();
    stage.resume(heir, 1, Part { number: 7, texts: &["1"], after: 1, is_last: true, ..FIRST });
    stage.settle();
    assert_eq!(stage.heard(heir), ["subscribed", "1"]);
    assert_eq!(
        stage.reported(),
        ["resume 1 after 1", "closed 0 closed_by_operator []", "not entered 2"]
    );
    stage.close(heir);
    stage.shard.advance(std::time::Duration::from_secs(2));
    assert_eq!(stage.shard.budget().used(), 0);
}

/// The next part is asked for when there is room for it, once, for one topic after the other.
///
/// Fails when it is asked for at once (`ask_for_more`), or not when the queue has shrunk (`flush` in write.rs).
#[test]
fn the_next_part_is_asked_for_at_the_low_watermark() {
    let settings = ShardSettings { low_watermark_bytes: 40, ..ShardSettings::default() };
    let mut stage = Stage::with_settings(settings);
    let device = stage.join();
    stage.shard.net().set_send_buffer(device.peer, 30, 10);
    let text = "x".repeat(38);
    let texts = [&text[..]; 3];
    stage.resume(device, 1, Part { texts: &texts, after: 3, ..FIRST });
    stage.resume(device, 2, Part { begin: "second", texts: &["1"], after: 1, ..FIRST });
    stage.settle();
    assert!(stage.reported().is_empty(), "more than the low watermark waits");
    let heard = stage.heard_slowly(device);
    assert_eq!(heard, ["subscribed", &text, &text, &text, "second", "1"]);
    assert_eq!(stage.reported(), ["resume 1 after 3"]);
    stage.resume(device, 1, Part { texts: &["4"], after: 4, is_last: false, ..LAST });
    stage.settle();
    assert_eq!(stage.reported(), ["resume 2 after 1"], "each in its turn");
    stage.resume(device, 2, Part { texts: &["2"], after: 2, ..LAST });
    stage.settle();
    assert_eq!(stage.reported(), ["resume 1 after 4"]);
    stage.resume(device, 1, Part { texts: &["5"], after: 5, ..LAST });
    stage.settle();
    assert_eq!(stage.heard_slowly(device), ["4", "2", "5"]);
    assert!(stage.reported().is_empty());
}

/// A question for the next part waits for the front like any other report.
///
/// Fails when it is dropped while the front has no room (`report` in shard/mod.rs).
#[test]
fn questions_wait_for_room_on_the_way_back() {
    let mut stage = Stage::new();
    let devices: Vec<Device> = (0..3).map(|_| stage.join()).collect();
    stage.shard.front_mut().set_room(0);
    for device in &devices {
        stage.resume(*device, 1, Part { texts: &["1"], after: 1, ..FIRST });
    }
    stage.shard.advance(std::time::Duration::from_millis(50));
    assert!(stage.reported().is_empty());
    stage.shard.front_mut().set_room(9);
    stage.shard.advance(std::time::Duration::from_millis(50));
    assert_eq!(stage.reported(), ["resume 1 after 1"; 3]);
}

/// A part is no reason to call a connection stalled, whatever waits before it.
///
/// Fails when a part's messages are queued as any others (`grant_grace` in `queue_chunk`).
#[test]
fn a_part_larger_than_the_high_watermark_stalls_nobody() {
    let settings = ShardSettings {
        low_watermark_bytes: 100,
        high_watermark_bytes: 200,
        ..ShardSettings::default()
    };
    let mut stage = Stage::with_settings(settings);
    let device = stage.join();
    stage.shard.net().set_send_buffer(device.peer, 30, 10);
    let text = "x".repeat(90);
    stage.resume(device, 1, Part { texts: &[&text[..]; 4], after: 4, ..FIRST });
    stage.settle();
    stage.resume(device, 3, Part { texts: &[&text[..]; 4], after: 4, ..FIRST });
    stage.settle();
    assert_eq!(stage.shard.stats().stalled.get(), 0, "nor do several at once");
    stage.shard.advance(std::time::Duration::from_millis(60));
    stage.resume(device, 2, Part { texts: &["small"], after: 4, ..FIRST });
    stage.settle();
    assert_eq!(stage.shard.stats().stalled.get(), 1, "the part before counts now");
    assert_eq!(stage.heard_slowly(device).len(), 12);
}

/// When the topic whose part was asked for is left or retired, the next one has its turn.
///
/// Fails when the end of a resume asks for nothing (`unsubscribe`, `end_resumes_of`).
#[test]
fn an_end_of_one_resume_lets_the_next_go_on() {
    let mut stage = Stage::new();
    let device = stage.join();
    for topic in [1, 2, 3] {
        stage.resume(device, topic, Part { texts: &["1"], after: 1, ..FIRST });
    }
    stage.settle();
    assert_eq!(stage.reported(), ["resume 1 after 1"]);
    stage.unsubscribe(device, 1, "out");
    stage.settle();
    assert_eq!(stage.reported(), ["resume 2 after 1"]);
    stage.shard.push(weir_engine::Command::Retire(TopicId(2)));
    stage.settle();
    assert_eq!(stage.reported(), ["resume 3 after 1", "retired 2"]);
}

/// Retiring a topic ends what resumes it: its id can be used anew at once.
///
/// Fails when a resume outlives its topic (`end_resumes_of`).
#[test]
fn a_retired_topic_is_resumed_by_nobody() {
    let mut stage = Stage::new();
    let device = stage.join();
    stage.resume(device, 1, Part { texts: &["1"], after: 1, ..FIRST });
    stage.shard.push(weir_engine::Command::Retire(TopicId(1)));
    stage.subscribe(device, 1, "in");
    stage.settle();
    assert_eq!(stage.heard(device), ["subscribed", "1", "in"]);
    assert_eq!(stage.reported(), ["resume 1 after 1", "retired 1"]);
}
