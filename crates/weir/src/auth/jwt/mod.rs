//! Tokens that other backends issue and sign (RFC 7519), checked only with keys of the
//! configuration and of its issuers.
//!
//! A token's own text decides only which key is tried. The key decides the algorithm.

pub(crate) mod issuers;
mod keys;
mod verified;

use std::mem;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{decode, decode_header};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{info, warn};
use weir_engine::Priority;

use super::{ExpiringCredential, NamedLabels};
use crate::backends::Backends;
use crate::base::config::{Config, JwtConfig, LimitsConfig, is_pattern};
use crate::base::files::{Stamps, Watch, Watched, stamps};
use crate::base::model::AuthKind;
use crate::base::pattern::Pattern;
use issuers::{Issuer, Issuers, NotVerified};
pub use keys::JwtKeyError;
use keys::Key;
use verified::Verified;

/// The verifier of signed tokens.
///
/// Limits: `auth.jwt.token_bytes_max` for a token; [`TOPICS_MAX`] patterns and [`LABELS_MAX`]
/// labels in it.
/// Cost: one verification, from some microseconds with HS256 to a hundred with ES256. A token
/// without a `kid` may need one for each key. A token that was verified recently costs its digest.
pub(crate) struct Jwt {
    config: JwtConfig,
    topic_bytes_max: AtomicUsize,
    keys: ArcSwap<Vec<Key>>,
    issuers: Issuers,
    verified: Verified,
    stamps_at_start: Stamps,
    reload_asked: Notify,
    refusals: Refusals,
}

/// The number of refused tokens in the log in this second.
#[derive(Default)]
struct Refusals(Mutex<Told>);

#[derive(Default)]
struct Told {
    second: u64,
    count: u32,
    /// Refusals since the last line that were not logged.
    untold: u64,
}

/// Why a token admits nobody.
pub(super) enum NoToken {
    /// It is not valid.
    Refused,
    /// There are no keys of its issuer.
    NoKeys(Arc<Issuer>),
    /// Its issuer's keys do not contain the one that it names.
    UnknownKey(Arc<Issuer>),
}

type Claims = Map<String, Value>;

/// The claim that selects the issuer of a token.
#[derive(Deserialize)]
struct UnprovenIssuer {
    iss: Option<Value>,
}

impl Config {
    /// Reads the files of the keys of `[auth.jwt]` as a start does.
    ///
    /// Errors: the first file that cannot be used.
    pub fn check_jwt_keys(&self) -> Result<(), JwtKeyError> {
        keys::read(&self.auth.jwt).map(drop)
    }
}

impl Jwt {
    /// The tokens that were verified.
    pub(super) fn footprint(&self) -> weir_engine::Footprint {
        self.verified.footprint()
    }

    /// Reads the keys.
    ///
    /// Errors: the first file that cannot be used.
    pub(crate) fn new(config: &Config) -> Result<Arc<Jwt>, JwtKeyError> {
        let jwt = &config.auth.jwt;
        let stamps_at_start = stamps(&files(jwt));
        let keys = keys::read(jwt)?;
        Ok(Arc::new(Jwt {
            topic_bytes_max: AtomicUsize::new(config.limits.topic_bytes_max),
            keys: ArcSwap::from_pointee(keys),
            issuers: Issuers::new(jwt),
            verified: Verified::default(),
            stamps_at_start,
            reload_asked: Notify::new(),
            refusals: Refusals::default(),
            config: jwt.clone(),
        }))
    }

    /// Whether any token can be valid.
    pub(super) fn has_keys(&self) -> bool {
        self.has_files() || !self.issuers.list().is_empty()
    }

    /// Whether keys are in files.
    pub(crate) fn has_files(&self) -> bool {
        !self.config.keys.is_empty()
    }

    /// The issuers whose keys are fetched.
    pub(crate) fn issuers(&self) -> &Issuers {
        &self.issuers
    }

    /// Uses the values of another configuration that need no restart.
    pub(super) fn reload(&self, config: &Config) {
        let LimitsConfig { topic_bytes_max, .. } = config.limits;
        self.topic_bytes_max.store(topic_bytes_max, Ordering::Relaxed);
        if self.issuers.replace(&config.auth.jwt) {
            self.forget_verified();
        }
    }

    /// Forgets which tokens were verified.
    pub(super) fn forget_verified(&self) {
        self.verified.forget();
    }

    /// The properties of a token that was verified recently and has not ended.
    pub(super) fn find(&self, token: &str, now: Duration) -> Option<Arc<ExpiringCredential>> {
        self.verified.find(token, u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
    }

    /// The properties of a token, if it is valid now. The log gives the reason of a refusal, a few
    /// times a second.
    ///
    /// Errors: it is not valid, or its issuer's keys must be fetched first.
    pub(super) fn verify(
        &self,
        token: &str,
        now: Duration,
        labels: &NamedLabels,
        source: Option<IpAddr>,
    ) -> Result<Arc<ExpiringCredential>, NoToken> {
        let era = self.verified.era();
        let refused = |why: &str| {
            self.refuse(token, why, now, source);
            NoToken::Refused
        };
        let (claims, issuer) = self.claims(token);
        let claims = claims.map_err(|why| match (why, issuer) {
            (NotVerified::Refused(why), _) => refused(&why),
            (NotVerified::NoKeys, Some(issuer)) => NoToken::NoKeys(issuer),
            (NotVerified::UnknownKey, Some(issuer)) => NoToken::UnknownKey(issuer),
            (NotVerified::NoKeys | NotVerified::UnknownKey, None) => refused(NO_KEY),
        })?;
        let expiring = self.expiring(&claims, now, labels).map_err(|why| refused(&why))?;
        let expiring = Arc::new(expiring);
        self.verified.put(token, &expiring, era);
        Ok(expiring)
    }

    /// Logs the reason of a refusal. The token's own claims are unproven and are cut to a short
    /// text.
    pub(super) fn refuse(&self, token: &str, why: &str, now: Duration, source: Option<IpAddr>) {
        let Some(untold) = self.refusals.told_of_one(now.as_secs()) else { return };
        let is_short = token.len() <= self.config.token_bytes_max;
        let token = Some(token).filter(|_| is_short);
        let kid = token.and_then(|token| decode_header(token).ok()?.kid);
        let kid = kid.as_deref().map(shown);
        let subject = token.and_then(unproven_claims);
        let subject = subject.as_ref().and_then(|claims| {
            let named = text(claims, &self.config.device_claim).ok().flatten();
            named.or(text(claims, "sub").ok().flatten()).map(shown)
        });
        let source = source.map(|source| source.to_canonical().to_string());
        info!(why, kid, subject, source, untold, "a signed token is refused");
    }

    pub(super) fn ask_reload(&self) {
        self.reload_asked.notify_one();
    }

    /// The proven claims of a token; and its issuer, if that is one whose keys are fetched.
    fn claims(&self, token: &str) -> (Result<Claims, NotVerified>, Option<Arc<Issuer>>) {
        let refused = |why| (Err(NotVerified::Refused(why)), None);
        let limit = self.config.token_bytes_max;
        if token.len() > limit {
            return refused(format!("{} bytes are over {limit} (token_bytes_max)", token.len()));
        }
        let header = match decode_header(token) {
            Ok(header) => header,
            Err(error) => return refused(error.to_string()),
        };
        if header.crit.is_some() {
            return refused("it demands extensions (crit)".to_owned());
        }
        if let Some(issuer) = self.issuer_of(token) {
            return (issuer.claims(token, &header), Some(issuer));
        }
        let mut why = NO_KEY.to_owned();
        for key in self.keys.load().iter().filter(|key| key.may_be(header.kid.as_deref())) {
            match decode::<Claims>(token, &key.decoding, &key.validation) {
                Ok(data) => return (Ok(data.claims), None),
                Err(error) => why = error.to_string(),
            }
        }
        refused(why)
    }

    fn issuer_of(&self, token: &str) -> Option<Arc<Issuer>> {
        if self.issuers.list().is_empty() {
            return None;
        }
        let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
        let UnprovenIssuer { iss } = serde_json::from_slice(&payload).ok()?;
        self.issuers.find(iss?.as_str()?)
    }

    fn expiring(
        &self,
        claims: &Claims,
        now: Duration,
        labels: &NamedLabels,
    ) -> Result<ExpiringCredential, String> {
        let config = &self.config;
        let exp = claims.get("exp").and_then(seconds).ok_or("exp is no time")?;
        let ends = (exp + config.leeway).as_millis();
        let ends = u64::try_from(ends).unwrap_or(u64::MAX);
        if u128::from(ends) <= now.as_millis() {
            return Err("it has ended".to_owned());
        }
        let device = text(claims, &config.device_claim)?
            .filter(|device| !device.is_empty())
            .ok_or_else(|| format!("{} names no device", config.device_claim))?;
        let priority = match text(claims, &config.priority_claim)? {
            None => Priority::Normal,
            Some(name) => Priority::ALL
                .into_iter()
                .find(|priority| priority.name() == name)
                .ok_or_else(|| format!("{} is no priority", config.priority_claim))?,
        };
        let own = texts(claims, &config.labels_claim, LABELS_MAX)?.unwrap_or_default();
        let mut grant = labels.grant(own.into_iter().map(str::to_owned));
        if let Some(topics) = texts(claims, &config.topics_claim, TOPICS_MAX)? {
            let bytes_max = self.topic_bytes_max.load(Ordering::Relaxed);
            if !topics.iter().all(|topic| is_pattern(topic, bytes_max)) {
                return Err(format!("{} contains an invalid pattern", config.topics_claim));
            }
            grant = grant.within(topics.into_iter().map(Pattern::new).collect());
        }
        let (kind, grant) = (AuthKind::Jwt, labels.share(grant));
        Ok(ExpiringCredential { kind, device: device.into(), priority, grant, ends })
    }
}

impl Refusals {
    /// The number of refusals that were not logged, if the log may take another one. Does not wait.
    fn told_of_one(&self, second: u64) -> Option<u64> {
        let mut told = self.0.try_lock().ok()?;
        if told.second != second {
            (told.second, told.count) = (second, 0);
        }
        if told.count >= TOLD_PER_SECOND {
            told.untold += 1;
            return None;
        }
        told.count += 1;
        Some(mem::take(&mut told.untold))
    }
}

impl Watched for Jwt {
    const WHAT: &'static str = "keys of signed tokens";
    type Error = JwtKeyError;

    fn stamps_at_start(&self) -> &Stamps {
        &self.stamps_at_start
    }

    fn files(&self) -> Vec<PathBuf> {
        files(&self.config)
    }

    fn reload(&self) -> Result<(), JwtKeyError> {
        self.keys.store(Arc::new(keys::read(&self.config)?));
        self.verified.forget();
        Ok(())
    }
}

/// Checks the files every `auth.jwt.reload_interval`, by the same rules as for certificates.
pub(crate) async fn watch(jwt: Arc<Jwt>) {
    let mut watch = Watch::new(&*jwt);
    loop {
        let is_asked = tokio::select! {
            () = sleep(jwt.config.reload_interval) => false,
            () = jwt.reload_asked.notified() => true,
        };
        let looked = Arc::clone(&jwt);
        let look = spawn_blocking(move || {
            watch.look(&*looked, is_asked);
            watch
        });
        let Ok(returned) = look.await else {
            warn!("keys of signed tokens are no longer reloaded: looking at them has panicked");
            return;
        };
        watch = returned;
    }
}

/// Fetches the keys of all issuers whenever they are due. Never ends.
///
/// `troubled` gets the issuers whose keys cannot be fetched, with the cause; `None`: there are no
/// issuers.
pub(crate) async fn fetch_keys(
    jwt: Arc<Jwt>,
    backends: Arc<Backends>,
    troubled: impl Fn(Option<Vec<String>>),
) {
    let of_issuers = Arc::clone(&jwt);
    let changed = move || of_issuers.forget_verified();
    issuers::keep_all(&jwt.issuers, backends, changed, troubled).await;
}

/// Whether a token has the three parts of a signed one.
pub(super) fn is_jwt(token: &str) -> bool {
    token.bytes().filter(|byte| *byte == b'.').count() == 2
}

/// The claims of a token whose signature is unchecked.
fn unproven_claims(token: &str) -> Option<Claims> {
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    serde_json::from_slice(&payload).ok()
}

/// A stranger's text in a form that is safe for the log.
fn shown(text: &str) -> String {
    let short: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    short.escape_debug().to_string()
}

fn files(config: &JwtConfig) -> Vec<PathBuf> {
    config.keys.iter().map(|key| key.file.clone()).collect()
}

/// A time in a token: seconds, with or without a fraction.
fn seconds(value: &Value) -> Option<Duration> {
    match value.as_u64() {
        // Some thousand years, so that sums do not overflow.
        Some(seconds) => Some(Duration::from_secs(seconds.min(1 << 40))),
        None => Duration::try_from_secs_f64(value.as_f64()?.min(1e12)).ok(),
    }
}

fn text<'a>(claims: &'a Claims, name: &str) -> Result<Option<&'a str>, String> {
    match claims.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
            Err(format!("{name} is no text"))
        }
    }
}

fn texts<'a>(claims: &'a Claims, name: &str, max: usize) -> Result<Option<Vec<&'a str>>, String> {
    let Some(value) = claims.get(name).filter(|value| !value.is_null()) else { return Ok(None) };
    let items = value.as_array().ok_or_else(|| format!("{name} is no list"))?;
    if items.len() > max {
        return Err(format!("{name} has {} elements, more than {max}", items.len()));
    }
    let texts: Option<Vec<_>> = items.iter().map(Value::as_str).collect();
    texts.map(Some).ok_or_else(|| format!("{name} contains an element that is no text"))
}

const NO_KEY: &str = "no key is configured for it";
/// Refused tokens that are logged in a second: enough for a person's trials, and little in a flood.
const TOLD_PER_SECOND: u32 = 5;
/// The length of unproven text in the log.
const SHOWN_CHARS_MAX: usize = 64;
/// Patterns that a topic's name is compared with on every act.
const TOPICS_MAX: usize = 16;
/// As many as a token of the configuration may have.
const LABELS_MAX: usize = 16;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod vectors;
