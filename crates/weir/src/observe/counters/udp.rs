//! What the threads for datagrams count.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use weir_engine::datagrams::DatagramSocket;
use weir_wire::datagram::Field;

/// Totals of all threads.
///
/// Cost: a thread adds what it has counted once a turn.
#[derive(Debug, Default)]
pub(crate) struct UdpCounts {
    totals: Tally<AtomicU64>,
    /// Requests that the front has not answered.
    waiting: AtomicU64,
    sockets: OnceLock<Vec<Weak<DatagramSocket>>>,
    /// Threads that have ended by themselves.
    threads_ended: AtomicU64,
}

/// Something that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    /// Datagrams that came.
    Received,
    /// Answers that left.
    Sent,
    /// Calls answered with what they said.
    Calls,
    /// Devices activated.
    Activations,
    /// Messages published.
    Publishes,
    /// Tokens looked up by the front.
    Checks,
    /// Answered from memory.
    Repeated,
    /// Those whose like was being answered.
    Joined,
    /// Answers forgotten before their time.
    Forgotten,
    /// From a source that sends too fast: dropped without a word.
    RefusedRate,
    /// An answer, of this gateway or of another one: dropped without a word.
    RefusedAnswer,
    /// Without any field of a request: dropped without a word.
    RefusedForeign,
    /// From one of the gateway's own addresses, or from port 0: dropped without a word.
    RefusedSource,
    /// More would wait for the front than may.
    RefusedQueue,
    /// No valid token, or no valid key.
    RefusedCredentials,
    /// Refused for another reason: by the router, a right, a store.
    RefusedOther,
    /// Too short for an answer of at most three times their length.
    TooShort,
    /// Datagrams that the kernel threw away because a buffer was full.
    Lost,
    /// The kernel failed to receive.
    ReceiveErrors,
    /// The kernel refused an answer.
    SendErrors,
}

/// A number for each [`Count`] and for each field that can be malformed.
#[derive(Debug, Default)]
pub(crate) struct Tally<T> {
    counts: [T; Count::ALL.len()],
    malformed: [T; Field::ALL.len()],
}

impl Count {
    const ALL: [Count; 20] = [
        Count::Received,
        Count::Sent,
        Count::Calls,
        Count::Activations,
        Count::Publishes,
        Count::Checks,
        Count::Repeated,
        Count::Joined,
        Count::Forgotten,
        Count::RefusedRate,
        Count::RefusedAnswer,
        Count::RefusedForeign,
        Count::RefusedSource,
        Count::RefusedQueue,
        Count::RefusedCredentials,
        Count::RefusedOther,
        Count::TooShort,
        Count::Lost,
        Count::ReceiveErrors,
        Count::SendErrors,
    ];
}

impl Tally<u64> {
    pub(crate) fn add(&mut self, count: Count, by: u64) {
        self.counts[count as usize] += by;
    }

    pub(crate) fn add_malformed(&mut self, field: Field) {
        self.malformed[field as usize] += 1;
    }
}

impl UdpCounts {
    pub(crate) fn set_sockets(&self, sockets: &[Arc<DatagramSocket>]) {
        // Set once: a gateway starts once.
        let _ = self.sockets.set(sockets.iter().map(Arc::downgrade).collect());
    }

    /// Takes what a thread has counted.
    pub(crate) fn take(&self, tally: &mut Tally<u64>) {
        let totals = self.totals.counts.iter().zip(&mut tally.counts);
        let malformed = self.totals.malformed.iter().zip(&mut tally.malformed);
        for (total, count) in totals.chain(malformed).filter(|(_, count)| **count > 0) {
            total.fetch_add(std::mem::take(count), Ordering::Relaxed);
        }
    }

    pub(crate) fn count_thread_ended(&self) {
        self.threads_ended.fetch_add(1, Ordering::Relaxed);
    }

    /// Threads that have ended by themselves.
    pub(crate) fn threads_ended(&self) -> u64 {
        self.threads_ended.load(Ordering::Relaxed)
    }

    pub(crate) fn enter(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self, count: u64) {
        self.waiting.fetch_sub(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self, count: Count) -> u64 {
        self.totals.counts[count as usize].load(Ordering::Relaxed)
    }

    /// By field.
    pub(crate) fn malformed(&self) -> impl Iterator<Item = (Field, u64)> {
        let counts = self.totals.malformed.iter().map(|count| count.load(Ordering::Relaxed));
        Field::ALL.into_iter().zip(counts)
    }

    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Bytes that the kernel holds of what has not been taken yet, by socket.
    pub(crate) fn queued_bytes(&self) -> Vec<u64> {
        let sockets = self.sockets.get().into_iter().flatten().filter_map(Weak::upgrade);
        sockets.map(|socket| socket.queued_bytes().unwrap_or(0) as u64).collect()
    }
}
