//! Devices and their tokens: the contract of Weir's stores, the stores, and what stands before them.
//!
//! A [`Store`] keeps [`Device`]s, and the tokens that they have been given. Every method takes a batch, as round trips
//! and commits are what cost; what stands before a store gathers what concurrent requests ask for.

mod batches;
mod breaker;
mod cached;
#[cfg(feature = "conformance")]
pub mod conformance;
mod contract;
mod embedded;
mod mongodb;
mod records;
mod secrets;

pub use batches::{BatchCounts, BatchLimits, Batches, LaneCounts};
pub use breaker::{Breaker, BreakerCounts, BreakerLimits, Circuit, Guarded};
pub use cached::{CacheCounts, CacheOptions, CacheOptionsError, Cached};
pub use contract::{Answer, BATCH_MAX, Error, Store};
pub use embedded::{Embedded, EmbeddedOptions, EmbeddedReport, OpenError};
pub use mongodb::{Mongo, MongoOptions, MongoOptionsError};
pub use records::{
    Device, DeviceEntry, Hash, Holder, Issue, Issued, Millis, Page, Previous, Proof, Put, Refusal,
    Revoked, Serial, SerialError, State,
};
pub use secrets::{SECRET_BYTES, Secrets, SecretsError, Token};
