//! Frames that wait for the answer of a hook.
//!
//! ```text
//!  frame ─line of its connection? no─▶ needs an answer? no─▶ carried out
//!             │ yes                          │ yes
//!             └──────────▶ end of the line ◀─┘ ─head is answered─▶ Job::Next ─▶ carried out
//! ```
//!
//! A frame asks as soon as it comes, so the questions of a connection are in flight together; the
//! frames are carried out in their order. Other connections do not wait.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::mpsc;
use weir_engine::handover::NotUnderstood;
use weir_engine::{ConnId, Footprint, TopicId, rounded, rounded_table};
use weir_wire::handover::v1;
use weir_wire::handover::v1::waiting_frame::What as Waits;
use weir_wire::v1::{ClientMessage, Subscribe, client_message};
use weir_wire::{ErrorCode, ProstMessage, hot};

use super::ended::Ended;
use super::{Asker, Dispatcher, Job, caller};
use crate::backends::questions::{Asked, Outcome};
use crate::base::frames;
use crate::base::handover::refused;
use crate::connection::reports::frame_cost;
use crate::observe::counters::{Counters, RefuseCause, SubscribeRefuseCause};

/// The lines of one shard's connections.
///
/// Limits: [`LINE_MAX`] frames of a connection, and [`BYTES_MAX`] bytes of all. A further frame is
/// refused with `busy`.
pub(super) struct Waiting {
    lines: HashMap<ConnId, Line>,
    bytes: usize,
    answers: mpsc::Sender<Answered>,
    counters: Arc<Counters>,
}

/// What one connection has sent since its first frame that waits; never empty.
#[derive(Default)]
struct Line {
    /// The number of the first place.
    first: u64,
    places: VecDeque<Place>,
    /// Whether a job for the first place is queued.
    is_called: bool,
}

struct Place {
    what: What,
    state: State,
    bytes: usize,
}

/// What stands in a line.
pub(super) enum What {
    Frame(Asker, Box<[u8]>),
    /// A topic of `Hello`.
    First(Asker, Subscribe),
    /// The end of the connection, after all that it has sent.
    Closed(Box<Ended>),
}

enum State {
    /// It needs no answer.
    Ready,
    Asking,
    Answered(Outcome),
}

/// An answer for a place in a line.
pub(crate) struct Answered {
    conn: ConnId,
    number: u64,
    outcome: Outcome,
}

impl Waiting {
    /// Also returns the receiver of answers; see [`Dispatcher::take_answered`].
    pub(super) fn new(counters: &Arc<Counters>) -> (Waiting, mpsc::Receiver<Answered>) {
        let (answers, receiver) = mpsc::channel(ANSWERS_MAX);
        let counters = Arc::clone(counters);
        (Waiting { lines: HashMap::default(), bytes: 0, answers, counters }, receiver)
    }

    pub(super) fn footprint(&self) -> Footprint {
        let table = rounded_table(self.lines.capacity(), size_of::<(ConnId, Line)>());
        let places = |line: &Line| rounded(line.places.capacity() * size_of::<Place>());
        let lines: usize = self.lines.values().map(places).sum();
        Footprint::new(self.lines.len(), table + lines + self.bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// What waits, for a process that takes over. It asks again.
    pub(super) fn export(&self) -> Vec<v1::WaitingFrame> {
        let places = self.lines.values().flat_map(|line| &line.places);
        let exported = places.map(|place| {
            let (conn, what) = match &place.what {
                What::Frame(asker, body) => (asker.conn, Waits::Frame(body.to_vec())),
                What::First(asker, first) => (asker.conn, Waits::First(first.encode_to_vec())),
                What::Closed(ended) => (ended.conn, Waits::Ended(ended.export())),
            };
            v1::WaitingFrame { conn: conn.to_u64(), what: Some(what) }
        });
        exported.collect()
    }

    pub(super) fn has(&self, conn: ConnId) -> bool {
        !self.lines.is_empty() && self.lines.contains_key(&conn)
    }

    /// Whether the connection may put so many bytes more into its line.
    fn has_room(&self, conn: ConnId, bytes: usize) -> bool {
        let length = self.lines.get(&conn).map_or(0, |line| line.places.len());
        length < LINE_MAX && self.bytes + bytes <= BYTES_MAX
    }

    /// Puts something at the end of the line. Returns whether it is the first, and ready.
    fn put(&mut self, conn: ConnId, what: What, asked: Option<Asked>) -> bool {
        let bytes = what.bytes();
        let line = self.lines.entry(conn).or_default();
        let number = line.first + line.places.len() as u64;
        let state = match asked {
            None => State::Ready,
            Some(Asked::Known(outcome)) => State::Answered(outcome),
            Some(waits @ Asked::Waits(_)) => {
                let answers = self.answers.clone();
                tokio::spawn(async move {
                    let outcome = waits.outcome().await;
                    // The dispatcher may have ended.
                    let _ = answers.send(Answered { conn, number, outcome }).await;
                });
                State::Asking
            }
        };
        line.places.push_back(Place { what, state, bytes });
        self.bytes += bytes;
        self.counters.hooks.add_waiting(1);
        line.call()
    }

    /// Takes the first of a line if it is ready. Returns whether the next one is ready, too.
    fn take(&mut self, conn: ConnId) -> Option<(What, Option<Outcome>, bool)> {
        let line = self.lines.get_mut(&conn)?;
        line.is_called = false;
        if line.places.front().is_none_or(|place| matches!(place.state, State::Asking)) {
            return None;
        }
        let Place { what, state, bytes } = line.places.pop_front()?;
        line.first += 1;
        self.bytes -= bytes;
        self.counters.hooks.remove_waiting(1);
        let is_next_ready = line.call();
        if line.places.is_empty() {
            self.lines.remove(&conn);
            if self.lines.is_empty() && self.lines.capacity() > LINES_KEPT {
                self.lines.shrink_to(0);
            }
        }
        let outcome = match state {
            State::Ready | State::Asking => None,
            State::Answered(outcome) => Some(outcome),
        };
        Some((what, outcome, is_next_ready))
    }

    /// Notes an answer. Returns whether the first of the line is ready now.
    fn answer(&mut self, Answered { conn, number, outcome }: Answered) -> bool {
        let Some(line) = self.lines.get_mut(&conn) else { return false };
        let place = number.checked_sub(line.first).and_then(|index| usize::try_from(index).ok());
        if let Some(place) = place.and_then(|index| line.places.get_mut(index)) {
            place.state = State::Answered(outcome);
        }
        line.call()
    }
}

impl What {
    /// What has waited in another process. `asker`: the connection that has sent it. `knows`: whether
    /// there is such a topic.
    pub(super) fn import(
        what: Option<Waits>,
        asker: Asker,
        knows: impl Fn(TopicId) -> bool,
    ) -> Result<What, NotUnderstood> {
        let unknown = || refused("terms.waiting", asker.conn.to_u64());
        match what.ok_or_else(unknown)? {
            Waits::Frame(body) => Ok(What::Frame(asker, body.into())),
            Waits::First(first) => match Subscribe::decode(&*first) {
                Ok(first) => Ok(What::First(asker, first)),
                Err(_) => Err(unknown()),
            },
            Waits::Ended(ended) => {
                Ended::import(ended, asker, knows).map(Box::new).map(What::Closed)
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let places = self.lines.values().map(|line| line.places.len()).sum();
        self.counters.hooks.remove_waiting(places);
    }
}

impl Line {
    /// Whether a job for the first place must be queued now; it is queued once.
    fn call(&mut self) -> bool {
        let is_ready =
            self.places.front().is_some_and(|place| !matches!(place.state, State::Asking));
        is_ready && !std::mem::replace(&mut self.is_called, true)
    }
}

impl What {
    fn bytes(&self) -> usize {
        size_of::<Place>()
            + match self {
                What::Frame(_, body) => body.len(),
                What::First(_, subscribe) => subscribe.topic.len(),
                What::Closed(_) => size_of::<Ended>(),
            }
    }
}

impl Dispatcher {
    /// Takes a frame from the queue of reports.
    pub(super) fn receive(&mut self, asker: Asker, body: Box<[u8]>) {
        let bytes = frame_cost(&body);
        self.carry_out_or_wait(asker, body);
        self.room.give(bytes);
        if self.room.take_awaited() {
            self.shared.mailbox(self.shard).wake();
        }
    }

    fn carry_out_or_wait(&mut self, asker: Asker, body: Box<[u8]>) {
        let conn = asker.conn;
        if self.waiting.has(conn) {
            if !self.waiting.has_room(conn, body.len()) {
                return self.refuse(asker, &body);
            }
            let asked = self.ask_about(asker, &body);
            return self.wait(conn, What::Frame(asker, body), asked);
        }
        match self.ask_about(asker, &body) {
            None => self.handle_frame(asker, &body, None),
            Some(Asked::Known(outcome)) => self.handle_frame(asker, &body, Some(outcome)),
            Some(_) if !self.waiting.has_room(conn, body.len()) => self.refuse(asker, &body),
            asked @ Some(Asked::Waits(_)) => self.wait(conn, What::Frame(asker, body), asked),
        }
    }

    /// The same for the topics of `Hello`.
    pub(super) fn receive_first(&mut self, asker: Asker, topics: Vec<Subscribe>) {
        for subscribe in topics {
            let asked = {
                let grant = self.grant(asker);
                self.shared.ask_subscribe(&caller(&grant, asker), &subscribe.topic)
            };
            self.wait(asker.conn, What::First(asker, subscribe), asked);
        }
    }

    /// Takes what has waited in another process. It stands in a line here too, so that what follows
    /// from one is carried out before the next. It was accepted there, and finds room.
    pub(super) fn receive_moved(&mut self, what: What) {
        match what {
            What::Frame(asker, body) => {
                let asked = self.ask_about(asker, &body);
                self.wait(asker.conn, What::Frame(asker, body), asked);
            }
            What::First(asker, subscribe) => self.receive_first(asker, vec![subscribe]),
            What::Closed(ended) => self.wait(ended.conn, What::Closed(ended), None),
        }
    }

    /// Ends a connection, behind all that it has sent.
    pub(super) fn receive_end(&mut self, ended: Ended) {
        match self.waiting.has(ended.conn) {
            true => self.wait(ended.conn, What::Closed(Box::new(ended)), None),
            false => self.end(ended),
        }
    }

    fn wait(&mut self, conn: ConnId, what: What, asked: Option<Asked>) {
        if self.waiting.put(conn, what, asked) {
            self.jobs.push_back(Job::Next { conn });
        }
    }

    /// Takes an answer.
    pub(crate) fn take_answered(&mut self, answered: Answered) {
        let conn = answered.conn;
        if self.waiting.answer(answered) {
            self.jobs.push_back(Job::Next { conn });
        }
    }

    /// Carries out the first of a line. What follows from it goes before all other jobs, so the next
    /// of the line comes after that.
    pub(super) fn carry_out_next(&mut self, conn: ConnId) {
        let Some((what, outcome, is_next_ready)) = self.waiting.take(conn) else { return };
        if is_next_ready {
            self.jobs.push_back(Job::Next { conn });
        }
        match what {
            What::Frame(asker, body) => self.handle_frame(asker, &body, outcome),
            What::First(asker, subscribe) => {
                if self.shared.devices.has(asker.device, asker.conn) {
                    self.want_topic(asker, subscribe, outcome);
                }
            }
            What::Closed(ended) => self.end(*ended),
        }
    }

    /// Asks about a frame, if a hook decides about it.
    ///
    /// Cost: without hooks one relaxed load; with them the frame is decoded once more.
    fn ask_about(&self, asker: Asker, body: &[u8]) -> Option<Asked> {
        if !self.shared.questions.asks_acts() {
            return None;
        }
        let grant = self.grant(asker);
        let caller = caller(&grant, asker);
        match hot::FromDevice::decode(body).ok()? {
            hot::FromDevice::Publish => {
                let publish = hot::Publish::decode(body).ok()?;
                self.handle.ask_publish(&caller, &super::publication_of(asker, &publish))
            }
            hot::FromDevice::Other => {
                let kind = ClientMessage::decode(body).ok()?.kind?;
                let client_message::Kind::Subscribe(subscribe) = kind else { return None };
                self.shared.ask_subscribe(&caller, &subscribe.topic)
            }
            hot::FromDevice::Ping { .. } | hot::FromDevice::Unknown => None,
        }
    }

    /// Refuses a frame for which there is no room.
    fn refuse(&mut self, asker: Asker, body: &[u8]) {
        let limit = self.shared.router.name_bytes_max();
        let short =
            |topic: &str| if topic.len() > limit { String::new() } else { topic.to_owned() };
        let publish = if is_publish(body) { hot::Publish::decode(body).ok() } else { None };
        let (topic, request) = if let Some(publish) = publish {
            self.shared.counters().count_refused(RefuseCause::HookWaiting);
            (short(publish.topic), publish.request)
        } else {
            let cause = SubscribeRefuseCause::HookWaiting;
            self.shared.counters().count_subscribe_refused(cause);
            let kind = ClientMessage::decode(body).ok().and_then(|message| message.kind);
            let topic = if let Some(client_message::Kind::Subscribe(subscribe)) = &kind {
                short(&subscribe.topic)
            } else if let Some(client_message::Kind::Unsubscribe(leave)) = &kind {
                short(&leave.topic)
            } else {
                String::new()
            };
            (topic, 0)
        };
        let message = "too many messages wait for a backend's answer; try again in a second";
        let frame = frames::error(ErrorCode::Busy, message.to_owned(), &topic, request);
        self.answer(asker.conn, frame);
    }
}

fn is_publish(body: &[u8]) -> bool {
    matches!(hot::FromDevice::decode(body), Ok(hot::FromDevice::Publish))
}

/// A device that waits for no answer can publish so many messages in one round trip to the backend.
const LINE_MAX: usize = 64;
/// As much as may wait in the queue of reports, four times.
const BYTES_MAX: usize = 4 << 20;
/// Answers that the dispatcher has not taken; the tasks that bring more wait.
const ANSWERS_MAX: usize = 1_024;
/// Unused entries that the table of lines keeps.
const LINES_KEPT: usize = 1_024;

#[cfg(test)]
mod tests {
    use weir_engine::{DeviceRef, Origin};

    use super::*;
    use crate::backends::questions::Answer;

    const CONN: fn(u64) -> ConnId = ConnId::from_u64;

    fn waiting() -> (Waiting, Arc<Counters>) {
        let counters = Arc::<Counters>::default();
        (Waiting::new(&counters).0, counters)
    }

    fn frame(conn: u64, byte: u8) -> What {
        let asker = Asker { conn: CONN(conn), device: DeviceRef(0), origin: Origin::default() };
        What::Frame(asker, vec![byte].into())
    }

    fn asking() -> Option<Asked> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        // It never answers.
        std::mem::forget(sender);
        Some(Asked::Waits(receiver))
    }

    /// What is taken, with whether it was allowed and whether the next is ready.
    fn take(waiting: &mut Waiting, conn: u64) -> Option<(u8, bool, bool)> {
        let (what, outcome, is_next_ready) = waiting.take(CONN(conn))?;
        let What::Frame(_, body) = what else { panic!("only frames stand here") };
        Some((body[0], matches!(outcome, Some(Ok(Answer::Allowed))), is_next_ready))
    }

    fn answered(conn: u64, number: u64) -> Answered {
        Answered { conn: CONN(conn), number, outcome: Ok(Answer::Allowed) }
    }

    #[tokio::test]
    async fn a_line_keeps_its_order_whatever_is_answered_first() {
        let (mut waiting, counters) = waiting();
        assert!(!waiting.put(CONN(1), frame(1, 0), asking()));
        assert!(!waiting.put(CONN(1), frame(1, 1), asking()));
        assert!(!waiting.put(CONN(1), frame(1, 2), None), "it stands behind others");
        assert!(!waiting.put(CONN(2), frame(2, 9), asking()));
        assert_eq!(counters.hooks.waiting_frames(), 4);
        assert!(!waiting.answer(answered(1, 1)), "the first still waits");
        assert_eq!(take(&mut waiting, 1), None);
        assert!(waiting.answer(answered(2, 0)), "another line does not wait");
        assert!(waiting.answer(answered(1, 0)));
        assert!(!waiting.answer(answered(1, 0)), "the job is queued already");
        assert_eq!(take(&mut waiting, 1), Some((0, true, true)));
        assert_eq!(take(&mut waiting, 1), Some((1, true, true)));
        assert_eq!(take(&mut waiting, 1), Some((2, false, false)));
        assert!(!waiting.has(CONN(1)) && waiting.has(CONN(2)));
        assert!(!waiting.answer(answered(1, 5)), "nobody waits for it any more");
        assert_eq!(take(&mut waiting, 2), Some((9, true, false)));
        assert_eq!((counters.hooks.waiting_frames(), waiting.bytes), (0, 0));
    }

    #[tokio::test]
    async fn what_waits_is_exported_in_its_order_and_stays() {
        let (mut waiting, _) = waiting();
        for byte in 0..3 {
            waiting.put(CONN(1), frame(1, byte), if byte == 1 { None } else { asking() });
        }
        let ended = What::Closed(Box::new(crate::connection::dispatcher::ended::tests::ended()));
        waiting.put(CONN(1), ended, None);
        let mut exported = waiting.export();
        assert!(waiting.has(CONN(1)) && exported.iter().all(|waits| waits.conn == 1));
        let asker = Asker { conn: CONN(1), device: DeviceRef(0), origin: Origin::default() };
        let import = |what| What::import(what, asker, |_| true);
        let last = exported.pop().and_then(|waits| waits.what);
        assert!(matches!(import(last), Ok(What::Closed(ended)) if ended.conn == CONN(1)));
        for (byte, waits) in (0..).zip(exported) {
            let what = import(waits.what).ok().unwrap();
            assert!(matches!(what, What::Frame(_, body) if *body == [byte]));
        }
        assert!(import(None).is_err());
        assert!(import(Some(Waits::First(vec![0xff]))).is_err());
    }

    #[tokio::test]
    async fn a_line_and_all_lines_have_a_bound() {
        let (mut waiting, counters) = waiting();
        for _ in 0..LINE_MAX {
            assert!(waiting.has_room(CONN(1), 1));
            waiting.put(CONN(1), frame(1, 0), asking());
        }
        assert!(!waiting.has_room(CONN(1), 1) && waiting.has_room(CONN(2), 1));
        assert!(!waiting.has_room(CONN(2), BYTES_MAX));
        drop(waiting);
        assert_eq!(counters.hooks.waiting_frames(), 0);
    }
}
