//! Sessions of TLS that all nodes find: sealed by `tls`, kept by the broker.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tracing::warn;
use weir_broker::{Broker, SessionId, StoredSession};

use crate::observe::counters::Counters;
use crate::observe::counters::tls::{SessionLookup, SessionSharing};
use crate::tls::{Finding, SharedSessions};
use crate::topics::Router;

/// Keeps sessions at the broker, and finds them there.
///
/// Limits: [`LOOKUPS_MAX`] look-ups on their way, each for [`LOOKUP_TIMEOUT`]; [`WAITING_MAX`] new
/// sessions that wait to be sent; `kept_max` sessions of this process at the broker. While the
/// broker is lost, nothing is asked and nothing is sent.
pub(super) struct ClusterSessions {
    broker: Arc<dyn Broker>,
    /// Knows whether the broker is lost.
    router: Arc<Router>,
    /// Look-ups run there, since the threads of handshakes may be busy.
    runtime: Handle,
    lookups: Arc<Semaphore>,
    new: mpsc::Sender<StoredSession>,
    counters: Arc<Counters>,
}

impl ClusterSessions {
    /// Called within a tokio runtime.
    pub(super) fn start(
        broker: Arc<dyn Broker>,
        router: Arc<Router>,
        kept_max: usize,
        counters: Arc<Counters>,
    ) -> ClusterSessions {
        let (new, waiting) = mpsc::channel(WAITING_MAX);
        let keeper = Keeper {
            broker: Arc::clone(&broker),
            waiting,
            kept: VecDeque::new(),
            kept_max,
            counters: Arc::clone(&counters),
        };
        // It ends with the sender.
        tokio::spawn(keeper.run());
        ClusterSessions {
            broker,
            router,
            runtime: Handle::current(),
            lookups: Arc::new(Semaphore::new(LOOKUPS_MAX)),
            new,
            counters,
        }
    }
}

impl SharedSessions for ClusterSessions {
    fn keep(&self, id: [u8; 32], sealed: Vec<u8>, ttl: Duration) {
        let session = StoredSession { id: SessionId(id), sealed, ttl };
        if self.router.is_broker_lost() || self.new.try_send(session).is_err() {
            self.counters.tls.count_sessions_shared(SessionSharing::Dropped, 1);
        }
    }

    fn find(&self, id: [u8; 32]) -> Finding<'_> {
        Box::pin(async move {
            if self.router.is_broker_lost() {
                return Err(SessionLookup::Failed);
            }
            let Ok(place) = Arc::clone(&self.lookups).try_acquire_owned() else {
                return Err(SessionLookup::Refused);
            };
            let broker = Arc::clone(&self.broker);
            let asked = self.runtime.spawn(async move {
                // Until the broker answers or gives up: a slow one delays few handshakes.
                let _place = place;
                broker.session(SessionId(id)).await
            });
            match timeout(LOOKUP_TIMEOUT, asked).await {
                Ok(Ok(Ok(Some(sealed)))) => Ok(sealed),
                Ok(Ok(Ok(None))) => Err(SessionLookup::Miss),
                Ok(Ok(Err(_)) | Err(_)) | Err(_) => Err(SessionLookup::Failed),
            }
        })
    }
}

/// Sends new sessions to the broker, in batches.
struct Keeper {
    broker: Arc<dyn Broker>,
    waiting: mpsc::Receiver<StoredSession>,
    /// What this process has sent, the oldest first. Some may have ended.
    kept: VecDeque<SessionId>,
    kept_max: usize,
    counters: Arc<Counters>,
}

impl Keeper {
    async fn run(mut self) {
        // What a call forgets is older than what it keeps.
        let batch_max = BATCH_MAX.min(self.kept_max);
        let mut batch = Vec::new();
        while self.waiting.recv_many(&mut batch, batch_max).await > 0 {
            let sessions = std::mem::take(&mut batch);
            let count = sessions.len();
            self.kept.extend(sessions.iter().map(|session| session.id));
            let surplus = self.kept.len().saturating_sub(self.kept_max);
            let forgotten = self.kept.drain(..surplus).collect();
            let result = match self.broker.keep_sessions(sessions, forgotten).await {
                Ok(()) => SessionSharing::Kept,
                Err(error) => {
                    warn!(%error, "the broker has not kept new sessions of TLS");
                    SessionSharing::Failed
                }
            };
            self.counters.tls.count_sessions_shared(result, count);
        }
    }
}

/// A handshake waits no longer for a session. The full handshake that it saves takes the client
/// about as long, with its further round trip.
const LOOKUP_TIMEOUT: Duration = Duration::from_millis(100);
/// A Redis nearby answers as many in a millisecond. A flood of invented ids occupies no more.
const LOOKUPS_MAX: usize = 128;
/// Sessions of a second with many handshakes; each takes some hundred bytes.
const WAITING_MAX: usize = 1_024;
/// Sessions in one call.
const BATCH_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use tokio::task::JoinSet;
    use tokio::time::{Instant, sleep};
    use weir_broker::memory::{Memory, MemoryOptions, Method, NodeOptions};
    use weir_engine::Budget;

    use super::*;
    use crate::base::config::Config;
    use crate::base::mailboxes::Mailboxes;
    use crate::cluster::BrokerEvents;

    /// A node's sessions, and what it has counted.
    struct Node {
        sessions: Arc<ClusterSessions>,
        router: Arc<Router>,
        counters: Arc<Counters>,
    }

    const BROKER_TIMEOUT: Duration = Duration::from_millis(500);
    const LONG: Duration = Duration::from_secs(3_600);

    fn node(memory: &Memory, name: &str, kept_max: usize) -> Node {
        let counters = Arc::<Counters>::default();
        let mailboxes: Arc<Mailboxes> = Vec::new().into();
        let of_router = (Budget::new(1 << 20), Arc::clone(&counters));
        let router = Router::new(mailboxes, of_router.0, of_router.1, &Config::default(), true);
        let router = Arc::new(router);
        let options = NodeOptions { timeout: BROKER_TIMEOUT, ..NodeOptions::default() };
        let broker = memory.node(name, options, BrokerEvents::new(Arc::clone(&router)));
        let of_sessions = (Arc::clone(&router), Arc::clone(&counters));
        let sessions = ClusterSessions::start(broker, of_sessions.0, kept_max, of_sessions.1);
        Node { sessions: Arc::new(sessions), router, counters }
    }

    impl Node {
        fn keep(&self, numbers: impl IntoIterator<Item = u8>) {
            for number in numbers {
                self.sessions.keep([number; 32], vec![number], LONG);
            }
        }

        async fn find(&self, number: u8) -> Result<Vec<u8>, SessionLookup> {
            self.sessions.find([number; 32]).await
        }

        /// Waits until so many sessions were kept, dropped and have failed.
        async fn shared(&self, expected: [u64; 3]) {
            let counts =
                || SessionSharing::ALL.map(|result| self.counters.tls.sessions_shared(result));
            let deadline = Instant::now() + LONG;
            while counts() != expected {
                assert!(Instant::now() < deadline, "{:?}", counts());
                sleep(Duration::from_millis(1)).await;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_is_found_at_every_node_until_newer_ones_displace_it() {
        let memory = Memory::new(&MemoryOptions::default());
        let (one, two) = (node(&memory, "one", 3), node(&memory, "two", 3));
        assert_eq!(two.find(1).await, Err(SessionLookup::Miss));
        one.keep([1, 2]);
        two.keep([3, 4]);
        one.shared([2, 0, 0]).await;
        two.shared([2, 0, 0]).await;
        for number in 1..=4 {
            assert_eq!(one.find(number).await, Ok(vec![number]));
            assert_eq!(two.find(number).await, Ok(vec![number]));
        }
        // Each node forgets its own.
        one.keep([5, 6, 7, 8, 9]);
        one.shared([7, 0, 0]).await;
        for number in [1, 2, 5, 6] {
            assert_eq!(two.find(number).await, Err(SessionLookup::Miss), "{number}");
        }
        for number in [3, 4, 7, 8, 9] {
            assert_eq!(two.find(number).await, Ok(vec![number]));
        }
        sleep(LONG).await;
        assert_eq!(two.find(9).await, Err(SessionLookup::Miss));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_broker_delays_few_handshakes_and_none_for_long() {
        let memory = Memory::new(&MemoryOptions::default());
        let node = node(&memory, "one", 1_000);
        memory.pause(None);
        let began = Instant::now();
        let mut lookups = JoinSet::new();
        for _ in 0..LOOKUPS_MAX {
            let sessions = Arc::clone(&node.sessions);
            lookups.spawn(async move { sessions.find([1; 32]).await });
        }
        while let Some(result) = lookups.join_next().await {
            assert_eq!(result.unwrap(), Err(SessionLookup::Failed));
        }
        assert!(began.elapsed() < LOOKUP_TIMEOUT * 2, "{:?}", began.elapsed());
        // The broker still has these to answer.
        let again = Instant::now();
        assert_eq!(node.find(1).await, Err(SessionLookup::Refused));
        assert_eq!(again.elapsed(), Duration::ZERO);
        memory.resume(None);
        sleep(BROKER_TIMEOUT).await;
        assert_eq!(node.find(1).await, Err(SessionLookup::Miss));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_broker_is_not_asked() {
        let memory = Memory::new(&MemoryOptions::default());
        let node = node(&memory, "one", 1_000);
        node.keep([1]);
        node.shared([1, 0, 0]).await;
        memory.set_reachable(false);
        while !node.router.is_broker_lost() {
            sleep(Duration::from_millis(1)).await;
        }
        let asked = memory.counts(None).calls;
        let began = Instant::now();
        assert_eq!(node.find(1).await, Err(SessionLookup::Failed));
        assert_eq!(began.elapsed(), Duration::ZERO);
        node.keep([2]);
        node.shared([1, 1, 0]).await;
        assert_eq!(memory.counts(None).calls, asked);
        memory.set_reachable(true);
        while node.router.is_broker_lost() {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(node.find(1).await, Ok(vec![1]));
    }

    #[tokio::test(start_paused = true)]
    async fn new_sessions_that_wait_are_bounded() {
        let memory = Memory::new(&MemoryOptions::default());
        let node = node(&memory, "one", 10_000);
        memory.pause(None);
        let many = WAITING_MAX + 10;
        for number in 0..many {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&number.to_be_bytes());
            node.sessions.keep(id, vec![1], LONG);
        }
        // Nothing has left yet: the sender has not had a turn.
        node.shared([0, 10, 0]).await;
        memory.resume(None);
        node.shared([WAITING_MAX as u64, 10, 0]).await;
        let calls = memory.counts(None).calls;
        assert_eq!(
            calls.get(&Method::KeepSessions),
            Some(&(WAITING_MAX.div_ceil(BATCH_MAX) as u64))
        );
    }
}
