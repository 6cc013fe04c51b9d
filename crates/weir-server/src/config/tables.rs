//! Lists of tables, such as `[[auth.tokens]]`: what each table's members can be.

use toml::de::DeValue;
use weir::{CertificateConfig, JwtKeyConfig, ServiceConfig, TokenConfig, TopicClass};

use super::field::{At, Field, Value};
use super::keys::phrase;

/// A member of a list's tables, whatever table that is.
pub(super) trait Member: Sync {
    fn name(&self) -> &'static str;
    /// What it does, and why one would set it.
    fn meaning(&self) -> &'static str;
    /// Never shown.
    fn is_secret(&self) -> bool;
    /// Whether each table has to have it.
    fn is_needed(&self) -> bool;
    fn kind(&self) -> &'static str;
    /// Kind and range in one phrase.
    fn allowed_in_full(&self) -> String;
    /// See [`Field::words`].
    fn words(&self) -> &'static [&'static str];
    /// The default as TOML; `None` if it is absent, or none exists since the member is needed.
    fn default(&self) -> Option<String>;
    /// A value as TOML for those who read the example.
    fn example(&self) -> String;
    /// Whether the value is of its kind.
    fn accepts(&self, value: &DeValue<'_>) -> bool;
}

/// A member of tables of type `R`.
pub(super) struct MemberOf<R: 'static> {
    name: &'static str,
    field: &'static dyn Field<R>,
    /// What is allowed beyond the kind; empty: nothing more to say.
    allowed: &'static str,
    /// Empty: the default.
    example: &'static str,
    meaning: &'static str,
    is_secret: bool,
    is_needed: bool,
}

/// A table in a list of them.
pub(super) trait Row: Default + 'static {
    /// The list, as a phrase that follows "allowed is".
    const KIND: &'static str;
    fn members() -> &'static [MemberOf<Self>];
}

impl<R: Row> Member for MemberOf<R> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn meaning(&self) -> &'static str {
        self.meaning
    }

    fn is_secret(&self) -> bool {
        self.is_secret
    }

    fn is_needed(&self) -> bool {
        self.is_needed
    }

    fn kind(&self) -> &'static str {
        self.field.kind()
    }

    fn allowed_in_full(&self) -> String {
        phrase(self.field.kind(), self.allowed)
    }

    fn words(&self) -> &'static [&'static str] {
        self.field.words()
    }

    fn default(&self) -> Option<String> {
        if self.is_needed { None } else { self.field.show(&R::default()) }
    }

    fn example(&self) -> String {
        match self.example {
            "" => self.default().unwrap_or_default(),
            example => example.to_owned(),
        }
    }

    fn accepts(&self, value: &DeValue<'_>) -> bool {
        self.field.set_from_toml(&mut R::default(), value)
    }
}

impl<R: Row> Value for Vec<R> {
    const KIND: &'static str = R::KIND;
    const IN_VARIABLES: bool = false;

    fn members() -> Vec<&'static dyn Member> {
        R::members().iter().map(|member| member as &dyn Member).collect()
    }

    fn from_toml(value: &DeValue<'_>) -> Option<Vec<R>> {
        value.as_array()?.iter().map(|item| row(item.get_ref())).collect()
    }

    fn from_text(_: &str) -> Option<Vec<R>> {
        None
    }

    fn show(&self) -> Option<String> {
        self.is_empty().then(|| "[]".to_owned())
    }
}

fn row<R: Row>(value: &DeValue<'_>) -> Option<R> {
    let table = value.as_table()?;
    let mut row = R::default();
    for member in R::members() {
        let is_right = match table.get(member.name) {
            Some(value) => member.field.set_from_toml(&mut row, value.get_ref()),
            None => !member.is_needed,
        };
        if !is_right {
            return None;
        }
    }
    Some(row)
}

macro_rules! member {
    (secret $row:ident.$name:ident, $allowed:expr, $example:expr, $meaning:expr) => {
        member!(@ $row.$name, $allowed, $example, $meaning, true, true)
    };
    (needed $row:ident.$name:ident, $allowed:expr, $example:expr, $meaning:expr) => {
        member!(@ $row.$name, $allowed, $example, $meaning, false, true)
    };
    ($row:ident.$name:ident, $allowed:expr, $meaning:expr) => {
        member!(@ $row.$name, $allowed, "", $meaning, false, false)
    };
    ($row:ident.$name:ident, $allowed:expr, $example:expr, $meaning:expr) => {
        member!(@ $row.$name, $allowed, $example, $meaning, false, false)
    };
    (@ $row:ident.$name:ident, $allowed:expr, $example:expr, $meaning:expr, $is_secret:expr, $is_needed:expr) => {
        MemberOf {
            name: stringify!($name),
            field: &At {
                get: |row: &$row| &row.$name,
                get_mut: |row: &mut $row| &mut row.$name,
            },
            allowed: $allowed,
            example: $example,
            meaning: $meaning,
            is_secret: $is_secret,
            is_needed: $is_needed,
        }
    };
}

impl Row for TokenConfig {
    const KIND: &'static str = "tables [[auth.tokens]], each with a token";

    fn members() -> &'static [MemberOf<TokenConfig>] {
        TOKEN
    }
}

impl Row for ServiceConfig {
    const KIND: &'static str =
        "tables [[auth.services]], each with a token, a name and what it may do";

    fn members() -> &'static [MemberOf<ServiceConfig>] {
        SERVICE
    }
}

impl Row for CertificateConfig {
    const KIND: &'static str = "tables [[tls.certificates]], each with a certificate and a key";

    fn members() -> &'static [MemberOf<CertificateConfig>] {
        CERTIFICATE
    }
}

impl Row for JwtKeyConfig {
    const KIND: &'static str = "tables [[auth.jwt.keys]], each with an algorithm and a file";

    fn members() -> &'static [MemberOf<JwtKeyConfig>] {
        JWT_KEY
    }
}

impl Row for TopicClass {
    const KIND: &'static str = "tables [[topic_classes]], each with a pattern";

    fn members() -> &'static [MemberOf<TopicClass>] {
        TOPIC_CLASS
    }
}

static TOKEN: &[MemberOf<TokenConfig>] = &[
    member!(
        secret TokenConfig.token,
        "1 to 4096 bytes, no two alike",
        "\"a long random text\"",
        "The secret that a device shows in `Hello`."
    ),
    member!(
        TokenConfig.device,
        "1 to limits.device_id_bytes_max bytes, not a service's",
        "\"thermometer-7\"",
        "The only device id that it admits, and the id of a device that names none. Absent: it admits any id, but those of the store (`auth.unchecked_ids`)."
    ),
    member!(
        TokenConfig.priority,
        "",
        "When it is the turn of its connections, in every fan-out and in every turn of a shard. High is for few: they \
         are served before all others."
    ),
    member!(
        TokenConfig.labels,
        "16 at most, each of 1 to 64 bytes",
        "Words that topic classes can grant rights to, as `label:NAME`."
    ),
];

static SERVICE: &[MemberOf<ServiceConfig>] = &[
    member!(
        secret ServiceConfig.token,
        "1 to 4096 bytes of printable ASCII without spaces, no two alike",
        "\"another-long-random-text\"",
        "The secret that it shows, in `Hello` or as bearer token of the admin API."
    ),
    member!(
        needed ServiceConfig.name,
        "1 to limits.device_id_bytes_max bytes without \"/\", no two alike",
        "\"game-server\"",
        "The device id of its connections; several may be open at one time. A connection may claim `NAME/…` too, to \
         be told apart."
    ),
    member!(
        needed ServiceConfig.may,
        "at least one",
        "[\"subscribe\", \"publish\", \"events\"]",
        "`subscribe` and `publish`: to the topics whose class lets services do so, as classes do unless told; `publish` \
         by `POST /v1/publish` too, to every topic, device, or all. `events`: `GET /v1/events`."
    ),
];

static CERTIFICATE: &[MemberOf<CertificateConfig>] = &[
    member!(
        needed CertificateConfig.certificate,
        "not empty",
        "\"/etc/weir/gate.example.pem\"",
        "PEM file: the certificate, and behind it those that lead to an authority which devices know."
    ),
    member!(
        needed CertificateConfig.key,
        "not empty",
        "\"/etc/weir/gate.example.key\"",
        "PEM file of its private key, without a passphrase: ECDSA, Ed25519 or RSA, as PKCS #8, SEC 1 or PKCS #1. It may be \
         the same file."
    ),
];

static JWT_KEY: &[MemberOf<JwtKeyConfig>] = &[
    member!(
        needed JwtKeyConfig.algorithm,
        "",
        "\"ES256\"",
        "The only algorithm that it is used with, whatever a token says of itself."
    ),
    member!(
        needed JwtKeyConfig.file,
        "not empty",
        "\"/etc/weir/issuer.pem\"",
        "PEM file of the public key (`BEGIN PUBLIC KEY`): RSA of 2048 to 8192 bits for RS256, P-256 for ES256, Ed25519 for \
         EdDSA. For HS256 the secret itself, 32 bytes at least."
    ),
    member!(
        JwtKeyConfig.kid,
        "1 to 1024 bytes, no two alike",
        "\"2026-11\"",
        "The name that tokens call it by (`kid`). Absent: any token may be signed with it."
    ),
];

static TOPIC_CLASS: &[MemberOf<TopicClass>] = &[
    member!(
        needed TopicClass.pattern,
        "1 to limits.topic_bytes_max bytes",
        "\"room/*\"",
        "Names that it holds for. `*` stands for any characters, none included; `{device}`, at most once, for a device \
         id, and `devices` below then means that device alone. The first class that fits counts, so the general ones \
         come last."
    ),
    member!(
        TopicClass.tick,
        "10ms to 60s, or 0ms for none",
        "Messages are gathered for this long and leave as one batch: far cheaper where many publish to many. 0: each \
         leaves at once."
    ),
    member!(
        TopicClass.tick_bytes_max,
        "at least the largest message, at most 67108864",
        "What one tick may gather, with about a hundred bytes a message beside its frame. More is refused until the next one, and may be tried again then."
    ),
    member!(
        TopicClass.conflation,
        "true only with a tick or with slow = \"conflate\"",
        "Whether a tick keeps only the newest message of each key. The offsets of the others are skipped."
    ),
    member!(
        TopicClass.priority,
        "",
        "When it is the turn of its messages, behind the priority of connections."
    ),
    member!(
        TopicClass.slow,
        "",
        "What becomes of messages for a connection that does not keep up. `close`: they wait, and who stays above the \
         high watermark for `connection.stall_timeout` is closed. `drop`: above the watermark they are skipped. \
         `conflate`: the newest message of each key waits for it, and it is closed only when its socket takes nothing \
         at all for that long."
    ),
    member!(
        TopicClass.message_bytes_max,
        "0 or 64 to limits.frame_bytes_max",
        "Longest message, measured as the frame that leaves. 0: `limits.frame_bytes_max`."
    ),
    member!(
        TopicClass.retention_messages,
        "0 to 1000000",
        "Messages of one topic kept for those who come back and name their position. 0: none, and whoever has missed \
         one is told so."
    ),
    member!(
        TopicClass.retention_bytes,
        "at least the largest message, at most memory.retention_bytes",
        "Bytes of one topic kept."
    ),
    member!(
        TopicClass.retention_ttl,
        "1s to 168h",
        "How long a message is kept. A topic lives until its last kept message has gone."
    ),
    member!(
        TopicClass.history,
        "true only with retention_messages",
        "Whether `GET /v1/topics/{topic}/history` of the public API answers with what is kept, to whoever may subscribe."
    ),
    member!(
        TopicClass.publish,
        "labels that a token carries",
        "Who may publish: every device, services with the right, devices whose token has the label. The admin API \
         always may."
    ),
    member!(
        TopicClass.subscribe,
        "labels that a token carries",
        "Who may subscribe, written likewise."
    ),
    member!(
        TopicClass.publishes_per_second,
        "0 to 1000000",
        "Messages that one topic takes in a second, on average, whoever publishes. 0: as many as come."
    ),
    member!(
        TopicClass.publish_burst,
        "1 to 1000000",
        "Messages that it takes at once after a silence."
    ),
];
