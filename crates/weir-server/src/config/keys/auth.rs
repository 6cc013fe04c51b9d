//! The keys of `[auth]`.

use super::{At, Key, Settings};

pub(super) static KEYS: &[Key] = &[
    key!(
        auth.anonymous,
        "true only while all that listens, but the admin API, is on loopback",
        "Whether devices without a token are admitted. Absent: yes if all that listens, but the admin API, is on \
         loopback; with `listen.proxy_networks` it is to be said. A wrong token is refused either way."
    ),
    key!(
        auth.expiring_notice,
        "0s to 1d",
        "How long before its credentials end a connection is told, so that it can refresh them; half of what is left when \
         it begins, if that is less. Long enough for a device to get a new token with a few attempts."
    ),
    key!(
        auth.failures_per_source_per_second,
        "0 to 1000000",
        "Tokens that admit nobody which one address (of IPv6: one /64) may show in a second, where they are to be verified \
         or asked for: a signature takes up to 100 us. Beyond, tokens from there are not looked at for a while \
         (`rate_limited`, 429), but those of the configuration and those that were verified lately. Valid ones do not \
         count. 0: as many as it likes; more where a proxy without PROXY header stands before many clients."
    ),
    key!(
        auth.failures_per_source_burst,
        "1 to 1000000",
        "Those that it may show at once after a silence."
    ),
    key!(
        auth.unchecked_ids,
        "a list of \"anonymous\", \"certificate\", \"jwt\" and \"token\"",
        "Credentials whose device ids are not looked up in the store. Otherwise an id that the store knows is its device's \
         own: it is refused to devices without a token, with a token for any device, or with a signed one, and to the \
         certificate of a device that is revoked. While the store does not answer, they are told to come back \
         (`store_unavailable`)."
    ),
    key!(
        secret auth.tokens,
        "",
        "Tokens that admit devices. Only in the file."
    ),
    key!(
        secret auth.services,
        "",
        "Backend programs with a token of their own, which connect like devices or call the admin API. Only in the \
         file."
    ),
];
