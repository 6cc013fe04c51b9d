//! Answers to messages with an idempotency key that another process takes over.

use std::sync::atomic::Ordering;
use std::thread;

use weir_engine::Share;
use weir_engine::handover::NotUnderstood;
use weir_wire::ProstMessage as _;
use weir_wire::handover::v1;

use super::{Accepted, Idempotency, KEY_BYTES};
use crate::base::handover::refused;
use crate::base::model::NodesReached;

impl Idempotency {
    /// The answers. From here on messages with a key are refused here, until
    /// [`Idempotency::resume`].
    ///
    /// Call it when the topics and devices take no messages any more: a message that they have
    /// taken has its answer here. It waits for those that are on the way, some microseconds.
    pub(crate) fn export(&self) -> v1::Duplicates {
        self.is_shut.store(true, Ordering::Relaxed);
        loop {
            let table = self.lock();
            if table.answers.in_progress() == 0 {
                return table
                    .answers
                    .export(|accepted| accepted_message(*accepted).encode_to_vec());
            }
            drop(table);
            thread::yield_now();
        }
    }

    /// Takes messages with a key again.
    pub(crate) fn resume(&self) {
        self.is_shut.store(false, Ordering::Relaxed);
    }

    /// Goes on with the answers of another process. There were none here so far. They are charged
    /// even if the budget is used up.
    pub(crate) fn import(&self, duplicates: v1::Duplicates) -> Result<(), NotUnderstood> {
        let mut table = self.lock();
        table.answers.import(duplicates, |bytes| {
            let accepted = v1::AcceptedMessage::decode(&*bytes);
            let accepted = accepted.map_err(|_| refused("duplicates.answers", bytes.len() as u64));
            Ok(message_accepted(&accepted?))
        })?;
        let needed = table.answers.len() * KEY_BYTES;
        self.budget.overdraw(Share::Http, needed - table.charged);
        table.charged = needed;
        Ok(())
    }
}

pub(in crate::core) fn accepted_message(accepted: Accepted) -> v1::AcceptedMessage {
    let (is_of_all, nodes_reached, nodes_live) = match accepted.nodes {
        None => (None, 0, 0),
        Some(NodesReached::Subscribed(reached)) => (Some(false), reached, 0),
        Some(NodesReached::All { reached, live }) => (Some(true), reached, live),
    };
    let Accepted { id, offset, epoch, connections, nodes: _ } = accepted;
    v1::AcceptedMessage { id, offset, epoch, connections, is_of_all, nodes_reached, nodes_live }
}

pub(in crate::core) fn message_accepted(accepted: &v1::AcceptedMessage) -> Accepted {
    let v1::AcceptedMessage { id, offset, epoch, connections, .. } = *accepted;
    let (reached, live) = (accepted.nodes_reached, accepted.nodes_live);
    let nodes = accepted.is_of_all.map(|is_of_all| match is_of_all {
        true => NodesReached::All { reached, live },
        false => NodesReached::Subscribed(reached),
    });
    Accepted { id, offset, epoch, connections, nodes }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use weir_engine::Budget;

    use super::*;
    use crate::base::model::{
        IdempotencyKey, Payload, Publication, PublishError, RETRY_AFTER, Target,
    };

    fn message(key: &str) -> Publication<'_> {
        Publication {
            target: Target::All,
            payload: Payload::Text("hi"),
            content_type: "",
            key: "",
            ttl: None,
            sender: None,
            idempotency_key: Some(IdempotencyKey { caller: "one", key }),
        }
    }

    fn accepted(id: u64) -> Result<Accepted, PublishError> {
        let nodes = match id % 3 {
            0 => None,
            1 => Some(NodesReached::Subscribed(3)),
            _ => Some(NodesReached::All { reached: 4, live: 5 }),
        };
        Ok(Accepted { id, offset: (id > 5).then_some(id), epoch: Some(7), connections: 1, nodes })
    }

    fn moved(keys: &Idempotency, budget: &Arc<Budget>) -> Arc<Idempotency> {
        let bytes = keys.export().encode_to_vec();
        let other = Idempotency::new(budget, 1000);
        other.import(v1::Duplicates::decode(&*bytes).unwrap()).unwrap();
        other
    }

    #[test]
    fn what_was_published_before_is_not_published_by_the_other_process() {
        let (budget, other_budget) = (Budget::new(16 << 20), Budget::new(16 << 20));
        let keys = Idempotency::new(&budget, 1000);
        for id in 0..10 {
            keys.once(&message(&id.to_string()), || accepted(id)).unwrap();
        }
        let other = moved(&keys, &other_budget);
        let busy = keys.once(&message("0"), || accepted(99));
        assert_eq!(busy, Err(PublishError::Busy(RETRY_AFTER)));
        for id in 0..10 {
            assert_eq!(other.once(&message(&id.to_string()), || accepted(99)), accepted(id));
        }
        assert_eq!(other.once(&message("new"), || accepted(99)), accepted(99));
        assert_eq!(other_budget.used_of(Share::Http), 11 * KEY_BYTES);
        keys.resume();
        assert_eq!(keys.once(&message("0"), || accepted(99)), accepted(0));
    }

    #[test]
    fn a_message_on_the_way_is_waited_for() {
        let budget = Budget::new(16 << 20);
        let keys = Idempotency::new(&budget, 1000);
        let started = Arc::new(std::sync::Barrier::new(2));
        let is_started = Arc::clone(&started);
        let publisher = Arc::clone(&keys);
        let publishing = thread::spawn(move || {
            publisher.once(&message("k"), || {
                is_started.wait();
                while !publisher.is_shut.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
                accepted(1)
            })
        });
        started.wait();
        let other = moved(&keys, &budget);
        assert_eq!(publishing.join().unwrap(), accepted(1));
        assert_eq!(other.once(&message("k"), || accepted(2)), accepted(1));
    }

    #[test]
    fn a_budget_that_is_used_up_keeps_nothing_back() {
        let keys = Idempotency::new(&Budget::new(16 << 20), 1000);
        keys.once(&message("k"), || accepted(1)).unwrap();
        let budget = Budget::new(16 << 20);
        assert!(budget.take(Share::Http, budget.bytes_max_of(Share::Http)));
        assert_eq!(moved(&keys, &budget).once(&message("k"), || accepted(2)), accepted(1));
        let mut damaged = keys.export();
        damaged.answers[0] = vec![0xff; 3];
        assert!(Idempotency::new(&budget, 1000).import(damaged).is_err());
    }
}
