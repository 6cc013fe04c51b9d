//! How fast somebody may do something, where no connection counts for him.
//!
//! Of a request the device counts that its token or certificate names, or the source address where none does.

use std::hash::{BuildHasher, Hash, RandomState};
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use weir_engine::Nanos;

use crate::limits::bucket::{Bucket, Rate};
use crate::limits::sources::Source;

/// Who is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Sender<'a> {
    Device(&'a str),
    Source(Option<Source>),
}

/// The buckets of all senders.
///
/// Shape: [`PLACES`] buckets of 16 bytes, and a sender has the one that its hash leads to, under a key drawn at the start.
/// Limits: fixed, whoever comes. Two senders share a bucket once in [`PLACES`] pairs, and then the rate with it.
/// Cost: one lock, which nothing waits under; no allocation.
pub(crate) struct Rates {
    /// `None`: as fast as they like.
    rate: Option<Rate>,
    hasher: RandomState,
    buckets: Box<[Mutex<Bucket>]>,
}

impl<'a> Sender<'a> {
    pub(crate) fn new(device: Option<&'a str>, peer: Option<IpAddr>) -> Self {
        device.map_or_else(|| Sender::Source(peer.map(Source::of)), Sender::Device)
    }
}

impl Rates {
    /// `per_second` 0: as fast as they like.
    pub(crate) fn new(per_second: u32, burst: u32) -> Self {
        let rate = (per_second > 0).then_some(Rate { per_second, burst: burst.max(1) });
        let places = if rate.is_some() { PLACES } else { 0 };
        let buckets = (0..places).map(|_| Mutex::default()).collect();
        Self { rate, hasher: RandomState::new(), buckets }
    }

    /// One more, or how long it would have to wait.
    pub(crate) fn take(&self, sender: impl Hash, now: Nanos) -> Result<(), Duration> {
        let Some(rate) = self.rate else { return Ok(()) };
        #[expect(clippy::cast_possible_truncation, reason = "some bits of a hash do")]
        let place = self.hasher.hash_one(sender) as usize % PLACES;
        let mut bucket = self.buckets[place].lock().expect("no panic happens under these locks");
        *bucket = bucket.take(rate, now)?;
        Ok(())
    }
}

/// 256 KiB in all; a hundred busy senders share a bucket with another one with a probability of a quarter.
const PLACES: usize = 1 << 14;
const _: () = assert!(size_of::<Mutex<Bucket>>() <= 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sender_has_its_own_rate() {
        let rates = Rates::new(10, 2);
        let now = Nanos(1_000_000_000);
        let peer = |last: u8| Some(IpAddr::from([192, 0, 2, last]));
        let senders = [
            Sender::new(Some("d1"), peer(1)),
            Sender::new(Some("d2"), peer(1)),
            Sender::new(None, peer(1)),
            Sender::new(None, peer(2)),
            Sender::new(None, None),
        ];
        // In a random order of 16,384 places five meet once in 1,600 times: then this says nothing.
        let place = |sender: &Sender<'_>| rates.hasher.hash_one(sender) % 16_384;
        let places: std::collections::HashSet<u64> = senders.iter().map(place).collect();
        if places.len() < senders.len() {
            return;
        }
        for sender in senders {
            assert_eq!([rates.take(sender, now), rates.take(sender, now)], [Ok(()); 2]);
            assert_eq!(rates.take(sender, now), Err(Duration::from_millis(100)));
        }
        // It is the device that counts, from wherever it comes.
        assert!(rates.take(Sender::new(Some("d1"), peer(9)), now).is_err());
        let later = Nanos(now.0 + 100_000_000);
        assert_eq!(rates.take(senders[0], later), Ok(()));
    }

    #[test]
    fn without_a_limit_nobody_waits() {
        let rates = Rates::new(0, 2);
        for _ in 0..1000 {
            assert_eq!(rates.take(Sender::new(None, None), Nanos(1)), Ok(()));
        }
    }
}
