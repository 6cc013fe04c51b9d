//! The keys of `[auth.jwt]`.

use super::{At, Key, Settings};

macro_rules! jwt {
    ($name:ident, $allowed:expr, $meaning:expr) => {
        key!(@ gateway.auth.jwt, "auth.jwt", $name, $allowed, $meaning, false)
    };
}

pub(super) static KEYS: &[Key] = &[
    jwt!(
        issuer,
        "at most 1024 bytes",
        "What the claim `iss` has to be. Empty: anything. Say it where the keys are used for more than Weir."
    ),
    jwt!(
        audience,
        "at most 1024 bytes",
        "What the claim `aud` has to be, or to hold. Empty: a token with an audience is refused, as it is for somebody \
         else."
    ),
    jwt!(
        leeway,
        "0s to 5m",
        "How far the issuer's clock may be from ours: a token is good so much earlier and longer than it says. Clocks that \
         are synchronised agree within a second."
    ),
    jwt!(
        token_bytes_max,
        "512 to 65536",
        "Length of such a token. Long ones cost memory before it is known whose they are; one with many claims and an \
         RSA signature has some 2 KiB."
    ),
    jwt!(
        datagram_failures_per_second,
        "0 to 1000000",
        "Signed tokens that admit nobody which all datagrams together may show in a second, as their addresses can be \
         forged: the default costs a tenth of a processor with ES256. Beyond, those that were not verified lately are \
         refused for a while (`rate_limited`). 0: as many as come."
    ),
    jwt!(
        reload_interval,
        "1s to 1d",
        "How often the files of the keys are looked at. What has changed is used as soon as a look finds nothing newer, \
         or at once on SIGHUP; if it cannot be used, what was loaded before stays."
    ),
    jwt!(
        device_claim,
        "1 to 128 bytes, each of the four another one",
        "The claim that names the device: a text that can be a device id. A token without it is refused."
    ),
    jwt!(
        topics_claim,
        "1 to 128 bytes",
        "The claim that lists the topics that the token is good for: at most 16 patterns, as in `[[topic_classes]]`, with \
         `{device}` for its own device. A token without it is good for all that classes permit; none permits more."
    ),
    jwt!(
        labels_claim,
        "1 to 128 bytes",
        "The claim that lists labels: at most 16 texts. Those that a class names count."
    ),
    jwt!(
        priority_claim,
        "1 to 128 bytes",
        "The claim that says when it is the turn of its connections: `high`, `normal` or `low`."
    ),
    jwt!(
        keys,
        "",
        "Keys that such tokens are signed with. None: no such token is taken. Only in the file."
    ),
];
