//! The contract that every store keeps.

use std::future::Future;
use std::pin::Pin;

use crate::records::{
    Device, DeviceEntry, Hash, Holder, Issue, Issued, Millis, Page, Put, Refusal, Revoked, Serial,
};

/// What a method of a store gives: one answer for each item of the batch, in its order, or an error for all.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Why a store did not answer a batch.
///
/// After any of them the caller does not know whether items that write were carried out; each of them may be asked
/// again: an [`Issue`] repeated with another token leaves the last token valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is not to be had: nothing listens, the connection broke, the circuit is open.
    #[error("the store is not to be had: {0}")]
    Unavailable(String),
    /// It took longer than allowed.
    #[error("the store did not answer in {0} ms")]
    TimedOut(u64),
    /// More is waiting for it than allowed.
    #[error("{0} requests wait for the store, which is as many as may")]
    Overloaded(usize),
    /// What holds the devices was removed, replaced or emptied behind our back, or was never there: an answer would be
    /// taken for what it is not, and what is written would be lost.
    #[error("the store is lost: {0}")]
    Lost(String),
    /// It holds something that cannot be: it is damaged, or of another version.
    #[error("the store is damaged or of another version: {0}")]
    Damaged(String),
    /// Keys and tokens in it were hashed by other secrets: none that is shown would be right.
    #[error(
        "the store was hashed with another key file; with this one no key and no token is right"
    )]
    OtherSecrets,
}

/// Keeps devices and their tokens.
///
/// # Order and atomicity
/// Each item of a batch is atomic: it is seen whole or not at all, by everyone. A batch is not: others may see some of
/// its items first, and after an [`Error`] any of its items may have been carried out. Items of one batch that concern
/// the same device take effect in their order. Of two batches the one that begins after the other has been answered
/// sees all that it did (linearisable per device), whichever process asked.
///
/// # Durability
/// What has been answered survives the end of the process by any signal; with the embedded store the loss of power
/// too, and with others as far as their write concern says. The exception is [`Store::seen`].
///
/// # Cost and limits
/// At most [`BATCH_MAX`] items a batch. No method waits without end: each ends within the time limit
/// that the store was made with.
pub trait Store: Send + Sync + 'static {
    /// The name it goes by in metrics and logs.
    fn name(&self) -> &'static str;

    /// Imports devices: adds those that are not known, replaces key and labels of those that are (see [`Put`]).
    ///
    /// Nothing but a changed key makes a revoked device usable again.
    fn put(&self, entries: Vec<DeviceEntry>, now: Millis) -> Answer<'_, Vec<Put>>;

    /// Issues tokens: see [`Device::issue`], which says what it does to one device.
    ///
    /// Two that race for one device both succeed, one after the other, unless the second one's proof was a token that
    /// the first one has ended.
    fn issue(&self, issues: Vec<Issue>) -> Answer<'_, Vec<Result<Issued, Refusal>>>;

    /// Who holds these tokens at this time; `None`: nobody, as far as valid tokens go.
    fn check(&self, tokens: Vec<Hash>, now: Millis) -> Answer<'_, Vec<Option<Holder>>>;

    /// Who holds these tokens, as far as that is known without what may be down, and under the same conditions as with
    /// [`Store::check`]; `None`: it is not known. For when that has failed.
    fn recall(&self, tokens: Vec<Hash>, now: Millis) -> Answer<'_, Vec<Option<Holder>>> {
        let _ = now;
        Box::pin(std::future::ready(Ok(vec![None; tokens.len()])))
    }

    /// Shuts devices out. When it has been answered, no [`Store::check`] that begins finds a token of theirs valid.
    fn revoke(&self, serials: Vec<Serial>) -> Answer<'_, Vec<Revoked>>;

    /// The records of devices.
    fn find(&self, serials: Vec<Serial>) -> Answer<'_, Vec<Option<Device>>>;

    /// Devices in the order of the bytes of their serials. Several pages together are no snapshot: what is imported
    /// meanwhile may be missing.
    fn list(&self, page: Page) -> Answer<'_, Vec<Device>>;

    /// Notes when devices connected last; an earlier time than the stored one changes nothing, and neither does an
    /// unknown serial. Need not be durable.
    fn seen(&self, seen: Vec<(Serial, Millis)>) -> Answer<'_, ()>;

    /// Removes records of tokens that have ended, at most `limit` of them; how many it was.
    ///
    /// It changes nothing that other methods answer.
    fn sweep(&self, now: Millis, limit: usize) -> Answer<'_, usize>;

    /// Devices stored, as counted at some moment within the last minute.
    fn count(&self) -> Answer<'_, u64>;

    /// Whether it takes writes, and still is what it was when it was opened: writes something that changes no answer.
    fn probe(&self) -> Answer<'_, ()>;

    /// Ends it in order, once all that it was asked is carried out; whoever asks afterwards is refused.
    fn close(&self) -> Answer<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Items of the largest batch.
pub const BATCH_MAX: usize = 10_000;
