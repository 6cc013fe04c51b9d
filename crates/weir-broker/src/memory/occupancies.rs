//! Which topics have subscribers on which node.

use std::collections::{BTreeMap, BTreeSet};

use super::LinkId;
use crate::records::{Attendance, Name, Occupancy};

/// The occupancy of all topics.
#[derive(Default)]
pub(super) struct Occupancies(BTreeMap<Name, Occupied>);

#[derive(Default)]
struct Occupied {
    /// Nodes with subscribers.
    nodes: BTreeSet<LinkId>,
    /// The newest occupancy, and the node that began it.
    begun: (u64, Option<LinkId>),
    /// The last one that ended, the node that ended it, and whose subscribers went.
    ended: (u64, Option<(LinkId, LinkId)>),
}

impl Occupancies {
    pub(super) fn attend(&mut self, link: LinkId, one: &Attendance, now: u64) -> Occupancy {
        let occupied = self.0.entry(Name::clone(&one.topic)).or_default();
        let mut answer = Occupancy::default();
        if !one.is_sure {
            let (begun, by) = occupied.begun;
            answer.begun = (by == Some(link)).then_some(begun);
            let (ended, by) = occupied.ended;
            answer.ended = (by == Some((link, link))).then_some(ended);
        }
        if one.is_attended {
            if occupied.nodes.is_empty() {
                occupied.begun = (now.max(occupied.begun.0 + 1), Some(link));
                answer.begun = Some(occupied.begun.0);
            }
            occupied.nodes.insert(link);
        } else {
            answer.ended = occupied.go(link, link).or(answer.ended);
        }
        answer
    }

    /// The topics of a node lose its subscribers. Gives those that have none any more.
    pub(super) fn end(&mut self, of: LinkId, by: LinkId) -> Vec<(Name, u64)> {
        let end = |(topic, occupied): (&Name, &mut Occupied)| {
            Some((Name::clone(topic), occupied.go(of, by)?))
        };
        self.0.iter_mut().filter_map(end).collect()
    }

    pub(super) fn count(&self, link: LinkId) -> usize {
        self.0.values().filter(|occupied| occupied.nodes.contains(&link)).count()
    }
}

impl Occupied {
    /// The subscribers of a node go; the number of the occupancy that ends.
    fn go(&mut self, of: LinkId, by: LinkId) -> Option<u64> {
        let is_last = self.nodes.remove(&of) && self.nodes.is_empty();
        is_last.then(|| {
            self.ended = (self.begun.0, Some((by, of)));
            self.begun.0
        })
    }
}
