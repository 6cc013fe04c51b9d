//! What resumes sessions of TLS, in a process that takes over from another.
//!
//! Keys of tickets follow from the secret and the clock, so the secret is enough for all periods.
//! Sessions that were stored move as they are.

use weir_engine::handover::NotUnderstood;
use weir_wire::handover::v1;
use zeroize::Zeroizing;

use super::Contexts;
use super::hello::StoredId;
use crate::base::handover::{check_column, refused};

impl Contexts {
    /// The secret of tickets and the stored sessions. What is stored here afterwards stays here.
    ///
    /// They contain keys: the caller wipes what it does not need any more.
    pub(crate) fn export(&self) -> v1::TlsSessions {
        let secret = self.resumption.ticket_secret.export();
        let mut sessions = v1::TlsSessions {
            ticket_secret: secret.map_or_else(Vec::new, |secret| secret.to_vec()),
            policy: self.policy().into(),
            ..Default::default()
        };
        self.sessions().local.for_each(|id, state| {
            sessions.ids.push(id.into());
            sessions.states.push(state.into());
        });
        sessions
    }

    /// Goes on with the tickets and sessions of another process. Those of another policy for
    /// clients are worth nothing, as after a reload: tickets by their keys, sessions because they
    /// are dropped here.
    pub(crate) fn import(&self, sessions: v1::TlsSessions) -> Result<(), NotUnderstood> {
        let v1::TlsSessions { ticket_secret, policy, ids, states } = sessions;
        let (secret, states) = (Zeroizing::new(ticket_secret), Zeroizing::new(states));
        check_column("tls_sessions.states", states.len(), ids.len())?;
        if !secret.is_empty() {
            if secret.len() < SECRET_BYTES_MIN {
                return Err(refused("tls_sessions.ticket_secret: bytes", secret.len() as u64));
            }
            self.resumption.ticket_secret.import(secret);
        }
        if policy != self.policy() {
            return Ok(());
        }
        let stored = self.sessions();
        for (id, state) in ids.iter().zip(states.iter()) {
            if id.len() > size_of::<StoredId>() {
                return Err(refused("tls_sessions.ids: bytes", id.len() as u64));
            }
            stored.local.put(id, state.clone());
        }
        Ok(())
    }
}

/// Those of a random secret.
const SECRET_BYTES_MIN: usize = 32;
