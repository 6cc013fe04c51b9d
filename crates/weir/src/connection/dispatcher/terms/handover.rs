//! Terms that another process takes over.

use std::collections::HashMap;
use std::sync::Arc;

use weir_engine::ConnId;
use weir_engine::handover::NotUnderstood;
use weir_wire::handover::v1;

use super::{Entry, NEVER, Stage, Terms};
use crate::auth::{Grant, GrantRef};
use crate::base::handover::{check_column, refused};

impl Terms {
    /// The terms, with the grants to which they refer.
    pub(in crate::connection::dispatcher) fn export(&self) -> v1::Terms {
        let mut terms = v1::Terms::default();
        let mut known = HashMap::<*const Grant, u32>::new();
        for (conn, entry) in &self.by_conn {
            terms.conns.push(conn.to_u64());
            terms.ends.push(entry.ends);
            terms.grant_refs.push(match &entry.grant {
                GrantRef::Numbered(number) => (*number).into(),
                GrantRef::Own(grant) => *known.entry(Arc::as_ptr(grant)).or_insert_with(|| {
                    terms.grants.push(grant.export());
                    let last = terms.grants.len() - 1;
                    OWN + u32::try_from(last).expect("a shard has less connections")
                }),
            });
            terms.due.push(entry.due);
            terms.refreshed.push(entry.refreshed);
            terms.stages.push(entry.stage as u32);
            if entry.is_refreshing {
                terms.refreshing.push(conn.to_u64());
            }
        }
        terms
    }

    /// Goes on with the terms of another process for the connections of this shard; there were none
    /// here so far. `share` finds the stored grant that equals one.
    ///
    /// Returns the connections whose new token the other process was checking. They may show it
    /// again, and have to be told.
    pub(in crate::connection::dispatcher) fn import(
        &mut self,
        terms: &v1::Terms,
        shard: usize,
        share: impl Fn(Grant) -> Arc<Grant>,
    ) -> Result<Vec<ConnId>, NotUnderstood> {
        let grants = terms.grants.iter().map(|grant| Grant::import(grant).map(&share));
        let grants = grants.collect::<Result<Vec<_>, _>>()?;
        let count = terms.conns.len();
        check_column("terms.ends", terms.ends.len(), count)?;
        check_column("terms.grant_refs", terms.grant_refs.len(), count)?;
        check_column("terms.due", terms.due.len(), count)?;
        check_column("terms.refreshed", terms.refreshed.len(), count)?;
        check_column("terms.stages", terms.stages.len(), count)?;
        for (nth, conn) in terms.conns.iter().enumerate() {
            let conn = ConnId::from_u64(*conn);
            if conn.shard() != shard {
                return Err(refused("terms.conns: one of another shard", conn.to_u64()));
            }
            let grant = terms.grant_refs[nth];
            let grant = match u16::try_from(grant) {
                Ok(number) => GrantRef::Numbered(number),
                Err(_) => {
                    let own = grants.get((grant - OWN) as usize);
                    let own = own.ok_or_else(|| refused("terms.grant_refs", grant))?;
                    GrantRef::Own(Arc::clone(own))
                }
            };
            let (due, stage) = (terms.due[nth], stage_of(terms.stages[nth])?);
            let (ends, refreshed) = (terms.ends[nth], terms.refreshed[nth]);
            let entry = Entry { ends, grant, due, refreshed, stage, is_refreshing: false };
            if self.by_conn.insert(conn, entry).is_some() {
                return Err(refused("terms.conns: a repeated one", conn.to_u64()));
            }
            // Those that are over are not looked at again.
            if (stage == Stage::Over) != (due == NEVER) {
                return Err(refused("terms.due", due));
            }
            if due != NEVER {
                self.due.insert((due, conn));
            }
        }
        let refreshing = terms.refreshing.iter().map(|conn| ConnId::from_u64(*conn));
        Ok(refreshing.filter(|conn| self.by_conn.contains_key(conn)).collect())
    }
}

fn stage_of(stage: u32) -> Result<Stage, NotUnderstood> {
    const ALL: [Stage; 3] = [Stage::Quiet, Stage::Told, Stage::Over];
    let is_it = |known: &Stage| *known as u32 == stage;
    ALL.into_iter().find(is_it).ok_or_else(|| refused("terms.stages", stage))
}

/// References from here on are places of grants.
const OWN: u32 = 1 << 16;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use weir_engine::Nanos;
    use weir_wire::ProstMessage;

    use super::super::{Due, NoRefresh};
    use super::*;
    use crate::auth::{SharedGrants, Term};

    const NOW: u64 = 1_000_000_000;

    fn terms() -> Terms {
        Terms::new(Duration::from_secs(60))
    }

    fn conn(number: u64) -> ConnId {
        ConnId::from_u64(number)
    }

    fn grant(shared: &SharedGrants, number: u64) -> GrantRef {
        match number % 3 {
            0 => GrantRef::Numbered(u16::try_from(number).unwrap()),
            _ => GrantRef::Own(shared.share(Grant::of_device(&[format!("label-{}", number % 2)]))),
        }
    }

    fn moved(terms_here: &Terms) -> (Terms, Vec<ConnId>) {
        let bytes = terms_here.export().encode_to_vec();
        let (mut other, shared) = (terms(), SharedGrants::default());
        let decoded = v1::Terms::decode(&*bytes).unwrap();
        let refreshing = other.import(&decoded, 0, |grant| shared.share(grant)).unwrap();
        (other, refreshing)
    }

    #[derive(Debug, PartialEq)]
    enum Seen {
        Begun(Result<(), NoRefresh>),
        Ended(bool),
        Due(Vec<Due>),
        Nothing,
    }

    fn run(terms: &mut Terms, shared: &SharedGrants, (what, which, now): (u8, u64, u64)) -> Seen {
        let ends = now + which * 9_000;
        let term = Term { ends, grant: grant(shared, which) };
        match what {
            0 if terms.grant(conn(which)).is_none() => {
                terms.enter(conn(which), term, now);
                Seen::Nothing
            }
            1 => {
                terms.remove(conn(which));
                Seen::Nothing
            }
            2 => Seen::Begun(terms.begin_refresh(conn(which), now)),
            3 => Seen::Ended(terms.end_refresh(conn(which), (which % 2 == 0).then_some(term), now)),
            _ => Seen::Due(std::iter::from_fn(|| terms.take_due(now)).collect()),
        }
    }

    proptest! {
        #[test]
        fn terms_that_move_agree_with_those_that_stay(
            before in proptest::collection::vec((0u8..6, 0u64..30, 0u64..20_000), 0..80),
            after in proptest::collection::vec((0u8..6, 0u64..30, 0u64..20_000), 0..80),
        ) {
            let (mut here, shared, mut now) = (terms(), SharedGrants::default(), NOW);
            for (what, which, step) in before {
                now += step;
                run(&mut here, &shared, (what, which, now));
            }
            let (mut there, refreshing) = moved(&here);
            // The other process tells them that it has not checked their tokens.
            for conn in refreshing {
                here.end_refresh(conn, None, now);
            }
            for (what, which, step) in after {
                now += step;
                let step = (what, which, now);
                prop_assert_eq!(run(&mut here, &shared, step), run(&mut there, &shared, step));
                prop_assert_eq!(here.is_empty(), there.is_empty());
                for which in 0..30 {
                    prop_assert_eq!(here.grant(conn(which)), there.grant(conn(which)));
                }
            }
        }
    }

    #[test]
    fn grants_that_connections_share_are_shared_again() {
        let (mut here, shared) = (terms(), SharedGrants::default());
        for number in 0..30 {
            here.enter(conn(number), Term { ends: NOW, grant: grant(&shared, number) }, NOW);
        }
        assert_eq!(here.export().grants.len(), 2);
        let (there, _) = moved(&here);
        let own = |number| match there.grant(conn(number)) {
            Some(GrantRef::Own(grant)) => Arc::clone(grant),
            other => panic!("{other:?}"),
        };
        assert!(Arc::ptr_eq(&own(1), &own(7)) && !Arc::ptr_eq(&own(1), &own(2)));
    }

    #[test]
    fn damaged_terms_are_refused() {
        let (mut here, shared) = (terms(), SharedGrants::default());
        for number in 0..4 {
            here.enter(conn(number), Term { ends: NOW, grant: grant(&shared, number) }, NOW);
        }
        let exported = here.export();
        let damages: &[fn(&mut v1::Terms)] = &[
            |terms| terms.ends.clear(),
            |terms| terms.grant_refs.clear(),
            |terms| terms.due.clear(),
            |terms| terms.refreshed.clear(),
            |terms| terms.stages.push(0),
            |terms| terms.stages[0] = 3,
            |terms| terms.stages[0] = 2,
            |terms| terms.due[0] = NEVER,
            |terms| terms.grant_refs[0] = u32::MAX,
            |terms| terms.conns[0] = terms.conns[1],
            // One of the last shard that there can be.
            |terms| terms.conns[0] = u64::MAX,
        ];
        let import = |exported: &v1::Terms| terms().import(exported, 0, Arc::new);
        assert!(import(&exported).is_ok());
        for (nth, damage) in damages.iter().enumerate() {
            let mut terms = exported.clone();
            damage(&mut terms);
            assert!(import(&terms).is_err(), "damage {nth}");
        }
    }

    /// Measures the way of 10,000 terms with as many grants: run it with
    /// `--release -- --ignored --nocapture`.
    #[test]
    #[ignore = "it measures"]
    fn the_way_of_many_grants() {
        let (mut here, shared) = (terms(), SharedGrants::default());
        for number in 0..10_000 {
            let own = shared.share(Grant::of_device(&[format!("label-{number}")]));
            here.enter(conn(number), Term { ends: NOW, grant: GrantRef::Own(own) }, NOW);
        }
        for _ in 0..3 {
            let begin = Nanos::now();
            moved(&here);
            println!("{:?} for 10,000 connections with a grant each", Nanos::now().since(begin));
        }
    }
}
