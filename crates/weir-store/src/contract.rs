//! The contract that every store keeps.

use std::future::Future;
use std::pin::Pin;

use crate::records::{
    Device, DeviceEntry, Hash, Holder, Issue, Issued, Millis, Page, Put, Refusal, Revoked, Serial,
};

/// The answer of a store's method: one answer for each item of the batch, in its order, or one
/// error for the whole batch.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Why a store did not answer a batch.
///
/// After any of these errors the caller does not know whether the store carried out the items that
/// write. The caller may repeat each item: an [`Issue`] repeated with another token leaves the last
/// token valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The store is out of reach: nothing listens, the connection broke, or the circuit is open.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// The answer took longer than the time limit.
    #[error("the store did not answer in {0} ms")]
    TimedOut(u64),
    /// The limit of waiting requests is reached.
    #[error("{0} requests wait for the store; no more may wait")]
    Overloaded(usize),
    /// The file or database with the devices was removed, replaced or emptied by something other
    /// than the gateway, or never existed. Its answers would be wrong, and new writes would be
    /// lost.
    #[error("the store is lost: {0}")]
    Lost(String),
    /// The store holds an impossible value: it is damaged, or another version has written it.
    #[error("the store is damaged or of another version: {0}")]
    Damaged(String),
    /// Keys and tokens in the store were hashed with other secrets. No key or token of a device
    /// would match.
    #[error(
        "the store was hashed with another key file; with this one no key and no token matches"
    )]
    OtherSecrets,
}

/// The memory of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreMemory {
    /// Entries in its tables.
    pub entries: usize,
    /// Bytes of the tables.
    pub bytes: usize,
}

/// Keeps devices and their tokens.
///
/// # Order and atomicity
/// Each item of a batch is atomic: every reader sees it whole or not at all. A batch is not atomic.
/// Other requests may see some of its items first, and after an [`Error`] any of its items may have
/// been carried out. Items of one batch that concern the same device take effect in their order. If
/// a batch begins after the answer to another one, it sees all changes of that other batch
/// (linearisable per device), even if another process sent it.
///
/// # Durability
/// A change that was answered survives the end of the process by any signal. In the embedded store
/// it also survives a loss of power; in other stores, as far as their write concern says. The
/// exception is [`Store::seen`].
///
/// # Cost and limits
/// At most [`BATCH_MAX`] items a batch. Each method ends within the time limit that the store was
/// made with.
pub trait Store: Send + Sync + 'static {
    /// The store's name in metrics and logs.
    fn name(&self) -> &'static str;

    /// Imports devices: adds unknown devices, and replaces key and labels of known ones (see
    /// [`Put`]).
    ///
    /// Only a changed key makes a revoked device usable again.
    fn put(&self, entries: Vec<DeviceEntry>, now: Millis) -> Answer<'_, Vec<Put>>;

    /// Issues tokens. [`Device::issue`] says what that does to one device.
    ///
    /// If two issues race for one device, both succeed, one after the other. The exception: the
    /// second one's proof was a token that the first one has ended.
    fn issue(&self, issues: Vec<Issue>) -> Answer<'_, Vec<Result<Issued, Refusal>>>;

    /// The holders of these tokens at this time; `None`: the token is not valid.
    fn check(&self, tokens: Vec<Hash>, now: Millis) -> Answer<'_, Vec<Option<Holder>>>;

    /// The holders of these tokens, as far as the store knows them without asking a part that may
    /// be down. Callers use it when [`Store::check`] has failed; the same conditions apply. `None`:
    /// the holder is not known.
    fn recall(&self, tokens: Vec<Hash>, now: Millis) -> Answer<'_, Vec<Option<Holder>>> {
        let _ = now;
        Box::pin(std::future::ready(Ok(vec![None; tokens.len()])))
    }

    /// Revokes devices. Once this is answered, a [`Store::check`] that begins finds none of their
    /// tokens valid.
    fn revoke(&self, serials: Vec<Serial>) -> Answer<'_, Vec<Revoked>>;

    /// The records of devices.
    fn find(&self, serials: Vec<Serial>) -> Answer<'_, Vec<Option<Device>>>;

    /// Devices in the order of the bytes of their serial numbers. Several pages together are no
    /// snapshot: devices that are imported meanwhile may be missing.
    fn list(&self, page: Page) -> Answer<'_, Vec<Device>>;

    /// Notes when devices connected last. A time earlier than the stored one changes nothing, and
    /// neither does an unknown serial number. Need not be durable.
    fn seen(&self, seen: Vec<(Serial, Millis)>) -> Answer<'_, ()>;

    /// Removes at most `limit` records of ended tokens and returns how many it removed.
    ///
    /// This changes no answer of other methods.
    fn sweep(&self, now: Millis, limit: usize) -> Answer<'_, usize>;

    /// The number of stored devices, counted at some moment within the last minute.
    fn count(&self) -> Answer<'_, u64>;

    /// Checks that the store takes writes and has not been replaced since it was opened. Writes
    /// something that changes no answer.
    fn probe(&self) -> Answer<'_, ()>;

    /// What the store keeps in this process: entries, and the bytes of the tables that hold them. The
    /// buffers of a database's connections are not counted.
    fn memory(&self) -> StoreMemory {
        StoreMemory::default()
    }

    /// Closes the store once it has carried out all requests so far. Later requests are refused.
    fn close(&self) -> Answer<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// The number of items of the largest batch.
pub const BATCH_MAX: usize = 10_000;
