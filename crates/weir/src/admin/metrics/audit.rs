//! Metrics of the audit log, and of sessions.

use std::fmt;

use super::Gateway;
use super::families::Families;
use crate::observe::audit::ActOutcome;

impl Gateway {
    pub(super) fn audit(&self, to: &mut Families<'_>) -> fmt::Result {
        let (audit, access) = (&self.handle.shared().audit, &self.handle.shared().admin_access);
        to.counters(
            "weir_admin_acts",
            "Acts of callers of the admin API that the audit log tells of, by how they ended.",
            ActOutcome::ALL.map(|outcome| ([("outcome", outcome.name())], audit.count(outcome))),
        )?;
        let refusals = ActOutcome::ALL.into_iter().filter(|outcome| outcome.is_refusal());
        to.counters(
            "weir_audit_left_out",
            "Refused attempts that are in the audit log only as a number, because there were many.",
            refusals.map(|outcome| ([("outcome", outcome.name())], audit.left_out(outcome))),
        )?;
        to.gauge(
            "weir_admin_sessions",
            "Open sessions of the admin API.",
            access.session_count() as u64,
        )
    }
}
