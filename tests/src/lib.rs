//! What the end-to-end tests share: the built programs as children, and clients that speak with them over real sockets.

pub mod chaos;
pub mod http2;

mod admin;
mod authority;
mod cgroup;
mod crowd;
mod databases;
mod datagrams;
mod device;
mod events;
mod example;
mod fleet;
mod forger;
mod gatherer;
mod half_handshake;
mod line;
mod numbers;
mod program;
mod proxy;
mod redis_cluster;
mod s_client;
mod socket;
mod stored;
mod upgrade;
mod wait;

pub use admin::{Answer, Metrics};
pub use authority::{Authority, Leaf};
pub use cgroup::Cgroup;
pub use crowd::{Crowd, PROTOCOLS};
pub use databases::{Database, Redis};
pub use datagrams::Datagrams;
pub use device::Device;
pub use events::{Event, Events};
pub use example::Example;
pub use fleet::{Fleet, Member, OWN_TOPICS, Tally};
pub use forger::{Forger, Heard, framed, read_record};
pub use gatherer::Gatherer;
pub use half_handshake::{HalfHandshake, client_hello, edited_hello};
pub use line::Line;
pub use numbers::Numbers;
pub use program::{
    Server, bench_report, free_addr, free_port, free_udp, installed, program, raise_open_files,
};
pub use proxy::Proxy;
pub use redis_cluster::RedisCluster;
pub use s_client::SClient;
pub use socket::{Socket, Upgrade, close, masked};
pub use upgrade::{Newest, UnderWay, upgrade};
pub use wait::{PATIENCE, now, rest, with_longer_times};
