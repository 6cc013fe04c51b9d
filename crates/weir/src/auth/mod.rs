//! Who may connect, as which device, and with which rights: tokens of the configuration, tokens that have to be asked
//! for, tokens that other backends sign, or nobody's word on loopback.
//!
//! ```text
//!  token ─look─▶ Bearer ─admit─▶ Claim ─confirm─▶ Admission ─pin─▶ on its way to a shard
//!          └ not known here: ask ─▶ Bearer
//! ```

mod attempts;
mod claim;
pub(crate) mod devices;
mod grants;
pub(crate) mod jwt;
mod secrets;
mod source;
mod term;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime;
use tokio::task::JoinSet;
use tokio::time::timeout;
use weir_engine::Priority;
use weir_store::Millis;
use weir_wire::CloseReason;

use crate::base::clock::{unix_millis, unix_time};
use crate::base::config::{Actor, Config, TokenConfig};
use crate::base::model::AuthKind;
use crate::observe::counters::{AuthOutcome, Counters};
use attempts::Attempts;
pub(crate) use attempts::TokenOrigin;
pub(crate) use claim::Claim;
use claim::Confirmed;
pub(crate) use grants::{Act, Grant, GrantRef, SharedGrants};
use jwt::Jwt;
pub(crate) use secrets::Secrets;
pub use source::TokenSource;
pub(crate) use term::Term;

/// Tokens, and the rule for those who have none.
///
/// Shape: tokens of the configuration by their secret; what they permit stands once in a table, however many of them
/// permit the same. Other tokens bring what they permit with them.
/// Limits: 65,535 different grants of the configuration, which the number of tokens that can be configured keeps within.
/// Cost: one look-up, whatever the number of tokens, and none of its time tells what a wrong token has in common with
/// a right one. One that has to be asked for costs a task's wait, a signed one its verification.
pub(crate) struct Authenticator {
    holders: Secrets<u32>,
    /// By place.
    all_holders: Vec<Holder>,
    /// By number; the first one is that of devices without a token.
    grants: Vec<Grant>,
    nobody: Grant,
    /// Device ids that a token is bound to.
    bound: HashSet<Box<str>>,
    /// Names of services, which no device may take.
    services: HashSet<Box<str>>,
    anonymous: bool,
    device_id_bytes_max: usize,
    /// What `Hello` may take, and so the longest that anybody waits for a token.
    deadline: Duration,
    labels: Arc<NamedLabels>,
    source: Option<Arc<dyn TokenSource>>,
    /// Credentials whose ids are not looked up there.
    unchecked_ids: Vec<AuthKind>,
    confirmed: Confirmed,
    jwt: Option<Arc<Jwt>>,
    /// Where signatures are verified: on threads that nobody else waits for. `None`: where they are asked for.
    verifier: Option<runtime::Handle>,
    attempts: Attempts,
    counters: Arc<Counters>,
}

/// The labels that classes name, and the grants that are made of them: no other label decides anything.
pub(crate) struct NamedLabels {
    named: HashSet<Box<str>>,
    shared: SharedGrants,
}

/// What a token says of who shows it.
struct Holder {
    who: Who,
    priority: Priority,
    grant: u16,
}

enum Who {
    AnyDevice,
    Device(Box<str>),
    Service(Box<str>),
}

/// Whom somebody is by the token that he shows, before he claims an id with it.
#[derive(Debug, Clone)]
pub(crate) struct Bearer {
    kind: BearerKind,
    /// Of [`crate::auth::devices::Devices::mark`], from before anybody was asked.
    mark: u64,
}

#[derive(Debug, Clone)]
enum BearerKind {
    /// He shows none.
    Nobody,
    /// The place of a token of the configuration.
    Configured(u32),
    ExpiringCredential(Arc<ExpiringCredential>),
}

/// What a token says that ends: of an activated device, or a signed one.
#[derive(Debug)]
pub(crate) struct ExpiringCredential {
    kind: AuthKind,
    device: Box<str>,
    priority: Priority,
    grant: Arc<Grant>,
    ends: Millis,
}

/// A token admits nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoBearer {
    /// It is not valid.
    Unknown,
    /// Nobody can say at the moment.
    Unavailable,
    /// It is not looked at: too many from there have failed. The same may work after so long.
    Limited(Duration),
}

/// A connection that is admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Admission {
    /// Its device id.
    pub(crate) device: String,
    pub(crate) grant: GrantRef,
    pub(crate) priority: Priority,
    /// A backend's: limits that are meant for devices do not hold for it.
    pub(crate) is_service: bool,
    /// When its credentials end, if they do.
    pub(crate) ends: Option<Millis>,
    /// Whether it is a device of the store, which is told that it has connected.
    pub(crate) is_kept: bool,
    /// What is revoked after this counts: see [`crate::auth::devices::Devices::pin_since`].
    pub(crate) mark: u64,
}

/// Whom a request is from: it claims no device id.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Requester {
    /// The one device that its token or certificate stands for, or the service's name.
    pub(crate) device: Option<String>,
    pub(crate) grant: GrantRef,
    pub(crate) is_service: bool,
    /// When its credentials end, if they do.
    pub(crate) ends: Option<Millis>,
}

impl Authenticator {
    pub(crate) fn new(
        config: &Config,
        source: Option<Arc<dyn TokenSource>>,
        jwt: Option<Arc<Jwt>>,
        verifier: Option<runtime::Handle>,
        counters: Arc<Counters>,
    ) -> Self {
        let mut grants = vec![Grant::anonymous()];
        let mut known = std::collections::HashMap::from([(Grant::anonymous(), 0)]);
        let mut number = |grant: Grant| {
            *known.entry(grant).or_insert_with_key(|grant| {
                grants.push(grant.clone());
                u16::try_from(grants.len() - 1).expect("fewer tokens can be configured")
            })
        };
        let (mut holders, mut all_holders) = (Secrets::new(), Vec::new());
        let mut hold = |token: &str, holder| {
            let place = u32::try_from(all_holders.len()).expect("fewer tokens can be configured");
            holders.insert(token.as_bytes(), place);
            all_holders.push(holder);
        };
        let (tokens, services) = (&config.auth.tokens, &config.auth.services);
        for token in tokens {
            let grant = number(Grant::of_device(&token.labels));
            let holder = Holder { who: Who::of(token), priority: token.priority, grant };
            hold(&token.token, holder);
        }
        for service in services {
            let grant = number(Grant::of_service(&service.may));
            let who = Who::Service(service.name.as_str().into());
            hold(&service.token, Holder { who, priority: Priority::Normal, grant });
        }
        Self {
            holders,
            all_holders,
            grants,
            nobody: Grant::anonymous().within(Vec::new()),
            bound: tokens
                .iter()
                .filter_map(|token| token.device.as_deref().map(Box::from))
                .collect(),
            services: services.iter().map(|service| service.name.as_str().into()).collect(),
            anonymous: config.admits_anonymous(),
            device_id_bytes_max: config.limits.device_id_bytes_max,
            deadline: config.connection.hello_timeout,
            labels: Arc::new(NamedLabels::of(config)),
            source,
            unchecked_ids: config.auth.unchecked_ids.clone(),
            confirmed: Confirmed::default(),
            jwt,
            verifier,
            attempts: Attempts::new(&config.auth),
            counters,
        }
    }

    /// Whom a token stands for, as far as that is known here; `None`: it is to be asked for.
    ///
    /// `mark` is that of the devices at this moment.
    pub(crate) fn look(&self, token: &str, mark: u64) -> Option<Result<Bearer, NoBearer>> {
        if token.is_empty() {
            return Some(Ok(Bearer { kind: BearerKind::Nobody, mark }));
        }
        if let Some(bearer) = self.configured(token, mark) {
            return Some(Ok(bearer));
        }
        if let Some(jwt) = self.jwt_for(token) {
            let expiring = jwt.find(token, unix_time())?;
            return Some(self.found(AuthKind::Jwt, Some(expiring), mark));
        }
        match self.source {
            Some(_) if source::is_token(token) => None,
            Some(_) | None => Some(self.found(AuthKind::Token, None, mark)),
        }
    }

    /// The same of the tokens of the configuration alone.
    pub(crate) fn configured(&self, token: &str, mark: u64) -> Option<Bearer> {
        let place = *self.holders.find(token.as_bytes())?;
        Some(Bearer { kind: BearerKind::Configured(place), mark })
    }

    /// Asks for a token that [`Authenticator::look`] does not know, or has its signature verified; waits for as long as
    /// `Hello` may take.
    pub(crate) async fn ask(
        &self,
        token: &str,
        origin: TokenOrigin,
        mark: u64,
    ) -> Result<Bearer, NoBearer> {
        let jwt = self.jwt_for(token);
        let kind = if jwt.is_some() { AuthKind::Jwt } else { AuthKind::Device };
        let attempt = self.attempts.begin(origin, jwt.is_some()).map_err(|after| {
            self.counters.count_authentication(kind, AuthOutcome::Limited);
            NoBearer::Limited(after)
        })?;
        let asked = match jwt {
            Some(jwt) => self.verify(jwt, token, origin.proven()).await,
            None => timeout(self.deadline, self.check_with_source(token)).await.ok().flatten(),
        };
        match asked {
            Some(expiring) => {
                if expiring.is_some() {
                    attempt.give_back();
                }
                self.found(kind, expiring, mark)
            }
            None => {
                attempt.give_back();
                self.counters.count_authentication(kind, AuthOutcome::Unavailable);
                Err(NoBearer::Unavailable)
            }
        }
    }

    /// What a store says of a token; the outer `None`: it does not answer.
    async fn check_with_source(&self, token: &str) -> Option<Option<Arc<ExpiringCredential>>> {
        let Some(source) = &self.source else { return Some(None) };
        match source.check(token).await {
            Ok(holder) => {
                Some(holder.map(|holder| Arc::new(source::expiring(holder, &self.labels))))
            }
            Err(error) => {
                tracing::debug!(%error, "a token cannot be checked");
                None
            }
        }
    }

    /// What a signed token says, if it is valid; the outer `None`: nobody came to that in time.
    async fn verify(
        &self,
        jwt: &Arc<Jwt>,
        token: &str,
        source: Option<IpAddr>,
    ) -> Option<Option<Arc<ExpiringCredential>>> {
        self.counters.count_verification();
        let Some(verifier) = &self.verifier else {
            return Some(jwt.verify(token, unix_time(), &self.labels, source));
        };
        let (jwt, labels, token) = (Arc::clone(jwt), Arc::clone(&self.labels), token.to_owned());
        // Dropped, it is not verified any more if that has not begun.
        let mut verifying = JoinSet::new();
        verifying
            .spawn_on(async move { jwt.verify(&token, unix_time(), &labels, source) }, verifier);
        timeout(self.deadline, verifying.join_next()).await.ok()??.ok()
    }

    /// Both, one after the other.
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

    /// What verifies a token that has the form of a signed one.
    fn jwt_for(&self, token: &str) -> Option<&Arc<Jwt>> {
        self.jwt.as_ref().filter(|_| jwt::is_jwt(token))
    }

    fn found(
        &self,
        kind: AuthKind,
        expiring: Option<Arc<ExpiringCredential>>,
        mark: u64,
    ) -> Result<Bearer, NoBearer> {
        match expiring {
            Some(expiring) => Ok(Bearer { kind: BearerKind::ExpiringCredential(expiring), mark }),
            None => {
                self.counters.count_authentication(kind, AuthOutcome::Refused);
                Err(NoBearer::Unknown)
            }
        }
    }

    /// The device that may connect with this claim, and what it may do.
    ///
    /// A token that is bound to a device admits only that one, and names it for a device that does not say its id. With
    /// any other token, or without one where anonymous mode is on, every id may be claimed but those that a token is
    /// bound to; and one has to be said. A wrong token is refused even there. A service goes by its name, or by its
    /// name, a slash and what it likes; nobody else may.
    ///
    /// `named`: the device that the connection's certificate names. No other may be claimed, and no token is needed;
    /// with one the token says what the device may do, and has to admit it.
    ///
    /// An id that the store knows is its device's own: what is found here is a [`Claim`].
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
        self.check_id(device)?;
        let mark = bearer.mark;
        let admission = |device, grant, priority, is_service| {
            let grant = GrantRef::Numbered(grant);
            Ok(Admission { device, grant, priority, is_service, ends: None, is_kept: false, mark })
        };
        let place = match &bearer.kind {
            BearerKind::Nobody => {
                let device = match named {
                    Some(named) if !self.is_of_service(named) => named.to_owned(),
                    None if self.anonymous => self.claimed(device)?,
                    Some(_) | None => return Err(CloseReason::Unauthorized),
                };
                return admission(device, 0, Priority::Normal, false);
            }
            BearerKind::ExpiringCredential(expiring) => {
                return self.check_mortal(device, expiring, mark);
            }
            BearerKind::Configured(place) => *place,
        };
        let holder = &self.all_holders[place as usize];
        let (device, is_service) = match &holder.who {
            Who::AnyDevice => (self.claimed(device)?, false),
            Who::Device(bound) if device.is_empty() || *device == **bound => {
                (bound.as_ref().to_owned(), false)
            }
            Who::Service(name) if device.is_empty() => (name.as_ref().to_owned(), true),
            Who::Service(name) if is_named(device, name) => (device.to_owned(), true),
            Who::Device(_) | Who::Service(_) => return Err(CloseReason::Unauthorized),
        };
        admission(device, holder.grant, holder.priority, is_service)
    }

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
            device: expiring.device.as_ref().to_owned(),
            grant: GrantRef::Own(Arc::clone(&expiring.grant)),
            priority: expiring.priority,
            is_service: false,
            ends: Some(expiring.ends),
            is_kept: expiring.kind == AuthKind::Device,
            mark,
        })
    }

    /// Whom a request is from, by the rules of [`Authenticator::admit`]; `None`: it may not be.
    ///
    /// A token for any device names none, and neither does anonymous mode.
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
            let grant = GrantRef::Numbered(grant.ok_or(NoBearer::Unknown)?);
            return Ok(Requester { device: None, grant, is_service: false, ends: None });
        }
        let claim = self.admit(named, "", bearer).map_err(|_| NoBearer::Unknown)?;
        let admission = match claim.settled(self) {
            Ok(admission) => admission,
            Err(claim) => Box::pin(self.confirm_again(claim)).await?,
        };
        let Admission { device, grant, is_service, ends, .. } = admission;
        Ok(Requester { device: Some(device), grant, is_service, ends })
    }

    /// The grant of somebody who may be any device; `None`: he may not, `Some(None)`: he would, if it were permitted.
    fn grant_of_any(&self, bearer: &Bearer) -> Option<Option<u16>> {
        match bearer.kind {
            BearerKind::Nobody => Some(self.anonymous.then_some(0)),
            BearerKind::Configured(place) => {
                let holder = &self.all_holders[place as usize];
                matches!(holder.who, Who::AnyDevice).then_some(Some(holder.grant))
            }
            BearerKind::ExpiringCredential(_) => None,
        }
    }

    /// What somebody may do.
    pub(crate) fn grant<'a>(&'a self, grant: &'a GrantRef) -> &'a Grant {
        match grant {
            GrantRef::Numbered(number) => self.numbered(*number),
            GrantRef::Own(grant) => grant,
        }
    }

    /// What a connection may do, by the number that it carries.
    pub(crate) fn numbered(&self, number: u16) -> &Grant {
        // Numbers come from here.
        self.grants.get(usize::from(number)).unwrap_or(&self.grants[0])
    }

    /// What somebody may do of whom nothing is known any more.
    pub(crate) fn nobody(&self) -> &Grant {
        &self.nobody
    }

    /// Has the keys of signed tokens read anew; `false`: there are none.
    pub(crate) fn ask_reload(&self) -> bool {
        self.jwt.as_ref().map(|jwt| jwt.ask_reload()).is_some()
    }

    pub(crate) fn jwt(&self) -> Option<&Arc<Jwt>> {
        self.jwt.as_ref()
    }

    fn check_id(&self, device: &str) -> Result<(), CloseReason> {
        match device.len() > self.device_id_bytes_max || device.contains(char::is_control) {
            true => Err(CloseReason::Malformed),
            false => Ok(()),
        }
    }

    /// An id that is free to be claimed.
    fn claimed(&self, device: &str) -> Result<String, CloseReason> {
        if device.is_empty() {
            return Err(CloseReason::Malformed);
        }
        if self.bound.contains(device) {
            return Err(CloseReason::Unauthorized);
        }
        if self.is_of_service(device) {
            return Err(CloseReason::Unauthorized);
        }
        Ok(device.to_owned())
    }

    /// Whether it is a service's name, or begins with one and a slash.
    fn is_of_service(&self, device: &str) -> bool {
        let mut ends = device.match_indices('/').map(|(end, _)| end).chain([device.len()]);
        !self.services.is_empty() && ends.any(|end| self.services.contains(&device[..end]))
    }
}

impl Bearer {
    /// As it is counted.
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
    fn of(config: &Config) -> NamedLabels {
        let actors =
            config.topic_classes.iter().flat_map(|class| [&class.publish, &class.subscribe]);
        let named = actors.flatten().filter_map(|actor| match actor {
            Actor::Label(label) => Some(Box::from(label.as_str())),
            Actor::Devices | Actor::Services => None,
        });
        NamedLabels { named: named.collect(), shared: SharedGrants::default() }
    }

    /// The grant of a device with these labels.
    fn grant(&self, labels: impl Iterator<Item = String>) -> Grant {
        let labels: Vec<String> = labels.filter(|label| self.named.contains(&**label)).collect();
        Grant::of_device(&labels)
    }

    fn share(&self, grant: Grant) -> Arc<Grant> {
        self.shared.share(grant)
    }
}

impl Who {
    fn of(token: &TokenConfig) -> Who {
        token.device.as_deref().map_or(Who::AnyDevice, |device| Who::Device(device.into()))
    }
}

/// Whether an id is a service's name, or that and a slash and more.
fn is_named(id: &str, name: &str) -> bool {
    id.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// In the note that a shard keeps of a connection: its grant is not numbered, but stands with when it ends.
pub(crate) const OWN_GRANT: u16 = u16::MAX;

#[cfg(test)]
mod tests;
