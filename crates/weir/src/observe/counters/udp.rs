//! Counts of the threads for datagrams.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use weir_engine::datagrams::DatagramSocket;
use weir_wire::datagram::Field;

/// Totals of all threads.
///
/// Cost: a thread adds its counts once a turn.
#[derive(Debug, Default)]
pub(crate) struct UdpCounts {
    totals: Tally<AtomicU64>,
    /// Requests that the front has not answered yet.
    waiting: AtomicU64,
    sockets: OnceLock<Vec<Weak<DatagramSocket>>>,
    /// Threads that have ended by themselves.
    threads_ended: AtomicU64,
}

/// A count of the threads for datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    /// Received datagrams.
    Received,
    /// Sent answers.
    Sent,
    /// Calls that were answered with their result.
    Calls,
    /// Activated devices.
    Activations,
    /// Published messages.
    Publishes,
    /// Tokens that the front looked up.
    Checks,
    /// Requests that were answered from memory.
    Repeated,
    /// Requests whose copy was being answered already.
    Joined,
    /// Answers that were forgotten too early.
    Forgotten,
    /// From a source that sends too fast; dropped without an answer.
    RefusedRate,
    /// An answer, of this gateway or of another one; dropped without an answer.
    RefusedAnswer,
    /// Without any field of a request; dropped without an answer.
    RefusedForeign,
    /// From one of the gateway's own addresses, or from port 0; dropped without an answer.
    RefusedSource,
    /// Too many requests wait for the front.
    RefusedQueue,
    /// Without a valid token or key.
    RefusedCredentials,
    /// Refused for another reason: by the router, a right, or a store.
    RefusedOther,
    /// So short that the answer would have more than three times its length.
    TooShort,
    /// The kernel failed to receive.
    ReceiveErrors,
    /// The kernel refused to send an answer.
    SendErrors,
}

/// A number for each [`Count`] and for each field that can be malformed.
#[derive(Debug, Default)]
pub(crate) struct Tally<T> {
    counts: [T; Count::ALL.len()],
    malformed: [T; Field::ALL.len()],
}

impl Count {
    const ALL: [Count; 19] = [
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
        Count::ReceiveErrors,
        Count::SendErrors,
    ];

    /// What was done, with its label.
    pub(crate) const DONE: [(&'static str, Count); 3] =
        [("call", Count::Calls), ("activation", Count::Activations), ("publish", Count::Publishes)];

    /// What was refused, with its label.
    pub(crate) const REFUSED: [(&'static str, Count); 7] = [
        ("rate", Count::RefusedRate),
        ("answer", Count::RefusedAnswer),
        ("foreign", Count::RefusedForeign),
        ("source", Count::RefusedSource),
        ("queue", Count::RefusedQueue),
        ("credentials", Count::RefusedCredentials),
        ("other", Count::RefusedOther),
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
        // Set once, since a gateway starts once.
        let _ = self.sockets.set(sockets.iter().map(Arc::downgrade).collect());
    }

    /// Adds the counts of a thread, and sets them to zero.
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

    /// Bytes that each socket has received and its thread has not taken yet.
    pub(crate) fn queued_bytes(&self) -> Vec<u64> {
        self.sockets().map(|socket| socket.queued_bytes().unwrap_or(0) as u64).collect()
    }

    /// Datagrams that the kernel dropped because a socket's buffer was full.
    pub(crate) fn lost(&self) -> u64 {
        self.sockets().map(|socket| u64::from(socket.lost().unwrap_or(0))).sum()
    }

    fn sockets(&self) -> impl Iterator<Item = Arc<DatagramSocket>> {
        self.sockets.get().into_iter().flatten().filter_map(Weak::upgrade)
    }
}
