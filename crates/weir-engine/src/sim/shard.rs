//! One shard on the simulated network, stepped by hand.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::link::{PeerId, PeerView};
use super::net::{Offer, SimNet, SimOffer, SimPassage};
use crate::budget::Budget;
use crate::command::{Command, Front, Urgent};
use crate::mailbox::{Mailbox, NotPassed, Pass};
use crate::net::Net;
use crate::seeded_bug::SeededBug;
use crate::settings::ShardSettings;
use crate::shard::{SLICES, Shard, Slices};
use crate::slot::Slot;
use crate::stats::ShardStats;
use crate::time::Nanos;

/// A shard on a simulated network, with the front `F` and connections offered as `O`.
///
/// Nothing happens by itself. [`SimShard::turn`] takes one turn, [`SimShard::settle`] takes turns
/// until there is nothing to do, and [`SimShard::advance`] lets time pass. The `peer_*` functions
/// play the peers. After any of them [`SimShard::check`] looks for contradictions in the shard.
pub struct SimShard<F: Front, O: Offer = SimOffer> {
    shard: Shard<SimNet<O>, F>,
    mailbox: Mailbox<O>,
    budget: Arc<Budget>,
    stats: Arc<ShardStats>,
}

/// A shard that is not idle after this many turns never will be.
const TURNS_MAX: u32 = 1_000_000;

impl<F: Front, O: Offer> SimShard<F, O> {
    /// A shard without connections. `seed` decides the faults of its network; there are none unless
    /// asked for.
    pub fn new(
        index: u8,
        settings: ShardSettings,
        budget: Arc<Budget>,
        front: F,
        seed: u64,
    ) -> Self {
        let net = SimNet::new(seed);
        let (mailbox, inbox) = Mailbox::new(
            [settings.message_capacity, settings.control_capacity],
            settings.reserved_capacity,
            Box::new(|| ()), // It is stepped by hand and never sleeps.
            settings.own_descriptors.then(|| pass_into(net.passage(), seed)),
        );
        let stats = Arc::new(ShardStats::default());
        let shard =
            Shard::new(index, net, front, inbox, settings, Arc::clone(&budget), Arc::clone(&stats));
        Self { shard, mailbox, budget, stats }
    }

    /// The shard's mailbox. Clones reach the same shard.
    pub fn mailbox(&self) -> &Mailbox<O> {
        &self.mailbox
    }

    /// The shard's counters.
    pub fn stats(&self) -> &Arc<ShardStats> {
        &self.stats
    }

    /// The byte budget.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// The front.
    pub fn front_mut(&mut self) -> &mut F {
        self.shard.front_mut()
    }

    /// The network under the shard: faults, the clock, sockets.
    pub fn net(&mut self) -> &mut SimNet<O> {
        self.shard.net_mut()
    }

    /// The virtual clock.
    pub fn now(&mut self) -> Nanos {
        self.net().now()
    }

    /// Pushes a command into the queue, which must have room.
    pub fn push(&self, command: Command<O>) {
        assert!(self.mailbox.try_push(command).is_ok(), "the queue is full");
    }

    /// Pushes a request into the reserved queue, which must have room.
    pub fn push_urgent(&self, urgent: Urgent) {
        assert!(self.mailbox.try_urgent(urgent).is_ok(), "the reserved queue is full");
    }

    /// Puts a seeded bug into the shard.
    pub fn seed_bug(&mut self, bug: SeededBug) {
        self.shard.seed_bug(bug);
    }

    /// Makes a turn do less at once: commands (and events of readiness), sends of a fan-out,
    /// entries that it looks at, connections of a gathering, and bytes of one read. So a few
    /// connections make fan-outs that otherwise take a hundred thousand.
    pub fn cut_turns(
        &mut self,
        commands: usize,
        sends: usize,
        steps: usize,
        touched: usize,
        recv_bytes: usize,
    ) {
        let slices = Slices { commands, events: commands, sends, steps, touched, ..SLICES };
        self.shard.cut_turns(slices, recv_bytes);
    }

    /// Makes a few bytes of answers enough that the frames behind them wait.
    pub fn cut_replies(&mut self, bytes: usize) {
        self.shard.cut_replies(bytes);
    }

    /// Has slots retired after so many connections each, so that a few connections are enough.
    pub fn cut_generations(&mut self, generation_max: u32) {
        self.shard.cut_generations(generation_max);
    }

    /// Suspends the shard, as before a hand-over, or serve again.
    pub fn suspend(&mut self, is_suspended: bool) {
        self.shard.suspend(is_suspended);
    }

    /// Hands the shard over, as an upgrade does, if it is at rest. Returns whether it was.
    pub fn hand_over(&mut self) -> bool {
        let is_over = self.shard.hand_over();
        if is_over {
            // The sockets are registered anew.
            self.net().announce_all();
        }
        is_over
    }

    /// Takes one turn without letting time pass.
    pub fn turn(&mut self) {
        let now = self.now();
        self.turn_until(now);
    }

    /// Takes one turn that may wait until `until`.
    pub fn turn_until(&mut self, until: Nanos) {
        self.net().set_wait_until(until);
        self.shard.turn();
        if self.net().take_wake() {
            self.mailbox.deliver_answers();
        }
    }

    /// Takes turns until there is nothing to do.
    ///
    /// Panics: if that never happens.
    pub fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            self.turn();
            if self.net().was_idle() {
                return;
            }
        }
        panic!("the shard is still busy after {TURNS_MAX} turns");
    }

    /// Lets time pass, in turns, and settles.
    pub fn advance(&mut self, by: Duration) {
        let until = self.now().after(by);
        for _ in 0..TURNS_MAX {
            self.turn_until(until);
            if self.now() >= until {
                return self.settle();
            }
        }
        panic!("time stands still");
    }

    /// Looks for contradictions in the shard's tables. Costs a look at every entry.
    pub fn check(&self) -> Result<(), String> {
        self.shard.check_invariants()
    }

    pub(crate) fn take_slow(&mut self) -> Vec<(Slot, bool)> {
        self.shard.take_slow()
    }

    pub(crate) fn shard(&self) -> &Shard<SimNet<O>, F> {
        &self.shard
    }

    /// Makes a new connection that `offer` stands for.
    pub fn connect_with(&mut self, offer: &O) -> PeerId {
        self.net().connect_with(offer)
    }

    /// The peer sends bytes.
    pub fn peer_write(&mut self, peer: PeerId, bytes: &[u8]) {
        self.net().peer_write(peer, bytes);
    }

    /// The peer reads everything that has come.
    pub fn peer_read(&mut self, peer: PeerId) -> Vec<u8> {
        self.net().peer_read(peer, usize::MAX)
    }

    /// The peer ends its side.
    pub fn peer_end(&mut self, peer: PeerId) {
        self.net().peer_end(peer);
    }

    /// The peer resets the connection.
    pub fn peer_reset(&mut self, peer: PeerId) {
        self.net().peer_fail(peer, io::ErrorKind::ConnectionReset);
    }

    /// The state of the connection, as its peer can tell.
    pub fn peer_view(&mut self, peer: PeerId) -> PeerView {
        self.net().peer_view(peer)
    }
}

/// The front's end of a passage. It holds one to three sockets, by the seed.
fn pass_into<O: Offer>(passage: SimPassage<O>, seed: u64) -> Pass<O> {
    Box::new(move |offer, passed| {
        let mut passage = passage.lock().expect("no one panicked");
        if passage.len() as u64 > seed % 3 {
            return Err((offer, NotPassed::Full));
        }
        passage.push_back((passed, offer));
        Ok(())
    })
}

impl<F: Front> SimShard<F, SimOffer> {
    /// Makes a new connection. Returns its peer and its offer.
    pub fn connect(&mut self) -> (PeerId, SimOffer) {
        self.net().connect()
    }
}
