//! Tells of presence: the broker, which tells all nodes, and the watchers on this node.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tracing::{debug, warn};
use weir_broker::{Broker, ConnectionNumber, Error, Member, Name};
use weir_engine::ConnId;

use super::Turns;
use crate::topics::{Changes, Router, Topic};

/// Tells of presence until the gateway ends. Without a broker the changes of this node are all.
///
/// Limits: one call of the broker at a time, with at most [`BATCH`] members. What the broker does not
/// take stays with the topics, where only the net effect of all changes is kept.
pub(crate) async fn run(router: Arc<Router>, broker: Option<(Arc<dyn Broker>, Turns)>) {
    let (broker, turns) = broker.unzip();
    let (turns, mut has_failed) = (turns.unwrap_or_default(), false);
    loop {
        router.presence_due().await;
        sleep(TICK).await;
        let _turn = turns.take().await;
        let topics = router.take_presence();
        if let Some(broker) = broker.as_ref().filter(|_| !router.is_broker_lost()) {
            match tell_broker(&router, broker.as_ref(), &topics).await {
                Ok(()) => has_failed = false,
                Err(error) if !std::mem::replace(&mut has_failed, true) => {
                    warn!(%error, "the broker does not take changes of presence; they are tried again");
                }
                Err(error) => debug!(%error, "the broker does not take changes of presence"),
            }
        }
        for topic in &topics {
            router.tell_watchers(topic).await;
            router.end_presence(topic);
        }
    }
}

/// Tells the broker the changes of these topics.
///
/// Errors: the changes that the broker may not have carried out stay with their topics.
async fn tell_broker(
    router: &Router,
    broker: &dyn Broker,
    topics: &VecDeque<Arc<Topic>>,
) -> Result<(), Error> {
    let mut batch = Batch::default();
    for topic in topics {
        loop {
            let changes = router.presence_changes(topic, BATCH - batch.count);
            if changes.len() == 0 {
                break;
            }
            batch.count += changes.len();
            batch.changes.push((topic, changes));
            if batch.count >= BATCH {
                std::mem::take(&mut batch).send(router, broker).await?;
            }
        }
    }
    batch.send(router, broker).await
}

/// What one call carries.
#[derive(Default)]
struct Batch<'a> {
    changes: Vec<(&'a Arc<Topic>, Changes)>,
    count: usize,
}

impl Batch<'_> {
    /// Those that have left go first: a connection may be among both.
    async fn send(self, router: &Router, broker: &dyn Broker) -> Result<(), Error> {
        let changes = self.changes.iter();
        let left = changes.clone().flat_map(|(topic, changes)| named(topic, changes.left()));
        let left: Vec<(Name, Member)> = left.collect();
        let entered = changes.flat_map(|(topic, changes)| named(topic, changes.entered()));
        let entered: Vec<(Name, Member)> = entered.collect();
        let told = async {
            if !left.is_empty() {
                broker.exit(left).await?;
            }
            if !entered.is_empty() {
                broker.enter(entered).await?;
            }
            Ok(())
        };
        let told = told.await;
        if told.is_err() {
            for (topic, changes) in self.changes {
                router.give_back_presence(topic, changes);
            }
        }
        told
    }
}

/// The members with the name of their topic.
fn named<'a>(
    topic: &Topic,
    members: impl Iterator<Item = (ConnId, &'a Name)>,
) -> impl Iterator<Item = (Name, Member)> {
    let topic = Name::from(topic.name());
    members.map(move |(conn, device)| {
        let connection = ConnectionNumber(conn.to_u64());
        (Name::clone(&topic), Member { connection, device: Name::clone(device) })
    })
}

/// Changes are collected for so long.
const TICK: Duration = Duration::from_millis(250);
/// Members in one call.
const BATCH: usize = 512;
