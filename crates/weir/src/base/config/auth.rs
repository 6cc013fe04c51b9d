//! Sections `[auth]`, `[[auth.tokens]]` and `[[auth.services]]`.

use std::time::Duration;

use weir_engine::Priority;

use super::keys::{DAY, Word};
use super::{JwtConfig, RATE_MAX, TOKEN_BYTES_MAX};
use crate::base::model::AuthKind;

crate::config_table! {
    /// Section `[auth]`.
    pub struct AuthConfig {
        /// Whether devices without a token are admitted. Absent: only if all listeners except the
        /// admin API are on loopback. With `listen.proxy_networks` it must be set. A wrong token is
        /// refused in either case.
        anonymous: Option<bool>,
            allowed("true only while all listeners except the admin API are on loopback");
        /// A connection is told this long before its credentials end, so that it can refresh them.
        /// If less than twice this time is left at its start, it is told after half of the rest.
        /// The default gives a device time for a few attempts.
        expiring_notice: Duration = Duration::from_secs(60), range(0..=DAY), reason(" (a day)");
        /// Invalid tokens that one address (IPv6: one /64) may show in a second, if they need a
        /// signature check or a store. A signature takes up to 100 us. Beyond the limit, such
        /// tokens from there are refused for a while (`rate_limited`, 429). Tokens of the
        /// configuration and recently verified tokens are still accepted. Valid tokens do not
        /// count. 0: no limit. Raise it behind a proxy that sends no PROXY header for its many
        /// clients.
        failures_per_source_per_second: u32 = 1_000, range(0..=RATE_MAX),
            unit("failures a second");
        /// Such tokens that one address may show at once after a silence.
        failures_per_source_burst: u32 = 5_000, range(1..=RATE_MAX), unit("failures");
        /// Kinds of credentials whose device ids are not looked up in the store. Normally an id
        /// that the store knows belongs to its device alone. It is refused to devices without a
        /// token, with a token for any device, or with a signed token, and to the certificate of a
        /// revoked device. While the store does not answer, these are told to come back later
        /// (`store_unavailable`).
        unchecked_ids: Vec<AuthKind>;
        /// Tokens that admit devices. Only in the file.
        tokens: Vec<TokenConfig>, secret();
        /// Backend programs with a token of their own. They connect like devices or call the admin
        /// API. Only in the file.
        services: Vec<ServiceConfig>, secret();
        /// Tokens that other backends issue and sign (JWT, RFC 7519).
        jwt: JwtConfig;
    }
}

crate::config_table! {
    /// One of `[[auth.tokens]]`.
    pub struct TokenConfig in "tables [[auth.tokens]], each with a token" {
        /// The secret that a device shows in `Hello`.
        token: String, secret(), needed(), example("\"a long random text\""),
            allowed("1 to {TOKEN_BYTES_MAX} bytes, no two alike");
        /// The only device id that the token admits; also the id of a device that names none.
        /// Absent: the token admits any id except those of the store (`auth.unchecked_ids`).
        device: Option<String>, allowed("1 to limits.device_id_bytes_max bytes, not a service's"),
            example("\"thermometer-7\"");
        /// The priority of its connections, in every fan-out and in every turn of a shard. Give
        /// `high` to few connections: they are served before all others.
        priority: Priority;
        /// Words to which topic classes can grant rights, as `label:NAME`.
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
        /// The service's secret, in `Hello` or as bearer token of the admin API.
        token: String, secret(), needed(), example("\"another-long-random-text\""), allowed(
                "1 to {TOKEN_BYTES_MAX} bytes of printable ASCII without spaces, no two alike"
            );
        /// The device id of its connections; several may be open at one time. A connection may also
        /// use `NAME/…` as its id, to be told apart.
        name: String, allowed("1 to limits.device_id_bytes_max bytes without \"/\", no two alike"),
            example("\"game-server\""), needed();
        /// The service's rights. `subscribe` and `publish` apply to topics whose class admits
        /// services, as classes do by default. `publish` also permits `POST /v1/publish` to every
        /// topic, to a device, or to all. `events` permits `GET /v1/events`.
        may: Vec<Right>, allowed("at least one"),
            example("[\"subscribe\", \"publish\", \"events\"]"), needed();
    }
}

weir_wire::named_enum! {
    /// A right of a service.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Right {
        /// Subscribe to topics whose class admits services, as all classes do by default.
        Subscribe = "subscribe",
        /// Publish to such topics on a connection, and to any target through the admin API.
        Publish = "publish",
        /// See the events of connections.
        Events = "events",
    }
}

crate::config_words!(Priority, Right);

/// The kinds of credentials whose ids may stay unchecked: all except those of the store's own
/// devices.
impl Word for AuthKind {
    fn all() -> Vec<Self> {
        vec![AuthKind::Anonymous, AuthKind::Certificate, AuthKind::Jwt, AuthKind::Token]
    }

    fn word(self) -> &'static str {
        self.name()
    }
}

/// Each label is compared with the labels of a class.
const LABELS_MAX: u64 = 16;
/// A label is a word.
pub(super) const LABEL_BYTES_MAX: usize = 64;
