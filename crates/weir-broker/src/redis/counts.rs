//! What a Redis broker counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::{Arg, Cmd};

use super::scripts::SCRIPTS;
use crate::contract::BrokerCounts;
use crate::durations::DurationCounts;

/// The counters behind [`BrokerCounts`].
pub(super) struct Counters {
    /// By kind: the scripts, then [`PLAIN`], then all others.
    commands: Box<[AtomicU64]>,
    round_trips: Mutex<DurationCounts>,
    pub(super) pipelines: AtomicU64,
    pub(super) connects: AtomicU64,
    pub(super) resubscriptions: AtomicU64,
    pub(super) probes_missed: AtomicU64,
    pub(super) unknown_messages: AtomicU64,
    pub(super) evicting: AtomicU64,
}

impl Default for Counters {
    fn default() -> Counters {
        let kinds = SCRIPTS.len() + PLAIN.len() + 1;
        Counters {
            commands: (0..kinds).map(|_| AtomicU64::new(0)).collect(),
            round_trips: Mutex::default(),
            pipelines: AtomicU64::new(0),
            connects: AtomicU64::new(0),
            resubscriptions: AtomicU64::new(0),
            probes_missed: AtomicU64::new(0),
            unknown_messages: AtomicU64::new(0),
            evicting: AtomicU64::new(0),
        }
    }
}

impl Counters {
    pub(super) fn read(&self) -> BrokerCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let names = SCRIPTS.iter().map(|script| script.name).chain(PLAIN).chain(["other"]);
        BrokerCounts {
            commands: names.zip(self.commands.iter().map(read)).collect(),
            pipelines: read(&self.pipelines),
            round_trips: *self.round_trips.lock().unwrap_or_else(PoisonError::into_inner),
            connects: read(&self.connects),
            resubscriptions: read(&self.resubscriptions),
            probes_missed: read(&self.probes_missed),
            unknown_messages: read(&self.unknown_messages),
            evicting: read(&self.evicting),
        }
    }

    /// A command leaves.
    pub(super) fn count_command(&self, command: &Cmd) {
        count(&self.commands[kind_of(command)]);
    }

    /// A pipeline is answered.
    pub(super) fn count_round_trip(&self, took: Duration) {
        self.round_trips.lock().unwrap_or_else(PoisonError::into_inner).record(took);
    }
}

/// Counts one more.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The place of a command's kind among the counters.
fn kind_of(command: &Cmd) -> usize {
    let mut words =
        command.args_iter().map(|word| if let Arg::Simple(bytes) = word { bytes } else { &[] });
    let verb = words.next().unwrap_or_default();
    if verb == b"EVALSHA" {
        let hash = words.next().unwrap_or_default();
        let script = SCRIPTS.iter().position(|script| script.has_hash(hash));
        return script.unwrap_or(SCRIPTS.len() + PLAIN.len());
    }
    let plain = PLAIN.iter().position(|name| name.as_bytes().eq_ignore_ascii_case(verb));
    SCRIPTS.len() + plain.unwrap_or(PLAIN.len())
}

/// Commands that are not scripts and have a count of their own: messages to devices and nodes, and releases.
const PLAIN: [&str; 2] = ["spublish", "zrem"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::scripts::{PUBLISH, TOPS};

    #[test]
    fn commands_count_by_kind() {
        let counters = Counters::default();
        let keys = ["k".to_owned()];
        let mut commands = vec![PUBLISH.run(keys.iter()), TOPS.run(keys.iter())];
        commands.extend(["SPUBLISH", "ZREM", "WAIT", "PING"].map(redis::cmd));
        commands.iter().for_each(|command| counters.count_command(command));
        let counts = counters.read().commands.into_iter().filter(|(_, count)| *count > 0);
        let expected = [("publish", 1), ("tops", 1), ("spublish", 1), ("zrem", 1), ("other", 2)];
        assert_eq!(counts.collect::<Vec<_>>(), expected);
    }
}
