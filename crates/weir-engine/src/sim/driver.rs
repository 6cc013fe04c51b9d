//! A run: devices and a front act at random, and each turn is compared with the reference model.

use std::fmt;
use std::time::Duration;

use weir_wire::CloseReason;

use super::book::Book;
use super::conn::{Conn, Phase};
use super::dice::Dice;
use super::fault::{Fault, Faults};
use super::front::Reports;
use super::ids::Ids;
use super::net::SimOffer;
use super::secure;
use super::shard::SimShard;
use super::topic::TopicModel;
use crate::budget::{Budget, Share};
use crate::command::{Adoption, Command, CreditKind};
use crate::net::Net;
use crate::seeded_bug::SeededBug;
use crate::settings::ShardSettings;
use crate::slot::Slot;
use crate::stats::DropRule;
use crate::time::Nanos;

/// One run of the simulator. A seed decides everything in it.
///
/// Each event is an act of a device or of the front, or a fault. A turn of the shard mostly
/// follows, and after each turn everything is checked. At the end the shard drains, and nothing may
/// be left.
pub struct Run {
    pub(super) shard: SimShard<Reports>,
    pub(super) dice: Dice,
    pub(super) faults: Faults,
    pub(super) settings: ShardSettings,
    pub(super) book: Book,
    /// A connection here and its link in the network have the same index.
    pub(super) conns: Vec<Conn>,
    /// Connections that are not over.
    pub(super) live: Vec<usize>,
    /// Adopted connections that are not greeted yet because the queue had no room.
    pub(super) to_welcome: Vec<usize>,
    pub(super) topics: Vec<TopicModel>,
    /// Number of resumes begun so far, and the resumes that have asked for their next chunk.
    pub(super) resumes_begun: u32,
    pub(super) to_resume: Vec<(usize, usize, u32)>,
    pub(super) conns_wanted: usize,
    /// How often events that end connections really happen, in 65,536ths.
    pub(super) deadliness: u32,
    /// How often the shard is handed over, in 65,536ths.
    pub(super) hand_overs: u32,
    pub(super) front_room: usize,
    pub(super) front_full_turns: u32,
    pub(super) clock_still_turns: u32,
    /// Bytes of the budget that another user holds, and for how many turns.
    pub(super) foreign_share: Share,
    pub(super) foreign: usize,
    pub(super) foreign_turns: u32,
    pub(super) ids: Ids,
    /// Slots that were freed in the last turn.
    pub(super) freed: Vec<Slot>,
    /// The budget at the beginning of the last turn: its refusals, and the used bytes of each
    /// share.
    pub(super) refused_before: u64,
    pub(super) used_before: [usize; Share::COUNT],
    /// Whether the front had taken all reports when the last turn began.
    pub(super) is_up_to_date: bool,
    pub(super) sealed: secure::Sealed,
    pub(super) drains: DrainModel,
    pub(super) summary: Summary,
}

/// How far the drains of a run are, as the reports say.
#[derive(Debug, Default)]
pub(super) struct DrainModel {
    pub(super) is_some_over: bool,
    pub(super) is_asked_of_all: bool,
    pub(super) is_over: bool,
}

/// The counts of a run.
#[derive(Debug, Default, Clone)]
pub struct Summary {
    /// Events.
    pub events: u64,
    /// Turns of the shard.
    pub turns: u64,
    /// Virtual time that passed.
    pub lasted: Duration,
    /// Connections adopted.
    pub adopted: u64,
    /// Messages whose last byte a kernel took.
    pub delivered: u64,
    /// Items dropped.
    pub dropped: u64,
    /// Messages that were dropped, and messages that were conflated, for connections that did not
    /// keep up.
    pub slow: [u64; 2],
    /// Replay chunks that resuming connections have asked for.
    pub parts: u64,
    /// Bytes that kernels took.
    pub sent_bytes: u64,
    /// Pauses in reading because a connection sent too fast.
    pub pauses: u64,
    /// Ends, by reason.
    pub closed: [u64; CloseReason::COUNT],
    /// Faults, by kind.
    pub faults: Faults,
}

/// A contradiction, and its place.
#[derive(Debug)]
pub struct Failure {
    /// The seed of the run.
    pub seed: u64,
    /// The number of the event.
    pub event: u64,
    /// The contradiction.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}, event {}: {}", self.seed, self.event, self.what)
    }
}

impl Summary {
    /// Adds another run.
    pub fn add(&mut self, other: &Summary) {
        self.events += other.events;
        self.turns += other.turns;
        self.lasted += other.lasted;
        self.adopted += other.adopted;
        self.delivered += other.delivered;
        self.dropped += other.dropped;
        self.slow = [self.slow[0] + other.slow[0], self.slow[1] + other.slow[1]];
        self.parts += other.parts;
        self.sent_bytes += other.sent_bytes;
        self.pauses += other.pauses;
        for (count, more) in self.closed.iter_mut().zip(other.closed) {
            *count += more;
        }
        self.faults.add(&other.faults);
    }
}

impl Run {
    /// A run that `seed` decides.
    pub fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let settings = settings(&mut dice);
        let budget = Budget::new(1024 << dice.between(5, 11));
        let front_room = dice.between(2, 400) as usize;
        let reports = Reports::with_room(front_room);
        let mut shard = SimShard::new(3, settings.clone(), budget, reports, seed ^ 0x5eed);
        shard.net().faults = rates(&mut dice);
        shard.net().announces_all = dice.chance(1 << 15);
        let commands = [1, 3, 16, 512][dice.index(4)];
        let sends = [1, 2, 7, 256][dice.index(4)];
        // A broadcast looks at every slot of a chunk, used or not.
        let steps = [30, 150, 1100, 4096][dice.index(4)];
        let touched = [1, 3, 32, 1 << 15][dice.index(4)];
        let recv_bytes = [16, 100, 2048, 1 << 16][dice.index(4)];
        shard.cut_turns(commands, sends, steps, touched, recv_bytes);
        shard.cut_replies([1, 100, 1000, 1 << 14][dice.index(4)]);
        shard.cut_generations(Ids::drawn_generation_max(&mut dice));
        let ids = Ids::begin(&settings.node, &mut dice);
        let topics = dice.between(1, 8);
        let conns_wanted = dice.between(3, 48) as usize;
        let deadliness = (1 << 16) >> dice.below(6);
        let hand_overs = [0, 1 << 8, 1 << 10][dice.index(3)];
        let mut run = Self {
            shard,
            faults: Faults::default(),
            settings,
            book: Book::default(),
            conns: Vec::new(),
            live: Vec::new(),
            to_welcome: Vec::new(),
            topics: Vec::new(),
            resumes_begun: 0,
            to_resume: Vec::new(),
            conns_wanted,
            deadliness,
            hand_overs,
            front_room,
            front_full_turns: 0,
            clock_still_turns: 0,
            foreign_share: Share::Messages,
            foreign: 0,
            foreign_turns: 0,
            ids,
            freed: Vec::new(),
            refused_before: 0,
            used_before: [0; Share::COUNT],
            is_up_to_date: true,
            sealed: secure::begin(&mut dice),
            drains: DrainModel::default(),
            summary: Summary::default(),
            dice,
        };
        run.book.keys_max = run.settings.conflation_keys_max;
        for _ in 0..topics {
            let topic = run.topic();
            run.topics.push(topic);
        }
        run
    }

    /// Puts a seeded bug into the shard.
    pub fn seed_bug(&mut self, bug: SeededBug) {
        self.shard.seed_bug(bug);
    }

    /// Lets `events` events happen, then drains.
    ///
    /// Errors: the first contradiction. A panic of the shard is one too, and passes through.
    pub fn run(mut self, events: u64) -> Result<Summary, (u64, String)> {
        for event in 0..events {
            self.summary.events = event + 1;
            self.event().map_err(|what| (event, what))?;
        }
        self.end().map_err(|what| (events, what))?;
        self.sum_up();
        Ok(self.summary)
    }

    pub(super) fn event(&mut self) -> Result<(), String> {
        if self.dice.chance(self.hand_overs) {
            self.hand_over()?;
        }
        if self.dice.chance(1 << 15) {
            self.device_acts()
        } else {
            self.front_acts()?
        }
        if self.dice.chance(3 << 14) { self.turn() } else { Ok(()) }
    }

    /// Suspends the shard for some turns, and hands it over if it is at rest then.
    fn hand_over(&mut self) -> Result<(), String> {
        // The pause is short, and a turn may serve a single event; how late the pause makes anything is
        // for measurements.
        let entries = u32::try_from(self.shard.stats().table_entries.get()).unwrap_or(u32::MAX);
        self.clock_still_turns = self.clock_still_turns.max(entries.saturating_add(8));
        self.shard.net().hold_clock(true);
        self.turn()?;
        self.shard.suspend(true);
        for _ in 0..self.dice.below(4) {
            self.turn()?;
        }
        if self.shard.hand_over() {
            self.faults.note(Fault::HandOver);
            self.shard.check().map_err(|what| format!("after a handover: {what}"))?;
        }
        self.shard.suspend(false);
        Ok(())
    }

    /// Takes one turn of the shard, and checks everything after it.
    pub(super) fn turn(&mut self) -> Result<(), String> {
        self.book.turn += 1;
        self.count_down();
        for at in 0..self.live.len() {
            self.device_reads(self.live[at]);
        }
        let wait_ms = match self.dice.below(8) {
            0..=2 => 0,
            3..=4 => self.dice.below(20),
            _ => self.dice.between(50, 400),
        };
        let until = self.shard.now().after(Duration::from_millis(wait_ms.into()));
        self.refused_before = self.shard.budget().refused();
        self.used_before = Share::ALL.map(|share| self.shard.budget().used_of(share));
        self.shard.turn_until(until);
        self.note_slow();
        if self.ids.note_retired(self.shard.stats().slots_retired.get()) {
            self.faults.note(Fault::SlotRetired);
        }
        self.check_seals()?;
        self.observe()?;
        self.note_sealed();
        self.note_reading();
        self.shard.check()?;
        self.check_all()?;
        let is_open = self.front_full_turns == 0;
        if is_open && self.dice.chance(3 << 14) {
            self.take_reports()?;
        }
        self.is_up_to_date =
            self.shard.shard().is_quiet() && self.shard.front_mut().is_empty() && is_open;
        self.bury_the_dead()
    }

    /// Ends conditions that last some turns.
    fn count_down(&mut self) {
        if self.front_full_turns > 0 {
            self.front_full_turns -= 1;
            if self.front_full_turns == 0 {
                let room = self.front_room;
                self.shard.front_mut().set_room(room);
            }
        }
        if self.clock_still_turns > 0 {
            self.clock_still_turns -= 1;
            let is_still = self.clock_still_turns > 0;
            self.shard.net().hold_clock(is_still);
        }
        if self.foreign_turns > 0 {
            self.foreign_turns -= 1;
            if self.foreign_turns == 0 {
                let bytes = std::mem::take(&mut self.foreign);
                self.shard.budget().give(self.foreign_share, bytes);
            }
        }
    }

    /// Ends some connections, and then all. Then nothing may be left.
    fn end(&mut self) -> Result<(), String> {
        // After a handover it serves what has come in the pause.
        while self.clock_still_turns > 1 {
            self.turn()?;
        }
        self.drain_some()?;
        self.front_full_turns = self.front_full_turns.min(1);
        self.foreign_turns = self.foreign_turns.min(1);
        self.drain_all()?;
        self.check_nothing_left()
    }

    fn sum_up(&mut self) {
        let stats = std::sync::Arc::clone(self.shard.stats());
        let summary = &mut self.summary;
        summary.turns = stats.turns.get();
        summary.lasted = self.shard.net().now().since(Nanos(1_000_000_000));
        summary.adopted = stats.adopted.get();
        summary.delivered = stats.delivered.get();
        summary.dropped = stats.dropped.iter().map(|count| count.get()).sum();
        summary.slow =
            [DropRule::Slow, DropRule::Conflated].map(|rule| stats.dropped[rule as usize].get());
        summary.sent_bytes = stats.sent_bytes.get();
        summary.pauses = stats.reads_rate_limited.get();
        summary.closed = std::array::from_fn(|index| stats.closed[index].get());
        summary.faults.add(&self.faults);
        summary.faults.add(&self.shard.net().faults);
    }

    /// Pushes a command into the queue, if it has room.
    pub(super) fn push(&mut self, command: Command<SimOffer>) -> bool {
        match self.shard.mailbox().try_push(command) {
            Ok(()) => {
                self.book.position += 1;
                true
            }
            Err(_) => {
                self.faults.note(Fault::LaneFull);
                false
            }
        }
    }

    /// Offers a connection, if the queue and the passage have room.
    pub(super) fn offer(&mut self, adoption: Adoption<SimOffer>) -> bool {
        let Some(credit) = self.shard.mailbox().try_credit(CreditKind::Control) else {
            self.faults.note(Fault::LaneFull);
            return false;
        };
        if credit.offer_quietly(Box::new(adoption)).is_err() {
            self.faults.note(Fault::PassageFull);
            return false;
        }
        self.book.position += 1;
        true
    }

    /// A connection that the front can name, if there is one.
    pub(super) fn pick_open(&mut self) -> Option<usize> {
        for _ in 0..4 {
            let index = *self.dice.pick(&self.live)?;
            if self.conns[index].phase == Phase::Open {
                return Some(index);
            }
        }
        None
    }
}

/// Runs one seed. A panic counts as a failure.
pub fn run_seed(seed: u64, events: u64, bug: Option<SeededBug>) -> Result<Summary, Failure> {
    let outcome = std::panic::catch_unwind(|| {
        let mut run = Run::new(seed);
        if let Some(bug) = bug {
            run.seed_bug(bug);
        }
        run.run(events)
    });
    match outcome {
        Ok(Ok(summary)) => Ok(summary),
        Ok(Err((event, what))) => Err(Failure { seed, event, what }),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            let what = format!("panic: {}", text.unwrap_or("without a message"));
            Err(Failure { seed, event: u64::MAX, what })
        }
    }
}

/// Small limits and short time-outs, so that runs reach them all.
fn settings(dice: &mut Dice) -> ShardSettings {
    let low = 64 << dice.below(6);
    ShardSettings {
        connections_max: dice.between(3, 60) as usize,
        topics_per_connection_max: dice.between(1, 6) as usize,
        frame_bytes_max: 1024,
        low_watermark_bytes: low,
        high_watermark_bytes: low * dice.between(2, 8) as usize,
        conflation_keys_max: [2, 6, 4096][dice.index(3)],
        // Lower than the rate of devices in a busy second, so some of them are paused.
        frames_per_second: [0, 0, 10][dice.index(3)],
        frame_burst: 12,
        stall_timeout: Duration::from_millis(dice.between(300, 3000).into()),
        frame_timeout: Duration::from_millis(dice.between(300, 3000).into()),
        linger_timeout: Duration::from_millis(dice.between(100, 800).into()),
        retry_after_ms: (1, 1000),
        message_capacity: dice.between(4, 60) as usize,
        control_capacity: dice.between(4, 60) as usize,
        reserved_capacity: dice.between(2, 6) as usize,
        own_descriptors: dice.chance(1 << 15),
        ..ShardSettings::default()
    }
}

/// Rates of faults. Some runs have much of a kind of fault, some none.
fn rates(dice: &mut Dice) -> Faults {
    let mut rate = |most: u32| {
        let share = [0, 1, 4, 16][dice.index(4)];
        most * share / 16
    };
    Faults {
        partial_write: rate(20_000),
        refusal_storm: rate(6000),
        interrupted: rate(6000),
        adopt_failed: rate(6000),
        no_descriptor: rate(6000),
        spurious_edge: rate(6000),
        late_edge: rate(6000),
        short_wait: rate(30_000),
        ..Faults::default()
    }
}
