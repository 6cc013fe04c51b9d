//! What the broker tells the new process of an upgrade before that goes on as the node.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use weir_broker::{Event, EventHandler, Scope};
use weir_wire::handover::v1;

use super::passing::{bytes, digest};

/// Keeps what the broker tells until this process goes on as the node. So nothing is missed between
/// the last event that the old process has carried out and the first one of this process.
///
/// Limits: [`KEPT_BYTES_MAX`]. What comes beyond that is let go of, and counts as a gap.
#[derive(Default)]
pub(crate) struct EarlyEvents {
    /// Set when this process goes on.
    to: OnceLock<Arc<dyn EventHandler>>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    events: Vec<Event>,
    bytes: usize,
    has_lost: bool,
}

impl EarlyEvents {
    /// Hands over what was kept, without what the old process has carried out. From here on all goes
    /// to the handler. Returns whether something was let go of.
    pub(crate) fn go_on(&self, handler: Arc<dyn EventHandler>, heard: &v1::BrokerHeard) -> bool {
        let known: HashSet<u64> = heard.digests.iter().copied().collect();
        let is_known = |digest: u64| heard.is_cut || known.contains(&digest);
        // Under the lock, so that what comes meanwhile comes afterwards.
        let mut kept = self.lock();
        let Kept { events, has_lost, .. } = std::mem::take(&mut *kept);
        for event in events {
            if !digest(&event).is_some_and(is_known) {
                handler.handle(event);
            }
        }
        let has_lost = has_lost || heard.is_cut;
        if has_lost {
            handler.handle(Event::Gap(Scope::All));
        }
        // Nobody else sets it.
        let _ = self.to.set(handler);
        has_lost
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventHandler for EarlyEvents {
    fn handle(&self, event: Event) {
        if let Some(to) = self.to.get() {
            return to.handle(event);
        }
        let mut kept = self.lock();
        if let Some(to) = self.to.get() {
            drop(kept);
            return to.handle(event);
        }
        let bytes = bytes(&event);
        if kept.bytes + bytes > KEPT_BYTES_MAX {
            kept.has_lost = true;
            return;
        }
        kept.bytes += bytes;
        kept.events.push(event);
    }
}

/// Some seconds of a busy cluster.
const KEPT_BYTES_MAX: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Heard(Mutex<Vec<Event>>);

    impl EventHandler for Heard {
        fn handle(&self, event: Event) {
            self.0.lock().unwrap().push(event);
        }
    }

    fn to_all(text: &str) -> Event {
        Event::ToAll(text.as_bytes().to_vec())
    }

    #[test]
    fn what_the_old_process_has_carried_out_is_not_carried_out_again() {
        let (early, heard) = (EarlyEvents::default(), Arc::<Heard>::default());
        for text in ["both", "here", "there"] {
            early.handle(to_all(text));
        }
        early.handle(Event::Gap(Scope::Node));
        let digests = [to_all("both"), to_all("there"), to_all("never")];
        let digests = digests.iter().filter_map(digest).collect();
        assert!(!early.go_on(heard.clone(), &v1::BrokerHeard { digests, is_cut: false }));
        // It may be said once more: then it is another one.
        early.handle(to_all("both"));
        let expected = [to_all("here"), Event::Gap(Scope::Node), to_all("both")];
        assert_eq!(*heard.0.lock().unwrap(), expected);
    }

    #[test]
    fn what_has_no_room_counts_as_a_gap() {
        let (early, heard) = (EarlyEvents::default(), Arc::<Heard>::default());
        for _ in 0..3 {
            early.handle(Event::ToAll(vec![0; KEPT_BYTES_MAX / 2]));
        }
        assert!(early.go_on(heard.clone(), &v1::BrokerHeard::default()));
        let heard = heard.0.lock().unwrap();
        assert!(matches!(&heard[..], [Event::ToAll(_), Event::Gap(Scope::All)]));
    }
}
