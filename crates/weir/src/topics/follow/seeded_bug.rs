//! The bugs that tests put into the router. They prove that the simulation finds such bugs; the
//! product contains none of them.

#[cfg(test)]
use std::sync::Arc;

#[cfg(test)]
use super::Phase;
use crate::topics::Router;
#[cfg(test)]
use crate::topics::{State, Topic};

/// A bug that a test puts into the router; the simulation must find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SeededBug {
    /// A message above a gap is applied, although the broker has what is missing.
    UnfilledGap,
    /// A new epoch is followed without telling members.
    UntoldEpoch,
    /// What came while the topic was joined is dropped when it goes live.
    #[cfg(test)]
    LateJoin,
    /// A resume takes an offset for one of the running epoch.
    ResumeAcrossEpochs,
    /// Changes of presence that the broker has not taken are not told again.
    LostPresence,
}

#[cfg(test)]
impl SeededBug {
    /// Every seeded bug.
    pub(crate) const ALL: [SeededBug; 5] = [
        SeededBug::UnfilledGap,
        SeededBug::UntoldEpoch,
        SeededBug::LateJoin,
        SeededBug::ResumeAcrossEpochs,
        SeededBug::LostPresence,
    ];
}

#[cfg(not(test))]
impl Router {
    pub(in crate::topics) const fn is_seeded(&self, _bug: SeededBug) -> bool {
        false
    }
}

#[cfg(test)]
impl Router {
    pub(crate) fn seed_bug(&self, bug: SeededBug) {
        let _ = self.seeded_bug.set(bug);
    }

    pub(in crate::topics) fn is_seeded(&self, bug: SeededBug) -> bool {
        self.seeded_bug.get() == Some(&bug)
    }

    /// [`SeededBug::LateJoin`]; `false`: it is not seeded, or concerns another phase.
    pub(super) fn joins_late(&self, topic: &Arc<Topic>, state: &mut State) -> bool {
        if !self.is_seeded(SeededBug::LateJoin) || state.cluster().phase != Phase::Joining {
            return false;
        }
        state.cluster().phase = Phase::Live;
        self.answer_parked(topic, state);
        let of_epoch = state.epoch;
        let held = state.cluster().held.iter();
        let last = held.filter(|(epoch, _)| *epoch == of_epoch).map(|(_, held)| held.offset).max();
        state.offset = state.offset.max(last.unwrap_or(0));
        self.drop_held(state);
        true
    }
}
