//! What those who hold a token may do with topics.

use std::fmt::Write as _;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, Weak};

use hashbrown::HashTable;

use crate::base::config::{Actor, Right};
use crate::base::mailboxes::Publisher;
use crate::base::pattern::Pattern;

/// What a token permits, and so the connections that were admitted with it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Grant {
    /// Sorted.
    labels: Box<[Box<str>]>,
    /// A service's rights, sorted; `None`: a device.
    service: Option<Box<[Right]>>,
    /// The only topics that it is good for; `None`: all that classes permit.
    topics: Option<Box<[Pattern]>>,
}

/// Which grant it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GrantRef {
    /// One of the configuration.
    Numbered(u16),
    /// One that came at run time; it lives as long as somebody has it.
    Own(Arc<Grant>),
}

/// Grants that came at run time: alike ones once.
///
/// Shape: a table of weak references, swept whenever it has doubled.
/// Limits: what holds them bounds them, which is connections and requests on their way.
#[derive(Default)]
pub(crate) struct SharedGrants {
    hasher: RandomState,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// With the hashes: who looks for a place needs them when the grant has gone.
    grants: HashTable<(u64, Weak<Grant>)>,
    /// Entries at which those whose grant has gone are taken out.
    sweep_at: usize,
}

/// Something that is done with a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Subscribe,
    Publish,
}

impl Grant {
    /// Of devices without a token.
    pub(crate) fn anonymous() -> Grant {
        Grant::of_device(&[])
    }

    pub(crate) fn of_device(labels: &[String]) -> Grant {
        let mut labels: Vec<Box<str>> = labels.iter().map(|label| label.as_str().into()).collect();
        labels.sort_unstable();
        labels.dedup();
        Grant { labels: labels.into(), service: None, topics: None }
    }

    /// The same for these topics only.
    pub(crate) fn within(self, topics: Vec<Pattern>) -> Grant {
        Grant { topics: Some(topics.into()), ..self }
    }

    pub(crate) fn of_service(may: &[Right]) -> Grant {
        let may = Right::ALL.into_iter().filter(|right| may.contains(right)).collect();
        Grant { labels: Box::default(), service: Some(may), topics: None }
    }

    /// Whether it is a service's with this right.
    pub(crate) fn has(&self, right: Right) -> bool {
        self.service.as_ref().is_some_and(|may| may.contains(&right))
    }

    /// As whom its holder publishes.
    pub(crate) fn publisher(&self) -> Publisher {
        if self.service.is_some() { Publisher::Backend } else { Publisher::Device }
    }

    /// Whether it is good for a topic, whatever the class of that says; `fits` tells whether a pattern does, for the
    /// device that asks.
    pub(crate) fn covers(&self, fits: impl Fn(&Pattern) -> bool) -> bool {
        self.topics.as_deref().is_none_or(|topics| topics.iter().any(fits))
    }

    /// Whether it permits an act that a topic's class allows to `actors`.
    ///
    /// `is_own` tells whether the topic is one that the device may use as one of the `devices`; it is asked only if
    /// that decides.
    pub(crate) fn permits(&self, act: Act, actors: &[Actor], is_own: impl Fn() -> bool) -> bool {
        actors.iter().any(|actor| match (actor, &self.service) {
            (Actor::Devices, None) => is_own(),
            (Actor::Services, Some(may)) => may.contains(&act.right()),
            (Actor::Label(label), None) => self.labels.iter().any(|own| **own == **label),
            (Actor::Services, None) | (Actor::Devices | Actor::Label(_), Some(_)) => false,
        })
    }

    /// Why an act is not permitted: what was tried with which topic, and who may.
    ///
    /// `pattern` is that of the topic's class; `None`: none of the configuration fits it.
    pub(crate) fn refusal(
        &self,
        act: Act,
        topic: &str,
        pattern: Option<&str>,
        actors: &[Actor],
    ) -> String {
        let verb = act.verb();
        let mut text = format!("{verb} to {topic:?} is not permitted: ");
        // A String takes everything.
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
        // What is named and nevertheless not enough.
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
    /// The grant that is like this one, if somebody has such a one, and this one otherwise.
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

impl Act {
    /// The right that a service needs for it.
    const fn right(self) -> Right {
        match self {
            Act::Subscribe => Right::Subscribe,
            Act::Publish => Right::Publish,
        }
    }

    /// Why an act is not permitted whose topic the token is not good for.
    pub(crate) fn not_covered(self, topic: &str) -> String {
        let verb = self.verb();
        format!("{verb} to {topic:?} is not permitted: it is none of the topics of the token")
    }

    const fn verb(self) -> &'static str {
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
        // Class; then anonymous, labelled device, hearing and speaking service, each subscribing and publishing.
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
