//! How a client connects, and its own limits.

use std::time::Duration;

use weir_wire::{ProstMessage, v1};

use crate::{Position, TlsOptions};

/// How to connect: identity, requests, limits.
///
/// Limits: `connect_timeout` covers name look-up, TCP, TLS and `Welcome` together. An incoming
/// frame above `frame_bytes_max` ends the connection; an outgoing one is refused.
#[derive(Debug, Clone)]
pub struct Options {
    /// The device id that this client claims. The token, or anonymous mode, must permit it.
    pub device_id: String,
    /// Empty: anonymous.
    pub token: String,
    /// Name and version of the program, for the operator's eyes.
    pub client: String,
    /// Requested heartbeat; `None`: the server's default.
    /// [`Client::heartbeat`](crate::Client::heartbeat) returns the agreed one.
    pub heartbeat: Option<Duration>,
    /// Topics to subscribe to from the start. To continue where an earlier connection ended, pass
    /// its [`Client::positions`](crate::Client::positions). The first message has room for 16 KiB;
    /// [`Client::next`](crate::Client::next) asks for the remaining topics after the welcome.
    pub topics: Vec<Subscription>,
    /// Whether the program answers calls of backends: [`Event::Call`](crate::Event::Call). Without
    /// it the server refuses them.
    pub calls: bool,
    /// Largest frame, in bytes, in either direction.
    pub frame_bytes_max: usize,
    /// Longest wait for `Welcome`.
    pub connect_timeout: Duration,
    /// How to speak TLS; `None`: no encryption.
    pub tls: Option<TlsOptions>,
}

/// A topic to subscribe to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// Its name.
    pub topic: String,
    /// The position of the last message seen, to resume after it; `None`: from now on.
    pub from: Option<Position>,
    /// Whether [`Event::Presence`](crate::Event::Presence) tells who enters and who leaves. The
    /// server refuses the topic if its class has no presence, or lets others see it.
    pub presence: bool,
}

impl Options {
    /// The defaults for a device: anonymous, the server's heartbeat, no topics, 1 MiB frames, 10 s
    /// to connect.
    pub fn device(device_id: impl Into<String>) -> Options {
        Options {
            device_id: device_id.into(),
            token: String::new(),
            client: concat!("weir-client/", env!("CARGO_PKG_VERSION")).to_owned(),
            heartbeat: None,
            topics: Vec::new(),
            calls: false,
            frame_bytes_max: FRAME_BYTES_MAX,
            connect_timeout: CONNECT_TIMEOUT,
            tls: None,
        }
    }

    /// With a token.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Options {
        self.token = token.into();
        self
    }

    /// Adds a topic to subscribe to from the start.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<Subscription>) -> Options {
        self.topics.push(topic.into());
        self
    }

    /// Announces that the program answers calls of backends.
    #[must_use]
    pub fn calls(mut self) -> Options {
        self.calls = true;
        self
    }

    /// Over TLS.
    #[must_use]
    pub fn tls(mut self, tls: TlsOptions) -> Options {
        self.tls = Some(tls);
        self
    }

    /// The first message, and the topics for which it has no room.
    pub(crate) fn hello(&self) -> (v1::Hello, Vec<v1::Subscribe>) {
        let mut hello = v1::Hello {
            device_id: self.device_id.clone(),
            token: self.token.clone(),
            client: self.client.clone(),
            heartbeat_ms: self
                .heartbeat
                .map_or(0, |wish| u32::try_from(wish.as_millis()).unwrap_or(u32::MAX)),
            topics: Vec::new(),
            calls: self.calls,
        };
        let mut left = HELLO_BYTES_MAX.saturating_sub(hello.encoded_len() + HEAD_BYTES);
        let mut topics = self.topics.iter().map(Subscription::to_wire).peekable();
        while let Some(topic) = topics.next_if(|topic| topic.encoded_len() + HEAD_BYTES <= left) {
            left -= topic.encoded_len() + HEAD_BYTES;
            hello.topics.push(topic);
        }
        (hello, topics.collect())
    }
}

impl Subscription {
    /// The same, with [`Subscription::presence`] set.
    #[must_use]
    pub fn presence(mut self) -> Subscription {
        self.presence = true;
        self
    }

    pub(crate) fn to_wire(&self) -> v1::Subscribe {
        v1::Subscribe {
            topic: self.topic.clone(),
            position: self.from.map(|at| v1::Position { epoch: at.epoch, offset: at.offset }),
            presence: self.presence,
        }
    }
}

impl<T: Into<String>> From<T> for Subscription {
    fn from(topic: T) -> Subscription {
        Subscription { topic: topic.into(), from: None, presence: false }
    }
}

/// Sixteen times the server's default, so that the client also reads from a server with larger
/// frames.
const FRAME_BYTES_MAX: usize = 1 << 20;

/// The default of a server's `limits.hello_bytes_max`.
const HELLO_BYTES_MAX: usize = 16 * 1024;

/// The most bytes before a message inside another one: a field's number, and a length of three
/// bytes.
const HEAD_BYTES: usize = 4;

/// The time for which a server waits for `Hello` by default.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
