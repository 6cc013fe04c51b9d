//! Devices and their tokens: the contract of Weir's stores, the stores, and the layers in front of
//! them.
//!
//! Every method of a [`Store`] takes a batch, because round trips and commits are expensive.
//!
//! Begin with `contract` (what every store promises), then read `embedded` (the store in a file).
//!
//! | part | does | does not |
//! |---|---|---|
//! | `contract`, `records` | the trait [`Store`], and the records that it keeps | keep anything |
//! | `secrets` | makes tokens, hashes keys and tokens | pass a secret to a store |
//! | `embedded` | keeps devices in a file, for one process | share it between nodes |
//! | `mongodb` | keeps devices in MongoDB, for several nodes | cache |
//! | `batches` | gathers concurrent requests into batches | try a failed batch again |
//! | `cached` | answers checks of tokens from Redis | decide: the store does |
//! | `breaker` | stops asking a store that fails | repair it |
//! | `late` | stands for a store until another process has closed its file | open it |
//! | `notices` | keeps notices for their receivers, in a file of one node | send them |
//! | `sys` | asks SQLite for its memory: the only `unsafe` code | anything else |
//! | `conformance` | the tests that every store passes | belong to the product |

mod batches;
mod breaker;
mod cached;
#[cfg(feature = "conformance")]
pub mod conformance;
mod contract;
mod embedded;
mod late;
mod mongodb;
mod notices;
mod records;
mod secrets;
mod sys;

pub use batches::{BatchCounts, BatchLimits, Batches, QueueCounts};
pub use breaker::{Breaker, BreakerCounts, BreakerLimits, Circuit, Guarded};
pub use cached::{CacheCounts, CacheOptions, CacheOptionsError, Cached};
pub use contract::{Answer, BATCH_MAX, Error, Store, StoreMemory};
pub use embedded::{
    Backup, BackupError, Embedded, EmbeddedOptions, EmbeddedReport, OpenError, back_up, restore,
};
pub use late::Late;
pub use mongodb::{Mongo, MongoOptions, MongoOptionsError};
pub use notices::{
    Change, Loss, NewNotice, NoticePage, NoticeQueue, NoticeSource, NoticeStatus, Notices,
    PageLimits, QueueId, QueueWatch, Standing,
};
pub use records::{
    Device, DeviceEntry, Hash, Holder, Issue, Issued, Millis, Page, Previous, Proof, Put, Refusal,
    Revoked, Serial, SerialError, State,
};
pub use secrets::{SECRET_BYTES, Secrets, SecretsError, Token};
