//! The keys of `[store]`, `[store.mongodb]`, `[cache]` and `[activation]`.

use super::{At, Key, Settings};

macro_rules! mongodb {
    ($name:ident, $allowed:expr, $meaning:expr, $is_secret:expr) => {
        key!(@ store.mongodb, "store.mongodb", $name, $allowed, $meaning, $is_secret)
    };
}

pub(super) static KEYS: &[Key] = &[
    key!(
        program store.kind,
        "",
        "Where devices are kept: in a file of its own, in MongoDB, or nowhere. `none`: no device activates here, and no \
         token of an activated one is known."
    ),
    key!(
        program store.path,
        "or \"\"",
        "The file of the embedded store; one process holds it at a time. Empty: `devices.db` in `$STATE_DIRECTORY`, \
         `$XDG_STATE_HOME/weir` or `~/.local/state/weir`, the first that is set."
    ),
    key!(
        program store.hash_key,
        "or \"\"",
        "File of the 32 random bytes by which keys and tokens are hashed; made if it is not there. Without it nothing in \
         the store is good for anything: keep a copy, and give it to every node that shares the store. Empty: `store.key` \
         beside the file of `store.path`."
    ),
    key!(
        program store.timeout,
        "10ms to 1m",
        "How long a request to the store may take, waiting included; then it is answered with 503. Longer than a slow \
         disk takes, shorter than clients wait. MongoDB has three quarters of it, and what the cache knows the rest."
    ),
    key!(
        program store.queue_max,
        "1 to 1000000",
        "Requests that may wait for the store: activations and checks of tokens each. One more is answered with 503 at once: a second of a fast store."
    ),
    key!(
        program store.batch_max,
        "1 to 10000",
        "Requests that go to the store together at most. 1: each by itself, for comparison."
    ),
    key!(
        program store.batch_wait,
        "0ms to 1s",
        "How long the first request of a batch waits for others: a commit costs about as much for one as for hundreds. \
         0ms: not at all, and together goes what came while the batch before was on its way."
    ),
    mongodb!(
        uri,
        "not empty with store.kind = \"mongodb\"",
        "Where MongoDB is: `mongodb://…` or `mongodb+srv://…`, with the credentials and the TLS that it asks for.",
        true
    ),
    mongodb!(database, "not empty", "The database that holds the collections.", false),
    mongodb!(
        write_concern,
        "\"majority\" or a number of members",
        "When a write counts as done. With less than a majority an answered activation can be lost with the primary.",
        false
    ),
    mongodb!(connections_max, "1 to 1000", "Connections to it.", false),
    key!(
        secret_program cache.redis,
        "or \"\" for none",
        "A Redis that tokens are looked up in before the store is asked: `redis://[[user]:password@]host[:port][/database]`. \
         Useful where a store is far away; what it holds lets devices in while the store is down. Who can write to it can \
         let himself in. It must not evict what has not expired for want of memory (`maxmemory-policy noeviction` or \
         `volatile-ttl`), nor come back with less than it had (no snapshots: `save \"\"`; a replica that takes over may be behind \
         as well): a token that has ended could come back for `cache.ttl`."
    ),
    key!(
        program cache.prefix,
        "1 to 64 bytes",
        "What the names of all entries begin with: several fleets can share a Redis."
    ),
    key!(
        program cache.ttl,
        "1s to 10m",
        "How long an entry lives. Longer saves trips to the store; so long may others take a \
         token for valid that was ended by a gateway that cannot reach Redis."
    ),
    key!(
        program cache.timeout,
        "1ms to 1m",
        "How long Redis may take for a check, connecting included: then the store is asked instead. Telling it what the \
         store answered may take as long again."
    ),
    key!(
        activation.enabled,
        "",
        "Whether devices may activate here. Their tokens are good without, too."
    ),
    key!(
        activation.token_ttl,
        "1m to 87600h",
        "How long a token is valid. A device exchanges it before it ends, or activates again."
    ),
    key!(
        activation.grace,
        "0ms to 24h",
        "How long a token is still valid once there is a newer one: an answer that was lost on its way locks nobody out."
    ),
    key!(
        activation.gateways,
        "at most 16, each of 1 to 255 bytes of printable ASCII",
        "Where devices connect, told with each token; in whatever form they understand."
    ),
    key!(
        activation.failures_per_source_per_minute,
        "0 to 1000000",
        "Attempts that may fail from one address (of IPv6, from one /64) in a minute; beyond that all from there are \
         answered with 429 for a while. A mistyped key is tried a few times, a guesser gets nowhere. Right ones are not \
         counted. 0: as many as fail."
    ),
    key!(
        activation.failures_per_source_burst,
        "1 to 1000000",
        "Attempts that may fail from there at once after a silence. More where many devices share one address and some \
         are always wrong."
    ),
];
