//! `Batch`: the messages of a tick of a topic, made from single messages by copying.

use super::*;

/// Appends the messages of a tick to `out`: one frame with a `Batch`, or several if
/// `frame_bytes_max` requires it.
///
/// Each of `singles` is an offset and a whole frame. [`Push::encode_frame`] made the frame of a
/// message of this `topic`. They are in order of the offsets. The fields of each message are copied
/// without the topic, which stands once in each batch.
/// Limits: no frame's body exceeds `frame_bytes_max`. A message too large even for a batch of its
/// own leaves as the single frame that it is.
/// Cost: grows `out` at most once, to exactly the needed size; one copy of each message. Panics if
/// one of `singles` is shorter than the frame of a message of this topic can be.
pub fn encode_batch_frames(
    topic: &str,
    singles: &[(u64, &[u8])],
    frame_bytes_max: usize,
    out: &mut Vec<u8>,
) {
    let planned = Planned { topic, rest: singles, frame_bytes_max };
    out.reserve_exact(planned.clone().map(|frame| frame.bytes()).sum());
    for frame in planned {
        frame.put(topic, out);
    }
}

/// A message in the form in which it would leave alone: its offset and its frame.
type Single<'s> = (u64, &'s [u8]);

/// The frames for the rest of a tick, each as full as the limit allows.
#[derive(Clone)]
struct Planned<'s> {
    topic: &'s str,
    rest: &'s [Single<'s>],
    frame_bytes_max: usize,
}

enum PlannedFrame<'s> {
    /// The frame leaves unchanged.
    Single(&'s [u8]),
    /// At least one message, and the bytes of the `Batch` that holds them.
    Batch { singles: &'s [Single<'s>], message_bytes: usize },
}

impl<'s> Iterator for Planned<'s> {
    type Item = PlannedFrame<'s>;

    fn next(&mut self) -> Option<PlannedFrame<'s>> {
        let &(first_offset, first) = self.rest.first()?;
        let mut fields_bytes = 0;
        let mut message_bytes = 0;
        let mut count = 0;
        for (offset, single) in self.rest {
            let fields = fields_bytes
                + fields::delimited_bytes(fields_behind_topic(single, self.topic).len());
            let message = head_bytes(self.topic, first_offset, *offset) + fields;
            if fields::delimited_bytes(message) > self.frame_bytes_max {
                break;
            }
            (fields_bytes, message_bytes) = (fields, message);
            count += 1;
        }
        let (singles, rest) = self.rest.split_at(count.max(1));
        self.rest = rest;
        Some(if count == 0 {
            PlannedFrame::Single(first)
        } else {
            PlannedFrame::Batch { singles, message_bytes }
        })
    }
}

impl PlannedFrame<'_> {
    fn bytes(&self) -> usize {
        match self {
            PlannedFrame::Single(frame) => frame.len(),
            PlannedFrame::Batch { message_bytes, .. } => frame_bytes(*message_bytes),
        }
    }

    fn put(&self, topic: &str, out: &mut Vec<u8>) {
        let (singles, message_bytes) = match self {
            PlannedFrame::Single(frame) => return out.extend_from_slice(frame),
            PlannedFrame::Batch { singles, message_bytes } => (*singles, *message_bytes),
        };
        let (Some((first_offset, _)), Some((last_offset, _))) = (singles.first(), singles.last())
        else {
            return;
        };
        put_frame_head(SERVER_BATCH, message_bytes, out);
        fields::put_optional_delimited(BATCH_TOPIC, topic.as_bytes(), out);
        fields::put_optional_varint(BATCH_FIRST_OFFSET, *first_offset, out);
        fields::put_optional_varint(BATCH_LAST_OFFSET, *last_offset, out);
        for (_, single) in singles {
            fields::put_delimited(BATCH_MESSAGES, fields_behind_topic(single, topic), out);
        }
    }
}

/// Bytes of a `Batch` before its messages.
fn head_bytes(topic: &str, first_offset: u64, last_offset: u64) -> usize {
    fields::optional_delimited_bytes(topic.len())
        + fields::optional_varint_bytes(first_offset)
        + fields::optional_varint_bytes(last_offset)
}

/// The fields of the `Push` in a frame of its own, without the topic, which is the first field.
///
/// They stand at the end of the frame, and the lengths before them follow from the frame's length.
/// So nothing is parsed.
fn fields_behind_topic<'s>(frame: &'s [u8], topic: &str) -> &'s [u8] {
    let body_bytes = behind_length(frame.len());
    let message_bytes = behind_length(body_bytes - fields::KEY_BYTES);
    let fields_bytes = message_bytes - fields::optional_delimited_bytes(topic.len());
    let fields = &frame[frame.len() - fields_bytes..];
    debug_assert!(is_push_of(frame, topic), "a frame that is no message of {topic:?}");
    fields
}

/// The number of `bytes` that follow their own length, in its shortest form.
fn behind_length(bytes: usize) -> usize {
    // The first guess has at most one byte too few. That never makes its length one byte shorter.
    let guess = bytes - fields::varint_bytes(bytes as u64);
    bytes - fields::varint_bytes(guess as u64)
}

fn is_push_of(frame: &[u8], topic: &str) -> bool {
    let Ok(Some((body, bytes))) = frame::decode(frame, frame.len()) else { return false };
    bytes == frame.len() && matches!(Push::decode(body), Ok(Some(push)) if push.topic == topic)
}

#[cfg(test)]
mod tests;
