//! Batches by their sizes and their bytes. The fuzz target `batch` compares many with prost.

use super::*;

const TOPIC: &str = "room";

/// The frames of messages with these contents, and with offsets from 1 on.
fn frames(contents: &[&str]) -> Vec<Vec<u8>> {
    contents.iter().zip(1..).map(|(content, offset)| frame(content, offset)).collect()
}

fn frame(content: &str, offset: u64) -> Vec<u8> {
    let push = Push { topic: TOPIC, payload: Payload::Text(content), offset, ..Push::default() };
    let mut frame = Vec::new();
    push.encode_frame(&mut frame);
    frame
}

/// The bodies of the frames in which the messages leave.
fn bodies(frames: &[Vec<u8>], frame_bytes_max: usize) -> Vec<Vec<u8>> {
    let singles: Vec<_> = (1..).zip(frames.iter().map(Vec::as_slice)).collect();
    let mut out = Vec::new();
    encode_batch_frames(TOPIC, &singles, frame_bytes_max, &mut out);
    assert_eq!(out.capacity(), out.len(), "grown once, to the needed size");
    let mut bodies = Vec::new();
    let mut rest = out.as_slice();
    while let Some((body, bytes)) = frame::decode(rest, usize::MAX).unwrap() {
        bodies.push(body.to_vec());
        rest = &rest[bytes..];
    }
    assert!(rest.is_empty());
    bodies
}

/// First and last offset, and the contents.
#[track_caller]
fn check(body: &[u8], expected: (u64, u64, &[&str])) {
    let batch = Batch::decode(body).unwrap().expect("a batch");
    assert_eq!(batch.topic, TOPIC);
    let pushes: Vec<_> = batch.messages().map(Result::unwrap).collect();
    assert!(pushes.iter().all(|push| push.topic == TOPIC));
    let contents: Vec<_> = pushes.iter().map(|push| push.payload.as_bytes()).collect();
    let (first, last, texts) = expected;
    assert_eq!((batch.first_offset, batch.last_offset), (first, last));
    assert_eq!(batch.message_count(), texts.len());
    assert_eq!(contents, texts.iter().map(|text| text.as_bytes()).collect::<Vec<_>>());
}

#[test]
fn what_fits_a_frame_leaves_as_one() {
    let bodies = bodies(&frames(&["a", "b", "c"]), 1_000);
    let [only] = bodies.as_slice() else { panic!("{} frames", bodies.len()) };
    check(only, (1, 3, &["a", "b", "c"]));
}

#[test]
fn nothing_makes_no_frame() {
    assert!(bodies(&[], 1_000).is_empty());
}

#[test]
fn a_frame_is_filled_to_the_limit_and_not_beyond() {
    let frames = frames(&["one", "two", "three"]);
    let whole = bodies(&frames, 1_000)[0].len();

    assert_eq!(bodies(&frames, whole).len(), 1);
    let split = bodies(&frames, whole - 1);
    let [first, second] = split.as_slice() else { panic!("{} frames", split.len()) };
    check(first, (1, 2, &["one", "two"]));
    check(second, (3, 3, &["three"]));
}

#[test]
fn a_message_whose_batch_is_over_the_limit_leaves_as_it_is() {
    let long = "x".repeat(100);
    let frames = frames(&["a", &long, "b"]);
    let (alone, _) = frame::decode(&frames[1], usize::MAX).unwrap().unwrap();

    let split = bodies(&frames, alone.len());
    let [first, second, third] = split.as_slice() else { panic!("{} frames", split.len()) };
    check(first, (1, 1, &["a"]));
    assert_eq!(second, alone);
    check(third, (3, 3, &["b"]));
}

/// Contents around every size at which a length grows by a byte.
#[test]
fn messages_of_every_size_are_found_in_their_frames() {
    for bytes in (0..300).chain(16_340..16_400).chain(2_097_100..2_097_160) {
        let content = "x".repeat(bytes);
        let single = frame(&content, 1);
        assert!(fields_behind_topic(&single, TOPIC).ends_with(&[PUSH_OFFSET << 3, 1]));
        check(&bodies(&[single], usize::MAX)[0], (1, 1, &[&content]));
    }
}

#[test]
fn lengths_are_told_from_what_they_count() {
    for bytes in (0..300).chain(16_370..16_400).chain(2_097_140..2_097_160) {
        assert_eq!(behind_length(bytes + fields::varint_bytes(bytes as u64)), bytes);
    }
}

#[test]
fn messages_of_no_topic_are_gathered_too() {
    let push = Push { payload: Payload::Text("x"), offset: 7, ..Push::default() };
    let mut single = Vec::new();
    push.encode_frame(&mut single);
    let mut out = Vec::new();
    encode_batch_frames("", &[(7, &single)], 1_000, &mut out);
    let batch = Batch::decode(&out[1..]).unwrap().unwrap();
    assert_eq!(batch.messages().collect::<Vec<_>>(), [Ok(push)]);
}

#[test]
fn an_error_is_the_last_item() {
    let mut body = bodies(&frames(&["first", "second", "third"]), 1_000).remove(0);
    let at = body.windows(6).position(|bytes| bytes == b"second").unwrap();
    body[at] = 0xff;
    let batch = Batch::decode(&body).unwrap().unwrap();
    let mut messages = batch.messages();
    assert!(matches!(messages.next(), Some(Ok(_))));
    assert_eq!(messages.next(), Some(Err(WireError::MessageMalformed("text is not UTF-8"))));
    assert_eq!(messages.next(), None);
}

#[test]
fn a_batch_cut_at_any_byte_is_malformed() {
    let body = bodies(&frames(&["a", "b"]), 1_000).remove(0);
    for end in 1..body.len() {
        assert!(Batch::decode(&body[..end]).is_err(), "cut at {end}");
    }
}
