//! Sections `[auth]`, `[[auth.tokens]]` and `[[auth.services]]`.

use std::time::Duration;

use weir_engine::Priority;

use super::keys::{DAY, Word};
use super::{JwtConfig, RATE_MAX, TOKEN_BYTES_MAX};
use crate::base::model::AuthKind;

crate::config_table! {
    /// Section `[auth]`.
    pub struct AuthConfig {
        /// Whether devices without a token are admitted. Absent: yes if all of `listen.tcp`,
        /// `listen.tls`, `listen.http` and `listen.https` are on loopback. With
        /// `listen.proxy_networks` the key must be set. A wrong token is always refused.
        anonymous: Option<bool>,
            allowed(
                "true only if listen.tcp, listen.tls, listen.http and listen.https are on loopback"
            ), reload();
        /// A connection is told this long before its credentials end, so that it can refresh them.
        /// If less than twice this time is left at its beginning, it is told after half of the time
        /// left. Long enough for a device to get a new token with a few attempts.
        expiring_notice: Duration = Duration::from_secs(60), range(0..=DAY), reason(" (a day)");
        /// Invalid tokens per second from one source (an IPv4 address, or a /64 of IPv6). Only
        /// tokens count that must be verified or looked up: a signature takes up to 100 us. Beyond
        /// the rate, tokens from there are refused for a while (`rate_limited`, 429), except tokens
        /// of the configuration and recently verified ones. Valid tokens do not count. 0: no limit.
        /// Raise it if a proxy without PROXY header stands in front of many clients.
        failures_per_source_per_second: u32 = 1_000, range(0..=RATE_MAX),
            unit("failures a second"), reload();
        /// Invalid tokens from one source at once after a silence.
        failures_per_source_burst: u32 = 5_000, range(1..=RATE_MAX), unit("failures"), reload();
        /// Kinds of credentials whose device ids are not looked up in the store. By default, an id
        /// that the store knows belongs to its device. It is refused to devices without a token,
        /// with a token for any device, or with a signed token, and to the certificate of a revoked
        /// device. While the store does not answer, such devices are told to come back
        /// (`store_unavailable`).
        unchecked_ids: Vec<AuthKind>, reload();
        /// Tokens that admit devices. Only the file can set them.
        tokens: Vec<TokenConfig>, secret(), reload();
        /// Backend programs with their own tokens. They connect like devices or call the admin API.
        /// Only the file can set them.
        services: Vec<ServiceConfig>, secret(), reload();
        /// Tokens that other programs issue and sign (JWT, RFC 7519).
        jwt: JwtConfig;
    }
}

crate::config_table! {
    /// One of `[[auth.tokens]]`.
    pub struct TokenConfig in "tables [[auth.tokens]], each with a token" {
        /// The secret that the device sends in `Hello`.
        token: String, secret(), needed(), example("\"a long random text\""),
            allowed("1 to {TOKEN_BYTES_MAX} bytes, no two alike");
        /// The only device id that this token admits, and the id of a device that names none.
        /// Absent: the token admits any id, except those in the store (`auth.unchecked_ids`).
        device: Option<String>, allowed("1 to limits.device_id_bytes_max bytes, not a service's"),
            example("\"thermometer-7\"");
        /// Priority of the token's connections, in every fan-out and every turn of a shard. Give
        /// few tokens high priority: their connections are served before all others.
        priority: Priority;
        /// Labels to which topic classes can give rights, as `label:NAME`.
        labels: Vec<String>, range(0..=LABELS_MAX), unit("labels"),
            reason(": a look-up of rights compares them all"),
            allowed("{LABELS_MAX} at most, each of 1 to {LABEL_BYTES_MAX} bytes");
    }
}

crate::config_table! {
    /// One of `[[auth.services]]`: a backend program that connects like a device, or calls the
    /// admin API.
    pub struct ServiceConfig
        in "tables [[auth.services]], each with a token, a name and its rights"
    {
        /// The secret that the service sends, in `Hello` or as bearer token of the admin API.
        token: String, secret(), needed(), example("\"another-long-random-text\""), allowed(
                "1 to {TOKEN_BYTES_MAX} bytes of printable ASCII without spaces, no two alike"
            );
        /// The device id of the service's connections; several may be open at the same time. A
        /// connection may also use an id `NAME/…`, to be told apart.
        name: String, allowed("1 to limits.device_id_bytes_max bytes without \"/\", no two alike"),
            example("\"game-server\""), needed();
        /// The service's rights. `subscribe` and `publish`: to topics whose class permits it to
        /// services, as classes do by default. `publish` also permits `POST /v1/publish`, to every
        /// topic, to a device, or to all. `events`: `GET /v1/events`. `call`: calls over routes that
        /// let services use them, and `POST /v1/devices/{id}/call`.
        may: Vec<Right>, allowed("at least one"),
            example("[\"subscribe\", \"publish\", \"events\"]"), needed();
    }
}

weir_wire::named_enum! {
    /// A right of a service.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Right {
        /// Subscribe to any topic whose class permits it to services, as classes do by default.
        Subscribe = "subscribe",
        /// Publish: on a connection to topics whose class permits it; through the admin API to
        /// every topic.
        Publish = "publish",
        /// Read the events of connections.
        Events = "events",
        /// Call backends over routes that let services use them, and devices through the admin API.
        Call = "call",
    }
}

crate::config_words!(Priority, Right);

/// The kinds of credentials that need no look-up of the id: all except those of stored devices.
impl Word for AuthKind {
    fn all() -> Vec<Self> {
        vec![
            AuthKind::Anonymous,
            AuthKind::Certificate,
            AuthKind::Jwt,
            AuthKind::Token,
            AuthKind::Hook,
        ]
    }

    fn word(self) -> &'static str {
        self.name()
    }
}

/// Each label is compared with the labels of a class.
const LABELS_MAX: u64 = 16;
/// A label is a word.
pub(super) const LABEL_BYTES_MAX: usize = 64;
