//! Metrics of presence.

use std::fmt;

use super::Gateway;
use super::families::Families;
use crate::PresenceOutcome;

impl Gateway {
    pub(super) fn presence(&self, to: &mut Families<'_>) -> fmt::Result {
        let (front, router) = (self.handle.counters(), &self.handle.shared().router);
        to.gauge(
            "weir_presence_members",
            "Connections in topics with presence, once for each topic (limits.presence_members_max).",
            router.member_count() as u64,
        )?;
        to.gauge(
            "weir_presence_unlisted",
            "Connections in such topics that are not listed, because there was no place for them.",
            router.unlisted_count() as u64,
        )?;
        to.counters(
            "weir_presence_changes",
            "Changes of who is in topics, by what happened to them at this node.",
            PresenceOutcome::ALL
                .map(|outcome| ([("outcome", outcome.name())], front.presence(outcome))),
        )
    }
}
