//! What those who hold a token may do with topics.

use std::fmt::Write as _;

use crate::config::{Actor, Right};

/// What a token permits, and so the connections that were admitted with it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Grant {
    /// Sorted.
    labels: Box<[Box<str>]>,
    /// A service's rights, sorted; `None`: a device.
    service: Option<Box<[Right]>>,
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
        Grant { labels: labels.into(), service: None }
    }

    pub(crate) fn of_service(may: &[Right]) -> Grant {
        let may = Right::ALL.into_iter().filter(|right| may.contains(right)).collect();
        Grant { labels: Box::default(), service: Some(may) }
    }

    /// Whether it is a service's with this right.
    pub(crate) fn has(&self, right: Right) -> bool {
        self.service.as_ref().is_some_and(|may| may.contains(&right))
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
    /// `pattern` is that of the topic's class.
    pub(crate) fn refusal(&self, act: Act, topic: &str, pattern: &str, actors: &[Actor]) -> String {
        let verb = act.verb();
        let mut text = format!("{verb} to {topic:?} is not permitted: class {pattern:?} lets ");
        if actors.is_empty() {
            text.push_str("nobody");
        }
        for (index, actor) in actors.iter().enumerate() {
            text.push_str(match index {
                0 => "",
                _ if index + 1 == actors.len() => " and ",
                _ => ", ",
            });
            // A String takes everything.
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

impl Act {
    /// The right that a service needs for it.
    const fn right(self) -> Right {
        match self {
            Act::Subscribe => Right::Subscribe,
            Act::Publish => Right::Publish,
        }
    }

    const fn verb(self) -> &'static str {
        self.right().name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                "*",
                &["services"],
                "publish to \"t\" is not permitted: class \"*\" lets services publish",
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
            assert_eq!(grant.refusal(act, "t", pattern, &actors(class)), says);
        }
    }
}
