//! What `weir serve` tells systemd: that it is ready, alive, and stopping. Without systemd, nothing.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::{MissedTickBehavior, interval};
use tracing::warn;
use weir::Handle;

/// The gateway listens.
pub(crate) fn tell_ready() {
    tell(&[NotifyState::Ready]);
}

/// The gateway drains. It takes so long at most.
pub(crate) fn tell_stopping(over: Duration) {
    let over = over.saturating_add(AFTER_DRAIN);
    let micros = u32::try_from(over.as_micros()).unwrap_or(u32::MAX);
    tell(&[NotifyState::Stopping, NotifyState::ExtendTimeoutUsec(micros)]);
}

/// Pings the watchdog, if the unit has one, as long as every shard answers. This task itself shows
/// that the front works.
pub(crate) async fn ping_watchdog(handle: Handle) {
    let Some(patience) = sd_notify::watchdog_enabled().filter(|patience| !patience.is_zero())
    else {
        return;
    };
    let mut ticks = interval(patience / PINGS);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match handle.check_shards().await {
            Ok(()) => tell(&[NotifyState::Watchdog]),
            Err(silent) => {
                warn!(shard = silent.shard, "no ping to the watchdog: the shard does not answer");
            }
        }
    }
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!(%error, "cannot tell systemd of the state");
    }
}

/// Pings within the time of the watchdog: two may come late.
const PINGS: u32 = 3;
/// The end after `connection.drain_timeout`: of shards, notices, store and logs.
const AFTER_DRAIN: Duration = Duration::from_secs(40);
