//! Ids that the store knows. They are admitted only with their device's own credentials.
//!
//! | shown | an id that the store knows |
//! |---|---|
//! | the token that the store has issued, or one of the configuration that is bound to the id | is not looked up |
//! | a certificate that names the device | is admitted unless the device is revoked |
//! | nothing, a token for any device, a signed token | is refused |

use std::collections::HashMap;
use std::mem;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::timeout;
use weir_engine::Nanos;
use weir_store::{Serial, State};
use weir_wire::CloseReason;

use super::{Admission, Authenticator, Bearer, BearerKind, NoBearer};
use crate::base::model::AuthKind;
use crate::observe::counters::AuthOutcome;

/// An admission that may depend on the store's record of the id.
#[must_use]
#[derive(Debug)]
pub(crate) struct Claim {
    admission: Admission,
    kind: AuthKind,
    doubt: Option<Doubt>,
}

/// The finding in the store that would refuse the claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doubt {
    /// The store knows the device.
    Known,
    /// The device is revoked.
    Revoked,
}

/// Ids that the store accepted a moment ago, for requests: a device with many requests is looked up
/// once.
///
/// Shape: two tables. When the young one is full, it replaces the old one.
/// Limits: [`CONFIRMED_MAX`] ids, each for [`CONFIRMED_FOR`]. They come from certificates and
/// signed tokens.
#[derive(Debug, Default)]
pub(super) struct Confirmed(Mutex<[HashMap<Box<str>, Nanos>; 2]>);

impl Claim {
    /// The admission, if the store need not be asked.
    pub(crate) fn settled(self, auth: &Authenticator) -> Result<Admission, Claim> {
        if self.doubt.is_some() {
            return Err(self);
        }
        auth.counters.count_authentication(self.kind, AuthOutcome::Accepted);
        Ok(self.admission)
    }
}

impl Authenticator {
    pub(super) fn claim(
        &self,
        kind: AuthKind,
        has_certificate: bool,
        bearer: &Bearer,
        admission: Admission,
    ) -> Claim {
        let shows = if has_certificate { AuthKind::Certificate } else { kind };
        let doubt = match &bearer.kind {
            _ if self.source.is_none()
                || self.credentials.load().unchecked_ids.contains(&shows) =>
            {
                None
            }
            // The store itself has named the device.
            BearerKind::ExpiringCredential(expiring) if expiring.kind == AuthKind::Device => None,
            BearerKind::Configured(_) if self.grant_of_any(bearer).is_none() => None,
            // No store can contain this id.
            _ if Serial::new(&admission.device).is_err() => None,
            _ if has_certificate => Some(Doubt::Revoked),
            BearerKind::Nobody | BearerKind::Configured(_) | BearerKind::ExpiringCredential(_) => {
                Some(Doubt::Known)
            }
        };
        Claim { admission, kind, doubt }
    }

    /// The admission, if the store does not refuse it. Waits at most as long as `Hello` may take.
    pub(crate) async fn confirm(&self, claim: Claim) -> Result<Admission, NoBearer> {
        let Claim { admission, kind, doubt } = claim;
        let count = |outcome| self.counters.count_authentication(kind, outcome);
        let (Some(source), Some(doubt)) = (&self.source, doubt) else {
            count(AuthOutcome::Accepted);
            return Ok(admission);
        };
        let state = match timeout(self.deadline(), source.state(&admission.device)).await {
            Ok(Ok(state)) => state,
            not_found => {
                if let Ok(Err(error)) = not_found {
                    tracing::debug!(%error, "an id cannot be looked up");
                }
                count(AuthOutcome::Unavailable);
                return Err(NoBearer::Unavailable);
            }
        };
        match (state, doubt) {
            (None, _) | (Some(State::New | State::Active), Doubt::Revoked) => {
                count(AuthOutcome::Accepted);
                Ok(admission)
            }
            (Some(_), Doubt::Known) | (Some(State::Revoked), Doubt::Revoked) => {
                tracing::debug!(
                    device = &*admission.device,
                    "refused: the store knows this id, so its device's own credentials are needed (auth.unchecked_ids)"
                );
                count(AuthOutcome::Stored);
                Err(NoBearer::Unknown)
            }
        }
    }

    /// The same for one of many requests, with the memory of recent answers.
    pub(super) async fn confirm_again(&self, claim: Claim) -> Result<Admission, NoBearer> {
        if self.confirmed.has(&claim.admission.device, Nanos::now()) {
            self.counters.count_authentication(claim.kind, AuthOutcome::Accepted);
            return Ok(claim.admission);
        }
        let admission = self.confirm(claim).await?;
        self.confirmed.put(&admission.device, Nanos::now());
        Ok(admission)
    }
}

impl Confirmed {
    fn has(&self, device: &str, now: Nanos) -> bool {
        let tables = self.0.lock().expect("no panic happens under this lock");
        let until = tables.iter().find_map(|table| table.get(device));
        until.is_some_and(|until| now < *until)
    }

    fn put(&self, device: &str, now: Nanos) {
        let mut tables = self.0.lock().expect("no panic happens under this lock");
        let [young, old] = &mut *tables;
        if young.len() >= CONFIRMED_MAX / 2 {
            *old = mem::take(young);
        }
        young.insert(device.into(), now.after(CONFIRMED_FOR));
    }
}

impl From<NoBearer> for CloseReason {
    fn from(no_bearer: NoBearer) -> CloseReason {
        match no_bearer {
            NoBearer::Unknown => CloseReason::Unauthorized,
            NoBearer::Unavailable => CloseReason::StoreUnavailable,
            NoBearer::Limited(_) => CloseReason::RateLimited,
        }
    }
}

/// At most two megabytes.
const CONFIRMED_MAX: usize = 8_192;
/// For this long, a request may be answered for a device that was imported or revoked meanwhile.
const CONFIRMED_FOR: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_confirmed_holds_for_a_moment_and_is_bounded() {
        let confirmed = Confirmed::default();
        let now = Nanos(5);
        confirmed.put("a", now);
        assert!(confirmed.has("a", now) && !confirmed.has("b", now));
        assert!(!confirmed.has("a", now.after(CONFIRMED_FOR)));
        for number in 0..3 * CONFIRMED_MAX {
            confirmed.put(&number.to_string(), now);
            let tables = confirmed.0.lock().unwrap();
            assert!(tables[0].len() + tables[1].len() <= CONFIRMED_MAX);
        }
        assert!(
            !confirmed.has("a", now) && confirmed.has(&(3 * CONFIRMED_MAX - 1).to_string(), now)
        );
    }
}
