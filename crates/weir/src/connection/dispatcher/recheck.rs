//! After a reload: which connections and subscriptions the configuration no longer permits.

use weir_engine::{ConnId, DeviceRef, Origin};
use weir_wire::CloseReason;

use super::{Asker, Dispatcher, Job, OutOfCredit, caller};
use crate::auth::devices::Pin;
use crate::auth::{Admission, GrantRef, OWN_GRANT, Term};
use crate::core::recheck::{Recheck, Rechecked, Settled};

impl Dispatcher {
    /// Queues a recheck behind the jobs that were checked before it.
    pub(super) fn take_recheck(&mut self, recheck: Recheck) {
        self.jobs.push_back(Job::Recheck(Box::new(recheck)));
    }

    /// Whether the credentials in use admit a connection that others have admitted.
    ///
    /// Connections that are entered already are found by a recheck instead.
    pub(super) fn is_still_admitted(
        &self,
        (pin, origin): (&Pin, Origin),
        term: Option<&Term>,
        version: u64,
    ) -> bool {
        let auth = &self.shared.auth;
        if auth.version() == version {
            return true;
        }
        let numbered = GrantRef::Numbered(origin.grant);
        let grant = match (origin.grant, term) {
            (OWN_GRANT, Some(term)) => &term.grant,
            _ => &numbered,
        };
        self.shared.devices.with_id_of_pin(pin, |id| auth.admits(grant, version, id))
    }

    /// The same for the token of a `Refresh`.
    pub(super) fn is_still_valid(
        &self,
        device: DeviceRef,
        conn: ConnId,
        Admission { grant, version, .. }: &Admission,
    ) -> bool {
        let auth = &self.shared.auth;
        let admits = |id: &str| auth.admits(grant, *version, id);
        auth.version() == *version
            || self.shared.devices.with_id_of(device, conn, admits) == Some(true)
    }

    pub(super) fn recheck(&mut self, Recheck { settled, changed, answer }: Recheck) {
        let mut rechecked = Rechecked::default();
        for settled in settled {
            let Settled { conn, device, origin, mut topics } = settled;
            let asker = Asker { conn, device, origin };
            // It was replaced, or is being closed.
            if !self.shared.devices.has(device, conn) {
                continue;
            }
            if changed.admits_less && !self.is_admitted(asker) {
                rechecked.closed += u64::from(self.expel_connection(asker));
                continue;
            }
            topics.extend(self.shared.router.resumed_by(conn));
            topics.sort_unstable();
            topics.dedup();
            for topic in topics.into_iter().filter(|topic| changed.concerns(*topic)) {
                rechecked.unsubscribed += u64::from(self.recheck_topic(asker, topic));
            }
        }
        // The reload may have been given up.
        let _ = answer.send(rechecked);
    }

    /// Whether the credentials of a settled connection are valid for its device.
    fn is_admitted(&self, asker: Asker) -> bool {
        let auth = &self.shared.auth;
        let numbered = GrantRef::Numbered(asker.origin.grant);
        let grant = match asker.origin.grant {
            OWN_GRANT => self.terms.grant(asker.conn),
            _ => Some(&numbered),
        };
        // A connection without a term has gone.
        let Some(grant) = grant else { return true };
        // The number of a removed token is nobody's until the next reload.
        let admits = |id: &str| auth.admits(grant, u64::MAX, id);
        self.shared.devices.with_id_of(asker.device, asker.conn, admits).unwrap_or(true)
    }

    /// Closes a connection as a revocation does; false if it is being closed already.
    fn expel_connection(&mut self, Asker { conn, device, .. }: Asker) -> bool {
        let Some(id) = self.shared.devices.id_of(device, conn) else { return false };
        if !self.shared.devices.evict(&id, conn) {
            return false;
        }
        let close = Job::Close { conn, reason: CloseReason::Revoked };
        if let Err(OutOfCredit(close)) = self.carry_out(close) {
            self.jobs.push_back(close);
        }
        true
    }

    /// Ends a subscription that is no longer permitted; false if it goes on.
    fn recheck_topic(&mut self, asker: Asker, topic: weir_engine::TopicId) -> bool {
        let Some(name) = self.shared.router.name(topic) else { return false };
        let is_permitted = {
            let grant = self.grant(asker);
            let caller = caller(&grant, asker);
            self.shared.permits_member(
                &caller,
                &name,
                self.shared.router.watches(topic, asker.conn),
            )
        };
        if is_permitted {
            return false;
        }
        let Asker { conn, device, .. } = asker;
        self.jobs.push_back(Job::Expel { conn, device, topic: name });
        true
    }
}
