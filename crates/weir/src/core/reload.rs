//! A new configuration for a gateway that runs: checked as a whole, then applied as a whole.
//!
//! ```text
//!  validate ─▶ old values where a restart is needed ─▶ validate ─▶ prepare ─▶ apply ─▶ recheck connections
//!      └───────────────── an error: nothing has changed ──────────────┘
//! ```

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::info;
use weir_engine::{Command, ConnId, Inspect, InspectPage, InspectWhat, ShardSettings, Urgent};

use crate::base::config::keys::{Difference, adopt, difference};
use crate::base::config::{Config, ConfigError};
use crate::base::mailboxes;
use crate::base::reloader::Reloaded;
use crate::core::handle::Handle;
use crate::core::recheck::{Changed, Rechecked, Settled};
use crate::core::state::SharedState;

impl Handle {
    /// Uses another configuration from now on, as far as that needs no restart.
    ///
    /// A token that is removed closes its connections with `revoked`; so does a token that is bound
    /// to another device. A topic class that no longer permits a subscription ends it. Nobody else
    /// is closed: lower limits count for what comes. Reloads follow one another.
    ///
    /// Errors: the first value that is not allowed, by itself or beside the values that need a
    /// restart. Nothing has changed then.
    /// Cost: a look at each topic if classes change, and at each connection if connections or
    /// subscriptions may have to end.
    pub async fn reload(&self, config: Config) -> Result<Reloaded, ConfigError> {
        let shared = Arc::clone(self.shared());
        // A task of its own: a caller that gives up must not leave half of it.
        let reloading = tokio::spawn(async move { Box::pin(shared.reload(config)).await });
        match reloading.await {
            Ok(reloaded) => reloaded,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The runtime ends, and this task with it.
            Err(_) => std::future::pending().await,
        }
    }
}

impl SharedState {
    async fn reload(&self, config: Config) -> Result<Reloaded, ConfigError> {
        let _others_wait = self.reloading.lock().await;
        config.validate()?;
        if !self.auth.has_source() {
            config.check_admits()?;
        }
        let before = Arc::clone(&self.config());
        let next = Arc::new(self.effective(&before, &config)?);
        let changed = difference("", &*before, &*next).changed;
        // What is left of the difference needs a restart.
        let Difference { changed: also, restart } = difference("", &*next, &config);
        let restart = also.into_iter().chain(restart).collect();
        if changed.is_empty() {
            return Ok(Reloaded { restart, ..Reloaded::default() });
        }
        let Rechecked { closed, unsubscribed } = self.apply(&before, next).await?;
        info!(keys = changed.len(), closed, unsubscribed, "the configuration has changed");
        Ok(Reloaded { changed, restart, closed, unsubscribed })
    }

    /// The configuration in use with the new values that need no restart.
    fn effective(&self, before: &Config, config: &Config) -> Result<Config, ConfigError> {
        let mut next = before.clone();
        adopt(&mut next, config);
        // The broker got it at the start.
        if self.cluster.is_some() {
            next.limits.connections_per_device_max = before.limits.connections_per_device_max;
        }
        next.validate().map_err(|error| {
            let allowed =
                format!("{} (beside the values of keys that need a restart)", error.allowed);
            ConfigError { allowed, ..error }
        })?;
        Ok(next)
    }

    /// Errors: something cannot be prepared; nothing has changed.
    async fn apply(&self, before: &Config, next: Arc<Config>) -> Result<Rechecked, ConfigError> {
        let backends = self.backends.prepare(&next)?;
        self.notices.prepare(&next).await?;
        let credentials = self.auth.prepare(&next)?;
        let of_classes = |config: &Config| {
            let hooks = &config.hooks;
            (hooks.subscribe.upstream.clone(), hooks.publish.upstream.clone())
        };
        let has_classes =
            before.topic_classes != next.topic_classes || of_classes(before) != of_classes(&next);
        let classes = has_classes.then(|| self.router.prepare(&next));
        self.set_config(Arc::clone(&next));
        self.admin_access.replace(&next.admin, &next.auth.services);
        self.limit(&next);
        self.backends.replace(backends);
        self.questions.replace(&next);
        self.calls.replace(&next);
        if before.hooks != next.hooks {
            self.notices.replace(&next).await;
            self.router.attend_again();
        }
        let of_credentials = self.auth.replace(credentials, &next);
        let topics = match classes {
            Some(classes) => self.router.replace(classes).await,
            None => Default::default(),
        };
        if (&before.limits, &before.connection) != (&next.limits, &next.connection) {
            let settings = shard_limits(&next, self.admission.tables().shard);
            for mailbox in self.mailboxes().iter() {
                let limit = Urgent::Limit(Box::new(settings.clone()));
                // A shard that takes nothing has ended, or takes it later than others.
                mailboxes::urgent_in_time(mailbox, limit).await;
            }
        }
        let (admits_less, all_topics) = (of_credentials.admits_less, of_credentials.grants);
        Ok(self.recheck(Changed { admits_less, topics, all_topics }).await)
    }

    /// Changes the limits of the front.
    fn limit(&self, next: &Config) {
        let limits = &next.limits;
        self.router.limit(next);
        self.admission.limit(limits);
        self.devices.limit(limits.connections_per_device_max);
        self.publish_rates.limit(limits.publishes_per_second, limits.publish_burst);
        self.datagram_rates
            .limit(next.udp.datagrams_per_source_per_second, next.udp.datagrams_per_source_burst);
        self.idempotency.limit(limits.idempotency_keys_max);
        self.tracer.reload(&next.telemetry);
        if let Some(activator) = &self.activator {
            activator.limit(&next.activation);
        }
    }

    /// Ends the connections and subscriptions from another process that the rules in use forbid, as
    /// a reload does. It goes on by itself; reloads and hand-overs wait for its end.
    pub(crate) async fn recheck_taken_over(self: Arc<Self>, changed: Changed) {
        if !changed.is_any() {
            return;
        }
        let others_wait = Arc::clone(&self.reloading).lock_owned().await;
        tokio::spawn(async move {
            let Rechecked { closed, unsubscribed } = self.recheck(changed).await;
            info!(closed, unsubscribed, "the configuration differs from that of the old process");
            drop(others_wait);
        });
    }

    /// Ends the connections and subscriptions that the rules in use forbid.
    ///
    /// Cost: a look at each settled connection, [`PAGE`] at a time.
    async fn recheck(&self, changed: Changed) -> Rechecked {
        let mut sum = Rechecked::default();
        if !changed.is_any() {
            return sum;
        }
        let changed = Arc::new(changed);
        for shard in 0..self.mailboxes().len() {
            // A shard or a dispatcher that has ended has no connections.
            if let Some(rechecked) = self.recheck_shard(shard, &changed).await {
                sum += rechecked;
            }
        }
        sum
    }

    async fn recheck_shard(&self, shard: usize, changed: &Arc<Changed>) -> Option<Rechecked> {
        // Behind this one, the shard's queue has every subscription that was checked before.
        let mut sum = self.rechecks.ask(shard, Vec::new(), changed).await?;
        let mut next = Some(0);
        while let Some(cursor) = next {
            let page = self.page(shard, cursor).await?;
            next = page.next_cursor;
            let settled = page.connections.into_iter().map(Settled::of).collect();
            sum += self.rechecks.ask(shard, settled, changed).await?;
        }
        Some(sum)
    }

    /// Connections of a shard, as they are after the commands in its queue.
    async fn page(&self, shard: usize, cursor: u32) -> Option<InspectPage> {
        let (sender, page) = oneshot::channel();
        let reply = Box::new(move |page| {
            // The asker may have given up.
            let _ = sender.send(page);
        });
        let what = InspectWhat::All { cursor, limit: PAGE };
        let inspect = Command::Inspect(Inspect { what, reply });
        let asked = async {
            mailboxes::push(self.mailbox(shard), inspect).await;
            page.await
        };
        timeout(PAGE_TIMEOUT, asked).await.ok()?.ok()
    }
}

/// The limits, rates and times of a shard. `room`: the sockets that its own descriptor table has
/// room for, if it has one.
pub(crate) fn shard_limits(config: &Config, room: Option<usize>) -> ShardSettings {
    let (limits, connection) = (&config.limits, &config.connection);
    let room = room.unwrap_or(usize::MAX).min(ConnId::SLOTS_MAX);
    ShardSettings {
        // A shard alone may reach the limit; the front enforces it for all shards together.
        connections_max: limits.connections_max.min(room),
        topics_per_connection_max: limits.topics_per_connection_max,
        frame_bytes_max: limits.frame_bytes_max,
        low_watermark_bytes: connection.low_watermark_bytes,
        high_watermark_bytes: connection.high_watermark_bytes,
        conflation_keys_max: limits.conflation_keys_max,
        publishes_per_second: limits.publishes_per_second,
        publish_burst: limits.publish_burst,
        frames_per_second: limits.frames_per_second,
        frame_burst: limits.frame_burst,
        stall_timeout: connection.stall_timeout,
        frame_timeout: connection.frame_timeout,
        ..ShardSettings::default()
    }
}

/// Longer than the fan-outs take that wait in a shard's queue. A shard that needs longer has ended.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// A shard looks at so many connections in less than a millisecond.
const PAGE: usize = 256;
