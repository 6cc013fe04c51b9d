//! The shards of Weir: threads that hold settled connections and push to them.
//!
//! A shard owns its connections for good. It knows bytes and deadlines; what topics mean, who may do what, and where
//! messages come from is the gateway's business, which reaches it through a [`Mailbox`] and hears from it through
//! [`Front`]. There is no async runtime here, and nothing here waits for anything but readiness and time.

mod atomics;
mod budget;
mod chunks;
mod command;
mod engine;
mod id;
mod mailbox;
mod message;
mod net;
mod outbox;
mod pool;
#[cfg(any(test, feature = "sim"))]
mod seeded_bug;
mod settings;
mod shard;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
mod sleep_flag;
mod slot;
mod stats;
mod sys;
mod table;
mod time;
pub mod tls;
mod topics;
mod wheel;

pub use budget::{Budget, Share};
pub use command::{
    Adoption, Command, ConnectionInfo, CreditKind, Front, Inspect, InspectPage, InspectWhat,
    ReplayBegin, ReplayChunk, Report, TlsAdoption, Urgent,
};
pub use engine::Engine;
pub use id::{ConnId, DeviceRef, Origin, Priority, SlowPolicy, TopicId, Transport};
#[cfg(feature = "sim")]
pub use mailbox::Detached;
pub use mailbox::{Credit, Full, Mailbox};
pub use message::{Item, Message, TopicMessage};
pub use net::{Net, Ready, Waker};
pub use settings::ShardSettings;
pub use stats::{Cell, ConnectionLevel, DropRule, Durations, ShardStats};
pub use sys::{ThreadShare, datagrams};
pub use time::{Nanos, TICK};
