//! The Weir gateway as a library.

mod config;
mod counters;
mod handle;
mod hub;
mod threads;

pub use config::{
    AdminConfig, AuthConfig, Config, ConfigError, ConnectionConfig, DurationError, LimitsConfig,
    ListenConfig, MemoryConfig, TcpConfig, ThreadsConfig, TokenConfig, parse_duration,
};
pub use counters::{AcceptError, Counters, PublishTarget, RefuseCause};
pub use handle::{
    Accepted, Connection, ConnectionCursor, ConnectionQuery, Gauges, Handle, Payload, Publication,
    PublishError, Target, TopicInfo, TopicNameError,
};
