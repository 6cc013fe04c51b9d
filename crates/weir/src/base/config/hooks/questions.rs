//! Sections `[hooks.connect]`, `[hooks.refresh]`, `[hooks.subscribe]` and `[hooks.publish]`.

use std::time::Duration;

use crate::base::config::keys::{DAY, MINUTE, SECOND};

crate::config_table! {
    /// Section `[hooks.connect]`.
    pub struct ConnectHookConfig {
        /// The upstream that is asked about tokens that neither the configuration, nor the keys of
        /// `[auth.jwt]`, nor the store knows. Empty: none, and such tokens are refused.
        upstream: String, reload(), allowed("the name of one of [[upstreams]], or \"\"");
        /// The path of the request.
        path: String = "/weir/connect".to_owned(), reload(),
            allowed("a path that begins with /, of at most {PATH_BYTES_MAX} bytes");
        /// How long the answer may take, beside `connection.hello_timeout`. Without an answer the
        /// device is told to come back.
        timeout: Duration = Duration::from_secs(2), range(10..=MINUTE), reload();
        /// Questions that may be in flight. A further one fails at once.
        // Each takes some KiB, and a place among the unsettled connections.
        in_flight_max: usize = 1_000, range(1..=IN_FLIGHT_MAX), unit("questions"), reload();
        /// How long credentials are valid if the answer does not say.
        lifetime: Duration = Duration::from_secs(3_600), range(SECOND..=30 * DAY),
            reason(" (30 days)"), reload();
    }
}

crate::config_table! {
    /// Section `[hooks.refresh]`.
    pub struct RefreshHookConfig {
        /// The upstream that is asked about the token of `Refresh`, under the conditions of
        /// `hooks.connect.upstream`. Empty: that upstream, at its path.
        upstream: String, reload(), allowed("the name of one of [[upstreams]], or \"\"");
        /// The path of the request.
        path: String = "/weir/refresh".to_owned(), reload(),
            allowed("a path that begins with /, of at most {PATH_BYTES_MAX} bytes");
        /// How long the answer may take. Without an answer the device may try again until its
        /// credentials end.
        timeout: Duration = Duration::from_secs(2), range(10..=MINUTE), reload();
        /// Questions that may be in flight. A further one fails at once.
        in_flight_max: usize = 1_000, range(1..=IN_FLIGHT_MAX), unit("questions"), reload();
    }
}

crate::config_table! {
    /// Section `[hooks.subscribe]`.
    pub struct SubscribeHookConfig {
        /// The upstream that is asked whether a device may subscribe, if the topic's class permits
        /// it. Empty: none, except for classes that name one (`subscribe_hook`).
        upstream: String, reload(), allowed("the name of one of [[upstreams]], or \"\"");
        /// The path of the request.
        path: String = "/weir/subscribe".to_owned(), reload(),
            allowed("a path that begins with /, of at most {PATH_BYTES_MAX} bytes");
        /// How long the answer may take.
        timeout: Duration = Duration::from_secs(2), range(10..=MINUTE), reload();
        /// Questions that may be in flight. A further one fails at once.
        in_flight_max: usize = 1_000, range(1..=IN_FLIGHT_MAX), unit("questions"), reload();
        /// What happens without an answer. `refuse`: the device is told to try again. `allow`: the
        /// topic's class alone decides.
        on_failure: OnFailure, reload();
    }
}

crate::config_table! {
    /// Section `[hooks.publish]`.
    pub struct PublishHookConfig {
        /// The upstream that is asked whether a device may publish, if the topic's class permits
        /// it. Empty: none, except for classes that name one (`publish_hook`).
        upstream: String, reload(), allowed("the name of one of [[upstreams]], or \"\"");
        /// The path of the request.
        path: String = "/weir/publish".to_owned(), reload(),
            allowed("a path that begins with /, of at most {PATH_BYTES_MAX} bytes");
        /// How long the answer may take.
        timeout: Duration = Duration::from_secs(2), range(10..=MINUTE), reload();
        /// Questions that may be in flight. A further one fails at once.
        // Each holds its message twice: as it came, and as JSON.
        in_flight_max: usize = 1_000, range(1..=IN_FLIGHT_MAX), unit("questions"), reload();
        /// What happens without an answer. `refuse`: the device is told to try again. `allow`: the
        /// topic's class alone decides.
        on_failure: OnFailure, reload();
        /// Whether the question contains payload, media type and key of the message. Without them,
        /// all messages of a device to one topic are the same question, so that one kept answer
        /// serves them all.
        payload: bool = true, reload();
    }
}

weir_wire::named_enum! {
    /// What a question counts for that was not answered.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum OnFailure {
        /// A refusal.
        #[default]
        Refuse = "refuse",
        /// A permission.
        Allow = "allow",
    }
}

crate::config_words!(OnFailure);

/// It stands in each request's first line.
pub(crate) const PATH_BYTES_MAX: usize = 1_024;
/// Each takes a stream or a connection of the upstream.
const IN_FLIGHT_MAX: u64 = 100_000;
