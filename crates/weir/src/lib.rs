//! The Weir gateway as a library.

mod admin;
mod config;
mod counters;
mod devices;
mod frames;
mod handle;
mod hub;
mod router;
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
pub use threads::{OpenFiles, Resources, raise_open_files};
