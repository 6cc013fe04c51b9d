//! Connections are opened ahead of requests, and closed in time.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::attempt::Core;
use crate::endpoint::{Taken, Target};

/// Looks after the connections of an upstream, until it is dropped.
pub(crate) async fn run(core: Weak<Core>) {
    while let Some(core) = core.upgrade() {
        if core.rules.settings.pool.connections_min > 0
            && let Ok(endpoints) = core.names.endpoints().await
        {
            core.balance.update(&endpoints);
        }
        let now = Instant::now();
        for target in core.balance.targets() {
            target.tidy(now);
            while let Some(taken) = target.warm(now) {
                tokio::spawn(open(Arc::clone(&core), Arc::clone(&target), taken));
            }
        }
        drop(core);
        sleep(INTERVAL).await;
    }
}

/// A failure counts for the endpoint; the next round tries again.
async fn open(core: Arc<Core>, target: Arc<Target>, taken: Taken) {
    match taken {
        Taken::Free(place) => {
            if let Ok(connection) = core.open_http1(&target, place).await {
                target.park(connection, Instant::now());
            }
        }
        Taken::Stream(stream) => {
            let _ = core.open_http2(&target, &stream).await;
        }
        Taken::Idle(connection) => target.park(connection, Instant::now()),
    }
}

const INTERVAL: Duration = Duration::from_secs(1);
