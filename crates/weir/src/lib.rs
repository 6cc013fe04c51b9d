//! The Weir gateway as a library. Start with [`Gateway::builder`].

mod admin;
mod auth;
mod backends;
mod base;
mod cluster;
mod connection;
mod core;
mod gateway;
mod handover;
mod http;
mod limits;
mod observe;
mod provisioning;
mod tls;
mod topics;
mod udp;

pub use crate::admin::AdminPage;
pub use crate::base::diagnostics::{AllocatorStats, Diagnostics};
pub use crate::base::memory::{Explained, MemoryPart, MemoryReport, Retainer};
pub use crate::base::model::{
    Accepted, AuthKind, IdempotencyKey, NodesReached, Payload, Publication, PublishError, Target,
    TopicInfo, TopicNameError,
};
pub use crate::core::drain::{DrainError, DrainInfo, DrainOptions, DrainState};
pub use crate::core::events::{Event, EventFilter, EventKind, Events, EventsEnd};
pub use crate::core::handle::{
    Connection, ConnectionCursor, ConnectionQuery, FromDevice, Gauges, Handle, Refusal, Retained,
    ShardSilent,
};
pub use crate::core::publishing::Publishing;
pub use auth::TokenSource;
pub use auth::jwt::JwtKeyError;
pub use backends::notices::NoticesError;
pub use base::clock::unix_millis;
pub use base::config::DnsFamilies;
pub use base::config::keys;
pub use base::config::{
    AccessLogConfig, AccessLogFormat, ActivationConfig, Actor, AdminConfig, AdminScope,
    AdminTokenConfig, AuthConfig, CallProtocol, CallRouteConfig, CallsConfig, CertificateConfig,
    ClientAuth, ClientIdentity, ClusterConfig, Config, ConfigError, ConnectHookConfig,
    ConnectionConfig, DurationError, EngineConfig, HooksConfig, HttpConfig, JwtAlgorithm,
    JwtConfig, JwtIssuerConfig, JwtKeyConfig, LimitsConfig, ListenConfig, MemoryConfig,
    NoticeEvent, OnFailure, PublishHookConfig, ReceiverConfig, RedisUrls, RefreshHookConfig, Right,
    RouteAuth, RouteConfig, Scope, ServiceConfig, SubscribeHookConfig, TcpConfig, TelemetryConfig,
    ThreadsConfig, TlsConfig, TlsVersion, TokenConfig, TopicClass, UdpConfig, UpstreamConfig,
    UpstreamProtocol, parse_duration,
};
pub use base::private::{make_private_directory, state_directory, warn_if_exposed};
pub use base::profiler::{CpuProfile, ProfileError, ProfileFormat, Profiler};
pub use base::reloader::{NotReloaded, Reloaded, Reloader};
pub use base::threads::{
    LimitedMemory, MemoryLimit, OpenFiles, Resources, raise_open_files, schedule_front_thread,
};
pub use base::token_hash::{new_admin_token, token_hash};
pub use cluster::ask_redis;
pub use connection::listener::Buffers;
pub use gateway::{Gateway, GatewayBuilder, StartError, Started};
pub use handover::{
    Forecast, Hello, Left, Moved, NotMoved, Predecessor, Stage, Successor, UPGRADE_VARIABLE,
};
pub use ipnet::IpNet;
pub use observe::access::AccessLogError;
pub use observe::audit::TARGET as AUDIT_TARGET;
pub use observe::counters::{
    AcceptError, AuthOutcome, ClusterLimit, ConnectRefuseCause, Counters, EpochOutcome, Following,
    FromBroker, PresenceOutcome, PublishTarget, RefreshOutcome, RefuseCause, ResumeOutcome,
    SubscribeRefuseCause,
};
pub use observe::readiness::{Part, PartReadiness, PartState, Readiness};
pub use observe::upgrades::Upgraded;
pub use provisioning::device_store::{DeviceStore, StoredDevice};
pub use provisioning::import::{BadRow, Row, RowFormat, Rows, RowsError};
pub use rustls;
pub use tls::{Development, TlsError};
pub use weir_broker::{RedisAnswer, RedisInfo};
pub use weir_engine::datagrams::DatagramBuffers;
pub use weir_engine::rounded as allocated_size;
pub use weir_engine::{ConnId, Priority, SlowPolicy, Transport};
pub use weir_wire::{CloseReason, ErrorCode};
