//! What the front of the new process gets before the pause, on a thread of its own: retained
//! messages, and the rounds of a node of a cluster.

use std::io;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use weir_engine::{Budget, Nanos};

use super::node::Rounds;
use super::parts::RINGS_PART;
use crate::handover::{Link, NotMoved};
use crate::topics::EarlyRings;

/// The retained messages that come early.
pub(super) struct Early(Mutex<Receiver<Result<EarlyRings, NotMoved>>>);

impl Early {
    /// Starts to take them, and then the rounds, until the link ends.
    pub(super) fn begin(
        link: Link,
        budget: &Arc<Budget>,
        rounds: Option<Rounds>,
    ) -> io::Result<Early> {
        let (tell, told) = sync_channel(1);
        let budget = Arc::clone(budget);
        let run = move || {
            let rings = take(&link, &budget);
            let has_failed = rings.is_err();
            // Whoever waits may have given up.
            let _ = tell.send(rings);
            if let Some(rounds) = rounds.filter(|_| !has_failed) {
                rounds.run(&link);
            }
        };
        thread::Builder::new().name("weir-early".to_owned()).spawn(run)?;
        Ok(Early(Mutex::new(told)))
    }

    /// What has come. It is there when the pause begins.
    pub(super) fn rings(&self) -> Result<EarlyRings, NotMoved> {
        let told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.recv().unwrap_or_else(|failed| Err(NotMoved::because(failed)))
    }
}

fn take(link: &Link, budget: &Arc<Budget>) -> Result<EarlyRings, NotMoved> {
    let mut rings = EarlyRings::new(budget);
    loop {
        let part = link.receive_part(RINGS_PART, Nanos::now().after(PATIENCE));
        let (part, _) = part.map_err(NotMoved::because)?;
        if !rings.take(&part).map_err(NotMoved::because)? {
            return Ok(rings);
        }
    }
}

/// The old process sends them as soon as all shards are here.
const PATIENCE: Duration = Duration::from_secs(60);
