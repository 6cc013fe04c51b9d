//! A place for connections, one after the other: its requests, and the check of their answers.

use std::collections::VecDeque;

use super::asker::Asker;
use super::count::Count;
use super::fault::Fault;
use super::http1::Answers;
use super::http2::{Brought, Http2};

use crate::activations::Tokens;
use crate::clock;
use crate::protocol::{HttpPlan, HttpTally, Posts};
use crate::worker::wire::Wire;

/// The known answers.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) answers: Answers,
    /// Content of the first answer that came in one piece.
    pub(super) content: Option<Vec<u8>>,
    /// Bytes of content of the first answer.
    pub(super) length: Option<u64>,
    /// The whole first answer; for HTTP/2 only the content.
    pub(super) first: Vec<u8>,
    /// The tokens of activations.
    pub(super) tokens: Tokens,
}

/// Requests in flight that were sent together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    at_ns: u64,
    left: u32,
    is_hit: bool,
}

/// The arguments for handling answers.
pub(super) struct Moment<'a> {
    pub(super) now: u64,
    pub(super) plan: &'a HttpPlan,
    pub(super) asker: &'a mut Asker,
    pub(super) known: &'a mut Known,
    pub(super) count: &'a mut Count,
}

/// A place for connections, one after the other.
pub(super) struct Conn {
    /// `None` between two connections.
    pub(super) wire: Option<Wire>,
    /// Whether the kernel has connected.
    pub(super) connected: bool,
    pub(super) began_ns: u64,
    /// Whether the only request of an HTTP/2 connection was sent.
    pub(super) asked: bool,
    /// Requests in flight. For HTTP/2 the streams count them.
    pub(super) sent: VecDeque<Sent>,
    pub(super) http2: Option<Box<Http2>>,
    /// Beginning of an incomplete answer.
    pub(super) partial: Vec<u8>,
    /// Bytes to send.
    pub(super) out: Vec<u8>,
    /// Whether an answer has come.
    pub(super) answered: bool,
}

/// The future of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Stays,
    /// It has served its purpose.
    Served,
    /// The server wants it to end.
    Closes,
}

impl Conn {
    pub(super) fn empty() -> Conn {
        Conn {
            wire: None,
            connected: false,
            began_ns: 0,
            asked: false,
            sent: VecDeque::new(),
            http2: None,
            partial: Vec::new(),
            out: Vec::new(),
            answered: false,
        }
    }

    /// Sends the first bytes after the kernel has connected.
    pub(super) fn greet(&mut self, asker: &mut Asker, plan: &HttpPlan) {
        match &mut self.http2 {
            Some(http2) => http2.begin(&mut self.out),
            None => {
                let count = if plan.style.is_per_connection() { 1 } else { plan.depth };
                self.ask(asker, count, clock::monotonic_ns());
            }
        }
    }

    /// Sends `count` requests of HTTP/1.1.
    fn ask(&mut self, asker: &mut Asker, count: u32, now: u64) {
        for _ in 0..count {
            let is_hit = asker.write(&mut self.out);
            match self.sent.back_mut() {
                Some(sent) if (sent.at_ns, sent.is_hit) == (now, is_hit) => sent.left += 1,
                _ => self.sent.push_back(Sent { at_ns: now, left: 1, is_hit }),
            }
        }
    }

    pub(super) fn flush(&mut self, tally: &mut HttpTally) -> Result<(), Fault> {
        let Some(wire) = &mut self.wire else { return Ok(()) };
        wire.send_from(&mut self.out)?;
        tally.sent_bytes += wire.take_sent();
        Ok(())
    }

    /// Closes the connection, if there is one, in good order.
    pub(super) fn close(&mut self, tally: &mut HttpTally) {
        if let Some(mut wire) = self.wire.take() {
            wire.say_goodbye();
            tally.sent_bytes += wire.take_sent();
        }
    }

    /// Whether no request is in flight.
    pub(super) fn is_idle(&self) -> bool {
        match &self.http2 {
            Some(http2) => http2.is_over(),
            None => self.sent.is_empty(),
        }
    }

    /// Handles the complete answers in `bytes` and sends as many new requests. Returns the length
    /// of these answers.
    pub(super) fn take(
        &mut self,
        bytes: &[u8],
        moment: &mut Moment<'_>,
    ) -> Result<(usize, Next), Fault> {
        match self.http2.take() {
            None => self.take_http1(bytes, moment),
            Some(mut http2) => {
                let taken = self.take_http2(&mut http2, bytes, moment);
                self.http2 = Some(http2);
                taken
            }
        }
    }

    fn take_http1(
        &mut self,
        bytes: &[u8],
        moment: &mut Moment<'_>,
    ) -> Result<(usize, Next), Fault> {
        let (mut used, mut answered) = (0, 0);
        let mut next = Next::Stays;
        while next == Next::Stays
            && let Some(answer) = moment.known.answers.next(&bytes[used..])?
        {
            let Some(sent) = self.sent.front_mut() else {
                return Err(Fault::Malformed("an answer that nobody asked for"));
            };
            let Sent { at_ns: sent_ns, is_hit, .. } = *sent;
            sent.left -= 1;
            if sent.left == 0 {
                self.sent.pop_front();
            }
            let (status, content) = (answer.status, answer.content);
            moment.check(is_hit, status, content, &bytes[used..used + answer.bytes])?;
            used += answer.bytes;
            answered += 1;
            next = self.count(moment, sent_ns);
            if answer.closes && next == Next::Stays {
                next = Next::Closes;
            }
        }
        if answered > 0 && next == Next::Stays {
            self.ask(moment.asker, answered, moment.now);
        }
        Ok((used, next))
    }

    fn take_http2(
        &mut self,
        http2: &mut Http2,
        bytes: &[u8],
        moment: &mut Moment<'_>,
    ) -> Result<(usize, Next), Fault> {
        let mut used = 0;
        let mut next = Next::Stays;
        while next == Next::Stays
            && let Some((brought, frame_bytes)) = http2.next(&bytes[used..], &mut self.out)?
        {
            used += frame_bytes;
            match brought {
                Brought::Nothing => {}
                Brought::Refused => moment.count.note("refused_stream".to_owned()),
                Brought::Answer { began_ns, status, is_hit, last, whole, bytes } => {
                    if whole {
                        moment.check(is_hit, status, last, last)?;
                    } else if status != 200 || moment.asker.posts() {
                        return Err(Fault::Status(status));
                    } else {
                        moment.known.check_length(bytes.into())?;
                    }
                    next = self.count(moment, began_ns);
                }
            }
        }
        if next == Next::Stays && http2.is_over() {
            next = Next::Closes;
        }
        if next == Next::Stays && !self.asked {
            let one = moment.plan.style.is_per_connection();
            let most = if one { 1 } else { u32::MAX };
            self.asked = http2.ask(moment.now, most, moment.asker, &mut self.out) > 0 && one;
        }
        Ok((used, next))
    }

    /// An answer is complete.
    fn count(&mut self, moment: &mut Moment<'_>, sent_ns: u64) -> Next {
        let Moment { now, count, plan, .. } = moment;
        if !self.answered {
            self.answered = true;
            if let Some(agreed) = self.wire.as_ref().and_then(Wire::agreed) {
                *count.tally.handshakes.entry(agreed).or_insert(0) += 1;
            }
        }
        count.progressed_ns = *now;
        count.failures = 0;
        count.tally.answered += 1;
        let one = plan.style.is_per_connection();
        count.lags.record(now.saturating_sub(if one { self.began_ns } else { sent_ns }));
        if one { Next::Served } else { Next::Stays }
    }
}

impl Moment<'_> {
    /// Checks an answer; `answer` is the part of it that can be shown.
    fn check(
        &mut self,
        is_hit: bool,
        status: u16,
        content: &[u8],
        answer: &[u8],
    ) -> Result<(), Fault> {
        match (status, &self.plan.posts) {
            (200, None) => self.known.check(content, answer),
            (200, Some(Posts::Message(_))) if is_queued(content) => Ok(()),
            (200, Some(Posts::Activations(_))) if !is_hit => Err(Fault::LetIn),
            (200, Some(Posts::Activations(_))) if self.known.tokens.take(content) => Ok(()),
            (200, Some(_)) => Err(Fault::Content),
            (401, Some(Posts::Activations(_))) if !is_hit => {
                self.count.tally.refused += 1;
                Ok(())
            }
            (status, _) => Err(Fault::Status(status)),
        }
    }
}

/// Whether a message was queued for the one subscriber.
pub(super) fn is_queued(content: &[u8]) -> bool {
    let mut members = content.split(|byte| matches!(byte, b'{' | b',' | b'}'));
    members.any(|member| member == b"\"connections\":1")
}

impl Known {
    /// Compares content with the first answer's; `answer` is the part of the answer that can be
    /// shown.
    fn check(&mut self, content: &[u8], answer: &[u8]) -> Result<(), Fault> {
        self.check_length(content.len() as u64)?;
        match &self.content {
            Some(known) if known == content => Ok(()),
            Some(_) => Err(Fault::Content),
            None => {
                self.content = Some(content.to_vec());
                self.first = answer.to_vec();
                Ok(())
            }
        }
    }

    /// The same of an answer whose content is not kept.
    fn check_length(&mut self, bytes: u64) -> Result<(), Fault> {
        if *self.length.get_or_insert(bytes) == bytes { Ok(()) } else { Err(Fault::Content) }
    }
}
