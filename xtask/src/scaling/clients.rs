//! Clients that have lost their connection: how many of them try again when.
//!
//! Clients that are alike are counted, not listed, so a hundred million take no more memory than one.

use std::collections::VecDeque;
use std::mem;

/// The length of a step of the simulation.
pub(super) const STEP_MS: u64 = 10;

/// Clients by what they have behind them: attempts since the loss, and tickets that these have
/// spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Group([u64; KINDS]);

/// Clients that are alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind(usize);

/// A client library, as far as its delays go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Library {
    /// `crates/weir-client/src/backoff.rs`: half a step, plus up to another half; steps of 0.5 to
    /// 30 s.
    Rust,
    /// `sdk/js/src/backoff.ts`: up to a step; steps of 0.5 to 8 s.
    JavaScript,
}

/// How clients learn that their node is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notice {
    /// The process has ended: the kernel resets its connections, one after the other.
    Reset { over_ms: u64 },
    /// The machine has ended, and nobody answers: clients notice after two heartbeats without an
    /// answer.
    Silence { heartbeat_ms: u64 },
    /// The node drains: `Goodbye` tells each client when to come back.
    Drain { over_ms: u64 },
}

/// Who tries when.
pub(super) struct Agenda {
    library: Library,
    /// The first is the next.
    steps: VecDeque<Group>,
    /// Clients in all of them.
    waiting: u64,
    dice: Dice,
}

/// The generator SplitMix64: a seed decides all that it draws.
pub(super) struct Dice(u64);

/// A span of time in milliseconds, the end excluded.
#[derive(Debug, Clone, Copy)]
struct Span {
    from: u64,
    to: u64,
}

impl Group {
    pub(super) fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|count| *count == 0)
    }

    pub(super) fn add(&mut self, kind: Kind, count: u64) {
        self.0[kind.0] += count;
    }

    pub(super) fn merge(&mut self, other: &Group) {
        for (count, more) in self.0.iter_mut().zip(&other.0) {
            *count += more;
        }
    }

    /// The kinds that have clients.
    pub(super) fn kinds(&self) -> impl Iterator<Item = (Kind, u64)> + use<> {
        let counts = self.0.into_iter().enumerate();
        counts.filter(|(_, count)| *count > 0).map(|(index, count)| (Kind(index), count))
    }

    /// Takes so many out, of each kind its share.
    pub(super) fn take(&mut self, count: u64) -> Group {
        let total = self.total();
        if count >= total {
            return mem::take(self);
        }
        let mut taken = Group::default();
        for (taken, have) in taken.0.iter_mut().zip(&mut self.0) {
            *taken = *have * count / total;
            *have -= *taken;
        }
        let mut missing = count - taken.total();
        for (taken, have) in taken.0.iter_mut().zip(&mut self.0) {
            let more = missing.min(*have);
            *taken += more;
            *have -= more;
            missing -= more;
        }
        taken
    }
}

impl Kind {
    /// Clients that have just lost their connection.
    pub(super) const FRESH: Kind = Kind(0);

    fn attempts(self) -> usize {
        self.0 / SPENT
    }

    /// Whether a ticket is left.
    pub(super) fn has_ticket(self) -> bool {
        self.0 % SPENT + 1 < SPENT
    }

    /// After one more attempt.
    fn again(self) -> Kind {
        if self.attempts() + 1 < ATTEMPTS { Kind(self.0 + SPENT) } else { self }
    }

    /// After a ClientHello that was not answered.
    fn with_ticket_spent(self) -> Kind {
        if self.has_ticket() { Kind(self.0 + 1) } else { self }
    }
}

impl Library {
    /// The step of the delay after so many attempts.
    fn step(self, attempts: usize) -> u64 {
        let max = match self {
            Library::Rust => 30_000,
            Library::JavaScript => 8_000,
        };
        (500_u64 << attempts).min(max)
    }

    /// The delay if the server has not asked for one.
    fn delay(self, attempts: usize) -> Span {
        let step = self.step(attempts);
        match self {
            Library::Rust => Span { from: step / 2, to: step },
            Library::JavaScript => Span { from: 0, to: step },
        }
    }
}

impl Agenda {
    pub(super) fn new(library: Library, seed: u64) -> Agenda {
        Agenda { library, steps: VecDeque::new(), waiting: 0, dice: Dice(seed) }
    }

    /// So many clients lose their connection now.
    pub(super) fn lose(&mut self, count: u64, notice: Notice) {
        let delay = self.library.delay(0);
        let (noticed, delay) = match notice {
            Notice::Reset { over_ms } => (Span { from: 0, to: over_ms }, delay),
            // Pings are a heartbeat apart. The third one without an answer ends the connection.
            Notice::Silence { heartbeat_ms } => {
                (Span { from: 2 * heartbeat_ms, to: 3 * heartbeat_ms }, delay)
            }
            Notice::Drain { over_ms } => {
                let asked = Span { from: RETRY_AFTER.from, to: RETRY_AFTER.to + delay.to / 2 };
                (Span { from: 0, to: over_ms }, asked)
            }
        };
        self.put(Kind::FRESH, count, noticed, delay);
    }

    /// Those who try in this step.
    pub(super) fn next(&mut self) -> Group {
        let trying = self.steps.pop_front().unwrap_or_default();
        self.waiting -= trying.total();
        trying
    }

    /// Attempts that came to nothing. With `has_greeted` the client has sent its ClientHello.
    pub(super) fn fail(&mut self, group: &Group, has_greeted: bool) {
        for (kind, count) in group.kinds() {
            let kind = if has_greeted { kind.with_ticket_spent().again() } else { kind.again() };
            let delay = self.library.delay(kind.attempts());
            self.put(kind, count, NOW, delay);
        }
    }

    /// Attempts that were answered with `Goodbye`, which says when to come back.
    pub(super) fn come_back(&mut self, group: &Group) {
        for (kind, count) in group.kinds() {
            let kind = kind.with_ticket_spent().again();
            let step = self.library.step(kind.attempts());
            self.put(kind, count, RETRY_AFTER, Span { from: 0, to: step / 2 });
        }
    }

    /// Segments that the kernel dropped: it sends them again after a second.
    pub(super) fn send_again(&mut self, group: &Group) {
        for (kind, count) in group.kinds() {
            self.put(kind, count, NOW, Span { from: RESENT_MS, to: RESENT_MS });
        }
    }

    /// Clients whose attempt has not begun.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting
    }

    pub(super) fn dice(&mut self) -> &mut Dice {
        &mut self.dice
    }

    /// Attempts that begin at a random time of `first`, and a random time of `then` later. They
    /// reach the gateway a round trip later.
    fn put(&mut self, kind: Kind, count: u64, first: Span, then: Span) {
        let slices = ((first.to - first.from) / STEP_MS).clamp(1, SLICES);
        for slice in 0..slices {
            let part = count / slices + u64::from(slice < count % slices);
            let width = first.to - first.from;
            let from = first.from + width * slice / slices + then.from + ROUND_TRIP_MS;
            let to = first.from + width * (slice + 1) / slices + then.to + ROUND_TRIP_MS;
            self.spread(kind, part, Span { from, to });
        }
    }

    /// Spreads clients evenly over a span; chance decides about the remainder.
    fn spread(&mut self, kind: Kind, count: u64, span: Span) {
        if count == 0 {
            return;
        }
        let first = span.from / STEP_MS;
        let width = (span.to / STEP_MS - first).max(1);
        let end = index(first + width);
        if self.steps.len() < end {
            self.steps.resize(end, Group::default());
        }
        self.waiting += count;
        let (each, rest) = (count / width, count % width);
        if each > 0 {
            for step in first..first + width {
                self.steps[index(step)].add(kind, each);
            }
        }
        for _ in 0..rest {
            let step = first + self.dice.below(width);
            self.steps[index(step)].add(kind, 1);
        }
    }
}

impl Dice {
    /// A number below `end`, which is small: the bias does not show.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }
}

fn index(step: u64) -> usize {
    usize::try_from(step).unwrap_or(usize::MAX)
}

/// Attempts after which the delay grows no more: 0.5 s doubles six times up to 30 s.
const ATTEMPTS: usize = 7;
/// A client gets two tickets at its handshake (`crates/weir/src/tls/config.rs`): 0, 1 or 2 are spent.
const SPENT: usize = 3;
const KINDS: usize = ATTEMPTS * SPENT;

/// The delay that `Goodbye` asks for (`crates/weir/src/base/frames.rs`).
const RETRY_AFTER: Span = Span { from: 1_000, to: 10_000 };
const NOW: Span = Span { from: 0, to: 0 };
/// The first time-out of TCP (RFC 6298).
const RESENT_MS: u64 = 1_000;
/// Assumed: a client in a mobile network.
pub(super) const ROUND_TRIP_MS: u64 = 100;
/// Into so many parts a span is cut to add another one.
const SLICES: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_rest_are_the_whole() {
        let mut group = Group::default();
        for (kind, count) in [(0, 7), (4, 100), (KINDS - 1, 3)] {
            group.add(Kind(kind), count);
        }
        let before = group;
        for count in [0, 1, 13, 50, 46] {
            let mut rest = group;
            let taken = rest.take(count);
            assert_eq!(taken.total(), count);
            rest.merge(&taken);
            assert_eq!(rest, before);
        }
        assert_eq!(group.take(1_000), before);
        assert!(group.is_empty());
    }

    #[test]
    fn delays_are_those_of_the_libraries() {
        let check = |library: Library, expected: [(u64, u64); ATTEMPTS]| {
            for (attempts, (from, to)) in expected.into_iter().enumerate() {
                let mut agenda = Agenda::new(library, 1);
                let kind = Kind(attempts * SPENT);
                agenda.put(kind, 100_000, NOW, library.delay(attempts));
                let tries = agenda.steps.iter().map(|group| !group.is_empty());
                let tries: Vec<usize> =
                    tries.enumerate().filter(|(_, is)| *is).map(|(step, _)| step).collect();
                let ms = |step: usize| step as u64 * STEP_MS - ROUND_TRIP_MS;
                let (first, last) = (ms(tries[0]), ms(*tries.last().expect("some")) + STEP_MS);
                assert_eq!((first, last), (from, to), "{library:?} after {attempts}");
                assert_eq!(agenda.waiting(), 100_000);
            }
        };
        let rust = [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000];
        check(Library::Rust, rust.map(|step| (step / 2, step)));
        let script = [500, 1_000, 2_000, 4_000, 8_000, 8_000, 8_000];
        check(Library::JavaScript, script.map(|step| (0, step)));
    }

    #[test]
    fn two_attempts_spend_two_tickets() {
        let mut kind = Kind::FRESH;
        for expected in [true, true, false, false] {
            assert_eq!(kind.has_ticket(), expected);
            kind = kind.with_ticket_spent().again();
        }
        for _ in 0..10 {
            kind = kind.again();
        }
        assert_eq!((kind.attempts(), kind.has_ticket()), (ATTEMPTS - 1, false));
    }
}
