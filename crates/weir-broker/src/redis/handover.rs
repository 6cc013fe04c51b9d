//! Another process of this machine goes on as this node: with its number, its stay and its claims, so that nothing has to
//! be claimed or entered again.

use std::collections::HashSet;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::client::Client;
use super::keys::Interest;
use crate::contract::Error;
use crate::records::{Name, NodeNumber, NodeState};

impl Client {
    /// What the other process needs.
    pub(super) async fn node_state(&self) -> NodeState {
        let claimed = self.devices.lock().await.all();
        let lease_ends = *self.lease_ends.lock().unwrap_or_else(PoisonError::into_inner);
        let lease_left =
            lease_ends.map(|end| end.saturating_duration_since(Instant::now())).unwrap_or_default();
        let mut state = NodeState {
            instance: self.context.instance.clone(),
            number: NodeNumber(self.context.number.load(Ordering::Relaxed)),
            lease_left,
            stay: 0,
            last_entry: 0,
            last_call: 0,
            entries: Vec::new(),
            claimed,
        };
        self.present().export_to(&mut state);
        state
    }

    /// Goes on as the node of that process. Nothing was asked of Redis so far.
    pub(super) async fn go_on(&self, state: &NodeState) {
        self.context.number.store(state.number.0, Ordering::Relaxed);
        let ends = Instant::now() + state.lease_left;
        *self.lease_ends.lock().unwrap_or_else(PoisonError::into_inner) = Some(ends);
        self.present().go_on(state);
        let mut devices = self.devices.lock().await;
        devices.take();
        for (device, connection) in &state.claimed {
            devices.note(device, *connection);
        }
    }

    /// Goes on with what has become of that process since.
    pub(super) async fn go_on_later(&self, state: &NodeState) -> Result<(), Error> {
        let own = self.context.number.load(Ordering::Relaxed);
        let before: HashSet<Name> = self.devices.lock().await.names().into_iter().collect();
        self.go_on(state).await;
        let now: HashSet<Name> = self.devices.lock().await.names().into_iter().collect();
        let device = |name: &Name| Interest::Device(name.clone());
        let mut left: Vec<Interest> = before.difference(&now).map(device).collect();
        let mut joined: Vec<Interest> = now.difference(&before).map(device).collect();
        if state.number.0 != own {
            left.push(Interest::Node(NodeNumber(own)));
            joined.push(Interest::Node(state.number));
        }
        let until = Instant::now() + self.timeout;
        for part in joined.chunks(CHUNK) {
            self.servers.join(part.to_vec(), until, None::<()>).await?;
        }
        self.servers.leave(left, until).await
    }

    /// Listens to what concerns the number and the devices of the other process.
    pub(super) async fn join_again(&self) -> Result<(), Error> {
        let own = NodeNumber(self.context.number.load(Ordering::Relaxed));
        self.join_all(vec![Interest::Node(own)]).await?;
        let devices: Vec<Name> = self.devices.lock().await.names();
        for devices in devices.chunks(CHUNK) {
            let interests = devices.iter().cloned().map(Interest::Device).collect();
            self.servers.join(interests, Instant::now() + self.timeout, None::<()>).await?;
        }
        Ok(())
    }
}

/// Devices at once.
const CHUNK: usize = 500;
