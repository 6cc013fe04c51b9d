//! How far a client has seen the topics of its connection.

use std::collections::BTreeMap;

use weir_wire::v1;
use weir_wire::v1::client_message::Kind as Say;

use crate::{Position, Subscribed, Subscription, Unsubscribed};

/// The topics that one connection is in or has asked for, each with the position up to which the
/// program has seen it.
#[derive(Debug, Default)]
pub(crate) struct Positions {
    topics: BTreeMap<String, Place>,
    /// Topics that the client has left, and how often, until the server has answered. Until then
    /// its answers about such a topic belong to the earlier subscription.
    leaving: BTreeMap<String, u32>,
}

#[derive(Debug, Default)]
struct Place {
    /// The position of the last message seen. Until the server has answered: the position that was
    /// requested.
    at: Option<Position>,
    /// Whether the server has answered. Before that, a message does not change `at`.
    is_in: bool,
    /// Requests for the topic that the server has not answered.
    unanswered: u32,
    /// Whether the program asks who enters and who leaves.
    presence: bool,
}

impl Positions {
    /// The topics that the next `Hello` should ask for, to continue from here.
    pub(crate) fn to_subscriptions(&self) -> Vec<Subscription> {
        self.topics
            .iter()
            .map(|(topic, Place { at, presence, .. })| Subscription {
                topic: topic.clone(),
                from: *at,
                presence: *presence,
            })
            .collect()
    }

    /// Handles a sent message, which may concern topics.
    pub(crate) fn handle_said(&mut self, said: &v1::ClientMessage) {
        match &said.kind {
            Some(Say::Hello(hello)) => {
                hello.topics.iter().for_each(|asked| self.handle_asked(asked))
            }
            Some(Say::Subscribe(asked)) => self.handle_asked(asked),
            // Removed before the server has answered, because the program wants to leave.
            Some(Say::Unsubscribe(left)) => {
                self.topics.remove(&left.topic);
                *self.leaving.entry(left.topic.clone()).or_default() += 1;
            }
            Some(
                Say::Ping(_)
                | Say::Publish(_)
                | Say::Refresh(_)
                | Say::Call(_)
                | Say::Answer(_)
                | Say::Cancel(_),
            )
            | None => {}
        }
    }

    /// The position does not change if the connection is in the topic.
    fn handle_asked(&mut self, asked: &v1::Subscribe) {
        let place = self.topics.entry(asked.topic.clone()).or_default();
        place.unanswered += 1;
        place.presence = asked.presence;
        if !place.is_in {
            place.at = asked.position.map(Position::from);
        }
    }

    /// Handles an error that may answer a request for the topic.
    pub(crate) fn handle_refused(&mut self, topic: &str) {
        if let Some(place) = self.topics.get_mut(topic) {
            place.unanswered = place.unanswered.saturating_sub(1);
        }
    }

    /// Where the topic goes on. What is on its way already comes from before `told.position`, and so does what was
    /// missed: until it has been seen, the earlier position stays.
    ///
    /// Returns the position after which messages are lost, if any are. In a running subscription that is where the epoch
    /// changes, or where the server goes on at a later position unasked. The answer to a repeated request tells of no loss:
    /// what comes before its position is on its way.
    pub(crate) fn handle_subscribed(&mut self, told: &Subscribed) -> Option<Position> {
        if self.leaving.contains_key(&told.topic) {
            return None;
        }
        let place = self.topics.get_mut(&told.topic)?;
        let (was_in, earlier) = (std::mem::replace(&mut place.is_in, true), place.at);
        let same_epoch = earlier.zip(told.position).filter(|(at, now)| at.epoch == now.epoch);
        let is_later = same_epoch.is_some_and(|(at, now)| now.offset > at.offset);
        let is_answer = place.unanswered > 0;
        if same_epoch.is_some() || !was_in {
            place.unanswered = place.unanswered.saturating_sub(1);
        }
        let goes_on = told.recovered || was_in && (is_answer || !is_later);
        let stays = same_epoch.is_some() && goes_on;
        if !stays {
            place.at = told.position;
        }
        let misses_none = stays || told.recovered || earlier == told.position;
        if misses_none { None } else { earlier }
    }

    /// Handles the end of a topic. If the program asked for it, the topic was removed already, or
    /// has been asked for again.
    pub(crate) fn handle_unsubscribed(&mut self, told: &Unsubscribed) {
        match self.leaving.get_mut(&told.topic) {
            Some(count) if told.reason.is_empty() => {
                *count -= 1;
                if *count == 0 {
                    self.leaving.remove(&told.topic);
                }
            }
            None if !told.reason.is_empty() => drop(self.topics.remove(&told.topic)),
            Some(_) | None => {}
        }
    }

    /// Handles a message that was returned to the caller.
    pub(crate) fn handle_seen(&mut self, topic: &str, offset: u64) {
        if let Some(Place { at: Some(at), is_in: true, .. }) = self.topics.get_mut(topic) {
            at.offset = at.offset.max(offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(epoch: u64, offset: u64) -> Option<Position> {
        Some(Position { epoch, offset })
    }

    fn asked(from: Option<Position>) -> Positions {
        let mut positions = Positions::default();
        positions.ask(from);
        positions
    }

    impl Positions {
        fn ask(&mut self, from: Option<Position>) {
            let asked = Subscription { topic: "t".to_owned(), from, presence: false };
            self.say(Say::Subscribe(asked.to_wire()));
        }

        fn leave(&mut self) {
            self.say(Say::Unsubscribe(v1::Unsubscribe { topic: "t".to_owned() }));
        }

        fn say(&mut self, kind: Say) {
            self.handle_said(&v1::ClientMessage { kind: Some(kind) });
        }
    }

    /// Returns the position after which messages are lost.
    fn subscribed(
        positions: &mut Positions,
        position: Option<Position>,
        recovered: bool,
    ) -> Option<Position> {
        let (topic, lost_after) = ("t".to_owned(), None);
        positions.handle_subscribed(&Subscribed { topic, position, recovered, lost_after })
    }

    fn unsubscribed(positions: &mut Positions, reason: &str) {
        let (topic, reason) = ("t".to_owned(), reason.to_owned());
        positions.handle_unsubscribed(&Unsubscribed { topic, reason, position: None });
    }

    #[track_caller]
    fn check(positions: &Positions, expected: Option<Position>) {
        let expected = [Subscription { topic: "t".to_owned(), from: expected, presence: false }];
        assert_eq!(positions.to_subscriptions(), expected);
    }

    #[test]
    fn what_was_asked_for_stays_until_the_server_answers() {
        let mut positions = asked(at(1, 5));
        positions.handle_seen("t", 9);
        check(&positions, at(1, 5));
        subscribed(&mut positions, at(2, 7), false);
        check(&positions, at(2, 7));
        positions.handle_seen("t", 8);
        positions.handle_seen("other", 9);
        check(&positions, at(2, 8));
    }

    #[test]
    fn what_was_missed_is_not_seen_before_it_has_come() {
        let mut positions = asked(at(1, 5));
        subscribed(&mut positions, at(1, 20), true);
        check(&positions, at(1, 5));
        positions.handle_seen("t", 6);
        check(&positions, at(1, 6));
    }

    #[test]
    fn a_second_answer_takes_nothing_for_seen() {
        let mut positions = asked(None);
        subscribed(&mut positions, at(1, 5), false);
        positions.ask(None);
        subscribed(&mut positions, at(1, 8), false);
        check(&positions, at(1, 5));
    }

    #[test]
    fn who_leaves_and_returns_begins_with_the_new_answer() {
        let mut positions = asked(None);
        subscribed(&mut positions, at(1, 5), false);
        positions.leave();
        assert!(positions.to_subscriptions().is_empty());
        positions.ask(None);
        unsubscribed(&mut positions, "");
        positions.handle_seen("t", 6);
        check(&positions, None);
        subscribed(&mut positions, at(1, 8), false);
        check(&positions, at(1, 8));
    }

    #[test]
    fn another_epoch_in_a_running_subscription_is_a_loss() {
        let mut positions = asked(None);
        assert_eq!(subscribed(&mut positions, at(1, 5), false), None);
        positions.handle_seen("t", 9);
        assert_eq!(subscribed(&mut positions, at(2, 0), false), at(1, 9));
        check(&positions, at(2, 0));
        // The answer to a second wish repeats what is known.
        positions.ask(None);
        assert_eq!(subscribed(&mut positions, at(2, 3), false), None);
        check(&positions, at(2, 0));
        positions.handle_seen("t", 1);
        check(&positions, at(2, 1));
    }

    #[test]
    fn a_later_position_that_nobody_asked_for_is_a_loss() {
        let mut positions = asked(None);
        subscribed(&mut positions, at(1, 5), false);
        positions.handle_seen("t", 6);
        assert_eq!(subscribed(&mut positions, at(1, 9), false), at(1, 6));
        check(&positions, at(1, 9));
        // The program asks twice more. One answer is an error, and the other one no news.
        positions.ask(None);
        positions.ask(None);
        positions.handle_refused("t");
        positions.handle_refused("other");
        assert_eq!(subscribed(&mut positions, at(1, 12), false), None);
        check(&positions, at(1, 9));
        assert_eq!(subscribed(&mut positions, at(1, 13), false), at(1, 9));
        assert_eq!(subscribed(&mut positions, at(1, 13), false), None);
        check(&positions, at(1, 13));
    }

    #[test]
    fn what_a_resume_does_not_recover_is_a_loss() {
        for (position, recovered, expected) in [
            (at(1, 5), true, None),
            // Nothing came meanwhile.
            (at(1, 5), false, None),
            (at(1, 8), false, at(1, 5)),
            (at(2, 0), false, at(1, 5)),
            (None, false, at(1, 5)),
        ] {
            let mut positions = asked(at(1, 5));
            assert_eq!(subscribed(&mut positions, position, recovered), expected, "{position:?}");
        }
        assert_eq!(subscribed(&mut asked(None), at(1, 8), false), None);
    }

    #[test]
    fn presence_is_asked_for_again() {
        let mut positions = Positions::default();
        let asked = Subscription::from("t").presence();
        positions.say(Say::Subscribe(asked.to_wire()));
        subscribed(&mut positions, at(1, 5), false);
        assert_eq!(positions.to_subscriptions(), [Subscription { from: at(1, 5), ..asked }]);
    }

    #[test]
    fn a_topic_that_the_server_ends_is_forgotten() {
        let mut positions = asked(None);
        subscribed(&mut positions, at(1, 5), false);
        unsubscribed(&mut positions, "fell_behind");
        assert!(positions.to_subscriptions().is_empty());
    }

    #[test]
    fn what_was_on_its_way_says_nothing_of_the_return() {
        let mut positions = asked(at(1, 5));
        positions.leave();
        positions.ask(at(1, 9));
        positions.leave();
        positions.ask(at(1, 9));
        // From before the client left, the first time and the second.
        subscribed(&mut positions, at(1, 5), true);
        unsubscribed(&mut positions, "fell_behind");
        unsubscribed(&mut positions, "");
        subscribed(&mut positions, at(2, 1), false);
        unsubscribed(&mut positions, "fell_behind");
        positions.handle_seen("t", 30);
        check(&positions, at(1, 9));
        unsubscribed(&mut positions, "");
        subscribed(&mut positions, at(1, 9), true);
        positions.handle_seen("t", 10);
        check(&positions, at(1, 10));
        unsubscribed(&mut positions, "fell_behind");
        assert!(positions.to_subscriptions().is_empty());
    }
}
