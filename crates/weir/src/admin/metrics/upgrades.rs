//! The metrics of upgrades.

use std::fmt;

use super::Gateway;
use super::families::Families;
use crate::observe::upgrades::{UpgradeLimit, UpgradeOutcome};

impl Gateway {
    pub(super) fn upgrades(&self, to: &mut Families<'_>) -> fmt::Result {
        let upgrades = &self.handle().shared().upgrades;
        to.counters(
            "weir_upgrades",
            "Upgrades by outcome, those of the processes before this one included.",
            UpgradeOutcome::ALL
                .map(|outcome| ([("outcome", outcome.name())], upgrades.count(outcome))),
        )?;
        to.counters(
            "weir_upgrade_limits_reached",
            "What limits of upgrades have refused, lost or closed, those of the processes before this one included.",
            UpgradeLimit::ALL.map(|limit| ([("limit", limit.name())], upgrades.reached(limit))),
        )?;
        let Some(last) = upgrades.last() else { return Ok(()) };
        to.duration(
            "weir_upgrade_pause",
            "How long nobody was served when this process took over.",
            last.pause,
        )?;
        to.gauges(
            "weir_upgrade_connections_moved",
            "Connections that this process took over, by transport.",
            last.connections.iter().map(|(transport, count)| ([("transport", *transport)], *count)),
        )?;
        to.gauges(
            "weir_upgrade_connections_stayed",
            "Connections that the process before this one kept, by cause.",
            last.stayed.iter().map(|(cause, count)| ([("cause", *cause)], *count)),
        )
    }
}
