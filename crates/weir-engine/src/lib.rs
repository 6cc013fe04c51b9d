//! The shards of Weir: threads that hold settled connections and push to them.
//!
//! A shard owns its connections for good. It knows bytes and deadlines. It does not know what a
//! topic means, or who may use it; that is the gateway's business. There is no async runtime here.
//! A shard waits only for readiness and time.
//!
//! Begin with `command` (the commands to a shard, and its reports), then read `shard` (the loop).
//!
//! | part | does | does not |
//! |---|---|---|
//! | `engine`, `settings` | starts and stops the threads | serve connections |
//! | `command`, `id` | the language between gateway and shard | carry anything |
//! | `mailbox`, `sleep_flag` | carry commands to a shard, wake it | block a caller |
//! | `shard` | serves connections, turn by turn | call the kernel itself: see `net` |
//! | `table`, `slot`, `topics`, `wheel` | connections, memberships, timers | any I/O |
//! | `message`, `outbox`, `pool` | messages, items that wait for a socket, begun frames | decide what is sent |
//! | `budget` | counts the bytes that wait, for all shards | free them |
//! | `memory`, `survey` | sizes as the allocator counts them; what a shard tells of its memory | allocate |
//! | `tls` | seals and opens records | make handshakes |
//! | `net`, `sys` | the kernel as a trait, and the real one: the only `unsafe` code | know connections |
//! | `stats`, `time` | counts, clock values | read a clock |
//! | `sim` | the kernel simulated, for tests | belong to the product |

mod atomics;
mod budget;
mod chunks;
mod command;
mod engine;
pub mod handover;
mod id;
mod mailbox;
mod memory;
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
mod survey;
mod sys;
mod table;
mod time;
pub mod tls;
mod topics;
mod wheel;

pub use budget::{Budget, Share};
pub use command::{
    Adoption, Command, ConnectionInfo, CreditKind, Drain, DrainWhat, Front, HandOver, HandedOver,
    Inspect, InspectPage, InspectWhat, Keeper, Lender, Lent, Loan, NotHandedOver, Passed,
    ReplayBegin, ReplayChunk, Report, Taken, TakenOver, Taker, TlsAdoption, Urgent,
};
pub use engine::{Engine, Receive, Source};
pub use id::{
    ConnId, DeviceRef, Origin, OwnNode, PeerAddr, Priority, SlowPolicy, TopicId, Transport,
};
#[cfg(feature = "sim")]
pub use mailbox::Detached;
pub use mailbox::{Credit, Full, Mailbox, NotOffered, NotPassed};
pub use memory::{Footprint, MessagePlace, rounded, rounded_table};
pub use message::{Item, Message, TopicMessage};
pub use net::{Net, Ready, Waker};
pub use settings::ShardSettings;
pub use stats::{Cell, ConnectionLevel, DropRule, Durations, ShardStats};
pub use survey::{BlockAge, BlockPurpose, Holding, HoldingKind, ShardMemory, Survey, SurveyPage};
pub use sys::{ThreadShare, datagrams};
pub use time::{Nanos, TICK};
