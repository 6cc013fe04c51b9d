//! Metrics of descriptor tables and of the passages into them, if shards have tables of their own.

use std::fmt;

use weir_engine::NotPassed;

use super::Gateway;
use super::families::Families;
use crate::admin::process;

impl Gateway {
    /// Writes nothing without `engine.own_descriptors`: then `process_open_fds` and
    /// `process_max_fds` describe the only table.
    pub(super) fn descriptors(&self, to: &mut Families<'_>) -> fmt::Result {
        if self.handle.shared().admission.tables().shard.is_none() {
            return Ok(());
        }
        let mut open = self.by_shard(|shard| shard.descriptors.get());
        open.extend(process::open_fds().map(|count| ("front".to_owned(), count)));
        let rows = || open.iter().map(|(table, count)| ([("table", table.as_str())], *count));
        to.gauges(
            "weir_descriptors",
            "Open file descriptors, by table: of each shard, by its number, and of the front.",
            rows(),
        )?;
        if let Some(max) = process::max_fds() {
            to.gauges(
                "weir_descriptors_max",
                "The limit on open file descriptors, by table.",
                rows().map(|(table, _)| (table, max)),
            )?;
        }
        let engine = self.handle.engine();
        let waiting = (0..engine.shard_count()).map(|shard| engine.mailbox(shard).passing());
        to.gauge(
            "weir_passage_sockets",
            "Sockets on their way from the front to shards.",
            waiting.sum(),
        )?;
        let front = self.handle.counters();
        to.counters(
            "weir_passage_refused",
            "Attempts to pass a socket to a shard that were put off or ended, by cause.",
            NotPassed::ALL.map(|cause| ([("cause", cause.name())], front.not_passed(cause))),
        )?;
        to.counter(
            "weir_passage_lost",
            "Sockets that the kernel closed on their way because a shard had no free descriptor.",
            self.sum(|shard| &shard.passage_lost),
        )
    }
}
