//! The publish rates of requests, which no shard limits.
//!
//! A request counts for the device of its token or certificate. Without one it counts for its
//! source address.

use std::hash::{BuildHasher, Hash};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use weir_engine::handover::NotUnderstood;
use weir_engine::{Footprint, Nanos, rounded};
use weir_wire::handover::v1;

use crate::base::handover::{check_column, refused};
use crate::base::hash_key::HashKey;
use crate::limits::bucket::{Bucket, Rate};
use crate::limits::sources::Source;

/// The party for which a request counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Sender<'a> {
    Device(&'a str),
    Source(Option<Source>),
}

/// The buckets of all senders.
///
/// Shape: [`PLACES`] buckets of 16 bytes. A sender's hash, with a random key from the start,
/// selects its bucket.
/// Limits: the memory is fixed. One in [`PLACES`] pairs of senders shares a bucket, and then its
/// rate.
/// Cost: one lock, under which nothing waits; no allocation.
pub(crate) struct Rates {
    /// The rate above the burst, 32 bits each. A rate of 0: no limit.
    rate: AtomicU64,
    hasher: HashKey,
    /// Present once there is a limit.
    buckets: OnceLock<Box<[Mutex<Bucket>]>>,
}

impl<'a> Sender<'a> {
    pub(crate) fn new(device: Option<&'a str>, peer: Option<IpAddr>) -> Self {
        device.map_or_else(|| Sender::Source(peer.map(Source::of)), Sender::Device)
    }
}

impl Rates {
    /// `per_second` 0: no limit.
    pub(crate) fn new(per_second: u32, burst: u32) -> Self {
        let (hasher, buckets) = (HashKey::random(), OnceLock::new());
        let rates = Self { rate: AtomicU64::new(0), hasher, buckets };
        rates.limit(per_second, burst);
        rates
    }

    /// Changes the rate; 0: no limit.
    pub(crate) fn limit(&self, per_second: u32, burst: u32) {
        if per_second > 0 {
            self.buckets();
        }
        let rate = u64::from(per_second) << 32 | u64::from(burst.max(1));
        self.rate.store(rate, Ordering::Release);
    }

    fn buckets(&self) -> &[Mutex<Bucket>] {
        self.buckets.get_or_init(|| (0..PLACES).map(|_| Mutex::default()).collect())
    }

    fn rate(&self) -> Option<Rate> {
        let rate = self.rate.load(Ordering::Acquire);
        let [per_second, burst] = [rate >> 32, rate & u64::from(u32::MAX)];
        let [per_second, burst] = [per_second, burst].map(|half| u32::try_from(half).unwrap_or(0));
        (per_second > 0).then_some(Rate { per_second, burst })
    }

    /// The buckets that are not full at this time.
    pub(crate) fn export(&self, now: Nanos) -> v1::Rates {
        let mut rates = v1::Rates { hash_key: self.hasher.export(), ..Default::default() };
        let buckets = self.buckets.get().map(|buckets| &**buckets).unwrap_or_default();
        for (place, bucket) in (0_u32..).zip(buckets) {
            let full_at = bucket.lock().expect("no panic happens under these locks").full_at();
            if full_at > now {
                rates.places.push(place);
                rates.full_at.push(full_at.0);
            }
        }
        rates
    }

    /// Goes on with the buckets of another process. Nothing was taken here so far.
    pub(crate) fn import(&self, rates: &v1::Rates) -> Result<(), NotUnderstood> {
        self.hasher.import(&rates.hash_key)?;
        check_column("rates.full_at", rates.full_at.len(), rates.places.len())?;
        for (place, full_at) in rates.places.iter().zip(&rates.full_at) {
            let bucket = self.buckets().get(*place as usize);
            let bucket = bucket.ok_or_else(|| refused("rates.places", *place))?;
            *bucket.lock().expect("no panic happens under these locks") =
                Bucket::until(Nanos(*full_at));
        }
        Ok(())
    }

    /// The buckets.
    pub(crate) fn footprint(&self) -> Footprint {
        let buckets = self.buckets.get().map(|buckets| &**buckets).unwrap_or_default();
        Footprint::new(buckets.len(), rounded(size_of_val(buckets)))
    }

    /// Takes one message, or returns the time that it must wait.
    pub(crate) fn take(&self, sender: impl Hash, now: Nanos) -> Result<(), Duration> {
        match self.rate() {
            Some(rate) => self.take_at(sender, rate, now),
            None => Ok(()),
        }
    }

    /// The same at a rate that the caller chooses. Senders that it limits at several rates need a
    /// bucket for each: it adds the rate's name to the sender.
    pub(crate) fn take_at(
        &self,
        sender: impl Hash,
        rate: Rate,
        now: Nanos,
    ) -> Result<(), Duration> {
        let buckets = self.buckets();
        #[expect(clippy::cast_possible_truncation, reason = "some bits of a hash do")]
        let place = self.hasher.hash_one(sender) as usize % PLACES;
        let mut bucket = buckets[place].lock().expect("no panic happens under these locks");
        *bucket = bucket.take(rate, now)?;
        Ok(())
    }
}

/// 256 KiB in all. Among a hundred busy senders, two share a bucket with a probability of a
/// quarter.
const PLACES: usize = 1 << 14;
const _: () = assert!(size_of::<Mutex<Bucket>>() <= 16);

#[cfg(test)]
mod tests {
    use weir_wire::ProstMessage;

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
        // In a random order of 16,384 places, two of five meet once in 1,600 times; then this test
        // shows nothing.
        let place = |sender: &Sender<'_>| rates.hasher.hash_one(sender) % 16_384;
        let places: std::collections::HashSet<u64> = senders.iter().map(place).collect();
        if places.len() < senders.len() {
            return;
        }
        for sender in senders {
            assert_eq!([rates.take(sender, now), rates.take(sender, now)], [Ok(()); 2]);
            assert_eq!(rates.take(sender, now), Err(Duration::from_millis(100)));
        }
        // The device counts, whatever its address.
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

    #[test]
    fn a_rate_that_moves_is_full_at_the_same_moment() {
        let (rates, other) = (Rates::new(10, 5), Rates::new(10, 5));
        let now = Nanos(1_000_000_000);
        let sender = |number: u32| Sender::Source(Some(Source::V4(number % 50)));
        for number in 0..130 {
            let _ = rates.take(sender(number), now);
        }
        let bytes = rates.export(now).encode_to_vec();
        other.import(&v1::Rates::decode(&*bytes).unwrap()).unwrap();
        for number in 0..1_000 {
            let now = Nanos(now.0 + u64::from(number) * 7_000_000);
            assert_eq!(rates.take(sender(number * 7), now), other.take(sender(number * 7), now));
        }
        let far = Nanos(now.0 + 60_000_000_000);
        assert!(rates.export(far).places.is_empty(), "full buckets need no words");
        for rates in [
            v1::Rates::default(),
            v1::Rates { places: vec![1], ..rates.export(far) },
            v1::Rates { places: vec![u32::MAX], full_at: vec![1], ..rates.export(far) },
        ] {
            assert!(other.import(&rates).is_err(), "{rates:?}");
        }
        let latest = v1::Rates { places: vec![0], full_at: vec![u64::MAX], ..rates.export(far) };
        other.import(&latest).unwrap();
        assert!((0..50_000).any(|number| other.take(number, far).is_err()));
    }
}
