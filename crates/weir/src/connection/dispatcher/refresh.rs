//! New credentials for a settled connection, and the end of old ones.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use weir_engine::{ConnId, DeviceRef, Origin};
use weir_store::Millis;
use weir_wire::v1::server_message::Kind;
use weir_wire::v1::{Expiring, Refreshed};
use weir_wire::{CloseReason, ErrorCode};

use super::terms::{Due, NoRefresh};
use super::{Asker, Dispatcher, Job, OutOfCredit};
use crate::auth::Term;
use crate::auth::{Admission, NoBearer, Refreshing};
use crate::base::clock::unix_millis;
use crate::base::frames;
use crate::core::state::SharedState;
use crate::observe::counters::RefreshOutcome;

/// The result of checking the token of a `Refresh`.
pub(crate) struct Found {
    conn: ConnId,
    device: DeviceRef,
    /// `None`: the connection has gone meanwhile.
    admitted: Option<Result<Admission, NoBearer>>,
}

/// The tokens of one shard's connections that are being checked.
pub(super) struct Refreshes {
    found: mpsc::Sender<Found>,
}

impl Refreshes {
    /// Whether a token is being checked.
    pub(super) fn is_any(&self) -> bool {
        self.found.capacity() < self.found.max_capacity()
    }

    pub(super) fn new() -> (Refreshes, mpsc::Receiver<Found>) {
        let (sender, receiver) = mpsc::channel(REFRESHES_MAX);
        (Refreshes { found: sender }, receiver)
    }
}

impl Dispatcher {
    /// The time until the dispatcher must look at the terms again, even without a report; `None` if
    /// no credentials end.
    pub(crate) fn until_next_look(&self) -> Option<Duration> {
        (!self.terms.is_empty()).then_some(LOOK_INTERVAL)
    }

    /// Announces the coming end of credentials, and closes connections whose credentials have
    /// ended. It does a limited number at a time, so that other jobs get their turns. Returns
    /// whether more may be due.
    pub(super) fn look_at_terms(&mut self) -> bool {
        if self.terms.is_empty() || self.jobs.len() > JOBS_MAX {
            return false;
        }
        let now = unix_millis();
        for _ in 0..LOOKS_MAX {
            match self.terms.take_due(now) {
                Some(Due::Tell(conn, ends)) => {
                    self.shared.counters().count_expiring_told();
                    let frame = frames::encode(Kind::Expiring(Expiring { expires_at_ms: ends }));
                    self.jobs.push_back(Job::Send { conn, frame });
                }
                // As for a revocation, the close waits for no message.
                Some(Due::End(conn)) => {
                    let close = Job::Close { conn, reason: CloseReason::Expired };
                    if let Err(OutOfCredit(close)) = self.carry_out(close) {
                        self.jobs.push_back(close);
                    }
                }
                None => return false,
            }
        }
        true
    }

    /// Checks the token in a task of its own: that takes time, and the store may have to be asked.
    pub(super) fn refresh(&mut self, asker: Asker, token: String) {
        let Asker { conn, device, origin } = asker;
        let refused = match self.terms.begin_refresh(conn, unix_millis()) {
            Ok(()) => match self.refreshes.found.clone().try_reserve_owned() {
                Ok(place) => {
                    let shared = Arc::clone(&self.shared);
                    tokio::spawn(async move {
                        let admitted = find(&shared, (device, conn, origin), &token).await;
                        place.send(Found { conn, device, admitted });
                    });
                    return;
                }
                Err(TrySendError::Full(_) | TrySendError::Closed(_)) => {
                    self.terms.end_refresh(conn, None, unix_millis());
                    NoRefresh::Busy
                }
            },
            Err(refused) => refused,
        };
        let (code, outcome, message) = match refused {
            NoRefresh::Needless => (
                ErrorCode::NotSupported,
                RefreshOutcome::Needless,
                "the credentials of this connection do not end, so there is nothing to refresh",
            ),
            NoRefresh::Busy => (
                ErrorCode::Busy,
                RefreshOutcome::Busy,
                "a token is being checked; try again in a second",
            ),
            NoRefresh::TooSoon => (
                ErrorCode::RateLimited,
                RefreshOutcome::Busy,
                "a connection may refresh once a second",
            ),
        };
        self.shared.counters().count_refresh(outcome);
        self.answer(conn, frames::error(code, message.to_owned(), "", 0));
    }

    /// The check of a new token has stayed in another process: the connection may show it again.
    pub(super) fn ask_for_token_again(&mut self, conn: ConnId) {
        let message = "the token cannot be checked at the moment; try again";
        self.shared.counters().count_refresh(RefreshOutcome::Unavailable);
        self.answer(conn, frames::error(ErrorCode::Busy, message.to_owned(), "", 0));
    }

    /// Takes the result of a check. Its answer waits behind the queued jobs.
    pub(crate) fn take_found(&mut self, found: Found) {
        let Found { conn, device, admitted } = found;
        // The connection was replaced, revoked or closed meanwhile, so it gets no answer.
        let Some(admitted) = admitted.filter(|_| self.shared.devices.has(device, conn)) else {
            return;
        };
        let admitted =
            admitted.and_then(|admission| match self.is_still_valid(device, conn, &admission) {
                true => Ok(admission),
                false => Err(NoBearer::Unknown),
            });
        let now = unix_millis();
        let (outcome, frame) = match admitted {
            Ok(admission) => {
                // Credentials without an end are valid as long as a time can express.
                let ends = admission.ends.unwrap_or(Millis::MAX);
                let term = Term { ends, grant: admission.grant };
                if !self.terms.end_refresh(conn, Some(term), now) {
                    return;
                }
                let expires_at_ms = admission.ends.unwrap_or(0);
                let frame = frames::encode(Kind::Refreshed(Refreshed { expires_at_ms }));
                (RefreshOutcome::Prolonged, frame)
            }
            Err(NoBearer::Unknown) => {
                let message = "the token is not valid, or not one of this device".to_owned();
                let frame = frames::error(ErrorCode::NotPermitted, message, "", 0);
                (RefreshOutcome::Refused, frame)
            }
            Err(NoBearer::Unavailable | NoBearer::Limited(_)) => {
                let message = "the token cannot be checked at the moment; try again".to_owned();
                let frame = frames::error(ErrorCode::Busy, message, "", 0);
                (RefreshOutcome::Unavailable, frame)
            }
        };
        if outcome != RefreshOutcome::Prolonged && !self.terms.end_refresh(conn, None, now) {
            return;
        }
        self.shared.counters().count_refresh(outcome);
        self.jobs.push_back(Job::Send { conn, frame });
    }
}

/// The permissions of a token for the device of a connection; `None`: the connection has gone.
async fn find(
    shared: &SharedState,
    (device, conn, origin): (DeviceRef, ConnId, Origin),
    token: &str,
) -> Option<Result<Admission, NoBearer>> {
    let mark = shared.devices.mark();
    let refreshing = Refreshing {
        conn,
        device: shared.devices.id_of(device, conn)?,
        source: shared.admission.source(origin).map(|source| source.to_string()),
    };
    let bearer = match shared.auth.find_again(token, &refreshing, mark).await {
        Ok(bearer) => bearer,
        Err(no_bearer) => return Some(Err(no_bearer)),
    };
    let admit = |id: &str| shared.auth.admit(None, id, &bearer);
    let claim = shared.devices.with_id_of(device, conn, admit)?;
    match claim.map(|claim| claim.settled(&shared.auth)) {
        Ok(Ok(admission)) => Some(Ok(admission)),
        Ok(Err(claim)) => Some(shared.auth.confirm(claim).await),
        Err(_) => Some(Err(NoBearer::Unknown)),
    }
}

/// The end of credentials is noticed to the second.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Jobs that one look may create; they are carried out in a moment.
const LOOKS_MAX: usize = 256;
/// While more jobs than this wait for credits, no look takes place.
const JOBS_MAX: usize = 4 * LOOKS_MAX;
/// Simultaneous checks for the connections of one shard: some batches of a store.
const REFRESHES_MAX: usize = 1024;
