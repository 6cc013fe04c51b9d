//! Which topics have subscribers, and who is told of that.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Router, State, Topic};
use crate::backends::notices::Notices;

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
    /// lock, so that the notices of a topic are in order. Topics of the cluster are not told of:
    /// other nodes may have subscribers.
    pub(super) fn tell_attendance(&self, topic: &Topic, is_occupied: bool) {
        let Some(notices) = self.notices.get().filter(|notices| notices.is_on()) else { return };
        if topic.class().is_cluster {
            return;
        }
        match is_occupied {
            true => notices.occupied(&topic.name),
            false => notices.vacated(&topic.name),
        }
    }

    /// Calls `each` for the topics of this node that have subscribers. It must not wait.
    pub(crate) fn each_occupied(&self, mut each: impl FnMut(&str)) {
        for topic in self.topics_with(|class| !class.is_cluster) {
            let state = topic.lock();
            if state.counts.total() > 0 {
                each(&topic.name);
            }
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
