//! Carries out what topics need from the broker.
//!
//! Joins and leaves keep their order, so a topic that is left and wanted again ends up joined.
//! Reads run beside them, a bounded number at a time.

use std::sync::{Arc, Weak};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tracing::debug;
use weir_broker::{Error, HistoryQuery, Name};
use weir_engine::Nanos;

use super::{Cluster, ClusterSettings};
use crate::topics::{Need, Question, Replay, Router};

/// Starts the tasks of a node. They end when the cluster is dropped.
pub(super) fn start(cluster: &Arc<Cluster>) {
    let router = Arc::clone(&cluster.router);
    tokio::spawn(run(Arc::downgrade(cluster), Arc::clone(&router)));
    tokio::spawn(replay(Arc::downgrade(cluster), router));
    tokio::spawn(leave(Arc::downgrade(cluster)));
    tokio::spawn(compare(Arc::downgrade(cluster)));
}

async fn run(cluster: Weak<Cluster>, router: Arc<Router>) {
    let reads = Arc::new(Semaphore::new(READS_MAX));
    loop {
        let needs = router.needs().take(JOINS_MAX).await;
        let Some(cluster) = cluster.upgrade() else { return };
        let turn = cluster.turns.take().await;
        carry_out(&cluster, needs, &reads).await;
        drop(turn);
    }
}

/// A read: topic, behind which offset, and the number of the question.
type Read = (Name, u64, Question);

/// Needs of one batch, taken apart.
#[derive(Default)]
struct Batch {
    joins: Vec<Read>,
    leaves: Vec<Name>,
    reads: Vec<Read>,
    retries: Vec<Name>,
}

async fn carry_out(cluster: &Arc<Cluster>, needs: Vec<Need>, reads: &Arc<Semaphore>) {
    let mut batch = Batch::default();
    for need in needs {
        match need {
            Need::Join(topic, after, question) => {
                // What is left here is left before it is joined again.
                leave_now(cluster, &mut batch.leaves).await;
                batch.joins.push((topic, after, question));
            }
            Need::Leave(topic) => {
                join_now(cluster, &mut batch, reads).await;
                batch.leaves.push(topic);
            }
            Need::Read(topic, after, question) => batch.reads.push((topic, after, question)),
            Need::Retry(topic) => batch.retries.push(topic),
        }
    }
    leave_now(cluster, &mut batch.leaves).await;
    join_now(cluster, &mut batch, reads).await;
    let Batch { reads: wanted, retries, .. } = batch;
    for part in wanted.chunks(QUERIES_MAX) {
        read_soon(cluster, part.to_vec(), reads).await;
    }
    if !retries.is_empty() {
        let router = Arc::clone(&cluster.router);
        tokio::spawn(async move {
            sleep(RETRY_DELAY).await;
            for topic in retries {
                router.go_on(&topic);
            }
        });
    }
}

async fn leave_now(cluster: &Cluster, leaves: &mut Vec<Name>) {
    if leaves.is_empty() {
        return;
    }
    let leaves = std::mem::take(leaves);
    if let Err(error) = cluster.broker.leave(leaves.clone()).await {
        // A topic that is still joined at the broker costs messages that nobody here wants, no more.
        debug!(%error, "the broker was not told which topics this node leaves");
        let router = Arc::clone(&cluster.router);
        tokio::spawn(async move {
            sleep(FAILURE_DELAY).await;
            leaves.iter().for_each(|topic| router.leave_again(topic));
        });
    }
}

async fn join_now(cluster: &Arc<Cluster>, batch: &mut Batch, reads: &Arc<Semaphore>) {
    if batch.joins.is_empty() {
        return;
    }
    let joins = std::mem::take(&mut batch.joins);
    let topics = joins.iter().map(|(topic, ..)| Name::clone(topic)).collect();
    match cluster.broker.join(topics).await {
        Ok(()) => {
            for part in joins.chunks(QUERIES_MAX) {
                read_soon(cluster, part.to_vec(), reads).await;
            }
        }
        Err(error) => fail(cluster, joins, Need::Join, &error),
    }
}

/// Begins a read; waits only while too many run.
async fn read_soon(cluster: &Arc<Cluster>, topics: Vec<Read>, reads: &Arc<Semaphore>) {
    let Ok(permit) = Arc::clone(reads).acquire_owned().await else { return };
    let cluster = Arc::clone(cluster);
    tokio::spawn(async move {
        let query = |(topic, after, _): &Read| HistoryQuery {
            topic: Name::clone(topic),
            after: *after,
            messages_max: PAGE_MAX,
            bytes_max: PAGE_BYTES_MAX,
        };
        let answer = cluster.broker.read(topics.iter().map(query).collect()).await;
        drop(permit);
        match answer {
            Ok(histories) => {
                for ((topic, _, question), history) in topics.iter().zip(&histories) {
                    cluster.router.handle_history(topic, *question, history);
                }
            }
            Err(error) => fail(&cluster, topics, Need::Read, &error),
        }
    });
}

/// Tells topics that the broker has not answered; those that are followed need the same again later.
fn fail(
    cluster: &Arc<Cluster>,
    topics: Vec<Read>,
    need: fn(Name, u64, Question) -> Need,
    error: &Error,
) {
    debug!(%error, topics = topics.len(), "the broker did not tell what topics hold");
    let router = Arc::clone(&cluster.router);
    let is_asked = |(topic, _, question): &Read| router.handle_failure(topic, *question);
    let again: Vec<Read> = topics.into_iter().filter(is_asked).collect();
    if !again.is_empty() {
        tokio::spawn(async move {
            sleep(FAILURE_DELAY).await;
            for (topic, after, question) in again {
                router.needs().push(need(topic, after, question));
            }
        });
    }
}

/// Reads for resumes what the rings of this node do not reach.
async fn replay(cluster: Weak<Cluster>, router: Arc<Router>) {
    let reads = Arc::new(Semaphore::new(REPLAYS_MAX));
    loop {
        let replays = router.needs().take_replays(PARTS_MAX).await;
        let Ok(permit) = Arc::clone(&reads).acquire_owned().await else { return };
        let Some(cluster) = cluster.upgrade() else { return };
        tokio::spawn(async move {
            let queries = replays.iter().map(Replay::query).collect();
            let answer = cluster.broker.read(queries).await.map(Vec::into_iter);
            let mut histories = answer.inspect_err(|error| {
                debug!(%error, "the broker did not tell what resumes need");
            });
            for replay in replays {
                let history = histories.as_mut().ok().and_then(Iterator::next);
                cluster.router.answer_replay(replay, history.as_ref()).await;
            }
            drop(permit);
        });
    }
}

/// Leaves topics that have had no subscriber for some time.
async fn leave(cluster: Weak<Cluster>) {
    loop {
        let Some(cluster) = cluster.upgrade() else { return };
        let delay = cluster.settings.leave_delay;
        let next = cluster.router.leave_empty(delay, Nanos::now());
        drop(cluster);
        sleep(next.clamp(LEAVE_INTERVAL_MIN, LEAVE_INTERVAL_MAX)).await;
    }
}

/// Compares the newest positions of the topics with the broker's, which also renews them there.
async fn compare(cluster: Weak<Cluster>) {
    let settings = cluster.upgrade().map(|cluster| cluster.settings.clone());
    let Some(ClusterSettings { compare_interval, seed, .. }) = settings else { return };
    let mut dice = StdRng::seed_from_u64(seed);
    loop {
        sleep(compare_interval.mul_f64(dice.random_range(0.75..1.25))).await;
        let Some(cluster) = cluster.upgrade() else { return };
        for part in cluster.router.followed().chunks(JOINS_MAX) {
            match cluster.broker.tops(part.to_vec()).await {
                Ok(tops) => {
                    for (topic, top) in part.iter().zip(tops) {
                        cluster.router.handle_top(topic, top);
                    }
                }
                Err(error) => {
                    debug!(%error, "the broker did not tell the newest positions");
                    break;
                }
            }
        }
    }
}

/// Topics in one call.
const JOINS_MAX: usize = 512;
/// Topics in one read, and messages and bytes of each.
const QUERIES_MAX: usize = 64;
const PAGE_MAX: usize = 256;
const PAGE_BYTES_MAX: usize = 256 << 10;
/// Reads on their way.
const READS_MAX: usize = 16;
/// Reads for resumes on their way, and parts in each; a part is about `low_watermark_bytes` long.
const REPLAYS_MAX: usize = 4;
const PARTS_MAX: usize = 16;
/// A busy shard gives credits back within some turns.
const RETRY_DELAY: Duration = Duration::from_millis(5);
const FAILURE_DELAY: Duration = Duration::from_millis(500);
const LEAVE_INTERVAL_MIN: Duration = Duration::from_millis(100);
const LEAVE_INTERVAL_MAX: Duration = Duration::from_secs(5);
