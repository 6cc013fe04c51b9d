//! Metrics of authentication.

use std::fmt;

use super::Gateway;
use super::families::Families;
use crate::auth::jwt::issuers::FetchOutcome;
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
        self.issuers(to)?;
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

    /// Writes nothing if no issuer's keys are fetched.
    fn issuers(&self, to: &mut Families<'_>) -> fmt::Result {
        let list = self.handle.shared().auth.jwt().issuers().list();
        if list.is_empty() {
            return Ok(());
        }
        let each: Vec<_> = list.iter().map(|issuer| (issuer.name(), issuer.status())).collect();
        let fetches = each.iter().flat_map(|(name, status)| {
            let row = |(outcome, count): (FetchOutcome, u64)| {
                ([("issuer", *name), ("outcome", outcome.name())], count)
            };
            status.fetches.map(row)
        });
        to.counters("weir_jwt_key_fetches", "Fetches of an issuer's keys, by outcome.", fetches)?;
        to.gauges(
            "weir_jwt_keys",
            "Keys of an issuer that are in use.",
            each.iter().map(|(name, status)| ([("issuer", *name)], status.keys as u64)),
        )?;
        let ages = each.iter().filter_map(|(name, status)| Some((name, status.age?)));
        to.gauges(
            "weir_jwt_keys_age_seconds",
            "Time since an issuer's keys were last fetched.",
            ages.map(|(name, age)| ([("issuer", *name)], age.as_secs_f64())),
        )?;
        to.counters(
            "weir_jwt_unknown_keys",
            "Tokens that named a key that their issuer's keys did not contain.",
            each.iter().map(|(name, status)| ([("issuer", *name)], status.unknown_keys)),
        )
    }
}
