//! Sections `[auth]`, `[[auth.tokens]]` and `[[auth.services]]`.

use std::time::Duration;

use weir_engine::Priority;

use super::keys::{DAY, Word};
use super::{JwtConfig, RATE_MAX, TOKEN_BYTES_MAX};
use crate::base::model::AuthKind;

crate::config_table! {
    /// Section `[auth]`.
    pub struct AuthConfig {
        /// Whether devices without a token are admitted. Absent: yes if all that listens, but the
        /// admin API, is on loopback; with `listen.proxy_networks` it is to be said. A wrong token
        /// is refused either way.
        anonymous: Option<bool>,
            allowed("true only while all that listens, but the admin API, is on loopback");
        /// How long before its credentials end a connection is told, so that it can refresh them;
        /// half of what is left when it begins, if that is less. Long enough for a device to get a
        /// new token with a few attempts.
        expiring_notice: Duration = Duration::from_secs(60), range(0..=DAY), reason(" (a day)");
        /// Tokens that admit nobody which one address (of IPv6: one /64) may show in a second,
        /// where they are to be verified or asked for: a signature takes up to 100 us. Beyond,
        /// tokens from there are not looked at for a while (`rate_limited`, 429), but those of the
        /// configuration and those that were verified lately. Valid ones do not count. 0: as many
        /// as it likes; more where a proxy without PROXY header stands before many clients.
        failures_per_source_per_second: u32 = 1_000, range(0..=RATE_MAX),
            unit("failures a second");
        /// Those that it may show at once after a silence.
        failures_per_source_burst: u32 = 5_000, range(1..=RATE_MAX), unit("failures");
        /// Credentials whose device ids are not looked up in the store. Otherwise an id that the
        /// store knows is its device's own: it is refused to devices without a token, with a token
        /// for any device, or with a signed one, and to the certificate of a device that is
        /// revoked. While the store does not answer, they are told to come back
        /// (`store_unavailable`).
        unchecked_ids: Vec<AuthKind>;
        /// Tokens that admit devices. Only in the file.
        tokens: Vec<TokenConfig>, secret();
        /// Backend programs with a token of their own, which connect like devices or call the admin
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
        /// The only device id that it admits, and the id of a device that names none. Absent: it
        /// admits any id, but those of the store (`auth.unchecked_ids`).
        device: Option<String>, allowed("1 to limits.device_id_bytes_max bytes, not a service's"),
            example("\"thermometer-7\"");
        /// When it is the turn of its connections, in every fan-out and in every turn of a shard.
        /// High is for few: they are served before all others.
        priority: Priority;
        /// Words that topic classes can grant rights to, as `label:NAME`.
        labels: Vec<String>, range(0..=LABELS_MAX), unit("labels"),
            reason(": each is compared when rights are looked up"),
            allowed("{LABELS_MAX} at most, each of 1 to {LABEL_BYTES_MAX} bytes");
    }
}

crate::config_table! {
    /// One of `[[auth.services]]`: a backend program that connects like a device, or calls the
    /// admin API.
    pub struct ServiceConfig
        in "tables [[auth.services]], each with a token, a name and what it may do"
    {
        /// The secret that it shows, in `Hello` or as bearer token of the admin API.
        token: String, secret(), needed(), example("\"another-long-random-text\""), allowed(
                "1 to {TOKEN_BYTES_MAX} bytes of printable ASCII without spaces, no two alike"
            );
        /// The device id of its connections; several may be open at one time. A connection may
        /// claim `NAME/…` too, to be told apart.
        name: String, allowed("1 to limits.device_id_bytes_max bytes without \"/\", no two alike"),
            example("\"game-server\""), needed();
        /// `subscribe` and `publish`: to the topics whose class lets services do so, as classes do
        /// unless told; `publish` by `POST /v1/publish` too, to every topic, device, or all.
        /// `events`: `GET /v1/events`.
        may: Vec<Right>, allowed("at least one"),
            example("[\"subscribe\", \"publish\", \"events\"]"), needed();
    }
}

weir_wire::named_enum! {
    /// What a service may do.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Right {
        /// Subscribe to any topic whose class names services, as all do unless told otherwise.
        Subscribe = "subscribe",
        /// Publish: to such topics on a connection, and to whatever it likes by the admin API.
        Publish = "publish",
        /// See the events of connections.
        Events = "events",
    }
}

crate::config_words!(Priority, Right);

/// The kinds of credentials whose ids need not be looked up: all but those of the store's own
/// devices.
impl Word for AuthKind {
    fn all() -> Vec<Self> {
        vec![AuthKind::Anonymous, AuthKind::Certificate, AuthKind::Jwt, AuthKind::Token]
    }

    fn word(self) -> &'static str {
        self.name()
    }
}

/// Each is compared with those of a class.
const LABELS_MAX: u64 = 16;
/// A label is a word.
pub(super) const LABEL_BYTES_MAX: usize = 64;
