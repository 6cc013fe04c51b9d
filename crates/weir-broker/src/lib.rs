//! Holds several nodes together: the contract of Weir's brokers, and the brokers.
//!
//! A broker orders the messages of each topic, keeps them, and carries them to all nodes that asked for the topic. It
//! also carries messages to devices, evictions, revocations, presence and sealed sessions. It knows names, bytes and
//! positions. It knows
//! no connections, shards or HTTP.
//!
//! Begin with `contract`.
//!
//! | part | does | does not |
//! |---|---|---|
//! | `contract` | the trait [`Broker`], and what a node hears from it ([`Event`]) | keep anything |
//! | `queue` | gathers messages into batches, and sends a failed batch again | give up what it holds to another node |
//! | `conformance` | the tests that every broker passes | belong to the product |
//! | `memory` | a broker in memory, with faults that tests switch on | belong to the product |
//! | `redis` | [`RedisBroker`]: keeps everything in Redis | know the gateway |
//! | `durations` | counts durations by length | measure |
//! | `records` | positions, batches, claims, members, nodes | travel anywhere by itself |

#[cfg(feature = "conformance")]
pub mod conformance;
mod contract;
mod durations;
#[cfg(feature = "conformance")]
pub mod memory;
mod queue;
mod records;
mod redis;

pub use contract::{Answer, Broker, BrokerCounts, Error, Event, EventHandler, Published};
pub use durations::DurationCounts;
pub use queue::{Overloaded, PublishQueue, QueueCounts, QueueLimits, QueueResult, Waiting};
pub use records::{
    Attendance, Batch, BatchId, Claim, ConnectionNumber, Entry, History, HistoryQuery, Member,
    MemberPage, Name, Node, NodeNumber, NodeState, Occupancy, Position, Reach, Received, Retention,
    Revocation, RevocationId, Revocations, Scope, SessionId, StoredSession,
};
pub use redis::{PublishScript, RedisAnswer, RedisBroker, RedisInfo, RedisOptions, ask_redis};
