//! The Weir gateway as a library.

mod activation;
mod admin;
mod admission;
mod auth;
mod clock;
mod config;
mod counters;
mod desk;
mod device_store;
mod devices;
mod events;
mod frames;
mod gateway;
mod handle;
mod host;
mod http;
mod hub;
mod import;
mod inspect;
mod lanes;
mod listener;
mod partial;
mod patience;
mod private;
mod proxy;
mod publish;
mod rates;
mod readiness;
mod reports;
mod rights;
mod router;
mod session;
mod share;
mod slab;
mod sources;
mod threads;
mod tickets;
mod tls;
mod udp;
mod web;
mod workers;

pub use auth::TokenSource;
pub use auth::jwt::JwtKeyError;
pub use clock::unix_millis;
pub use config::{
    AccessLogConfig, AccessLogFormat, ActivationConfig, Actor, AdminConfig, AuthConfig, BenchStage,
    CertificateConfig, ClientAuth, ClientIdentity, Config, ConfigError, ConnectionConfig,
    DurationError, HttpConfig, JwtAlgorithm, JwtConfig, JwtKeyConfig, LimitsConfig, ListenConfig,
    MemoryConfig, Right, ServiceConfig, TcpConfig, ThreadsConfig, TlsConfig, TlsVersion,
    TokenConfig, TopicClass, UdpConfig, parse_duration,
};
pub use counters::{
    AcceptError, AuthKind, AuthOutcome, ConnectRefuseCause, Counters, PublishTarget,
    RefreshOutcome, RefuseCause, ResumeOutcome, SubscribeRefuseCause,
};
pub use device_store::{DeviceStore, StoredDevice};
pub use events::{Event, EventFilter, EventKind, Events, EventsEnd, FromDevice, Refusal};
pub use gateway::{Gateway, GatewayBuilder, StartError, Started};
pub use handle::{
    Accepted, Connection, ConnectionCursor, ConnectionQuery, Gauges, Handle, Payload, Publication,
    PublishError, Retained, ShardSilent, Target, TopicInfo, TopicNameError,
};
pub use http::access::AccessLogError;
pub use import::{BadRow, Row, RowFormat, Rows, RowsError};
pub use ipnet::IpNet;
pub use listener::Buffers;
pub use private::{make_private_directory, warn_if_exposed};
pub use readiness::{Part, PartReadiness, PartState, Readiness};
pub use rustls;
pub use threads::{MemoryLimit, OpenFiles, Resources, raise_open_files, schedule_front_thread};
pub use tls::{Development, TlsError};
pub use weir_engine::datagrams::DatagramBuffers;
pub use weir_engine::{ConnId, Priority, SlowPolicy, Transport};
pub use weir_wire::{CloseReason, ErrorCode};
