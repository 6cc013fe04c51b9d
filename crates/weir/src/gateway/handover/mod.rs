//! A gateway hands itself over to a new process, and is made of what an old one hands over.

mod afterwards;
mod early;
mod incoming;
mod node;
mod outgoing;
mod parts;

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tracing::warn;
use weir_engine::Nanos;
use weir_wire::handover::v1;

use super::Gateway;
use crate::base::config::Config;
use crate::base::threads::{Resources, raise_open_files};
use crate::core::events::EventKind;
use crate::handover::{Forecast, Hello, Left, Moved, NotMoved, Stage, Successor};
use crate::limits::admission;
use crate::observe::upgrades::{UpgradeLimit, UpgradeOutcome};
pub(super) use incoming::{Incoming, Rest, TakenFront};
pub(super) use node::NewNode;
use outgoing::Outgoing;
use parts::settled;

impl Gateway {
    /// Hands everything over to the new process. `report` is told of each stage.
    ///
    /// `Ok`: the new process serves; this gateway owns nothing any more but what has stayed, and is
    /// ended with [`Gateway::leave`].
    ///
    /// Errors: this gateway serves on as before, and the new process has ended.
    pub async fn hand_over(
        &mut self,
        successor: Successor,
        mut report: impl FnMut(Stage) + Send,
    ) -> Result<Moved, NotMoved> {
        let forecast = self.forecast(successor.hello());
        if let Some(why) = forecast.refused {
            let abandoned = spawn_blocking(|| successor.abandon(NotMoved(why))).await;
            return Err(abandoned.unwrap_or_else(NotMoved::because));
        }
        let (tell, mut told) = mpsc::channel(STAGES_MAX);
        let outgoing = Outgoing {
            shared: Arc::clone(&self.shared),
            listeners: self.listening.clone(),
            datagrams: self.udp.as_ref().map(|udp| Arc::clone(udp.threads())),
            reports: self.reports.clone(),
            tell,
            upgrades: self.upgrades(),
        };
        let runtime = runtime::Handle::current();
        // What a reload begins has ended before, and is known to the new process.
        let reloading = Arc::clone(&self.shared.reloading);
        let _no_reload = reloading.lock().await;
        let handed = spawn_blocking(move || outgoing.hand_over(successor, &runtime));
        while let Some(stage) = told.recv().await {
            report(stage);
        }
        let mut moved = handed.await.unwrap_or_else(|failed| Err(NotMoved::because(failed)))?;
        moved.stayed = self.stays();
        let shared = Arc::clone(&self.shared);
        // The new process waits for the file.
        self.last_notices = Some(tokio::spawn(async move { shared.notices.hand_over().await }));
        // What has stayed is told to come back, and finds the new process.
        if let Some(edge) = &self.edge {
            edge.drain();
        }
        Ok(moved)
    }

    /// Sees to what remains to be done for what was taken over.
    pub(super) async fn go_on(&self, incoming: Incoming, Rest { changed, calls }: Rest) {
        let datagrams = self.udp.as_ref().map(|udp| Arc::clone(udp.threads()));
        let link = incoming.into_link();
        if let Err(error) = afterwards::hear_old(&self.shared, link, calls, datagrams) {
            warn!(%error, "nothing is heard from the old process after the upgrade");
        }
        self.shared.close_leaving().await;
        Arc::clone(&self.shared).recheck_taken_over(changed).await;
    }

    /// What would move to a process that says this of itself.
    pub fn forecast(&self, hello: &Hello) -> Forecast {
        let connections = settled(self.shared.engine());
        let own = Hello::of(&self.shared.config());
        let count = connections.iter().map(|(_, count)| count).sum();
        let draining = self.shared.drains.is_running().then(|| outgoing::DRAINING.to_owned());
        let refused = draining.or_else(|| refused(&own, hello, count));
        Forecast { connections, stays: self.stays(), refused }
    }

    /// Without the beginning of the pause.
    fn upgrades(&self) -> v1::UpgradeHistory {
        let upgrades = &self.shared.upgrades;
        let (stays_http, stays_unsettled) = self.staying();
        v1::UpgradeHistory {
            moved: upgrades.count(UpgradeOutcome::Moved),
            failed: upgrades.count(UpgradeOutcome::Failed),
            pause_began: 0,
            stays_http,
            stays_unsettled,
            limits: upgrades.export_limits(),
        }
    }

    /// Counts an upgrade that has failed, and tells the readers of events. This gateway serves on.
    pub fn tell_upgrade_failed(&self, why: &NotMoved) {
        self.shared.upgrades.add(UpgradeOutcome::Failed, 1);
        self.shared.events.tell_all(EventKind::UpgradeFailed(why.0.clone()));
    }

    /// Connections that stay with this process: those that speak HTTP, and those without a `Hello`.
    fn staying(&self) -> (u64, u64) {
        let http = self.edge.as_ref().map_or(0, |edge| edge.connection_count());
        (http as u64, self.shared.counters().unsettled() as u64)
    }

    /// The same by cause.
    fn stays(&self) -> Vec<(&'static str, u64)> {
        let (http, unsettled) = self.staying();
        vec![("http", http), ("unsettled", unsettled)]
    }

    /// Finishes what has stayed, for `linger` at most, then ends. The new process serves.
    pub async fn leave(mut self, linger: Duration) -> Left {
        self.listening = Arc::default();
        // Their readers come back, and hear of the upgrade from the new process.
        self.shared.events.close();
        let admin = self.admin.take().map(|(stop, admin)| {
            let _ = stop.send(linger);
            admin
        });
        // Its threads have some answers left to send.
        let until = Nanos::now().after(linger);
        let udp = self.udp.take().map(|udp| spawn_blocking(move || udp.finish_by(until)));
        while self.listeners.join_next().await.is_some() {}
        let stayed = |gateway: &Gateway| {
            let (http, unsettled) = gateway.staying();
            let requests = gateway.shared.counters().udp.waiting();
            http + unsettled + requests + gateway.shared.calls.in_flight() as u64
        };
        let before = stayed(&self);
        let all = async {
            while stayed(&self) > 0 {
                sleep(LEFT_INTERVAL).await;
            }
        };
        // What is left ends with the process.
        let _ = timeout(linger, all).await;
        let closed = stayed(&self);
        self.shared.upgrades.reach(UpgradeLimit::Linger, closed);
        while self.dispatchers.join_next().await.is_some() {}
        if let Some(udp) = udp
            && udp.await.is_err()
        {
            warn!("the threads for datagrams did not end in order");
        }
        if let Some(last) = self.last_notices.take() {
            // It has an end, and reports a failure itself.
            let _ = last.await;
        }
        if let Some(admin) = admin {
            let _ = admin.await;
        }
        self.services.shutdown().await;
        let told = async {
            while !self.shared.upgrades.has_told_all() {
                sleep(LEFT_INTERVAL).await;
            }
        };
        // The new process may have ended.
        let _ = timeout(TOLD_PATIENCE, told).await;
        let shared = Arc::clone(&self.shared);
        if spawn_blocking(move || shared.access_log.finish()).await.is_err() {
            warn!("the access log ended by itself; its last lines are lost");
        }
        Left { finished: before.saturating_sub(closed), closed }
    }
}

impl Hello {
    /// What this process says of itself with a configuration. It raises the limit on open files.
    pub fn of(config: &Config) -> Hello {
        let open_files = raise_open_files();
        let resources = Resources::detect();
        let shards = resources.shards(&config.threads);
        let own = admission::shard_sockets_max(&config.engine, open_files.soft);
        let datagrams = if config.listen.udp.is_empty() { 0 } else { 1 };
        let udp_threads = datagrams * resources.udp_threads(config.udp.threads);
        let limits = super::builder::table_limits(&open_files, own, 0);
        let connections_max = admission::connections_max(&config.limits, limits, shards);
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Hello {
            shards: number(shards),
            udp_threads: number(udp_threads),
            own_descriptors: own.is_some(),
            connections_max: connections_max as u64,
            ..Hello::of_this_process()
        }
    }
}

/// Why the new process cannot take over this gateway, with its settled connections.
fn refused(own: &Hello, new: &Hello, connections: u64) -> Option<String> {
    if own.shards != new.shards {
        return Some(format!(
            "the new process has {} shards, this one has {}: another number needs a restart \
             (threads.shards)",
            new.shards, own.shards
        ));
    }
    if own.udp_threads != new.udp_threads {
        return Some(format!(
            "the new process has {} threads for datagrams, this one has {}: another number needs a \
             restart (udp.threads, listen.udp)",
            new.udp_threads, own.udp_threads
        ));
    }
    if own.own_descriptors != new.own_descriptors {
        return Some("engine.own_descriptors differs: that needs a restart".to_owned());
    }
    (connections > new.connections_max).then(|| {
        let limit = match new.open_files {
            Some(limit) => format!("its limit on open files is {limit}"),
            None => "it has no limit on open files".to_owned(),
        };
        format!(
            "the new process has room for {} connections, and this one has {connections}: {limit}; \
             raise it, and limits.connections_max",
            new.connections_max
        )
    })
}

/// Stages that nobody has heard of yet; an upgrade has fewer.
const STAGES_MAX: usize = 16;
/// How often the old process looks whether what has stayed has ended.
const LEFT_INTERVAL: Duration = Duration::from_millis(20);
/// For some words to the new process, which serves.
const TOLD_PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_another_shape_is_refused_with_figures() {
        let own = Hello {
            shards: 2,
            udp_threads: 1,
            connections_max: 100,
            open_files: Some(120),
            ..Hello::of_this_process()
        };
        let check = |change: &dyn Fn(&mut Hello), connections, parts: &[&str]| {
            let mut new = own.clone();
            change(&mut new);
            let refused = refused(&own, &new, connections).unwrap_or_default();
            assert!(parts.iter().all(|part| refused.contains(part)), "{refused}");
            assert_eq!(parts.is_empty(), refused.is_empty(), "{refused}");
        };
        check(&|_| {}, 100, &[]);
        check(&|new| new.shards = 3, 0, &["3 shards", "has 2", "threads.shards"]);
        check(&|new| new.udp_threads = 0, 0, &["0 threads for datagrams", "has 1"]);
        check(&|new| new.own_descriptors = true, 0, &["engine.own_descriptors"]);
        check(&|_| {}, 101, &["room for 100 connections", "has 101", "open files is 120"]);
    }
}
