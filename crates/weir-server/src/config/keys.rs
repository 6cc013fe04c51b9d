//! Every key, defined once: from here come the reading, the variables, the messages, the reference and the example.

use super::field::{At, Field};
use super::{LEVEL_ALLOWED, LINES_PER_SECOND_ALLOWED, QUEUE_LINES_ALLOWED, Settings};

/// One key.
pub(super) struct Key {
    /// Empty for a key outside the sections.
    pub(super) section: &'static str,
    pub(super) name: &'static str,
    pub(super) field: &'static dyn Field<Settings>,
    /// What is allowed beyond the kind; empty: nothing more to say.
    pub(super) allowed: &'static str,
    /// What it does, and why one would change it.
    pub(super) meaning: &'static str,
    /// Never shown.
    pub(super) is_secret: bool,
}

impl Key {
    /// `section.name`.
    pub(super) fn path(&self) -> String {
        match self.section {
            "" => self.name.to_owned(),
            section => format!("{section}.{}", self.name),
        }
    }

    /// The variable that sets it, if one can.
    pub(super) fn variable(&self) -> Option<String> {
        self.field.in_variables().then(|| self.variable_name())
    }

    /// The name that such a variable has or would have.
    pub(super) fn variable_name(&self) -> String {
        format!("WEIR_{}", self.path().replace('.', "_")).to_uppercase()
    }

    /// Whether it is a list of tables.
    pub(super) fn is_list_of_tables(&self) -> bool {
        !self.field.members().is_empty()
    }

    /// Kind and range in one phrase.
    pub(super) fn allowed_in_full(&self) -> String {
        phrase(self.field.kind(), self.allowed)
    }

    /// The default as TOML; `None` if it is absent.
    pub(super) fn default(&self) -> Option<String> {
        self.field.show(&Settings::default())
    }
}

/// A kind, and what is allowed of it.
pub(super) fn phrase(kind: &str, allowed: &str) -> String {
    if allowed.is_empty() { kind.to_owned() } else { format!("{kind}, {allowed}") }
}

pub(super) fn all() -> impl Iterator<Item = &'static Key> {
    let parts =
        [auth::KEYS, tls::KEYS, jwt::KEYS, http::KEYS, udp::KEYS, store::KEYS, access_log::KEYS];
    KEYS.iter().chain(parts.into_iter().flatten())
}

pub(super) fn find(path: &str) -> Option<&'static Key> {
    all().find(|key| key.path() == path)
}

/// The key that stands outside the sections under this name.
pub(super) fn find_outside(name: &str) -> Option<&'static Key> {
    all().find(|key| key.section.is_empty() && key.name == name)
}

/// The keys that stand outside the sections.
pub(super) fn outside() -> impl Iterator<Item = String> {
    all().filter(|key| key.section.is_empty()).map(Key::path)
}

/// The keys that are lists of tables.
pub(super) fn lists() -> impl Iterator<Item = String> {
    all().filter(|key| key.is_list_of_tables()).map(Key::path)
}

pub(super) fn paths() -> impl Iterator<Item = String> {
    all().map(Key::path)
}

pub(super) fn names() -> impl Iterator<Item = String> {
    all().map(|key| key.name.to_owned())
}

pub(super) fn sections() -> impl Iterator<Item = String> {
    SECTIONS.iter().map(|(name, _)| (*name).to_owned()).filter(|name| !name.is_empty())
}

pub(super) fn is_section(name: &str) -> bool {
    sections().any(|section| section == name)
}

/// Whether a value that stands at this path, be it a key or a typing error, must not be shown.
pub(super) fn may_be_secret(path: &str) -> bool {
    let is_within = |section: &str| {
        path.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    path.contains("token") || all().any(|key| key.is_secret && is_within(key.section))
}

/// The sections in the order of the reference, each with its subject; the one without a name is all outside them.
pub(super) static SECTIONS: &[(&str, &str)] = &[
    ("listen", "Where the gateway listens."),
    ("auth", "Who may connect, as a device or as a service of yours."),
    ("auth.jwt", "Tokens that other backends issue and sign (JWT, RFC 7519)."),
    ("admin", "Who may use the admin API: publishing, lists, metrics."),
    ("threads", "Threads and processors."),
    ("memory", "Memory for what waits to be sent, and for what is kept for those who come back."),
    ("limits", "How many and how large. What is over a limit is refused, and counted."),
    ("connection", "Times and watermarks of a connection."),
    ("tcp", "Options of the devices' sockets."),
    ("tls", "Certificates, sessions and handshakes of `listen.tls` and `listen.https`."),
    ("http", "HTTP, on `listen.http` and `listen.https`."),
    ("udp", "Datagrams, on `listen.udp`."),
    ("access_log", "A line for each request that comes by HTTP."),
    ("store", "Where devices and their tokens are kept."),
    ("store.mongodb", "MongoDB, where devices are kept there."),
    ("cache", "A Redis before the store."),
    ("activation", "How devices get their tokens."),
    // Of what stands outside the sections.
    ("", "What holds for the topics whose names fit a pattern."),
    ("log", "Log lines; they go to standard error."),
];

macro_rules! key {
    ($section:ident.$name:ident, $allowed:expr, $meaning:expr) => {
        key!(@ gateway.$section, stringify!($section), $name, $allowed, $meaning, false)
    };
    (secret $section:ident.$name:ident, $allowed:expr, $meaning:expr) => {
        key!(@ gateway.$section, stringify!($section), $name, $allowed, $meaning, true)
    };
    (secret_program $section:ident.$name:ident, $allowed:expr, $meaning:expr) => {
        key!(@ $section, stringify!($section), $name, $allowed, $meaning, true)
    };
    (program $section:ident.$name:ident, $allowed:expr, $meaning:expr) => {
        key!(@ $section, stringify!($section), $name, $allowed, $meaning, false)
    };
    (outside $name:ident, $allowed:expr, $meaning:expr) => {
        key!(@ gateway, "", $name, $allowed, $meaning, false)
    };
    (@ $($at:ident).+, $section:expr, $name:ident, $allowed:expr, $meaning:expr, $is_secret:expr) => {
        Key {
            section: $section,
            name: stringify!($name),
            field: &At {
                get: |settings: &Settings| &settings.$($at).+.$name,
                get_mut: |settings: &mut Settings| &mut settings.$($at).+.$name,
            },
            allowed: $allowed,
            meaning: $meaning,
            is_secret: $is_secret,
        }
    };
}

// They use the macro.
mod access_log;
mod auth;
mod http;
mod jwt;
mod store;
mod tls;
mod udp;

static KEYS: &[Key] = &[
    key!(
        listen.tcp,
        "at least one, here or in listen.tls, listen.http or listen.https",
        "Where devices connect over TCP. `[::]` takes IPv4 too; port 0 takes a free one, which is printed at the start."
    ),
    key!(
        listen.tls,
        "",
        "Where devices connect over TLS, likewise; see `[tls]`. By default nowhere; 7443 is the usual port."
    ),
    key!(
        listen.http,
        "",
        "Where HTTP is spoken, version 1.1 and 2 (h2c with prior knowledge); see `[http]`. `[]`: nowhere."
    ),
    key!(
        listen.https,
        "",
        "Where HTTP is spoken over TLS, likewise, with the certificates of `[tls]`; ALPN says which version. By default \
         nowhere; 8443 is the usual port."
    ),
    key!(
        listen.udp,
        "",
        "Where datagrams are answered, likewise; `[]`: nowhere. What is not on loopback needs `udp.cleartext`."
    ),
    key!(
        listen.admin,
        "or \"\" for none",
        "Where the admin API listens. Keep it where only backends and operators reach it; beyond loopback it needs \
         `admin.token`."
    ),
    key!(
        listen.proxy_networks,
        "not the whole world, at most 256",
        "Networks of the proxies in front. A connection from there has to begin with a PROXY header, version 1 or 2, \
         and counts as coming from the address that it names; from elsewhere none is read."
    ),
    key!(
        listen.accept_backlog,
        "1 to 65535",
        "Connections that the kernel holds ready to be accepted; `net.core.somaxconn` caps it. Too few, and a crowd \
         that reconnects at once waits for retransmissions."
    ),
    key!(
        secret admin.token,
        "at most 4096 bytes; not empty if listen.admin is not on loopback",
        "Bearer token that requests to the admin API must carry. Empty: none."
    ),
    key!(
        admin.hosts,
        "",
        "Names that requests to the admin API may carry as `Host`, beside the listen address and the names of \
         loopback: a guard against web pages that reach it through a name of their own."
    ),
    key!(
        threads.shards,
        "up to four for each processor and 256 at most",
        "Threads that hold connections. 0: one for each processor that affinity mask and cgroup quota allow."
    ),
    key!(
        threads.front,
        "up to four for each processor and 256 at most",
        "Threads for handshakes, the router and the admin API. 0: from the number of processors."
    ),
    key!(
        threads.pin,
        "",
        "Whether each shard stays on one processor of the inherited affinity mask. Turn it off where other programs \
         compete for the same processors."
    ),
    key!(
        memory.budget_bytes,
        "0 or at least 1048576 and eight times connection.high_watermark_bytes",
        "Bytes that may wait for sockets, all connections together, in shares: see below. When what waits for slow \
          connections needs more than its share, the connections that hold the most are closed. 0: a quarter of the memory \
          that the kernel lets the process have. The smallest limit counts: the machine's memory, `memory.max` and \
          `memory.high` of the cgroup and those above it, `RLIMIT_AS`, `RLIMIT_DATA`, and the commit limit where nothing \
          is overcommitted. The line `listening` in the log says which."
    ),
    key!(
        memory.retention_bytes,
        "0 or at most half of memory.budget_bytes",
        "Part of the budget that the topics of all classes may keep together for those who come back; each topic lets \
         go of its own oldest. 0: a quarter of the budget."
    ),
    key!(
        limits.connections_max,
        "1 to 16777216",
        "Connections held. One more is told to come back later."
    ),
    key!(
        limits.unsettled_connections_max,
        "1 to 1000000",
        "Connections that have not said `Hello` yet. Bounds what strangers can occupy."
    ),
    key!(
        limits.connections_per_device_max,
        "1 to 1024",
        "Connections of one device id. One more closes the oldest with `replaced`."
    ),
    key!(
        limits.topics_max,
        "1 to 16777216",
        "Topics that exist at one time. Half of them may be topics that nobody is in and that keep messages; no \
         publish begins another one then, and a topic beyond it keeps nothing when its last subscriber leaves."
    ),
    key!(
        limits.topics_per_connection_max,
        "1 to 4096",
        "Topics that one connection may be in; all of them are walked when it leaves one."
    ),
    key!(
        limits.topic_bytes_max,
        "1 to 1024",
        "Length of a topic name in bytes; it travels in every message."
    ),
    key!(limits.device_id_bytes_max, "1 to 1024", "Length of a device id in bytes."),
    key!(
        limits.frame_bytes_max,
        "1024 to 16777216",
        "Length of a frame in bytes, from a device or to it. A longer one from a device closes its connection."
    ),
    key!(
        limits.hello_bytes_max,
        "1024 to 16777216; more than limits.frame_bytes_max has no effect",
        "Length of the frame, or of the first message of a WebSocket, that holds `Hello`. A longer one closes its \
         connection. Bounds what each stranger can have kept before its token is known. The default has room for a \
         token of 8 KiB and for 64 topics with names of 100 bytes and positions; a client with more subscribes to the \
         others behind `Welcome`."
    ),
    key!(
        limits.connections_per_source_max,
        "0 to 16777216",
        "Connections from one address (of IPv6, from one /64), settled or not. One more is told to come back later. \
         0: as many as come. Leave room for networks that share one address."
    ),
    key!(
        limits.connects_per_source_per_second,
        "0 to 1000000",
        "Connects that one address may make in a second, on average. What comes faster is told to come back later. 0: \
         as many as come."
    ),
    key!(
        limits.connects_per_source_burst,
        "1 to 1000000",
        "Connects that one address may make at once after a silence."
    ),
    key!(
        limits.publishes_per_second,
        "0 to 1000000",
        "Messages that one connection of a device may publish in a second, on average. One more is answered with \
         `rate_limited`, and who goes on is closed. 0: as many as it likes."
    ),
    key!(
        limits.publish_burst,
        "1 to 1000000",
        "Messages that it may publish at once after a silence; as many again over the rate close it."
    ),
    key!(
        limits.frames_per_second,
        "0 to 1000000",
        "Frames of all other kinds that one connection of a device may send in a second, on average; pings and pongs of \
         WebSocket, changes of TLS keys and refused publishes count too. Beyond it the server reads more slowly. A busy \
         client sends some ten. 0: as many as it likes."
    ),
    key!(
        limits.frame_burst,
        "1 to 1000000",
        "Such frames that it may send at once after a silence; twice limits.topics_per_connection_max, if that is more. \
         Four times as many beyond it close the connection."
    ),
    key!(
        limits.conflation_keys_max,
        "1 to 1048576",
        "Keys of one topic that each shard keeps the newest message of, for slow connections (`slow = \"conflate\"`). \
         Beyond it the message that has waited longest is dropped."
    ),
    key!(
        connection.hello_timeout,
        "100ms to 1h",
        "From accepting a connection to its whole `Hello`."
    ),
    key!(
        connection.frame_timeout,
        "100ms to 1h",
        "From the first byte of a frame to its last: what drips in more slowly is closed."
    ),
    key!(
        connection.stall_timeout,
        "100ms to 1h",
        "How long a connection may stay above the high watermark before it is closed with `stalled`."
    ),
    key!(
        connection.drain_timeout,
        "0ms to 1h",
        "How long a shutdown takes to say goodbye to all, one after the other. Each is told to come back after 1 to 10 s, \
         drawn at random, whatever this is: other servers are there at once."
    ),
    key!(
        connection.heartbeat,
        "heartbeat_min to heartbeat_max",
        "Interval of the signs of life for devices that do not ask for one. After two missed ones the connection is \
         closed."
    ),
    key!(
        connection.heartbeat_min,
        "200ms to 1h",
        "The shortest heartbeat that a device may ask for: radios sleep between them."
    ),
    key!(
        connection.heartbeat_max,
        "heartbeat_min to 24h",
        "The longest heartbeat that a device may ask for: the dead are noticed after two of them."
    ),
    key!(
        connection.low_watermark_bytes,
        "1024 to 268435456",
        "A stalled connection has recovered when no more than this waits for it."
    ),
    key!(
        connection.high_watermark_bytes,
        "at least low_watermark_bytes + limits.frame_bytes_max",
        "A connection is stalled when more than this waits for it. The distance to the low watermark is at least one \
         frame, so that no single message stalls a healthy device."
    ),
    key!(
        tcp.notsent_lowat_bytes,
        "1024 to 16777216",
        "Unsent bytes in the kernel above which a socket takes no more (`TCP_NOTSENT_LOWAT`). Small, or a stall shows \
         late and what is sent is stale."
    ),
    key!(
        tcp.send_buffer_bytes,
        "4096 to 67108864",
        "Send buffer of a socket (`SO_SNDBUF`). The kernel doubles it, and caps it by `net.core.wmem_max`; what it \
         granted is printed at the start."
    ),
    key!(
        tcp.recv_buffer_bytes,
        "4096 to 67108864",
        "Receive buffer of a socket (`SO_RCVBUF`). The kernel doubles it, and caps it by `net.core.rmem_max`."
    ),
    key!(
        tcp.user_timeout,
        "above connection.stall_timeout, to 24h",
        "How long sent bytes may stay unacknowledged before the kernel ends the connection (`TCP_USER_TIMEOUT`)."
    ),
    key!(
        outside topic_classes,
        "at most 256, each with names of its own",
        "The first pattern that fits a topic's name counts. Where none fits, messages leave at once, are not kept, and \
         come from services and the admin API only. Only in the file."
    ),
    key!(
        program log.level,
        LEVEL_ALLOWED,
        "What is logged. Directives name a target: `info,weir=debug`."
    ),
    key!(program log.format, "", "Lines for people, or one JSON object a line."),
    key!(
        program log.queue_lines,
        QUEUE_LINES_ALLOWED,
        "Lines that may wait for standard error. More are dropped rather than hold up the gateway, and counted in \
         `weir_log_lines_dropped_total`."
    ),
    key!(
        program log.lines_per_second,
        LINES_PER_SECOND_ALLOWED,
        "Lines a second of each place in the code that logs, libraries included: peers can cause some. The rest is counted \
         (`weir_log_lines_suppressed_total`), and a line every 5 s says how many. 0: no limit, to see all of `debug`."
    ),
];
