//! Which topics have subscribers, and who is told of that.
//!
//! Topics of this node are told of at once. Of those that belong to the cluster, the broker is told
//! that this node has subscribers or has none any more; it says which node begins or ends the
//! occupancy, and that node tells the receivers.

mod handover;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;
use weir_broker::{Attendance, Name, Occupancy};

use super::{Router, State, Topic, lock};
use crate::backends::notices::Notices;

/// What the broker is to be told of topics with subscribers here.
///
/// Limits: the topics of this node, and those that it has just left.
#[derive(Default)]
pub(super) struct Attendances {
    table: Mutex<Table>,
    filled: Notify,
}

#[derive(Default)]
struct Table {
    topics: HashMap<Name, Attended, foldhash::fast::RandomState>,
    /// Those that have changed, each once.
    changed: VecDeque<Name>,
}

/// A topic with subscribers here, or of which the broker may believe that.
#[derive(Debug, Default)]
struct Attended {
    is_attended: bool,
    /// What the broker knows; `None`: a call had no answer.
    known: Option<bool>,
    /// The broker may have forgotten it.
    again: bool,
    is_listed: bool,
    /// The broker is being told.
    is_asked: bool,
    /// The newest occupancies of which this node has told the begin and the end.
    begun: u64,
    ended: u64,
}

impl Attendances {
    /// A topic has got its first subscriber here, or has lost its last one.
    fn note(&self, topic: &str, is_attended: bool) {
        let mut table = lock(&self.table);
        if let Some(attended) = table.topics.get_mut(topic) {
            attended.is_attended = is_attended;
        } else if is_attended {
            let known = Some(false);
            let attended = Attended { is_attended, known, ..Attended::default() };
            table.topics.insert(topic.into(), attended);
        } else {
            return;
        }
        table.list(topic);
        self.filled.notify_one();
    }

    /// The broker may have forgotten that this topic has subscribers here.
    fn say_again(&self, topic: &str) {
        let mut table = lock(&self.table);
        if let Some(attended) = table.topics.get_mut(topic) {
            attended.again = true;
            table.list(topic);
            self.filled.notify_one();
        }
    }

    fn names(&self) -> Vec<Name> {
        lock(&self.table).topics.keys().cloned().collect()
    }
}

impl Table {
    fn list(&mut self, topic: &str) {
        if let Some((name, attended)) = self.topics.get_key_value(topic)
            && !attended.is_listed
        {
            let name = Name::clone(name);
            self.changed.push_back(Name::clone(&name));
            self.topics.entry(name).and_modify(|attended| attended.is_listed = true);
        }
    }

    /// Takes up to `limit` changes. Subscribers that came and went in the meantime are no change.
    fn take(&mut self, limit: usize) -> Vec<Attendance> {
        let mut taken = Vec::new();
        while taken.len() < limit
            && let Some(topic) = self.changed.pop_front()
        {
            let Some(attended) = self.topics.get_mut(&topic) else { continue };
            attended.is_listed = false;
            let is_attended = attended.is_attended;
            let is_said_again = std::mem::take(&mut attended.again) && is_attended;
            if attended.known == Some(is_attended) && !is_said_again {
                if !is_attended {
                    self.topics.remove(&topic);
                }
                continue;
            }
            attended.is_asked = true;
            taken.push(Attendance { topic, is_attended, is_sure: attended.known.is_some() });
        }
        taken
    }

    /// Takes what the broker has answered, and gives what has not been told yet.
    fn answer(&mut self, asked: &Attendance, answer: Occupancy) -> Occupancy {
        let Some(attended) = self.topics.get_mut(&asked.topic) else { return answer };
        (attended.known, attended.is_asked) = (Some(asked.is_attended), false);
        let newer = |number: Option<u64>, told: &mut u64| {
            number.filter(|number| std::mem::replace(told, (*told).max(*number)) < *number)
        };
        let begun = newer(answer.begun, &mut attended.begun);
        let ended = newer(answer.ended, &mut attended.ended);
        let is_over = !attended.is_attended && !asked.is_attended && !attended.is_listed;
        if is_over {
            self.topics.remove(&asked.topic);
        }
        Occupancy { begun, ended }
    }

    /// The broker may have carried out a call, or not: it is made again.
    fn fail(&mut self, asked: &[Attendance]) {
        for Attendance { topic, .. } in asked {
            if let Some(attended) = self.topics.get_mut(topic) {
                (attended.known, attended.is_asked) = (None, false);
                self.list(topic);
            }
        }
    }
}

impl Router {
    /// Sets who is told of topics that get subscribers, and lose them.
    pub(crate) fn tell_to(&self, notices: &Arc<Notices>) {
        // It is set once.
        let _ = self.notices.set(Arc::clone(notices));
    }

    /// One more member on a shard.
    pub(super) fn add_member(&self, topic: &Topic, state: &mut State, shard: usize) {
        if state.counts.total() == 0 {
            self.tell_attendance(topic, true);
        }
        state.counts.add(shard);
    }

    /// Tells of a topic that has got its first subscriber, or lost its last one. Under the topic's
    /// lock, so that the notices of a topic are in order.
    pub(super) fn tell_attendance(&self, topic: &Topic, is_occupied: bool) {
        let Some(notices) = self.notices.get().filter(|notices| notices.is_on()) else { return };
        match (topic.class().is_cluster, is_occupied) {
            (false, true) => notices.occupied(&topic.name),
            (false, false) => notices.vacated(&topic.name),
            (true, true) if !notices.hears_of_occupancy(&topic.name) => {}
            (true, is_attended) => self.attendances.note(&topic.name, is_attended),
        }
    }

    /// Calls `each` for the topics of this node that have subscribers. It must not wait. Topics of
    /// the cluster are not among them.
    pub(crate) fn each_occupied(&self, mut each: impl FnMut(&str)) {
        for topic in self.topics_with(|class| !class.is_cluster) {
            let state = topic.lock();
            if state.counts.total() > 0 {
                each(&topic.name);
            }
        }
    }

    /// Other receivers are told from now on: notes the topics of the cluster with subscribers that
    /// concern them, and no others.
    pub(crate) fn attend_again(&self) {
        let Some(notices) = self.notices.get() else { return };
        let hears = |name: &str| notices.is_on() && notices.hears_of_occupancy(name);
        for name in self.attendances.names() {
            if !hears(&name) {
                self.attendances.note(&name, false);
            }
        }
        for topic in self.topics_with(|class| class.is_cluster) {
            let state = topic.lock();
            if state.counts.total() > 0 && hears(&topic.name) {
                self.attendances.note(&topic.name, true);
            }
        }
    }

    /// The broker may have lost which topics have subscribers here. `None`: of all topics.
    pub(super) fn say_attendance_again(&self, topic: Option<&str>) {
        match topic {
            Some(topic) => self.attendances.say_again(topic),
            None => {
                self.attendances.names().iter().for_each(|name| self.attendances.say_again(name));
            }
        }
    }

    /// Waits until there is something to tell the broker.
    pub(crate) async fn attendance_due(&self) {
        while lock(&self.attendances.table).changed.is_empty() {
            self.attendances.filled.notified().await;
        }
    }

    /// Takes changes for the broker, at most `limit`. Each goes back by
    /// [`Router::handle_occupancies`].
    pub(crate) fn take_attendances(&self, limit: usize) -> Vec<Attendance> {
        let mut table = lock(&self.attendances.table);
        if self.is_still() { Vec::new() } else { table.take(limit) }
    }

    /// Takes the broker's answers, and tells the receivers what this node is to tell. `None`: the
    /// broker has not answered.
    pub(crate) fn handle_occupancies(&self, asked: &[Attendance], answers: Option<Vec<Occupancy>>) {
        let Some(answers) = answers else {
            return lock(&self.attendances.table).fail(asked);
        };
        for (place, (each, answer)) in asked.iter().zip(answers).enumerate() {
            let told = {
                let mut table = lock(&self.attendances.table);
                if self.is_still() {
                    // Who takes over asks again, and tells.
                    return table.fail(&asked[place..]);
                }
                table.answer(each, answer)
            };
            let Occupancy { begun, ended } = told;
            let Some(notices) = self.notices.get() else { return };
            let begin = begun.map(|begun| (begun, true));
            let end = ended.map(|ended| (ended, false));
            // Both only if an answer was lost. An end belongs to the begin with its number.
            let mut told = [begin, end];
            told.sort_unstable_by_key(|told| told.map(|(number, is_begin)| (number, !is_begin)));
            for (number, is_begin) in told.into_iter().flatten() {
                match is_begin {
                    true => notices.occupied_in_cluster(&each.topic, number),
                    false => notices.vacated_in_cluster(&each.topic, number),
                }
            }
        }
    }

    /// The subscribers of a node that has ended were the last ones of a topic.
    pub(crate) fn handle_vacated(&self, topic: &str, occupancy: u64) {
        if let Some(notices) = self.notices.get() {
            notices.vacated_in_cluster(topic, occupancy);
        }
    }

    /// Counts a topic as attended or unattended. Every change of its subscribers or resumes calls
    /// it.
    pub(super) fn note_attendance(&self, topic: &Arc<Topic>, state: &mut State) {
        let is_unattended = !state.ended && state.is_unattended();
        if is_unattended == state.is_unattended {
            return;
        }
        state.is_unattended = is_unattended;
        if !is_unattended {
            self.unattended.fetch_sub(1, Ordering::Relaxed);
        } else if self.unattended.fetch_add(1, Ordering::Relaxed) >= self.unattended_max() {
            // There are too many unattended topics, so this one retains nothing.
            let offset = state.offset;
            if let Some(extra) = &mut state.extra {
                extra.ring.give_up(offset, &self.retained);
                extra.tick.forget(offset);
            }
        } else if is_unattended && topic.class().is_cluster {
            self.linger(topic, state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Attendances {
        /// Takes all changes: topic, whether it is attended, whether that is sure.
        fn due(&self) -> Vec<(String, bool, bool)> {
            let taken = lock(&self.table).take(10);
            let taken =
                taken.into_iter().map(|one| (one.topic.to_string(), one.is_attended, one.is_sure));
            taken.collect()
        }

        fn answered(&self, is_attended: bool, begun: u64, ended: u64) -> [u64; 2] {
            let asked = Attendance { topic: "t".into(), is_attended, is_sure: true };
            let some = |number| (number > 0).then_some(number);
            let answer = Occupancy { begun: some(begun), ended: some(ended) };
            let Occupancy { begun, ended } = lock(&self.table).answer(&asked, answer);
            [begun, ended].map(Option::unwrap_or_default)
        }

        fn failed(&self, is_attended: bool) {
            lock(&self.table).fail(&[Attendance { topic: "t".into(), is_attended, is_sure: true }]);
        }

        fn is_empty(&self) -> bool {
            lock(&self.table).topics.is_empty()
        }
    }

    fn one(is_attended: bool, is_sure: bool) -> Vec<(String, bool, bool)> {
        vec![("t".to_owned(), is_attended, is_sure)]
    }

    #[test]
    fn a_topic_is_told_when_it_changes_and_forgotten_at_its_end() {
        let all = Attendances::default();
        all.note("t", false);
        assert!(all.is_empty());
        all.note("t", true);
        assert_eq!(all.due(), one(true, true));
        assert_eq!(all.answered(true, 7, 0), [7, 0]);
        assert_eq!(all.due(), []);
        all.note("t", false);
        assert_eq!(all.due(), one(false, true));
        assert_eq!(all.answered(false, 0, 7), [0, 7]);
        assert!(all.is_empty());
    }

    #[test]
    fn subscribers_that_come_and_go_between_two_calls_are_no_change() {
        let all = Attendances::default();
        all.note("t", true);
        all.note("t", false);
        assert_eq!(all.due(), []);
        assert!(all.is_empty());
        all.note("t", true);
        assert_eq!(all.due(), one(true, true));
        all.answered(true, 7, 0);
        all.note("t", false);
        all.note("t", true);
        assert_eq!(all.due(), []);
    }

    #[test]
    fn a_change_during_a_call_is_told_after_it() {
        let all = Attendances::default();
        all.note("t", true);
        assert_eq!(all.due(), one(true, true));
        all.note("t", false);
        assert_eq!(all.answered(true, 7, 0), [7, 0]);
        assert_eq!(all.due(), one(false, true));
        all.note("t", true);
        assert_eq!(all.answered(false, 0, 7), [0, 7]);
        assert_eq!(all.due(), one(true, true));
    }

    #[test]
    fn a_call_without_an_answer_is_made_again_and_is_not_sure() {
        let all = Attendances::default();
        all.note("t", true);
        all.due();
        all.failed(true);
        assert_eq!(all.due(), one(true, false));
        assert_eq!(all.answered(true, 7, 0), [7, 0]);
        all.note("t", false);
        all.due();
        all.failed(false);
        // Nobody knows whether the broker has carried it out.
        all.note("t", true);
        assert_eq!(all.due(), one(true, false));
        // What was told is not told again.
        assert_eq!(all.answered(true, 7, 0), [0, 0]);
        all.note("t", false);
        all.due();
        all.failed(false);
        assert_eq!(all.due(), one(false, false));
        assert_eq!(all.answered(false, 7, 7), [0, 7]);
        assert!(all.is_empty());
    }

    #[test]
    fn a_broker_that_may_have_forgotten_is_told_again() {
        let all = Attendances::default();
        all.say_again("t");
        assert_eq!(all.due(), []);
        all.note("t", true);
        all.due();
        // During the call.
        all.say_again("t");
        all.answered(true, 7, 0);
        assert_eq!(all.due(), one(true, true));
        assert_eq!(all.answered(true, 9, 0), [9, 0]);
        all.say_again("t");
        all.note("t", false);
        assert_eq!(all.due(), one(false, true));
    }
    #[test]
    fn a_call_without_an_answer_is_made_again_by_another_process() {
        let before = Attendances::default();
        before.note("t", true);
        before.due();
        before.answered(true, 7, 0);
        before.note("t", false);
        assert_eq!(before.due(), one(false, true));
        let all = Attendances::default();
        all.import(before.export());
        assert_eq!(all.due(), one(false, false));
        // What was told is not told again.
        assert_eq!(all.answered(false, 7, 7), [0, 7]);
        assert!(all.is_empty());
    }
}
