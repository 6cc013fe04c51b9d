//! Metrics of authentication.

use std::fmt;

use super::Gateway;
use super::families::Families;
use crate::{AuthKind, AuthOutcome, RefreshOutcome};

impl Gateway {
    pub(super) fn auth(&self, to: &mut Families<'_>) -> fmt::Result {
        let front = self.handle.counters();
        let of = |kind: AuthKind| {
            AuthOutcome::ALL.map(|outcome| {
                let labels = [("kind", kind.name()), ("outcome", outcome.name())];
                (labels, front.authentications(kind, outcome))
            })
        };
        to.counters(
            "weir_authentications",
            "Credentials looked at: of connections, of requests, and to prolong a connection.",
            AuthKind::ALL.into_iter().flat_map(of),
        )?;
        to.counter(
            "weir_jwt_verifications",
            "Signed tokens that were verified; one that was found valid lately is not verified again.",
            front.verifications(),
        )?;
        to.counter(
            "weir_credentials_expiring",
            "Connections that were told that their credentials end.",
            front.expiring_told(),
        )?;
        to.counters(
            "weir_credentials_refreshes",
            "Refresh of connections, by how it ended.",
            RefreshOutcome::ALL
                .map(|outcome| ([("outcome", outcome.name())], front.refreshes(outcome))),
        )
    }
}
