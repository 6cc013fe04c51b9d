//! Carries out the revocations of the cluster, and knows how far this node is.
//!
//! A revocation comes as an event. After a gap, events may be missing: then the node reads the
//! broker's list from the last revocation that it has carried out. Until it has read to the end,
//! events are carried out but prove nothing. One that comes as an event and is read as well is
//! carried out once: its device may have come back meanwhile.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};
use weir_broker::{Error, Name, Node, Revocation, RevocationId, Revocations};
use weir_engine::handover::NotUnderstood;
use weir_store::{Serial, State};
use weir_wire::handover::v1;

use super::ClusterNode;
use crate::auth::devices::DevicePlace;
use crate::base::handover::{check_column, count, refused};
use crate::core::state::SharedState;

/// How far this node is.
#[derive(Default)]
pub(super) struct Revoked {
    progress: Mutex<Progress>,
    wake: Notify,
}

#[derive(Default)]
pub(super) struct Progress {
    /// The last revocation before which none is missing.
    pub(super) last: Option<RevocationId>,
    /// The last one that came as an event since the last gap.
    pub(super) heard: Option<RevocationId>,
    /// How often something may have been missed.
    pub(super) gaps: u64,
    /// So many of the gaps are filled.
    pub(super) filled: u64,
    /// The last ones that were carried out, at most [`CARRIED_MAX`].
    pub(super) carried: VecDeque<Revocation>,
}

/// Which nodes have carried out a revocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Confirmations {
    /// Their numbers.
    pub(crate) confirmed: Vec<u16>,
    /// Nodes that live and have not said so.
    pub(crate) missing: Vec<u16>,
    /// Whether the broker has told which nodes live.
    pub(crate) is_known: bool,
}

impl Confirmations {
    /// Whether this node is among those that have carried it out.
    pub(crate) fn has(&self, number: u16) -> bool {
        self.confirmed.contains(&number)
    }

    /// Whether no connection of the device is left.
    pub(crate) fn are_complete(&self) -> bool {
        self.is_known && self.missing.is_empty()
    }
}

impl Revoked {
    pub(super) fn last(&self) -> Option<RevocationId> {
        self.lock().last.clone()
    }

    pub(super) fn read_again(&self) {
        let mut progress = self.lock();
        progress.gaps += 1;
        progress.heard = None;
        drop(progress);
        self.wake.notify_one();
    }

    /// How far this node is, for another process.
    pub(super) fn export_to(&self, node: &mut v1::ClusterNode) {
        let progress = self.lock();
        node.last_revocation = progress.last.as_ref().map(place_of);
        node.last_heard = progress.heard.as_ref().map(place_of);
        (node.gaps, node.filled) = (progress.gaps, progress.filled);
        for revocation in &progress.carried {
            node.carried.push(place_of(&revocation.id));
            node.carried_devices.push(revocation.device.to_string());
        }
    }

    /// Goes on where another process has stopped. What this one has heard so far counts as a gap:
    /// it may not have carried it out, as it had no devices.
    pub(super) fn go_on(&self, node: &v1::ClusterNode) -> Result<(), NotUnderstood> {
        check_column("node.carried_devices", node.carried_devices.len(), node.carried.len())?;
        if node.carried.len() > CARRIED_MAX || node.filled > node.gaps {
            return Err(refused("node.carried or gaps", node.carried.len() as u64));
        }
        let gaps = count("node.gaps", node.gaps)?;
        let carried = node.carried.iter().zip(&node.carried_devices);
        let carried = carried.map(|(place, device)| Revocation {
            id: RevocationId(place.first, place.second),
            device: device.as_str().into(),
        });
        let id_of = |place: &v1::RevocationPlace| RevocationId(place.first, place.second);
        let mut progress = self.lock();
        *progress = Progress {
            last: node.last_revocation.as_ref().map(id_of),
            heard: node.last_heard.as_ref().map(id_of),
            gaps,
            filled: node.filled,
            carried: carried.collect(),
        };
        drop(progress);
        self.read_again();
        Ok(())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().expect("no panic happens under the lock of the revocations")
    }
}

impl Progress {
    /// Whether a revocation is to be carried out, which it is from here on.
    pub(super) fn begin(&mut self, revocation: &Revocation) -> bool {
        // Not by the order of ids: a Redis that has lost some may give lower ones.
        let is_new = !self.carried.contains(revocation);
        if is_new {
            if self.carried.len() >= CARRIED_MAX {
                self.carried.pop_front();
            }
            self.carried.push_back(revocation.clone());
        }
        is_new
    }

    fn advance(&mut self, id: RevocationId) {
        if self.last.as_ref().is_none_or(|last| *last < id) {
            self.last = Some(id);
        }
    }

    /// All until that gap is read. If there was none since, what was heard proves something.
    fn fill(&mut self, gaps: u64) {
        self.filled = self.filled.max(gaps);
        if self.gaps == self.filled
            && let Some(heard) = self.heard.clone()
        {
            self.advance(heard);
        }
    }
}

impl ClusterNode {
    /// Carries out a revocation that came as an event.
    pub(super) fn take_revocation(&self, shared: &SharedState, revocation: &Revocation) {
        self.carry_out(shared, revocation);
        let mut progress = self.revoked.lock();
        progress.heard = progress.heard.take().max(Some(revocation.id.clone()));
        let filled = progress.filled;
        progress.fill(filled);
        drop(progress);
        self.announcing.soon();
    }

    /// Finds out which revocation is the last one, before there is a connection: those until then
    /// concern nobody here.
    pub(super) async fn read_first_revocations(&self) {
        let gaps = self.revoked.lock().gaps;
        // A store that was asked now would know of no connection here.
        let mut is_incomplete = false;
        let pass = |revocation: &Revocation| {
            self.revoked.lock().begin(revocation);
        };
        if let Err(error) = self.read_revocations(pass, &mut is_incomplete).await {
            // They are read, and carried out, as soon as the broker answers.
            warn!(%error, "the broker does not tell which devices are revoked");
            self.revoked.read_again();
        }
        self.revoked.lock().fill(gaps);
    }

    /// Reads revocations after each gap, until the gateway ends.
    pub(super) async fn run_revocations(&self, shared: &SharedState) {
        let mut is_incomplete = false;
        loop {
            let (gaps, filled) = {
                let progress = self.revoked.lock();
                (progress.gaps, progress.filled)
            };
            if gaps == filled {
                self.revoked.wake.notified().await;
                continue;
            }
            let carry_out = |revocation: &Revocation| self.carry_out(shared, revocation);
            let read = match self.read_revocations(carry_out, &mut is_incomplete).await {
                Ok(()) if is_incomplete => self.check_devices(shared).await,
                Ok(()) => Ok(()),
                Err(error) => Err(error.to_string()),
            };
            match read {
                Ok(()) => {
                    is_incomplete = false;
                    self.revoked.lock().fill(gaps);
                    self.announcing.soon();
                }
                Err(error) => {
                    warn!(%error, "it is not known yet which devices were revoked meanwhile");
                    sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    fn carry_out(&self, shared: &SharedState, revocation: &Revocation) {
        // A process that has taken over hears of it itself.
        if shared.door.has_moved() {
            return;
        }
        if self.revoked.lock().begin(revocation) {
            // What still waits for room in a shard's queue goes on by itself.
            let _ = shared.revoke_soon(&revocation.device);
        }
    }

    /// Reads to the end. Sets `is_incomplete` if some are missing.
    async fn read_revocations(
        &self,
        carry_out: impl Fn(&Revocation),
        is_incomplete: &mut bool,
    ) -> Result<(), Error> {
        loop {
            let after = self.revoked.last();
            let page = self.cluster.broker().revocations(after).await?;
            let Revocations { revoked, is_complete } = page;
            *is_incomplete |= !is_complete;
            revoked.iter().for_each(&carry_out);
            let is_last = revoked.len() < Revocations::PAGE;
            if let Some(last) = revoked.into_iter().next_back() {
                self.revoked.lock().advance(last.id);
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Closes connections of devices that the store has revoked: the broker has forgotten some
    /// revocations since this node was last told of one.
    async fn check_devices(&self, shared: &SharedState) -> Result<(), String> {
        let Some(store) = &shared.device_store else {
            warn!(
                "this node was away for so long that revocations are missing, and has no store to ask"
            );
            return Ok(());
        };
        info!("this node was away for long: it checks all connected devices with the store");
        let mut place = Some(DevicePlace::default());
        while let Some(from) = place {
            let mut serials = BTreeSet::new();
            place = shared.devices.walk(from, CHECKED_AT_A_TIME, |id| {
                serials.extend(Serial::new(id).ok());
            });
            if serials.is_empty() {
                continue;
            }
            let found = store.store().find(serials.into_iter().collect()).await;
            let found = found.map_err(|error| error.to_string())?;
            for device in found.into_iter().flatten().filter(|found| found.state == State::Revoked)
            {
                let _ = shared.revoke_soon(device.serial.as_str());
            }
        }
        Ok(())
    }

    /// Tells all nodes that a device is revoked.
    pub(crate) async fn revoke_soon(&self, device: &str) -> Result<(), Error> {
        self.cluster.broker().revoke(Name::from(device)).await.map(drop)
    }

    /// Tells all nodes that a device is revoked, and waits for them for some time.
    ///
    /// Errors: the broker does not take it, or has not answered. It may be asked again.
    pub(crate) async fn revoke_everywhere(&self, device: &str) -> Result<Confirmations, Error> {
        let broker = self.cluster.broker();
        let id = broker.revoke(Name::from(device)).await?;
        let deadline = Instant::now() + CONFIRM_TIMEOUT;
        let mut pause = PAUSE_MIN;
        loop {
            let confirmations = broker.nodes().await.map(|nodes| self.confirmations(&nodes, &id));
            let is_over = Instant::now() + pause > deadline;
            match confirmations {
                Ok(confirmations) if confirmations.missing.is_empty() || is_over => {
                    return Ok(confirmations);
                }
                Err(_) if is_over => {
                    let (confirmed, missing) = (Vec::new(), Vec::new());
                    return Ok(Confirmations { confirmed, missing, is_known: false });
                }
                Ok(_) | Err(_) => {}
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn confirmations(&self, nodes: &[Node], id: &RevocationId) -> Confirmations {
        let has_confirmed = |node: &&Node| node.revoked_to.as_ref() >= Some(id);
        let (confirmed, missing): (Vec<&Node>, Vec<&Node>) = nodes.iter().partition(has_confirmed);
        let numbers = |nodes: Vec<&Node>| nodes.into_iter().map(|node| node.number.0).collect();
        let own = self.cluster.node();
        // A node that nobody lists has not been listed yet, or not any more.
        let is_known = nodes.iter().any(|node| node.number == own);
        let (confirmed, missing) = (numbers(confirmed), numbers(missing));
        Confirmations { confirmed, missing, is_known }
    }
}

fn place_of(RevocationId(first, second): &RevocationId) -> v1::RevocationPlace {
    v1::RevocationPlace { first: *first, second: *second }
}

/// A node that lives confirms within some milliseconds; one that has just died is listed for some
/// seconds, for which no operator should wait.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(2);
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// A page, and what comes as events while it is read.
const CARRIED_MAX: usize = 2 * Revocations::PAGE;
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Devices in one question to the store.
const CHECKED_AT_A_TIME: usize = 512;
