//! Session tickets that every node with the same secret can read, by the clock alone; and the time
//! until which sessions are resumed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::{hmac, rand};
use rustls::server::{ProducesTickets, StoresServerSessions};

use crate::base::clock::unix_time;

/// Makes and reads tickets.
///
/// Shape: a ticket is version, period number and salt in the clear, then nonce, sealed state and
/// tag. Its key is HMAC-SHA256(secret, label, policy, period, salt). A period's key is never
/// stored. Each ticket has its own salt and so its own key, so random nonces are safe for any
/// number of tickets.
/// Limits: tickets of the previous, the running and the next period are accepted, because another
/// node's clock may be ahead. A ticket has at most `TICKET_BYTES_MAX` bytes.
/// Cost: an HMAC, a key schedule and an AES-256-GCM pass. No lock, and no rotation.
pub(crate) struct Ticketer {
    secret: hmac::Key,
    /// The policy must not have changed since a ticket was made: see [`Ticketer::new`].
    policy: [u8; 32],
    rotation: Duration,
    now: fn() -> Duration,
    /// The end of a revocation list: see [`Ticketer::until`].
    end: Option<Duration>,
}

/// Stored sessions that are no longer resumed after a revocation list has ended, like
/// [`Ticketer::until`].
#[derive(Debug)]
pub(crate) struct ExpiringSessions {
    pub(crate) sessions: Arc<dyn StoresServerSessions>,
    pub(crate) end: Option<Duration>,
}

impl Ticketer {
    /// `secret` is shared by the fleet. `policy` is a digest of the rules for clients: a client
    /// that was admitted under other rules is checked again.
    pub(crate) fn new(
        secret: &[u8],
        policy: [u8; 32],
        rotation: Duration,
        now: fn() -> Duration,
    ) -> Ticketer {
        Ticketer {
            secret: hmac::Key::new(hmac::HMAC_SHA256, secret),
            policy,
            rotation,
            now,
            end: None,
        }
    }

    /// Accepts no ticket after `end`, the end of a revocation list. A resumed session's client is
    /// not looked up in the list, and would be admitted although a full handshake would refuse it.
    pub(crate) fn until(self, end: Option<Duration>) -> Ticketer {
        Ticketer { end, ..self }
    }

    fn period(&self) -> u64 {
        (self.now)().as_secs() / self.rotation.as_secs().max(1)
    }

    fn key(&self, header: &[u8]) -> Option<LessSafeKey> {
        let mut context = hmac::Context::with_key(&self.secret);
        context.update(LABEL);
        context.update(&self.policy);
        context.update(header);
        UnboundKey::new(&AES_256_GCM, context.sign().as_ref()).ok().map(LessSafeKey::new)
    }
}

impl ProducesTickets for Ticketer {
    fn enabled(&self) -> bool {
        true
    }

    /// The certain part: a ticket from the end of a period is accepted for one more period.
    fn lifetime(&self) -> u32 {
        u32::try_from(self.rotation.as_secs()).unwrap_or(u32::MAX)
    }

    fn encrypt(&self, state: &[u8]) -> Option<Vec<u8>> {
        if OVERHEAD_BYTES + state.len() > TICKET_BYTES_MAX {
            return None;
        }
        let mut ticket = Vec::with_capacity(OVERHEAD_BYTES + state.len());
        ticket.push(VERSION);
        ticket.extend_from_slice(&self.period().to_be_bytes());
        ticket.resize(HEADER_BYTES + NONCE_LEN, 0);
        rand::fill(&mut ticket[HEADER_BYTES - SALT_BYTES..]).ok()?;
        let (header, nonce) = ticket.split_at(HEADER_BYTES);
        let (key, nonce) = (self.key(header)?, Nonce::try_assume_unique_for_key(nonce).ok()?);
        let aad = Aad::from(<[u8; HEADER_BYTES]>::try_from(header).ok()?);
        ticket.extend_from_slice(state);
        let sealed = &mut ticket[HEADER_BYTES + NONCE_LEN..];
        let tag = key.seal_in_place_separate_tag(nonce, aad, sealed).ok()?;
        ticket.extend_from_slice(tag.as_ref());
        Some(ticket)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        if !(OVERHEAD_BYTES..=TICKET_BYTES_MAX).contains(&ticket.len()) {
            return None;
        }
        let (header, rest) = ticket.split_at(HEADER_BYTES);
        let (nonce, sealed) = rest.split_at(NONCE_LEN);
        let period = u64::from_be_bytes(header[1..9].try_into().ok()?);
        let is_over = self.end.is_some_and(|end| end < (self.now)());
        if is_over || header[0] != VERSION || period.abs_diff(self.period()) > 1 {
            return None;
        }
        let (key, nonce) = (self.key(header)?, Nonce::try_assume_unique_for_key(nonce).ok()?);
        let mut state = sealed.to_vec();
        let bytes = key.open_in_place(nonce, Aad::from(header), &mut state).ok()?.len();
        state.truncate(bytes);
        Some(state)
    }
}

impl StoresServerSessions for ExpiringSessions {
    fn put(&self, id: Vec<u8>, session: Vec<u8>) -> bool {
        self.sessions.put(id, session)
    }

    fn get(&self, id: &[u8]) -> Option<Vec<u8>> {
        self.sessions.get(id).filter(|_| self.end.is_none_or(|end| clock() <= end))
    }

    fn take(&self, id: &[u8]) -> Option<Vec<u8>> {
        self.sessions.take(id).filter(|_| self.end.is_none_or(|end| clock() <= end))
    }

    fn can_cache(&self) -> bool {
        self.sessions.can_cache()
    }
}

/// Without the secret.
impl fmt::Debug for Ticketer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticketer").field("rotation", &self.rotation).finish_non_exhaustive()
    }
}

/// Time since 1970 by the system's clock, which the nodes of a fleet share.
pub(crate) fn clock() -> Duration {
    unix_time()
}

/// The version of the ticket's form.
const VERSION: u8 = 1;
const LABEL: &[u8] = b"weir tls ticket";
const SALT_BYTES: usize = 16;
/// Version, period, salt.
const HEADER_BYTES: usize = 1 + 8 + SALT_BYTES;
const TAG_BYTES: usize = 16;
const OVERHEAD_BYTES: usize = HEADER_BYTES + NONCE_LEN + TAG_BYTES;
/// A ticket contains the client's certificate chain. A client with a longer chain makes a full
/// handshake each time.
const TICKET_BYTES_MAX: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static NOW: Cell<u64> = const { Cell::new(0) };
    }

    const HOUR: u64 = 3_600;

    fn node(secret: &[u8], policy: u8) -> Ticketer {
        let now = || Duration::from_secs(NOW.get());
        Ticketer::new(secret, [policy; 32], Duration::from_secs(6 * HOUR), now)
    }

    fn at(hours: u64) {
        NOW.set((1_000_000 * 6 + hours) * HOUR);
    }

    #[test]
    fn another_node_reads_a_ticket_for_as_long_as_it_was_promised() {
        let (one, other) = (node(b"secret", 0), node(b"secret", 0));
        // Made at the beginning of a period and at its end.
        for (made, read, is_accepted) in [
            (0, 0, true),
            (0, 5, true),
            (0, 11, true),
            (0, 12, false),
            (5, 11, true),
            (5, 12, false),
            (5, 600, false),
            // By a node whose clock is ahead.
            (6, 5, true),
            (6, 0, true),
            (12, 5, false),
        ] {
            at(made);
            let ticket = one.encrypt(b"state").unwrap();
            at(read);
            let state = other.decrypt(&ticket);
            assert_eq!(state.as_deref(), is_accepted.then_some(&b"state"[..]), "{made} {read}");
        }
        assert_eq!(u64::from(one.lifetime()), 6 * HOUR);
    }

    #[test]
    fn no_bit_of_a_ticket_may_change() {
        at(0);
        let node = node(b"secret", 0);
        let ticket = node.encrypt(b"state").unwrap();
        for bit in 0..ticket.len() * 8 {
            let mut tampered = ticket.clone();
            tampered[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(node.decrypt(&tampered), None, "bit {bit}");
        }
        for end in 0..ticket.len() {
            assert_eq!(node.decrypt(&ticket[..end]), None, "{end} bytes");
        }
        assert_eq!(node.decrypt(&[ticket, vec![0]].concat()), None);
    }

    #[test]
    fn another_secret_or_another_policy_reads_nothing() {
        at(0);
        let ticket = node(b"secret", 0).encrypt(b"state").unwrap();
        assert_eq!(node(b"terces", 0).decrypt(&ticket), None);
        assert_eq!(node(b"secret", 1).decrypt(&ticket), None);
    }

    #[test]
    fn no_two_tickets_are_alike_and_none_is_too_long() {
        at(0);
        let node = node(b"secret", 0);
        let (one, other) = (node.encrypt(b"state").unwrap(), node.encrypt(b"state").unwrap());
        assert_ne!(one[9..HEADER_BYTES], other[9..HEADER_BYTES]);
        assert_ne!(one[HEADER_BYTES + NONCE_LEN..], other[HEADER_BYTES + NONCE_LEN..]);
        let longest = vec![1; TICKET_BYTES_MAX - OVERHEAD_BYTES];
        let ticket = node.encrypt(&longest).unwrap();
        assert_eq!(ticket.len(), TICKET_BYTES_MAX);
        assert_eq!(node.decrypt(&ticket), Some(longest.clone()));
        assert_eq!(node.encrypt(&[longest, vec![1]].concat()), None);
    }
}
