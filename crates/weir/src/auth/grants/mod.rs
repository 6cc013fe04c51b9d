//! Grants: the rights of a token's owner to topics.

mod handover;

use std::fmt::Write as _;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, Weak};

use hashbrown::HashTable;
use weir_engine::{Footprint, rounded};

use crate::base::config::{Actor, Right};
use crate::base::mailboxes::Publisher;
use crate::base::pattern::Pattern;

/// The permissions of a token, and of the connections that it admitted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Grant {
    /// Sorted.
    labels: Box<[Box<str>]>,
    /// A service's rights, sorted; `None`: a device.
    service: Option<Box<[Right]>>,
    /// The only topics that the token permits; `None`: all that the classes permit.
    topics: Option<Box<[Pattern]>>,
}

/// A reference to a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GrantRef {
    /// One of the configuration.
    Numbered(u16),
    /// One that came at run time. It lives as long as a reference to it.
    Own(Arc<Grant>),
}

/// Grants that came at run time; equal ones are stored once.
///
/// Shape: a table of weak references, swept each time it has doubled.
/// Limits: the connections and requests in progress, since only they hold grants.
#[derive(Default)]
pub(crate) struct SharedGrants {
    hasher: RandomState,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// With the hashes, which the table needs even for a grant that has gone.
    grants: HashTable<(u64, Weak<Grant>)>,
    /// The number of entries at which those of gone grants are removed.
    sweep_at: usize,
}

/// An action on a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Subscribe,
    Publish,
}

impl Grant {
    /// The grant of devices without a token.
    pub(crate) fn anonymous() -> Grant {
        Grant::of_device(&[])
    }

    pub(crate) fn of_device(labels: &[String]) -> Grant {
        let mut labels: Vec<Box<str>> = labels.iter().map(|label| label.as_str().into()).collect();
        labels.sort_unstable();
        labels.dedup();
        Grant { labels: labels.into(), service: None, topics: None }
    }

    /// The same grant, for these topics only.
    pub(crate) fn within(self, topics: Vec<Pattern>) -> Grant {
        Grant { topics: Some(topics.into()), ..self }
    }

    pub(crate) fn of_service(may: &[Right]) -> Grant {
        let may = Right::ALL.into_iter().filter(|right| may.contains(right)).collect();
        Grant { labels: Box::default(), service: Some(may), topics: None }
    }

    /// Whether it is the grant of a service with this right.
    pub(crate) fn has(&self, right: Right) -> bool {
        self.service.as_ref().is_some_and(|may| may.contains(&right))
    }

    /// The kind of publisher that the owner is.
    pub(crate) fn publisher(&self) -> Publisher {
        if self.service.is_some() { Publisher::Backend } else { Publisher::Device }
    }

    /// Whether the token permits the topic, before the topic's class is asked. `fits` tells whether
    /// a pattern matches it for the asking device.
    pub(crate) fn covers(&self, fits: impl Fn(&Pattern) -> bool) -> bool {
        self.topics.as_deref().is_none_or(|topics| topics.iter().any(fits))
    }

    /// Whether it permits an act that a topic's class allows to `actors`.
    ///
    /// `is_own` tells whether the class covers the topic for this device. It is called only if
    /// `devices` may decide.
    pub(crate) fn permits(&self, act: Act, actors: &[Actor], is_own: impl Fn() -> bool) -> bool {
        actors.iter().any(|actor| match (actor, &self.service) {
            (Actor::Devices, None) => is_own(),
            (Actor::Services, Some(may)) => may.contains(&act.right()),
            (Actor::Label(label), None) => self.labels.iter().any(|own| **own == **label),
            (Actor::Services, None) | (Actor::Devices | Actor::Label(_), Some(_)) => false,
        })
    }

    /// Whether it permits a call over a route that lets `callers` use it.
    pub(crate) fn may_call(&self, callers: &[Actor]) -> bool {
        callers.iter().any(|caller| match (caller, &self.service) {
            (Actor::Devices, None) => true,
            (Actor::Services, Some(may)) => may.contains(&Right::Call),
            (Actor::Label(label), None) => self.labels.iter().any(|own| **own == **label),
            (Actor::Services, None) | (Actor::Devices | Actor::Label(_), Some(_)) => false,
        })
    }

    /// The refusal of an act: the act, the topic, and the actors that may do it.
    ///
    /// `pattern` is the pattern of the topic's class; `None` for the default class.
    pub(crate) fn refusal(
        &self,
        act: Act,
        topic: &str,
        pattern: Option<&str>,
        actors: &[Actor],
    ) -> String {
        let verb = act.verb();
        let mut text = format!("{verb} to {topic:?} is not permitted: ");
        // Writing to a `String` cannot fail.
        let _ = match pattern {
            Some(pattern) => write!(text, "class {pattern:?} lets "),
            None => write!(text, "no class in [[topic_classes]] fits it, and the default lets "),
        };
        if actors.is_empty() {
            text.push_str("nobody");
        }
        for (index, actor) in actors.iter().enumerate() {
            text.push_str(match index {
                0 => "",
                _ if index + 1 == actors.len() => " and ",
                _ => ", ",
            });
            let _ = write!(text, "{actor}");
        }
        let _ = write!(text, " {verb}");
        // The actor is named, but that is not enough.
        if self.service.is_some() && actors.contains(&Actor::Services) {
            let _ =
                write!(text, ", and this service lacks the right {verb:?} (auth.services, may)");
        } else if self.service.is_none() && actors.contains(&Actor::Devices) {
            text.push_str(", each device where {device} is its own id");
        }
        text
    }
}

impl SharedGrants {
    /// The stored grant that equals this one; if there is none, this one.
    pub(crate) fn share(&self, grant: Grant) -> Arc<Grant> {
        let hash = self.hasher.hash_one(&grant);
        let mut table = self.table.lock().expect("no panic happens under the grants' lock");
        let Table { grants, sweep_at } = &mut *table;
        let mut same = grants.iter_hash(hash).filter_map(|(_, known)| known.upgrade());
        if let Some(known) = same.find(|known| **known == grant) {
            return known;
        }
        if grants.len() >= *sweep_at {
            grants.retain(|(_, known)| known.strong_count() > 0);
            *sweep_at = (2 * grants.len()).max(SWEEP_AT_MIN);
            grants.shrink_to(*sweep_at, |(hash, _)| *hash);
        }
        let grant = Arc::new(grant);
        grants.insert_unique(hash, (hash, Arc::downgrade(&grant)), |(hash, _)| *hash);
        grant
    }
}

impl SharedGrants {
    /// The grants, and the table of them.
    pub(super) fn footprint(&self) -> Footprint {
        let table = self.table.lock().expect("no panic happens under this lock");
        let grants = table.grants.iter().filter_map(|(_, grant)| grant.upgrade());
        let each = grants.map(|grant| grant.occupied());
        let list = rounded(table.grants.allocation_size());
        Footprint::new(table.grants.len(), list + each.sum::<usize>())
    }
}

impl Grant {
    fn occupied(&self) -> usize {
        let labels = self.labels.iter().map(|label| rounded(label.len()));
        rounded(size_of::<Grant>() + 2 * size_of::<usize>())
            + rounded(size_of_val(&*self.labels))
            + labels.sum::<usize>()
            + self.topics.as_ref().map_or(0, |topics| rounded(size_of_val(&**topics)))
    }
}

impl Act {
    /// The right that a service needs for it.
    const fn right(self) -> Right {
        match self {
            Act::Subscribe => Right::Subscribe,
            Act::Publish => Right::Publish,
        }
    }

    /// The refusal of an act on a topic that the token does not cover.
    pub(crate) fn not_covered(self, topic: &str) -> String {
        let verb = self.verb();
        format!("{verb} to {topic:?} is not permitted: it is none of the topics of the token")
    }

    pub(crate) const fn verb(self) -> &'static str {
        self.right().name()
    }
}

/// Entries of the table before it is swept for the first time.
const SWEEP_AT_MIN: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alike_grants_are_kept_once_and_let_go_of() {
        let shared = SharedGrants::default();
        let grant = |number: usize| {
            Grant::of_device(&[format!("l{number}")]).within(vec![Pattern::new("a/*")])
        };
        let first = shared.share(grant(1));
        assert!(Arc::ptr_eq(&first, &shared.share(grant(1))));
        let plain = shared.share(Grant::of_device(&["l1".to_owned()]));
        assert!(!Arc::ptr_eq(&first, &plain));
        for number in 0..100_000 {
            drop(shared.share(grant(number)));
        }
        let table = shared.table.lock().unwrap();
        assert!(table.grants.len() <= SWEEP_AT_MIN && table.grants.capacity() < 4 * SWEEP_AT_MIN);
        assert!(first.covers(|pattern| pattern.matches("a/b")));
        assert!(!first.covers(|pattern| pattern.matches("b")));
        assert!(plain.covers(|_| false));
    }

    fn actors(words: &[&str]) -> Vec<Actor> {
        words.iter().map(|word| Actor::parse(word).unwrap()).collect()
    }

    #[test]
    fn who_may_do_what_by_whom_the_class_names() {
        use Act::{Publish, Subscribe};
        let anonymous = Grant::anonymous();
        let vip = Grant::of_device(&["vip".to_owned(), "eu".to_owned()]);
        let hears = Grant::of_service(&[Right::Subscribe, Right::Events]);
        let speaks = Grant::of_service(&[Right::Publish]);
        // Class; then anonymous, labelled device, hearing and speaking service, each subscribing
        // and publishing.
        for (class, own, expected) in [
            (&[][..], true, [false; 8]),
            (&["devices"], true, [true, true, true, true, false, false, false, false]),
            (&["devices"], false, [false; 8]),
            (&["services"], true, [false, false, false, false, true, false, false, true]),
            (&["label:vip"], false, [false, false, true, true, false, false, false, false]),
            (&["label:other"], true, [false; 8]),
            (
                &["label:vip", "services"],
                false,
                [false, false, true, true, true, false, false, true],
            ),
        ] {
            let mut may = Vec::new();
            for grant in [&anonymous, &vip, &hears, &speaks] {
                for act in [Subscribe, Publish] {
                    may.push(grant.permits(act, &actors(class), || own));
                }
            }
            assert_eq!(may, expected, "{class:?}, own topic: {own}");
        }
    }

    #[test]
    fn who_may_call_by_whom_the_route_names() {
        let anonymous = Grant::anonymous();
        let vip = Grant::of_device(&["vip".to_owned()]);
        let speaks = Grant::of_service(&[Right::Publish]);
        let calls = Grant::of_service(&[Right::Call]);
        for (callers, expected) in [
            (&[][..], [false; 4]),
            (&["devices"], [true, true, false, false]),
            (&["services"], [false, false, false, true]),
            (&["label:vip"], [false, true, false, false]),
            (&["label:vip", "services"], [false, true, false, true]),
        ] {
            let may =
                [&anonymous, &vip, &speaks, &calls].map(|grant| grant.may_call(&actors(callers)));
            assert_eq!(may, expected, "{callers:?}");
        }
    }

    #[test]
    fn a_refusal_names_topic_act_and_who_may() {
        use Act::{Publish, Subscribe};
        let device = Grant::anonymous();
        let service = Grant::of_service(&[Right::Events]);
        for (grant, act, pattern, class, says) in [
            (
                &device,
                Publish,
                "news/*",
                &["services"][..],
                "publish to \"t\" is not permitted: class \"news/*\" lets services publish",
            ),
            (
                &device,
                Publish,
                "",
                &["services"],
                "publish to \"t\" is not permitted: no class in [[topic_classes]] fits it, and the default lets services publish",
            ),
            (
                &device,
                Subscribe,
                "t",
                &[],
                "subscribe to \"t\" is not permitted: class \"t\" lets nobody subscribe",
            ),
            (
                &device,
                Subscribe,
                "t",
                &["label:a", "label:b", "services"],
                "subscribe to \"t\" is not permitted: class \"t\" lets label:a, label:b and services subscribe",
            ),
            (
                &device,
                Publish,
                "in/{device}",
                &["devices"],
                "publish to \"t\" is not permitted: class \"in/{device}\" lets devices publish, each device where {device} is its own id",
            ),
            (
                &service,
                Publish,
                "t",
                &["devices", "services"],
                "publish to \"t\" is not permitted: class \"t\" lets devices and services publish, and this service lacks the right \"publish\" (auth.services, may)",
            ),
        ] {
            let pattern = Some(pattern).filter(|pattern| !pattern.is_empty());
            assert_eq!(grant.refusal(act, "t", pattern, &actors(class)), says);
        }
    }
}
