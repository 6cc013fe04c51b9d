//! Session tickets that every node with the same secret can read, by the clock alone; and stored
//! sessions that are sealed in the same way.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::{hmac, rand};
use rustls::server::ProducesTickets;
use zeroize::Zeroizing;

use super::hello::StoredId;
use crate::base::clock::unix_time;

/// Makes and reads tickets, and seals and opens stored sessions.
///
/// Shape: a ticket is version, period number and salt in the clear, then nonce, sealed state and
/// tag. Its key is HMAC-SHA256(secret, label, policy, period, salt). A period's key is never
/// stored. Each ticket has its own salt and so its own key, so random nonces are safe for any
/// number of tickets. A stored session has the same form. Its label is another one, and its id goes
/// into its key: nobody can take a session for a ticket, or for the session of another id.
/// Limits: tickets of the previous, the running and the next period are accepted, because another
/// node's clock may be ahead. A ticket has at most `TICKET_BYTES_MAX` bytes.
/// Cost: an HMAC, a key schedule and an AES-256-GCM pass. No lock, and no rotation.
pub(crate) struct Ticketer {
    secret: Arc<TicketSecret>,
    /// The policy must not have changed since a ticket was made: see [`Ticketer::new`].
    policy: [u8; 32],
    rotation: Duration,
    now: fn() -> Duration,
    /// The end of a revocation list: see [`Ticketer::until`].
    end: Option<Duration>,
}

/// The secret of tickets.
pub(crate) struct TicketSecret {
    in_use: ArcSwap<(hmac::Key, Zeroizing<Vec<u8>>)>,
    is_configured: bool,
}

impl TicketSecret {
    /// The one of the configuration; an empty one is replaced by a random one.
    pub(crate) fn new(configured: &str) -> Arc<TicketSecret> {
        let mut secret = Zeroizing::new(configured.as_bytes().to_vec());
        let is_configured = !secret.is_empty();
        if !is_configured {
            secret.resize(SECRET_BYTES, 0);
            rand::fill(&mut secret).expect("the kernel has random bytes");
        }
        Arc::new(TicketSecret { in_use: ArcSwap::from_pointee(keyed(secret)), is_configured })
    }

    /// The secret, if it is a random one.
    pub(super) fn export(&self) -> Option<Zeroizing<Vec<u8>>> {
        (!self.is_configured).then(|| self.in_use.load().1.clone())
    }

    /// Uses the random secret of another process, unless the configuration has one.
    pub(super) fn import(&self, secret: Zeroizing<Vec<u8>>) {
        if !self.is_configured {
            self.in_use.store(Arc::new(keyed(secret)));
        }
    }
}

fn keyed(secret: Zeroizing<Vec<u8>>) -> (hmac::Key, Zeroizing<Vec<u8>>) {
    (hmac::Key::new(hmac::HMAC_SHA256, &secret), secret)
}

impl Ticketer {
    /// `secret` is shared by the fleet. `policy` is a digest of the rules for clients: a client
    /// that was admitted under other rules is checked again.
    pub(crate) fn new(
        secret: &Arc<TicketSecret>,
        policy: [u8; 32],
        rotation: Duration,
        now: fn() -> Duration,
    ) -> Ticketer {
        Ticketer { secret: Arc::clone(secret), policy, rotation, now, end: None }
    }

    /// Accepts no ticket after `end`, the end of a revocation list. A resumed session's client is
    /// not looked up in the list, and would be admitted although a full handshake would refuse it.
    pub(crate) fn until(self, end: Option<Duration>) -> Ticketer {
        Ticketer { end, ..self }
    }

    fn period(&self) -> u64 {
        (self.now)().as_secs() / self.rotation.as_secs().max(1)
    }

    /// Seals a session for the store of the cluster. `None` if it is too long, as for tickets.
    pub(crate) fn seal_session(&self, id: &StoredId, state: &[u8]) -> Option<Vec<u8>> {
        self.seal((SESSION_LABEL, id), state)
    }

    /// Opens a session that a node with the same secret and policy has sealed under this id, as
    /// long as it would accept a ticket.
    pub(crate) fn open_session(&self, id: &StoredId, sealed: &[u8]) -> Option<Vec<u8>> {
        self.open((SESSION_LABEL, id), sealed)
    }

    fn key(&self, (label, id): Purpose<'_>, header: &[u8]) -> Option<LessSafeKey> {
        let mut context = hmac::Context::with_key(&self.secret.in_use.load().0);
        context.update(label);
        context.update(&self.policy);
        context.update(header);
        context.update(id);
        UnboundKey::new(&AES_256_GCM, context.sign().as_ref()).ok().map(LessSafeKey::new)
    }

    fn seal(&self, purpose: Purpose<'_>, state: &[u8]) -> Option<Vec<u8>> {
        if OVERHEAD_BYTES + state.len() > TICKET_BYTES_MAX {
            return None;
        }
        let mut ticket = Vec::with_capacity(OVERHEAD_BYTES + state.len());
        ticket.push(VERSION);
        ticket.extend_from_slice(&self.period().to_be_bytes());
        ticket.resize(HEADER_BYTES + NONCE_LEN, 0);
        rand::fill(&mut ticket[HEADER_BYTES - SALT_BYTES..]).ok()?;
        let (header, nonce) = ticket.split_at(HEADER_BYTES);
        let (key, nonce) =
            (self.key(purpose, header)?, Nonce::try_assume_unique_for_key(nonce).ok()?);
        let aad = Aad::from(<[u8; HEADER_BYTES]>::try_from(header).ok()?);
        ticket.extend_from_slice(state);
        let sealed = &mut ticket[HEADER_BYTES + NONCE_LEN..];
        let tag = key.seal_in_place_separate_tag(nonce, aad, sealed).ok()?;
        ticket.extend_from_slice(tag.as_ref());
        Some(ticket)
    }

    fn open(&self, purpose: Purpose<'_>, ticket: &[u8]) -> Option<Vec<u8>> {
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
        let (key, nonce) =
            (self.key(purpose, header)?, Nonce::try_assume_unique_for_key(nonce).ok()?);
        let mut state = sealed.to_vec();
        let bytes = key.open_in_place(nonce, Aad::from(header), &mut state).ok()?.len();
        state.truncate(bytes);
        Some(state)
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
        self.seal((TICKET_LABEL, &[]), state)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.open((TICKET_LABEL, &[]), ticket)
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
/// What is sealed, and the id of a stored session.
type Purpose<'a> = (&'static [u8], &'a [u8]);
const TICKET_LABEL: &[u8] = b"weir tls ticket";
const SESSION_LABEL: &[u8] = b"weir tls session";
const SALT_BYTES: usize = 16;
/// Version, period, salt.
const HEADER_BYTES: usize = 1 + 8 + SALT_BYTES;
const TAG_BYTES: usize = 16;
/// Of a random secret: as long as the keys derived from it.
const SECRET_BYTES: usize = 32;
const OVERHEAD_BYTES: usize = HEADER_BYTES + NONCE_LEN + TAG_BYTES;
/// A ticket contains the client's certificate chain. A client with a longer chain makes a full
/// handshake each time.
const TICKET_BYTES_MAX: usize = 16 * 1024;
const _: () = assert!(TICKET_BYTES_MAX <= weir_broker::StoredSession::BYTES_MAX);

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
        let secret = TicketSecret::new(std::str::from_utf8(secret).unwrap());
        Ticketer::new(&secret, [policy; 32], Duration::from_secs(6 * HOUR), now)
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
    fn a_stored_session_is_opened_by_its_id_alone() {
        at(0);
        let (one, other) = (node(b"secret", 0), node(b"secret", 0));
        let (id, other_id) = ([7; 32], [8; 32]);
        let sealed = one.seal_session(&id, b"state").unwrap();
        assert_eq!(other.open_session(&id, &sealed).as_deref(), Some(&b"state"[..]));
        assert_eq!(other.open_session(&other_id, &sealed), None);
        assert_eq!(node(b"terces", 0).open_session(&id, &sealed), None);
        assert_eq!(node(b"secret", 1).open_session(&id, &sealed), None);
        // It is no ticket, and a ticket is no session.
        assert_eq!(other.decrypt(&sealed), None);
        assert_eq!(other.open_session(&id, &one.encrypt(b"state").unwrap()), None);
        for bit in 0..sealed.len() * 8 {
            let mut tampered = sealed.clone();
            tampered[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(other.open_session(&id, &tampered), None, "bit {bit}");
        }
        for end in 0..sealed.len() {
            assert_eq!(other.open_session(&id, &sealed[..end]), None, "{end} bytes");
        }
        at(11);
        assert!(other.open_session(&id, &sealed).is_some());
        at(12);
        assert_eq!(other.open_session(&id, &sealed), None);
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
