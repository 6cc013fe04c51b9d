//! Admission: whether a caller may connect, as which device, and with which rights. It accepts
//! tokens of the configuration, tokens of a store, tokens that other backends sign, and devices
//! without credentials on loopback.
//!
//! ```text
//!  token ─look─▶ Bearer ─admit─▶ Claim ─confirm─▶ Admission ─pin─▶ on its way to a shard
//!          └ not known here: ask ─▶ Bearer
//! ```

pub(crate) mod admin;
mod attempts;
mod claim;
mod credentials;
pub(crate) mod devices;
mod grants;
mod handover;
mod hook;
pub(crate) mod jwt;
mod memory;
mod secrets;
mod signed;
mod source;
mod term;
mod verifier;

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::timeout;
use weir_engine::Priority;
use weir_store::Millis;
use weir_wire::CloseReason;

use crate::backends::questions::Questions;
use crate::base::clock::{unix_millis, unix_time};
use crate::base::config::{Config, ConfigError};
use crate::base::model::AuthKind;
use crate::observe::counters::{AuthOutcome, Counters};
use attempts::Attempts;
pub(crate) use attempts::TokenOrigin;
pub(crate) use claim::Claim;
use claim::Confirmed;
pub(crate) use credentials::CredentialsChange;
use credentials::{ANONYMOUS, CERTIFICATE, Credentials, Who};
pub(crate) use grants::{Act, Grant, GrantRef, SharedGrants};
pub(crate) use hook::Refreshing;
use jwt::Jwt;
use jwt::issuers::NoNews;
pub(crate) use secrets::Secrets;
pub use source::TokenSource;
pub(crate) use term::Term;
pub(crate) use verifier::Verifier;

/// Tokens, and the rule for callers without one.
///
/// Shape: what the configuration says stands in [`Credentials`], which a reload replaces at once.
/// Other tokens bring their own grants.
/// Cost: one look-up, whatever the number of tokens. Its time does not show what a wrong token has
/// in common with a right one. A token of a store costs a wait, a signed one its verification.
pub(crate) struct Authenticator {
    credentials: ArcSwap<Credentials>,
    /// Of the credentials in use, for those who only compare it.
    version: AtomicU64,
    nobody: Grant,
    source: Option<Arc<dyn TokenSource>>,
    confirmed: Confirmed,
    jwt: Arc<Jwt>,
    /// Asks a backend about tokens that are not known here.
    hooks: Option<Arc<Questions>>,
    verifier: Verifier,
    attempts: Attempts,
    counters: Arc<Counters>,
}

/// Checked credentials that are not in use yet.
pub(crate) struct NextCredentials(Arc<Credentials>);

/// A grant, as it is at this moment.
pub(crate) enum HeldGrant<'a> {
    Numbered(arc_swap::Guard<Arc<Credentials>>, u16),
    Own(&'a Grant),
}

/// The labels that topic classes name, and the grants with them. Other labels have no effect.
pub(crate) struct NamedLabels {
    named: HashSet<Box<str>>,
    shared: Arc<SharedGrants>,
}

/// The owner of a shown token, before a device id is claimed with it.
#[derive(Debug, Clone)]
pub(crate) struct Bearer {
    kind: BearerKind,
    /// From [`crate::auth::devices::Devices::mark`], taken before the token was looked up.
    mark: u64,
    /// The version of the credentials in which it was looked up.
    version: u64,
}

#[derive(Debug, Clone)]
enum BearerKind {
    /// No token was shown.
    Nobody,
    /// The number of a token of the configuration.
    Configured(u16),
    ExpiringCredential(Arc<ExpiringCredential>),
}

/// The properties of a token that ends: one of an activated device, or a signed one.
#[derive(Debug)]
pub(crate) struct ExpiringCredential {
    kind: AuthKind,
    device: Arc<str>,
    priority: Priority,
    grant: Arc<Grant>,
    ends: Millis,
}

/// The reason why a token admits no caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoBearer {
    /// The token is not valid.
    Unknown,
    /// The store or the verifier does not answer at the moment.
    Unavailable,
    /// Too many tokens from this source have failed, so this one was not checked. Try again after
    /// this time.
    Limited(Duration),
}

/// A connection that is admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Admission {
    /// Its device id.
    pub(crate) device: Arc<str>,
    pub(crate) grant: GrantRef,
    pub(crate) priority: Priority,
    /// It is a backend: limits for devices do not apply.
    pub(crate) is_service: bool,
    /// The end of its credentials, if there is one.
    pub(crate) ends: Option<Millis>,
    /// Whether the device is in the store, which is then told of the connection.
    pub(crate) is_kept: bool,
    /// A revocation after this mark counts: see [`crate::auth::devices::Devices::pin_since`].
    pub(crate) mark: u64,
    /// The version of the credentials that admitted it. If others are in use when it enters, they
    /// must admit it too: see [`Authenticator::admits`].
    pub(crate) version: u64,
}

/// The sender of a request, which claims no device id.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Requester {
    /// The one device that its token or certificate stands for, or the service's name.
    pub(crate) device: Option<Arc<str>>,
    pub(crate) grant: Arc<Grant>,
    pub(crate) is_service: bool,
    /// The end of its credentials, if there is one.
    pub(crate) ends: Option<Millis>,
    /// Whether its token is one of the configuration.
    pub(crate) is_configured: bool,
}

impl Authenticator {
    pub(crate) fn new(
        config: &Config,
        source: Option<Arc<dyn TokenSource>>,
        jwt: Arc<Jwt>,
        verifier: Verifier,
        counters: Arc<Counters>,
    ) -> Self {
        let credentials = Credentials::new(config, None).expect("the number of tokens was checked");
        Self {
            version: AtomicU64::new(credentials.version),
            credentials: ArcSwap::from_pointee(credentials),
            nobody: Grant::anonymous().within(Vec::new()),
            source,
            confirmed: Confirmed::default(),
            jwt,
            hooks: None,
            verifier,
            attempts: Attempts::new(&config.auth),
            counters,
        }
    }

    /// Prepares the credentials of another configuration, beside those in use.
    ///
    /// Errors: there are too many new tokens at once, or no threads for the first signed ones.
    pub(crate) fn prepare(&self, config: &Config) -> Result<NextCredentials, ConfigError> {
        if config.auth.jwt.has_keys() {
            self.verifier.start().map_err(|error| ConfigError {
                key: "auth.jwt.issuers".to_owned(),
                value: format!("({} issuers)", config.auth.jwt.issuers.len()),
                allowed: format!("none while threads cannot start: {error}"),
                depends_on: &[],
            })?;
        }
        let next = Credentials::new(config, Some(&self.credentials.load()))?;
        Ok(NextCredentials(Arc::new(next)))
    }

    /// Uses the prepared credentials from now on. Nobody else may have replaced them meanwhile.
    pub(crate) fn replace(&self, next: NextCredentials, config: &Config) -> CredentialsChange {
        let NextCredentials(next) = next;
        let before = self.credentials.swap(Arc::clone(&next));
        self.version.store(next.version, Ordering::Release);
        self.attempts.limit(&config.auth);
        self.jwt.reload(config);
        // The grants of verified tokens have only the labels that classes named then.
        if next.labels.named != before.labels.named {
            self.jwt.forget_verified();
        }
        next.change_from(&before)
    }

    /// The version of the credentials in use.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Whether tokens are looked up elsewhere, too.
    pub(crate) fn has_source(&self) -> bool {
        self.source.is_some()
    }

    /// Whether the credentials in use still admit a connection with this grant and device. `version`:
    /// the one that admitted it.
    pub(crate) fn admits(&self, grant: &GrantRef, version: u64, device: &str) -> bool {
        let credentials = self.credentials.load();
        match grant {
            GrantRef::Numbered(number) => credentials.admits(*number, version, device),
            GrantRef::Own(_) => !credentials.is_of_service(device),
        }
    }

    /// The owner of a token, if this is known without a wait; `None` if [`Authenticator::ask`] must
    /// find it.
    ///
    /// `mark` is the devices' mark at this moment.
    pub(crate) fn look(&self, token: &str, mark: u64) -> Option<Result<Bearer, NoBearer>> {
        if token.is_empty() {
            let version = self.version();
            return Some(Ok(Bearer { kind: BearerKind::Nobody, mark, version }));
        }
        if let Some(bearer) = self.configured(token, mark) {
            return Some(Ok(bearer));
        }
        if let Some(jwt) = self.jwt_for(token) {
            let expiring = jwt.find(token, unix_time())?;
            return Some(self.found(AuthKind::Jwt, Some(expiring), mark));
        }
        match self.source {
            _ if self.hook().is_some() => None,
            Some(_) if source::is_token(token) => None,
            Some(_) | None => Some(self.found(AuthKind::Token, None, mark)),
        }
    }

    /// The same for tokens of the configuration only.
    pub(crate) fn configured(&self, token: &str, mark: u64) -> Option<Bearer> {
        let credentials = self.credentials.load();
        let kind = BearerKind::Configured(credentials.number(token)?);
        Some(Bearer { kind, mark, version: credentials.version })
    }

    /// Looks a token up in the store or verifies its signature, after [`Authenticator::look`] did
    /// not know it; then asks the hook. Waits for each at most as long as `Hello` may take.
    pub(crate) async fn ask(
        &self,
        token: &str,
        origin: TokenOrigin,
        mark: u64,
    ) -> Result<Bearer, NoBearer> {
        self.ask_for(token, origin, None, mark).await
    }

    /// The same; `refreshing` is the settled connection that shows the token, if there is one.
    async fn ask_for(
        &self,
        token: &str,
        origin: TokenOrigin,
        refreshing: Option<&Refreshing>,
        mark: u64,
    ) -> Result<Bearer, NoBearer> {
        let (jwt, hook) = (self.jwt_for(token), self.hook());
        let has_form = self.source.is_some() && source::is_token(token);
        let mut kind = match jwt {
            Some(_) => AuthKind::Jwt,
            None if hook.is_some() && !has_form => AuthKind::Hook,
            None => AuthKind::Device,
        };
        // A question to a backend costs more than a signature.
        let is_costly = jwt.is_some() || hook.is_some();
        let attempt = self.attempts.begin(origin, is_costly).map_err(|after| {
            self.counters.count_authentication(kind, AuthOutcome::Limited);
            NoBearer::Limited(after)
        })?;
        let mut asked = match jwt {
            Some(jwt) => self.verify(jwt, token, origin.proven()).await,
            None if hook.is_some() && !has_form => Ok(None),
            None => {
                let asked = timeout(self.deadline(), self.check_with_source(token)).await;
                asked.ok().flatten().ok_or(NoNews::Unavailable)
            }
        };
        if let (Ok(None), Some(hook)) = (&asked, hook) {
            kind = AuthKind::Hook;
            let asking = Box::pin(self.ask_hook(hook, token, origin, refreshing));
            let answered = timeout(self.deadline(), asking).await;
            asked = answered.ok().flatten().ok_or(NoNews::Unavailable);
        }
        match asked {
            Ok(expiring) => {
                if expiring.is_some() {
                    attempt.give_back();
                }
                self.found(kind, expiring, mark)
            }
            Err(NoNews::Unavailable) => {
                attempt.give_back();
                self.counters.count_authentication(kind, AuthOutcome::Unavailable);
                Err(NoBearer::Unavailable)
            }
            // The attempt counts: a source may name as many unknown keys as invalid tokens.
            Err(NoNews::Limited(after)) => {
                self.counters.count_authentication(kind, AuthOutcome::Limited);
                Err(NoBearer::Limited(after))
            }
        }
    }

    /// The store's answer about a token. The outer `None`: the store does not answer.
    async fn check_with_source(&self, token: &str) -> Option<Option<Arc<ExpiringCredential>>> {
        let Some(source) = &self.source else { return Some(None) };
        match source.check(token).await {
            Ok(holder) => {
                Some(holder.map(|holder| Arc::new(source::expiring(holder, &self.labels()))))
            }
            Err(error) => {
                tracing::debug!(%error, "a token cannot be checked");
                None
            }
        }
    }

    /// [`Authenticator::look`], then [`Authenticator::ask`] if needed.
    pub(crate) async fn find(
        &self,
        token: &str,
        origin: TokenOrigin,
        mark: u64,
    ) -> Result<Bearer, NoBearer> {
        match self.look(token, mark) {
            Some(found) => found,
            None => Box::pin(self.ask(token, origin, mark)).await,
        }
    }

    /// The verifier of a token in the form of a signed one.
    fn jwt_for(&self, token: &str) -> Option<&Arc<Jwt>> {
        Some(&self.jwt).filter(|jwt| jwt.has_keys() && jwt::is_jwt(token))
    }

    fn found(
        &self,
        kind: AuthKind,
        expiring: Option<Arc<ExpiringCredential>>,
        mark: u64,
    ) -> Result<Bearer, NoBearer> {
        match expiring {
            Some(expiring) => {
                let (kind, version) = (BearerKind::ExpiringCredential(expiring), self.version());
                Ok(Bearer { kind, mark, version })
            }
            None => {
                self.counters.count_authentication(kind, AuthOutcome::Refused);
                Err(NoBearer::Unknown)
            }
        }
    }

    /// The device that may connect with these credentials, and its rights.
    ///
    /// A token bound to a device admits only that device, and names it if the caller names none.
    /// With any other token, or without one in anonymous mode, the caller must name an id and may
    /// name any that has no token of its own. A wrong token is refused even in anonymous mode. A
    /// service uses its name, or its name, a slash and any text; no other caller may use these ids.
    ///
    /// `named` is the device that the connection's certificate names. The caller may claim no other
    /// device, and needs no token. A token in addition decides the device's rights, and must admit
    /// the device.
    ///
    /// An id that the store knows belongs to its device alone, so the result is a [`Claim`].
    pub(crate) fn admit(
        &self,
        named: Option<&str>,
        device: &str,
        bearer: &Bearer,
    ) -> Result<Claim, CloseReason> {
        let kind = bearer.kind(named.is_some());
        let admission = self.check(named, device, bearer).inspect_err(|_| {
            self.counters.count_authentication(kind, AuthOutcome::Refused);
        })?;
        Ok(self.claim(kind, named.is_some(), bearer, admission))
    }

    fn check(
        &self,
        named: Option<&str>,
        device: &str,
        bearer: &Bearer,
    ) -> Result<Admission, CloseReason> {
        let device = match named {
            Some(named) if device.is_empty() || device == named => named,
            Some(_) => return Err(CloseReason::Unauthorized),
            None => device,
        };
        let credentials = self.credentials.load();
        credentials.check_id(device)?;
        let (mark, version) = (bearer.mark, credentials.version);
        let admission = |device, number, priority, is_service| {
            let grant = GrantRef::Numbered(number);
            let (ends, is_kept) = (None, false);
            Ok(Admission { device, grant, priority, is_service, ends, is_kept, mark, version })
        };
        let number = match &bearer.kind {
            BearerKind::Nobody => {
                let (device, number) = match named {
                    Some(named) if !credentials.is_of_service(named) => (named.into(), CERTIFICATE),
                    None if credentials.anonymous => (credentials.claimed(device)?, ANONYMOUS),
                    Some(_) | None => return Err(CloseReason::Unauthorized),
                };
                return admission(device, number, Priority::Normal, false);
            }
            BearerKind::ExpiringCredential(expiring) => {
                return credentials.check_mortal(device, expiring, mark);
            }
            BearerKind::Configured(number) => *number,
        };
        // The token was removed after it was looked up.
        let row = credentials.row_of(number, bearer.version).ok_or(CloseReason::Revoked)?;
        let (device, is_service) = match &row.who {
            Who::AnyDevice => (credentials.claimed(device)?, false),
            Who::Device(bound) if device.is_empty() || *device == **bound => {
                (Arc::clone(bound), false)
            }
            Who::Service(name) if device.is_empty() => (Arc::clone(name), true),
            Who::Service(name) if is_named(device, name) => (device.into(), true),
            Who::Device(_) | Who::Service(_) => return Err(CloseReason::Unauthorized),
        };
        admission(device, number, row.priority, is_service)
    }

    /// The sender of a request, by the rules of [`Authenticator::admit`].
    ///
    /// A token for any device names no device, and neither does anonymous mode.
    pub(crate) async fn identify(
        &self,
        named: Option<&str>,
        bearer: &Bearer,
    ) -> Result<Requester, NoBearer> {
        if named.is_none()
            && let Some(grant) = self.grant_of_any(bearer)
        {
            let outcome =
                if grant.is_some() { AuthOutcome::Accepted } else { AuthOutcome::Refused };
            self.counters.count_authentication(bearer.kind(false), outcome);
            let grant = grant.ok_or(NoBearer::Unknown)?;
            let (is_service, is_configured) = (false, bearer.is_configured());
            return Ok(Requester { device: None, grant, is_service, ends: None, is_configured });
        }
        let claim = self.admit(named, "", bearer).map_err(|_| NoBearer::Unknown)?;
        let admission = match claim.settled(self) {
            Ok(admission) => admission,
            Err(claim) => Box::pin(self.confirm_again(claim)).await?,
        };
        let Admission { device, grant, is_service, ends, .. } = admission;
        let grant = match grant {
            GrantRef::Numbered(number) => Arc::clone(self.credentials.load().grant(number)),
            GrantRef::Own(grant) => grant,
        };
        let is_configured = bearer.is_configured();
        Ok(Requester { device: Some(device), grant, is_service, ends, is_configured })
    }

    /// The grant of a caller that may be any device. `None`: the caller is a certain one;
    /// `Some(None)`: anonymous mode is off.
    fn grant_of_any(&self, bearer: &Bearer) -> Option<Option<Arc<Grant>>> {
        let credentials = self.credentials.load();
        match bearer.kind {
            BearerKind::Nobody => {
                let grant = credentials.anonymous.then(|| credentials.grant(ANONYMOUS));
                Some(grant.map(Arc::clone))
            }
            BearerKind::Configured(number) => match credentials.row_of(number, bearer.version) {
                Some(row) => (row.who == Who::AnyDevice).then(|| Some(Arc::clone(&row.grant))),
                // It was removed meanwhile.
                None => Some(None),
            },
            BearerKind::ExpiringCredential(_) => None,
        }
    }

    /// The grant behind a reference.
    pub(crate) fn grant<'a>(&self, grant: &'a GrantRef) -> HeldGrant<'a> {
        match grant {
            GrantRef::Numbered(number) => self.numbered(*number),
            GrantRef::Own(grant) => HeldGrant::Own(grant),
        }
    }

    /// The grant with the number that a connection carries.
    pub(crate) fn numbered(&self, number: u16) -> HeldGrant<'static> {
        HeldGrant::Numbered(self.credentials.load(), number)
    }

    fn deadline(&self) -> Duration {
        self.credentials.load().deadline
    }

    fn labels(&self) -> Arc<NamedLabels> {
        Arc::clone(&self.credentials.load().labels)
    }

    /// The grant of a connection that has gone: no rights.
    pub(crate) fn nobody(&self) -> &Grant {
        &self.nobody
    }

    /// Reads the files of keys of signed tokens again; `false` if there are none.
    pub(crate) fn ask_reload(&self) -> bool {
        self.jwt.ask_reload();
        self.jwt.has_files()
    }

    pub(crate) fn jwt(&self) -> &Arc<Jwt> {
        &self.jwt
    }
}

impl Credentials {
    fn check_mortal(
        &self,
        device: &str,
        expiring: &ExpiringCredential,
        mark: u64,
    ) -> Result<Admission, CloseReason> {
        self.check_id(&expiring.device)?;
        let is_other = !device.is_empty() && *device != *expiring.device;
        if is_other || self.is_of_service(&expiring.device) || expiring.ends <= unix_millis() {
            return Err(CloseReason::Unauthorized);
        }
        Ok(Admission {
            device: Arc::clone(&expiring.device),
            grant: GrantRef::Own(Arc::clone(&expiring.grant)),
            priority: expiring.priority,
            is_service: false,
            ends: Some(expiring.ends),
            is_kept: expiring.kind == AuthKind::Device,
            mark,
            version: self.version,
        })
    }

    fn check_id(&self, device: &str) -> Result<(), CloseReason> {
        match device.len() > self.device_id_bytes_max || device.contains(char::is_control) {
            true => Err(CloseReason::Malformed),
            false => Ok(()),
        }
    }

    /// An id that is free to be claimed.
    fn claimed(&self, device: &str) -> Result<Arc<str>, CloseReason> {
        if device.is_empty() {
            return Err(CloseReason::Malformed);
        }
        match self.is_free(device) {
            true => Ok(device.into()),
            false => Err(CloseReason::Unauthorized),
        }
    }
}

impl Deref for HeldGrant<'_> {
    type Target = Grant;

    fn deref(&self) -> &Grant {
        match self {
            HeldGrant::Numbered(credentials, number) => credentials.grant(*number),
            HeldGrant::Own(grant) => grant,
        }
    }
}

impl Bearer {
    fn is_configured(&self) -> bool {
        matches!(self.kind, BearerKind::Configured(_))
    }

    /// The kind under which it is counted.
    fn kind(&self, has_certificate: bool) -> AuthKind {
        match &self.kind {
            BearerKind::Nobody if has_certificate => AuthKind::Certificate,
            BearerKind::Nobody => AuthKind::Anonymous,
            BearerKind::Configured(_) => AuthKind::Token,
            BearerKind::ExpiringCredential(expiring) => expiring.kind,
        }
    }
}

impl NamedLabels {
    /// The grant of a device with these labels.
    fn grant(&self, labels: impl Iterator<Item = String>) -> Grant {
        let labels: Vec<String> = labels.filter(|label| self.named.contains(&**label)).collect();
        Grant::of_device(&labels)
    }

    fn share(&self, grant: Grant) -> Arc<Grant> {
        self.shared.share(grant)
    }
}

/// Whether an id is a service's name, alone or followed by a slash and more.
fn is_named(id: &str, name: &str) -> bool {
    id.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Stands in a connection's origin: its grant has no number, and the front keeps it with the term
/// of the connection.
pub(crate) const OWN_GRANT: u16 = u16::MAX;

#[cfg(test)]
mod tests;
