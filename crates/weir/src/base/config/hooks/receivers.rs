//! Tables `[[hooks.receivers]]`: the services that are told what happens.

use std::time::Duration;

use super::{HOOK_SECRET_BYTES_MAX, HOOK_SECRET_BYTES_MIN, PATH_BYTES_MAX};
use crate::base::config::UPSTREAM_NAME_CHARS_MAX;
use crate::base::config::keys::{DAY, MINUTE};

crate::config_table! {
    /// One of `[[hooks.receivers]]`: a service that is told what happens.
    pub struct ReceiverConfig
        in "tables [[hooks.receivers]], each with a name, an upstream and events"
    {
        /// The receiver's name in the admin API, in metrics and in logs. Its queue belongs to the
        /// name: with another name, it begins anew.
        name: String, needed(), example("\"audit\""),
            allowed("1 to {UPSTREAM_NAME_CHARS_MAX} of a-z, A-Z, 0-9, - and _, no two alike");
        /// The upstream that gets the notices.
        upstream: String, needed(), example("\"api\""),
            allowed("the name of one of [[upstreams]]");
        /// The path of the requests.
        path: String = "/weir/notices".to_owned(),
            allowed("a path that begins with /, of at most {PATH_BYTES_MAX} bytes");
        /// The events of which it is told.
        events: Vec<NoticeEvent>, needed(), example("[\"connected\", \"disconnected\"]"),
            allowed("at least one, none twice");
        /// Patterns of topic names, as in `[[topic_classes]]`. It is told only of topics that match
        /// one of them. Empty: of all topics. Notices of connections name no topic, and always come.
        topics: Vec<String>, range(0..=TOPICS_MAX), unit("patterns"),
            reason(": each event of a topic is compared with them all"),
            allowed("at most {TOPICS_MAX}");
        /// Secret with which its requests are signed: header `weir-signature`. Empty:
        /// `hooks.secret`.
        secret: String, secret(),
            allowed("{HOOK_SECRET_BYTES_MIN} to {HOOK_SECRET_BYTES_MAX} bytes, or \"\"");
        /// Most notices in one request. A request has at most 1 MiB, or one notice.
        batch_max: usize = 100, range(1..=BATCH_MAX), unit("notices");
        /// How long a notice waits for others, so that fewer requests carry more notices.
        batch_delay: Duration = Duration::from_millis(100), range(0..=MINUTE);
        /// How long the answer to a request may take. Then the same notices are sent again.
        timeout: Duration = Duration::from_secs(10), range(10..=10 * MINUTE);
        /// Most notices in its queue. Then the oldest goes; if it was not delivered, it is counted,
        /// and a notice `lost` takes its place.
        queue_notices_max: usize = 1_000_000, range(100..=QUEUE_NOTICES_MAX), unit("notices");
        /// Most bytes of notices in its queue, with the same rule. They are on the disk.
        queue_bytes_max: usize = 256 << 20, range(1 << 20..=1 << 40), unit("bytes");
        /// How long a delivered notice stays in the queue, so that the receiver can read it again
        /// through the admin API.
        keep: Duration = Duration::from_secs(3_600), range(0..=30 * DAY), reason(" (30 days)");
        /// The longest pause between two tries. The first pause is 100 ms, and each further one is
        /// twice as long.
        backoff_max: Duration = Duration::from_secs(30), range(100..=10 * MINUTE);
    }
}

weir_wire::named_enum! {
    /// What a receiver is told of.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum NoticeEvent {
        /// A connection has settled.
        Connected = "connected",
        /// A connection has ended.
        Disconnected = "disconnected",
        /// A connection has subscribed to a topic.
        Subscribed = "subscribed",
        /// A connection has left a topic, and goes on.
        Unsubscribed = "unsubscribed",
        /// A message to a topic was published.
        Published = "published",
        /// A topic has got its first subscriber: of this node, or of the cluster.
        Occupied = "occupied",
        /// A topic has lost its last subscriber: of this node, or of the cluster.
        Vacated = "vacated",
    }
}

crate::config_words!(NoticeEvent);

/// Each has a queue, and a task that sends.
pub(crate) const RECEIVERS_MAX: u64 = 16;
const _: () = assert!(weir_store::Notices::QUEUES_MAX as u64 == RECEIVERS_MAX);
const TOPICS_MAX: u64 = 64;
/// With long notices a request reaches its bytes earlier.
const BATCH_MAX: u64 = 10_000;
/// Some hundred gigabytes.
const QUEUE_NOTICES_MAX: u64 = 1_000_000_000;
