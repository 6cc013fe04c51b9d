//! Sources that another process takes over.

use std::hash::BuildHasher as _;

use hashbrown::HashTable;
use weir_engine::handover::NotUnderstood;
use weir_wire::handover::v1;

use super::{Entry, HashKey, STRIPES, Source, SourceRef, Sources, Stripe, stripe_of};
use crate::base::handover::{self, check_column, narrow, refused};
use crate::base::slab::Slab;

impl Sources {
    /// The sources and their buckets. What changes here afterwards stays here.
    pub(crate) fn export(&self) -> v1::Sources {
        let stripes = (0..STRIPES).map(|index| self.lock(index).export()).collect();
        v1::Sources { hash_key: self.hasher.export(), stripes }
    }

    /// Goes on with the sources of another process. There were none here so far. No connection is
    /// counted yet: see [`Sources::take_over`].
    ///
    /// The clock must be the one with which they were used there.
    pub(crate) fn import(&self, sources: v1::Sources) -> Result<(), NotUnderstood> {
        check_column("sources.stripes", sources.stripes.len(), STRIPES)?;
        self.hasher.import(&sources.hash_key)?;
        for (index, stripe) in sources.stripes.into_iter().enumerate() {
            *self.lock(index) = Stripe::restore(stripe, index, &self.hasher)?;
        }
        Ok(())
    }

    /// Counts one more connection, which the other process has admitted.
    ///
    /// Errors: there is no such source.
    pub(crate) fn take_over(&self, source: SourceRef) -> Result<(), NotUnderstood> {
        let (index, slot) = source.parts();
        let mut stripe = self.lock(index);
        let entry = stripe.entries.get_mut(slot);
        let entry = entry.ok_or_else(|| refused("connection.source", source.0.get()))?;
        entry.connections += 1;
        let was_recent = entry.connections == 1;
        stripe.recent -= usize::from(was_recent);
        Ok(())
    }
}

impl Stripe {
    fn export(&self) -> v1::SourceStripe {
        let mut stripe = v1::SourceStripe {
            free: self.entries.free(),
            hand: self.hand,
            forgotten: self.forgotten,
            ..Default::default()
        };
        for entry in self.entries.iter() {
            let (bits, is_v6) = match entry.source {
                Source::V4(bits) => (bits.into(), false),
                Source::V6(bits) => (bits, true),
            };
            stripe.sources.push(bits);
            stripe.are_v6.push(is_v6);
            stripe.full_at.push(entry.full_at);
        }
        stripe
    }

    fn restore(
        stripe: v1::SourceStripe,
        index: usize,
        hasher: &HashKey,
    ) -> Result<Stripe, NotUnderstood> {
        let count = stripe.sources.len();
        check_column("sources.are_v6", stripe.are_v6.len(), count)?;
        check_column("sources.full_at", stripe.full_at.len(), count)?;
        let mut entries = Vec::with_capacity(count);
        let columns = stripe.sources.iter().zip(&stripe.are_v6).zip(&stripe.full_at);
        for ((bits, is_v6), full_at) in columns {
            let source = match is_v6 {
                true => Source::V6(*bits),
                false => Source::V4(narrow("sources.sources", *bits)?),
            };
            entries.push(Entry { source, connections: 0, full_at: *full_at });
        }
        let entries = Slab::restore(entries.into_iter(), &stripe.free)
            .ok_or_else(|| refused("sources.free", stripe.free.len() as u64))?;
        let mut table = HashTable::with_capacity(count);
        for (slot, entry) in entries.used() {
            let hash = hasher.hash_one(entry.source);
            let is_same =
                |other: &u32| entries.get(*other).is_some_and(|other| other.source == entry.source);
            if stripe_of(hash) != index || table.find(hash, is_same).is_some() {
                return Err(refused("sources.sources: a place", slot));
            }
            table.insert_unique(hash, slot, |slot: &u32| {
                let entry = entries.get(*slot).expect("the index names slots in use");
                hasher.hash_one(entry.source)
            });
        }
        // Places may have been added since, but the hand stands within those that there were.
        let hand = if stripe.hand < entries.places() { stripe.hand } else { 0 };
        let forgotten = handover::count("sources.forgotten", stripe.forgotten)?;
        Ok(Stripe { index: table, entries, recent: count, hand, forgotten })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use weir_engine::Nanos;
    use weir_wire::ProstMessage;

    use super::*;
    use crate::base::config::LimitsConfig;

    fn limits() -> LimitsConfig {
        LimitsConfig {
            connections_per_source_max: 4,
            connects_per_source_per_second: 10,
            connects_per_source_burst: 3,
            ..LimitsConfig::default()
        }
    }

    fn moved(sources: &Sources, connections: &[SourceRef]) -> Sources {
        let bytes = sources.export().encode_to_vec();
        let other = Sources::new(&limits());
        other.import(v1::Sources::decode(&*bytes).unwrap()).unwrap();
        connections.iter().for_each(|source| other.take_over(*source).unwrap());
        other
    }

    proptest! {
        /// Two tables, one of which was handed over in the middle, admit alike.
        #[test]
        fn sources_that_move_agree_with_those_that_stay(
            before in proptest::collection::vec((0u8..5, 0u32..12, 0u64..80), 0..100),
            after in proptest::collection::vec((0u8..5, 0u32..12, 0u64..80), 0..100),
        ) {
            let sources = Sources::new(&limits());
            let (mut entered, mut now) = (Vec::new(), 1_000);
            let run = |sources: &Sources, entered: &mut Vec<SourceRef>, (what, which, now)| {
                let now = Duration::from_millis(now);
                let source = if which % 2 == 0 {
                    Source::V4(which)
                } else {
                    Source::V6(which.into())
                };
                match what {
                    0..3 => {
                        let answer = sources.enter(source, now);
                        entered.extend(answer.ok());
                        answer.err()
                    }
                    3 if !entered.is_empty() => {
                        let left = entered.swap_remove(which as usize % entered.len());
                        sources.leave(left, now);
                        None
                    }
                    _ => {
                        sources.sweep(now);
                        None
                    }
                }
            };
            for (what, which, step) in before {
                now += step;
                run(&sources, &mut entered, (what, which, now));
            }
            let other = moved(&sources, &entered);
            let mut entered_there = entered.clone();
            for (what, which, step) in after {
                now += step;
                let here = run(&sources, &mut entered, (what, which, now));
                prop_assert_eq!(here, run(&other, &mut entered_there, (what, which, now)));
                prop_assert_eq!(&entered, &entered_there);
                let shown = |sources: &Sources| {
                    entered.iter().map(|one| sources.source(*one)).collect::<Vec<_>>()
                };
                prop_assert_eq!(shown(&sources), shown(&other));
                prop_assert_eq!(sources.count(), other.count());
            }
            let recent = |sources: &Sources| {
                (0..STRIPES).map(|index| sources.lock(index).recent).collect::<Vec<_>>()
            };
            prop_assert_eq!(recent(&sources), recent(&other));
        }

        #[test]
        fn garbled_bytes_do_no_harm(
            flips in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..6),
        ) {
            let sources = Sources::new(&limits());
            for bits in 0..100 {
                let _ = sources.enter(Source::V4(bits), Duration::ZERO);
            }
            let mut bytes = sources.export().encode_to_vec();
            for (at, flip) in flips {
                let at = usize::from(at) % bytes.len();
                bytes[at] ^= flip;
            }
            let other = Sources::new(&limits());
            if let Ok(sources) = v1::Sources::decode(&*bytes)
                && other.import(sources).is_ok()
            {
                for bits in 0..200 {
                    let _ = other.enter(Source::V4(bits), Duration::from_secs(9));
                    let _ = other.wait(Source::V4(bits), Duration::from_secs(9));
                }
                other.sweep(Duration::from_secs(99));
            }
        }
    }

    #[test]
    fn connections_that_stay_behind_do_not_count() {
        let sources = Sources::new(&limits());
        let source = Source::V4(7);
        let entered = sources.enter(source, Duration::ZERO).unwrap();
        sources.enter(source, Duration::ZERO).unwrap();
        let other = moved(&sources, &[entered]);
        let later = Duration::from_secs(9);
        assert!((0..3).all(|_| other.enter(source, later).is_ok()));
        assert!(other.enter(source, later).is_err());
        let nobody = moved(&sources, &[]);
        nobody.sweep(later);
        assert_eq!(nobody.count(), 0);
    }

    #[test]
    fn damaged_sources_are_refused() {
        let sources = Sources::new(&limits());
        for bits in 0..100 {
            let _ = sources.enter(Source::V4(bits), Duration::ZERO);
        }
        fn full(sources: &mut v1::Sources) -> &mut v1::SourceStripe {
            sources.stripes.iter_mut().find(|stripe| !stripe.sources.is_empty()).unwrap()
        }
        let damages: &[fn(&mut v1::Sources)] = &[
            |sources| drop(sources.stripes.pop()),
            |sources| sources.hash_key.clear(),
            |sources| sources.hash_key[0] ^= 1,
            |sources| full(sources).free.push(u32::MAX),
            |sources| full(sources).sources[0] = 1 << 40,
            |sources| full(sources).full_at.push(1),
            |sources| full(sources).forgotten = u64::MAX,
            |sources| full(sources).are_v6.clear(),
            |sources| {
                let stripe = full(sources);
                stripe.sources.push(stripe.sources[0]);
                stripe.are_v6.push(false);
                stripe.full_at.push(0);
            },
        ];
        let exported = sources.export();
        assert!(Sources::new(&limits()).import(exported.clone()).is_ok());
        for (nth, damage) in damages.iter().enumerate() {
            let mut sources = exported.clone();
            damage(&mut sources);
            assert!(Sources::new(&limits()).import(sources).is_err(), "damage {nth}");
        }
        let unknown = SourceRef::from_origin(1 << 20).unwrap();
        assert!(sources.take_over(unknown).is_err());
    }

    /// Measures the way of 10,000 sources: run it with `--release -- --ignored --nocapture`.
    #[test]
    #[ignore = "it measures"]
    fn the_way_of_many_sources() {
        let sources = Sources::new(&limits());
        let entered: Vec<_> = (0..10_000)
            .map(|bits| sources.enter(Source::V4(bits), Duration::ZERO).unwrap())
            .collect();
        for _ in 0..3 {
            let begin = Nanos::now();
            moved(&sources, &entered);
            println!("{:?} for 10,000 sources with a connection each", Nanos::now().since(begin));
        }
    }
}
