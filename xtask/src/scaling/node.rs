//! A node that takes clients back: accept, admission, handshakes, settling.

use std::collections::VecDeque;
use std::mem;

use super::clients::{Group, ROUND_TRIP_MS, STEP_MS};
use super::costs;
use super::limits::{Limit, Limits, Settings, Transport};

/// A node.
///
/// ```text
///  backlog ─accept, admission─▶ queue (resumptions first) ─handshake─▶ secured ─a round trip─▶ settled
/// ```
pub(super) struct Node {
    /// Connections that are settled.
    pub(super) settled: u64,
    /// The most handshakes that have waited.
    pub(super) queue_peak: u64,
    /// CPU time that openings have taken.
    pub(super) busy_ns: u64,
    /// Connections that the kernel holds.
    backlog: Group,
    resumptions: Queue,
    full: Queue,
    /// Resumptions that went before the full handshakes since the last of these.
    passed: u64,
    /// Clients that have the gateway's answer, by the step in which theirs is due.
    secured: VecDeque<Group>,
    /// Clients in all of them.
    secured_count: u64,
    /// CPU time that this step has left; below 0: that the next one has less.
    cpu_ns: i64,
    /// Connects that sources have left, together, in thousandths.
    source_tokens: u64,
}

/// Handshakes that wait, by the step in which they came.
#[derive(Default)]
struct Queue {
    groups: VecDeque<(u64, Group)>,
    count: u64,
}

/// What became of clients in a step.
#[derive(Default)]
pub(super) struct Outcome {
    /// The gateway has reset them after their ClientHello, or they gave up waiting.
    pub(super) reset: Group,
    /// `Goodbye` has told them when to come back.
    pub(super) told: Group,
    /// The kernel has dropped their SYN.
    pub(super) unheard: Group,
    /// They have their `Welcome`.
    pub(super) welcomed: u64,
}

impl Node {
    pub(super) fn new(settled: u64, settings: &Settings) -> Node {
        let round_trip = usize::try_from(ROUND_TRIP_MS / STEP_MS).unwrap_or(0);
        Node {
            settled,
            queue_peak: 0,
            busy_ns: 0,
            backlog: Group::default(),
            resumptions: Queue::default(),
            full: Queue::default(),
            passed: 0,
            secured: vec![Group::default(); round_trip].into(),
            secured_count: 0,
            cpu_ns: 0,
            source_tokens: settings.sources.map_or(0, |sources| sources.full()),
        }
    }

    /// One step. `front_ns` is the CPU time that claims have taken meanwhile, which goes first.
    pub(super) fn step(
        &mut self,
        now: u64,
        arrivals: &Group,
        front_ns: u64,
        settings: &Settings,
        limits: &mut Limits,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let budget = signed(costs::CORES * STEP_NS * (100 - costs::CPU_BUSY_PERCENT) / 100);
        // An idle processor cannot be saved for later.
        self.cpu_ns = self.cpu_ns.min(0) + budget;
        let before = self.cpu_ns;
        self.spend(1, front_ns);
        self.settle(settings, limits, now, &mut outcome);
        self.accept(now, arrivals, settings, limits, &mut outcome);
        self.make_handshakes(now, settings, limits, &mut outcome);
        self.busy_ns += u64::try_from(before - self.cpu_ns).unwrap_or(0);
        outcome
    }

    /// Clients on their way in.
    pub(super) fn unsettled(&self) -> u64 {
        self.queued() + self.secured_count
    }

    /// Whether nothing happens in a step without arrivals.
    pub(super) fn is_idle(&self, settings: &Settings) -> bool {
        self.unsettled() == 0 && self.backlog.is_empty() && settings.sources.is_none()
    }

    /// Clients that the kernel holds for this node.
    pub(super) fn held(&self) -> u64 {
        self.backlog.total()
    }

    fn queued(&self) -> u64 {
        self.resumptions.count + self.full.count
    }

    /// The last messages of handshakes have come.
    fn settle(
        &mut self,
        settings: &Settings,
        limits: &mut Limits,
        now: u64,
        outcome: &mut Outcome,
    ) {
        let mut arrived = self.secured.pop_front().unwrap_or_default();
        self.secured.push_back(Group::default());
        self.secured_count -= arrived.total();
        let room = settings.connections_max.saturating_sub(self.settled);
        let welcomed = arrived.take(room).total();
        limits.meet(Limit::Connections, arrived.total(), now);
        outcome.told.merge(&arrived);
        outcome.welcomed += welcomed;
        self.settled += welcomed;
    }

    /// Accepts what the kernel holds, and admits or refuses it. One task accepts for a listener.
    fn accept(
        &mut self,
        now: u64,
        arrivals: &Group,
        settings: &Settings,
        limits: &mut Limits,
        outcome: &mut Outcome,
    ) {
        self.backlog.merge(arrivals);
        let mut accepted = self.backlog.take(STEP_NS / costs::ACCEPT_NS);
        let kept = self.backlog.take(settings.accept_backlog);
        let dropped = mem::replace(&mut self.backlog, kept);
        limits.meet(Limit::Backlog, dropped.total(), now);
        outcome.unheard.merge(&dropped);

        let room = settings.connections_max.saturating_sub(self.settled);
        // The limit counts settled connections: those on their way in are not among them.
        let rooms = if room == 0 { 0 } else { u64::MAX };
        let sources = self.take_tokens(settings, accepted.total());
        for (limit, room) in [
            (Limit::Connections, rooms),
            (Limit::Unsettled, settings.unsettled_max.saturating_sub(self.unsettled())),
            (Limit::Sources, sources),
        ] {
            let admitted = accepted.take(room);
            self.refuse(limit, &accepted, settings, limits, now, outcome);
            accepted = admitted;
        }
        self.queue(now, accepted, settings, limits, outcome);
    }

    fn take_tokens(&mut self, settings: &Settings, wanted: u64) -> u64 {
        let Some(sources) = settings.sources else { return u64::MAX };
        let gained = sources.count * sources.per_second * STEP_MS;
        self.source_tokens = (self.source_tokens + gained).min(sources.full());
        let taken = wanted.min(self.source_tokens / 1_000);
        self.source_tokens -= taken * 1_000;
        taken
    }

    /// Puts handshakes into the queue, as `crates/weir/src/tls/pool/mod.rs` does.
    fn queue(
        &mut self,
        now: u64,
        admitted: Group,
        settings: &Settings,
        limits: &mut Limits,
        outcome: &mut Outcome,
    ) {
        let (mut resumptions, mut full) = (Group::default(), Group::default());
        let may_resume = settings.transport == Transport::Tls && settings.has_ticket_secret;
        for (kind, count) in admitted.kinds() {
            let group = if may_resume && kind.has_ticket() { &mut resumptions } else { &mut full };
            group.add(kind, count);
        }
        let max = settings.queue_max;
        let kept = max / KEPT_PART;
        // A resumption may take the place of a full handshake: of the newest.
        let room = max.saturating_sub(self.resumptions.count + self.full.count.max(kept));
        let replaceable = self.full.count.saturating_sub(kept);
        let entered = resumptions.take(room + replaceable);
        let mut refused = self.full.take_newest(entered.total().saturating_sub(room));
        self.resumptions.push(now, entered);
        refused.merge(&resumptions);
        self.full.push(now, full.take(max.saturating_sub(self.queued())));
        refused.merge(&full);
        self.refuse(Limit::Queue, &refused, settings, limits, now, outcome);
        self.queue_peak = self.queue_peak.max(self.queued());
    }

    fn refuse(
        &mut self,
        limit: Limit,
        refused: &Group,
        settings: &Settings,
        limits: &mut Limits,
        now: u64,
        outcome: &mut Outcome,
    ) {
        limits.meet(limit, refused.total(), now);
        self.spend(refused.total(), costs::REFUSE_NS);
        match settings.transport {
            Transport::Tls => outcome.reset.merge(refused),
            Transport::Plain => outcome.told.merge(refused),
        }
    }

    /// Works the queue off, with the CPU time that is left.
    fn make_handshakes(
        &mut self,
        now: u64,
        settings: &Settings,
        limits: &mut Limits,
        outcome: &mut Outcome,
    ) {
        for queue in [&mut self.resumptions, &mut self.full] {
            let left = queue.take_since(now.saturating_sub(PATIENCE_STEPS));
            limits.meet(Limit::Patience, left.total(), now);
            outcome.reset.merge(&left);
        }
        while self.cpu_ns > 0 {
            let is_full_turn = self.resumptions.count == 0
                || (self.full.count > 0 && self.passed + 1 >= FULL_TURN);
            let turns = match (is_full_turn, self.full.count == 0, self.resumptions.count == 0) {
                (true, true, _) => return,
                (true, false, true) | (false, true, _) => u64::MAX,
                (true, false, false) => 1,
                (false, false, _) => FULL_TURN - 1 - self.passed,
            };
            let (queue, cost) = match (is_full_turn, settings.transport) {
                (false, _) => (&mut self.resumptions, costs::RESUMED_NS),
                (true, Transport::Tls) => (&mut self.full, costs::FULL_NS),
                (true, Transport::Plain) => (&mut self.full, costs::PLAIN_NS),
            };
            let affordable = u64::try_from(self.cpu_ns).unwrap_or(0).div_ceil(cost);
            let served = queue.take_oldest(turns.min(affordable));
            self.passed = if is_full_turn { 0 } else { self.passed + served.total() };
            self.spend(served.total(), cost);
            if let Some(last) = self.secured.back_mut() {
                last.merge(&served);
            }
            self.secured_count += served.total();
        }
    }

    fn spend(&mut self, count: u64, cost_ns: u64) {
        self.cpu_ns -= signed(count * cost_ns);
    }
}

impl Queue {
    fn push(&mut self, now: u64, group: Group) {
        if !group.is_empty() {
            self.count += group.total();
            self.groups.push_back((now, group));
        }
    }

    fn take_oldest(&mut self, count: u64) -> Group {
        let mut taken = Group::default();
        let mut left = count.min(self.count);
        self.count -= left;
        while let Some((_, oldest)) = self.groups.front_mut().filter(|_| left > 0) {
            let part = oldest.take(left);
            left -= part.total();
            taken.merge(&part);
            if oldest.is_empty() {
                self.groups.pop_front();
            }
        }
        taken
    }

    fn take_newest(&mut self, count: u64) -> Group {
        let mut taken = Group::default();
        let mut left = count.min(self.count);
        self.count -= left;
        while let Some((_, newest)) = self.groups.back_mut().filter(|_| left > 0) {
            let part = newest.take(left);
            left -= part.total();
            taken.merge(&part);
            if newest.is_empty() {
                self.groups.pop_back();
            }
        }
        taken
    }

    /// Takes those that came in a step or before it.
    fn take_since(&mut self, step: u64) -> Group {
        let old = self.groups.iter().take_while(|(since, _)| *since <= step);
        let count = old.map(|(_, group)| group.total()).sum();
        self.take_oldest(count)
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// One in so many places is only for full handshakes (`crates/weir/src/tls/pool/mod.rs`).
const KEPT_PART: u64 = 8;
/// One in so many turns is for a full handshake.
const FULL_TURN: u64 = 16;
/// A client waits for ten seconds (`connect_timeout`), and so does a handshake for its thread
/// (`connection.hello_timeout`).
const PATIENCE_STEPS: u64 = 10_000 / STEP_MS;
const STEP_NS: u64 = STEP_MS * 1_000_000;
