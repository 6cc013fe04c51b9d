//! A room: many clients publish to one topic, and all clients receive all messages.
//!
//! All receivers get the same frames in the same order. The first receiver of a frame verifies every
//! message in it and adds the frame to a log. The others compare their bytes with the log. A receiver
//! has a position in that log and a count. A published message that is not in the count was lost.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::payload::{Header, messages_in};

/// The frames of a topic, in order of arrival.
pub(super) struct Room {
    topic: String,
    /// Bytes of a payload.
    size: usize,
    /// Number that the next message of each publisher must carry.
    next_seqs: Vec<u32>,
    /// The latest frames, `bytes` in all; `forgotten` earlier frames are gone.
    frames: VecDeque<Rc<Frame>>,
    bytes: usize,
    forgotten: u64,
    last_offset: u64,
    /// Errors found in frames when they were entered, once each.
    repeated: u64,
    expected: String,
}

/// A frame that was verified.
#[derive(Debug)]
pub(super) struct Frame {
    body: Vec<u8>,
    /// Publishing times of its messages, in nanoseconds since 1970, without repeated ones.
    pub(super) sent_ns: Vec<u64>,
}

/// The relation of a frame to the connection that received it.
#[derive(Debug)]
pub(super) enum Taken {
    /// The expected frame, or a later one. Messages of skipped frames are not in the connection's
    /// count.
    Next(Rc<Frame>),
    /// A frame that the connection had received before.
    Again(Rc<Frame>),
    /// A frame without messages.
    Other,
}

/// Place of a connection in the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// Frames of the log before this place.
    frame: u64,
    /// Messages received.
    pub(super) received: u64,
}

/// Bytes of kept frames: some seconds of any load that a worker can receive.
const KEPT_BYTES_MAX: usize = 64 << 20;

impl Room {
    /// A room for payloads of `size` bytes from this number of publishers.
    pub(super) fn new(topic: String, size: usize, publishers: u32) -> Room {
        Room {
            topic,
            size,
            next_seqs: vec![0; publishers as usize],
            frames: VecDeque::new(),
            bytes: 0,
            forgotten: 0,
            last_offset: 0,
            repeated: 0,
            expected: String::new(),
        }
    }

    /// Handles the body of a frame that the connection at `place` received.
    ///
    /// Errors: a sentence that says what is wrong. Cost: a comparison of the body, as a rule.
    pub(super) fn take(&mut self, place: &mut Place, body: &[u8]) -> Result<Taken, String> {
        let Some(ahead) = place.frame.checked_sub(self.forgotten) else {
            return Err("a connection lags behind all frames that are remembered".to_owned());
        };
        let ahead = usize::try_from(ahead).map_err(|error| error.to_string())?;
        let found = self.frames.iter().skip(ahead).position(|frame| frame.body == body);
        let index = match found {
            Some(skipped) => ahead + skipped,
            None => {
                if let Some(frame) = self.frames.iter().take(ahead).rev().find(|f| f.body == body) {
                    return Ok(Taken::Again(Rc::clone(frame)));
                }
                match self.enter(body)? {
                    None => return Ok(Taken::Other),
                    // To enter it, others may have been forgotten.
                    Some(index) if self.forgotten + (index as u64) < place.frame => {
                        return Err("a frame that others did not get".to_owned());
                    }
                    Some(index) => index,
                }
            }
        };
        let frame = Rc::clone(&self.frames[index]);
        place.frame = self.forgotten + index as u64 + 1;
        place.received += frame.sent_ns.len() as u64;
        Ok(Taken::Next(frame))
    }

    /// Messages that came twice or out of order, on any connection; starts to count anew.
    pub(super) fn take_repeated(&mut self) -> u64 {
        std::mem::take(&mut self.repeated)
    }

    /// Verifies a frame and adds it to the log. Returns its index among the kept frames; `None` if
    /// it carries no message.
    fn enter(&mut self, body: &[u8]) -> Result<Option<usize>, String> {
        let mut sent_ns = Vec::new();
        let mut count = 0_u64;
        messages_in(body, |push| {
            count += 1;
            if push.topic != self.topic {
                return Err(format!("a message of topic {:?}", push.topic));
            }
            let offset = push.offset;
            let header = self.verify(push.payload.as_bytes())?;
            let known = self.next_seqs.len();
            let Some(next) = self.next_seqs.get_mut(header.stream as usize) else {
                return Err(format!("publisher {} of {known}", header.stream));
            };
            if header.seq < *next || offset != 0 && offset <= self.last_offset {
                self.repeated += 1;
                return Ok(());
            }
            *next = header.seq + 1;
            self.last_offset = self.last_offset.max(offset);
            sent_ns.push(header.sent_ns);
            Ok(())
        })?;
        if count == 0 {
            return Ok(None);
        }
        self.bytes += body.len();
        self.frames.push_back(Rc::new(Frame { body: body.to_vec(), sent_ns }));
        while self.bytes > KEPT_BYTES_MAX
            && let Some(oldest) = self.frames.pop_front()
        {
            self.bytes -= oldest.body.len();
            self.forgotten += 1;
        }
        Ok(self.frames.len().checked_sub(1))
    }

    fn verify(&mut self, payload: &[u8]) -> Result<Header, String> {
        let header = Header::parse(payload).ok_or("a payload without a header")?;
        header.compose(self.size, &mut self.expected);
        if payload != self.expected.as_bytes() {
            return Err(format!(
                "publisher {}, message {}: a payload that was not published",
                header.stream, header.seq
            ));
        }
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use weir_wire::frame;
    use weir_wire::hot::{Payload, Push, encode_batch_frames};

    use super::*;

    /// Body of a frame with these messages, each a publisher and a number; `offset` is that of the first.
    fn body(offset: u64, messages: &[(u32, u32)]) -> Vec<u8> {
        let singles: Vec<(u64, Vec<u8>)> = (offset..)
            .zip(messages)
            .map(|(offset, (stream, seq))| {
                let mut text = String::new();
                Header { stream: *stream, seq: *seq, sent_ns: 77 }.compose(32, &mut text);
                let payload = Payload::Text(&text);
                let push = Push {
                    topic: "room",
                    payload,
                    message_id: 1,
                    offset,
                    sender: 5,
                    ..Push::default()
                };
                let mut out = Vec::new();
                push.encode_frame(&mut out);
                (offset, out)
            })
            .collect();
        let parts: Vec<(u64, &[u8])> =
            singles.iter().map(|(offset, frame)| (*offset, &frame[..])).collect();
        let mut out = Vec::new();
        encode_batch_frames("room", &parts, 65_536, &mut out);
        frame::decode(&out, usize::MAX).unwrap().unwrap().0.to_vec()
    }

    fn room() -> Room {
        Room::new("room".to_owned(), 32, 3)
    }

    #[test]
    fn all_who_get_the_same_frames_are_counted_alike() {
        let (mut room, mut places) = (room(), [Place::default(); 3]);
        let frames = [body(1, &[(0, 0), (1, 0)]), body(3, &[(2, 0)]), body(4, &[(0, 1), (1, 1)])];
        for place in &mut places {
            for frame in &frames {
                assert!(matches!(room.take(place, frame), Ok(Taken::Next(_))));
            }
            assert_eq!(place.received, 5);
        }
        assert_eq!((room.next_seqs, room.repeated), (vec![2, 2, 1], 0));
    }

    #[test]
    fn a_frame_that_one_did_not_get_is_missing_in_its_count_alone() {
        let (mut room, mut whole, mut gap) = (room(), Place::default(), Place::default());
        let frames = [body(1, &[(0, 0), (1, 0)]), body(3, &[(2, 0)]), body(4, &[(0, 1)])];
        for frame in &frames {
            room.take(&mut whole, frame).unwrap();
        }
        for frame in [&frames[0], &frames[2]] {
            assert!(matches!(room.take(&mut gap, frame), Ok(Taken::Next(_))));
        }
        assert_eq!((whole.received, gap.received), (4, 3));
        assert!(matches!(room.take(&mut gap, &frames[1]), Ok(Taken::Again(_))), "out of order");
        assert_eq!(gap.received, 3);
    }

    #[test]
    fn a_message_that_nobody_got_and_one_that_came_twice_show() {
        let (mut room, mut place) = (room(), Place::default());
        room.take(&mut place, &body(1, &[(0, 0), (0, 2)])).unwrap();
        room.take(&mut place, &body(3, &[(0, 1), (0, 2), (0, 3)])).unwrap();
        assert_eq!((place.received, room.take_repeated()), (3, 2));
        room.take(&mut place, &body(1, &[(1, 0)])).unwrap();
        assert_eq!((place.received, room.take_repeated()), (3, 1), "offsets rise");
    }

    #[test]
    fn who_has_all_goes_on_when_the_oldest_frames_are_forgotten() {
        let (mut room, mut place) = (room(), Place::default());
        room.bytes = KEPT_BYTES_MAX - 150;
        for (offset, seq) in (1..=20).zip(0..) {
            let taken = room.take(&mut place, &body(offset, &[(0, seq)]));
            assert!(matches!(taken, Ok(Taken::Next(_))), "{taken:?}");
        }
        assert!(room.forgotten > 0 && place.received == 20);
    }

    #[test]
    fn what_was_not_published_is_wrong() {
        let (mut room, mut place) = (room(), Place::default());
        assert!(room.take(&mut place, &body(1, &[(3, 0)])).is_err(), "no such publisher");
        let mut frame = body(1, &[(0, 0)]);
        let at = frame.iter().position(|byte| *byte == b'0').unwrap() + 20;
        frame[at] ^= 1;
        // A payload with another time is valid too; a change behind the head is not.
        let _ = room.take(&mut place, &frame);
        let mut late = Place::default();
        let mut behind = Place { frame: 5, received: 0 };
        assert!(room.take(&mut late, &body(9, &[(1, 0)])).is_ok());
        assert!(room.take(&mut behind, &body(9, &[(1, 1)])).is_err());
    }
}
