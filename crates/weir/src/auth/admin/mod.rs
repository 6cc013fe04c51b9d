//! Who may use the admin API: the owners of its tokens, services, and browsers that have signed in.
//!
//! The configuration can be replaced while requests run; see [`AdminAccess::replace`].

mod handover;
mod sessions;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::watch;
use weir_engine::{Footprint, Nanos};

use super::Secrets;
use crate::base::config::{AdminConfig, AdminScope, Right, ServiceConfig};
use crate::base::host::Hosts;
use crate::base::token_hash::{self, digest_of};
use crate::limits::sources::{Source, Sources};
use sessions::Sessions;
pub(crate) use sessions::{Lease, Session};

/// The callers of the admin API, its sessions, and its names.
///
/// Shape: callers by the SHA-256 of their token, so no token is kept. Each request reads the table
/// that counts at its beginning.
/// Limits: those of [`Sessions`]; failed sign-ins by source: [`FAILURES_PER_MINUTE`].
/// Cost: one SHA-256 of the shown token and one look-up, whatever the number of callers. The time
/// does not show what a wrong token has in common with a right one.
pub(crate) struct AdminAccess {
    /// `None`: no token is needed.
    callers: ArcSwapOption<Callers>,
    /// Whether one is needed; streams that were opened without one wait for that.
    needs_token: watch::Sender<bool>,
    hosts: ArcSwap<Hosts>,
    sessions: Sessions,
    failures: Sources,
}

struct Callers {
    by_digest: Secrets<Arc<Caller>>,
    all: Vec<Arc<Caller>>,
}

/// The owner of a token.
pub(crate) struct Caller {
    identity: Identity,
    /// Whether the configuration does not have the token any more.
    removed: watch::Sender<bool>,
}

/// What the configuration says about a caller.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    digest: token_hash::Digest,
    role: Role,
}

#[derive(Debug, PartialEq, Eq)]
enum Role {
    /// The owner of `admin.token`, who may do everything.
    Admin,
    /// The owner of one of `[[admin.tokens]]`.
    Token {
        name: Box<str>,
        may: Box<[AdminScope]>,
    },
    Service {
        name: Box<str>,
        may: Box<[Right]>,
    },
}

/// The result of a sign-in.
pub(crate) enum SignIn {
    /// No token is needed.
    Needless,
    /// A new session, and the id that stands for it.
    Session {
        id: String,
        session: Arc<Session>,
    },
    /// The token belongs to a service, which opens no session.
    Service(Arc<Caller>),
    WrongToken,
}

impl AdminAccess {
    /// With neither `admin.token` nor `[[admin.tokens]]`, no token is needed.
    pub(crate) fn new(admin: &AdminConfig, services: &[ServiceConfig]) -> Self {
        Self {
            callers: ArcSwapOption::new(Callers::of(admin, services, None).map(Arc::new)),
            needs_token: watch::Sender::new(admin.needs_token()),
            hosts: ArcSwap::from_pointee(Hosts::new(&admin.hosts)),
            sessions: Sessions::default(),
            failures: Sources::of_failures(FAILURES_PER_MINUTE, FAILURES_AT_ONCE),
        }
    }

    /// Uses another valid configuration from now on. A caller counts as removed if its token, its
    /// name or its rights have changed: its sessions and its streams end. So do streams that were
    /// opened without a token, once one is needed. Requests that have begun
    /// are carried out. Returns the number of sessions that ended.
    pub(crate) fn replace(&self, admin: &AdminConfig, services: &[ServiceConfig]) -> usize {
        let before = self.callers.load_full();
        let after = Callers::of(admin, services, before.as_deref()).map(Arc::new);
        self.callers.store(after.clone());
        self.needs_token.send_replace(after.is_some());
        self.hosts.store(Arc::new(Hosts::new(&admin.hosts)));
        let is_kept = |caller: &Arc<Caller>| {
            after.iter().flat_map(|after| &after.all).any(|kept| Arc::ptr_eq(kept, caller))
        };
        for caller in before.iter().flat_map(|before| &before.all) {
            if !is_kept(caller) {
                caller.removed.send_replace(true);
            }
        }
        self.sessions.end_of_removed()
    }

    /// The names of this server.
    pub(crate) fn hosts(&self) -> Arc<Hosts> {
        self.hosts.load_full()
    }

    pub(crate) fn needs_token(&self) -> bool {
        self.callers.load().is_some()
    }

    /// Permits a stream until a token is needed.
    pub(crate) fn lease_of_anyone(&self) -> Lease {
        Lease::of_token(self.needs_token.subscribe())
    }

    /// The owner of a token.
    pub(crate) fn caller(&self, token: &str) -> Option<Arc<Caller>> {
        let callers = self.callers.load();
        callers.as_ref()?.by_digest.find(&digest_of(token)).map(Arc::clone)
    }

    /// The session that an id stands for, which counts as used now.
    pub(crate) fn session(&self, id: &str) -> Option<Arc<Session>> {
        self.sessions.find(id, now())
    }

    /// Takes a place for an attempt to sign in. It stays taken if the attempt fails; otherwise it is
    /// given back. The error is the time to wait, because too many from this source have failed.
    pub(crate) fn begin_attempt(&self, from: IpAddr) -> Result<(), Duration> {
        self.failures.take(Source::of(from), now())
    }

    /// The attempt of this source has not failed.
    pub(crate) fn give_back_attempt(&self, from: IpAddr) {
        self.failures.give_back(Source::of(from), now());
    }

    /// Opens a session for the owner of a token.
    ///
    /// Errors: the system has no random bytes.
    pub(crate) fn sign_in(&self, token: &str) -> std::io::Result<SignIn> {
        if !self.needs_token() {
            return Ok(SignIn::Needless);
        }
        let Some(caller) = self.caller(token) else { return Ok(SignIn::WrongToken) };
        if caller.is_service() {
            return Ok(SignIn::Service(caller));
        }
        let id = token_hash::new_admin_token()?;
        let opened = self.sessions.open(&id, &caller, now());
        Ok(opened.map_or(SignIn::WrongToken, |session| SignIn::Session { id, session }))
    }

    /// Ends a session, and the streams that it has opened.
    pub(crate) fn sign_out(&self, session: &Session) {
        self.sessions.end(session);
    }

    /// Open sessions.
    pub(crate) fn session_count(&self) -> usize {
        self.sessions.count(now())
    }

    /// Forgets sources whose failures are forgiven, and sessions that are over.
    pub(crate) fn sweep(&self) {
        self.failures.sweep(now());
        self.sessions.count(now());
    }

    /// The sources of failed sign-ins.
    pub(crate) fn failures_footprint(&self) -> Footprint {
        self.failures.footprint()
    }
}

impl Callers {
    /// The admin token is entered first, so no other one can replace it. Callers that are the same
    /// as before stay the same.
    fn of(
        admin: &AdminConfig,
        services: &[ServiceConfig],
        before: Option<&Callers>,
    ) -> Option<Callers> {
        if !admin.needs_token() {
            return None;
        }
        let owner = (!admin.token.is_empty()).then(|| (digest_of(&admin.token), Role::Admin));
        let named = admin.tokens.iter().filter_map(|token| {
            let role =
                Role::Token { name: token.name.as_str().into(), may: token.may.as_slice().into() };
            Some((token_hash::parse(&token.hash)?, role))
        });
        let services = services.iter().map(|service| {
            let (name, may) = (service.name.as_str().into(), service.may.as_slice().into());
            (digest_of(&service.token), Role::Service { name, may })
        });
        let mut callers = Callers { by_digest: Secrets::new(), all: Vec::new() };
        for (digest, role) in owner.into_iter().chain(named).chain(services) {
            let identity = Identity { digest, role };
            let known = before.and_then(|before| before.by_digest.find(&digest));
            let caller = match known.filter(|known| known.identity == identity) {
                Some(known) => Arc::clone(known),
                None => Arc::new(Caller { identity, removed: watch::Sender::new(false) }),
            };
            callers.by_digest.insert(&digest, Arc::clone(&caller));
            callers.all.push(caller);
        }
        Some(callers)
    }
}

impl Caller {
    /// Its name in the audit log: that of the token or of the service, or `admin`.
    pub(crate) fn name(&self) -> &str {
        match &self.identity.role {
            Role::Admin => ADMIN,
            Role::Token { name, .. } | Role::Service { name, .. } => name,
        }
    }

    pub(crate) fn is_admin(&self) -> bool {
        self.identity.role == Role::Admin
    }

    pub(crate) fn is_service(&self) -> bool {
        matches!(self.identity.role, Role::Service { .. })
    }

    /// What its token opens; a service's token opens no scope.
    pub(crate) fn scopes(&self) -> &[AdminScope] {
        match &self.identity.role {
            Role::Admin => &AdminScope::ALL,
            Role::Token { may, .. } => may,
            Role::Service { .. } => &[],
        }
    }

    /// Whether a service has the right.
    pub(crate) fn has_right(&self, right: Right) -> bool {
        matches!(&self.identity.role, Role::Service { may, .. } if may.contains(&right))
    }

    /// Permits a stream until the token is removed.
    pub(crate) fn lease(&self) -> Lease {
        Lease::of_token(self.removed.subscribe())
    }

    fn is_removed(&self) -> bool {
        *self.removed.borrow()
    }
}

fn now() -> Duration {
    Duration::from_nanos(Nanos::now().0)
}

/// The name of the owner of `admin.token`.
const ADMIN: &str = "admin";
/// Who mistypes a token does so a few times; a guesser of tokens gets nowhere at this rate.
const FAILURES_PER_MINUTE: u32 = 10;
const FAILURES_AT_ONCE: u32 = 10;

#[cfg(test)]
mod tests;
