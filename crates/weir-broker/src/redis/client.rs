//! What a node has in hand of its broker: options, the Redis nodes, and what it has entered there.

use std::sync::atomic::{AtomicU16, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::claimed::Devices;
use super::clock::RedisClock;
use super::counts::Counters;
use super::dial::Dialer;
use super::health::Health;
use super::keys::{Interest, Keys};
use super::options::{Endpoint, RedisOptions};
use super::present::Present;
use super::requests::LaneOptions;
use super::servers::Servers;
use super::subscriber::Context;
use crate::contract::{Error, EventHandler};

/// See the module.
pub(super) struct Client {
    pub(super) keys: Keys,
    pub(super) context: Arc<Context>,
    pub(super) servers: Servers,
    pub(super) prefix: String,
    pub(super) cluster: String,
    /// Held while what is wanted of a device changes.
    pub(super) devices: tokio::sync::Mutex<Devices>,
    /// Topics in which this node has members.
    pub(super) present: Mutex<Present>,
    /// Nodes that lived when last looked at.
    pub(super) lived: Mutex<Vec<String>>,
    /// Until when this node has its number.
    pub(super) lease_ends: Mutex<Option<Instant>>,
    clock: Mutex<RedisClock>,
    pub(super) connections_per_device_max: usize,
    pub(super) timeout: Duration,
    pub(super) topic_kept: Duration,
    pub(super) node_kept: Duration,
    pub(super) presence_kept: Duration,
    pub(super) wait_replicas: usize,
    waiting: Arc<Semaphore>,
    waiting_max: usize,
}

impl Client {
    pub(super) async fn open(
        options: RedisOptions,
        handler: Arc<dyn EventHandler>,
    ) -> Result<Client, Error> {
        let endpoint = Endpoint::new(&options)?;
        if options.prefix.is_empty() || options.prefix.contains(['{', '}']) {
            let prefix = options.prefix;
            return Err(Error::Refused(format!(
                "a prefix is not empty and has no braces, not {prefix:?}"
            )));
        }
        let dialer = Arc::new(Dialer::new(&endpoint, &options)?);
        let counts = Arc::new(Counters::default());
        let keys = Keys::new(&options.prefix);
        let context = Arc::new(Context {
            keys: keys.clone(),
            handler: handler.clone(),
            dialer,
            health: Health::new(handler),
            counts: counts.clone(),
            number: AtomicU16::new(0),
            instance: match &options.goes_on {
                Some(state) => state.instance.clone(),
                None => format!("{:016x}", rand::random::<u64>()),
            },
            look: Notify::new(),
            interruptions: AtomicU64::new(0),
            probe_every: options.probe_every,
            timeout: options.timeout,
        });
        let present = Mutex::new(Present::new(&context.instance));
        let waiting_max = options.waiting_max.clamp(1, Semaphore::MAX_PERMITS);
        let lanes = LaneOptions { pipelines_max: options.pipelines_max, waiting_max, counts };
        let servers = Servers::open(context.clone(), endpoint.seeds, lanes).await?;
        let client = Client {
            keys,
            context,
            servers,
            prefix: options.prefix,
            cluster: options.cluster,
            devices: tokio::sync::Mutex::default(),
            present,
            lived: Mutex::default(),
            lease_ends: Mutex::default(),
            clock: Mutex::new(RedisClock::new()),
            connections_per_device_max: options.connections_per_device_max,
            timeout: options.timeout,
            topic_kept: options.topic_kept,
            node_kept: options.node_kept,
            presence_kept: options.presence_kept,
            wait_replicas: options.wait_replicas,
            waiting: Arc::new(Semaphore::new(waiting_max)),
            waiting_max,
        };
        if let Some(state) = &options.goes_on {
            client.go_on(state).await;
        }
        Ok(client)
    }

    /// Takes a number, and listens to what concerns every node.
    pub(super) async fn begin(&self) -> Result<(), Error> {
        self.announce_as(None).await?;
        self.join_all(vec![Interest::All, Interest::Revocations]).await?;
        self.join_again().await
    }

    pub(super) async fn join_all(&self, interests: Vec<Interest>) -> Result<(), Error> {
        let (_permit, until) = self.admit(interests.len())?;
        self.servers.join(interests, until, None::<()>).await
    }

    pub(super) async fn leave_all(&self, interests: Vec<Interest>) -> Result<(), Error> {
        let (_permit, until) = self.admit(interests.len())?;
        self.servers.leave(interests, until).await
    }

    pub(super) fn clock(&self) -> MutexGuard<'_, RedisClock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets requests wait, and says until when.
    pub(super) fn admit(&self, count: usize) -> Result<(OwnedSemaphorePermit, Instant), Error> {
        let count = u32::try_from(count.clamp(1, self.waiting_max)).unwrap_or(u32::MAX);
        match self.waiting.clone().try_acquire_many_owned(count) {
            Ok(permit) => Ok((permit, Instant::now() + self.timeout)),
            Err(_) if self.waiting.is_closed() => {
                Err(Error::Unavailable("the broker is closed".to_owned()))
            }
            Err(_) => {
                let waiting = self.waiting_max - self.waiting.available_permits();
                Err(Error::Overloaded { waiting })
            }
        }
    }

    /// Waits for what is on its way, and ends.
    pub(super) async fn close(&self) {
        let all = u32::try_from(self.waiting_max).unwrap_or(u32::MAX);
        let _ = tokio::time::timeout(self.timeout, self.waiting.acquire_many(all)).await;
        self.waiting.close();
        self.servers.close();
    }
}
