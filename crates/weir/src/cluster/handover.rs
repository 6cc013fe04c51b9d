//! A node of the cluster that goes on in another process.

use std::time::Duration;

use weir_broker::{ConnectionNumber, Error, NodeNumber, NodeState};
use weir_engine::Nanos;
use weir_engine::handover::NotUnderstood;
use weir_wire::handover::v1;

use super::Cluster;
use crate::base::handover::{check_column, count, narrow};

impl Cluster {
    /// What another process needs to open the broker as this node; `None`: the broker has no such
    /// thing. What this process asks of the broker afterwards counts for the node, too.
    ///
    /// Errors: the broker does not tell.
    pub(crate) async fn export(&self) -> Result<Option<v1::BrokerNode>, Error> {
        let state = self.broker.state().await?;
        Ok(state.map(|state| export(state, Nanos::now())))
    }
}

fn export(state: NodeState, now: Nanos) -> v1::BrokerNode {
    let (entries, entry_numbers) =
        state.entries.into_iter().map(|(name, number)| (name.to_string(), number)).unzip();
    let (claimed_devices, claimed_conns) =
        state.claimed.into_iter().map(|(device, conn)| (device.to_string(), conn.0)).unzip();
    v1::BrokerNode {
        instance: state.instance,
        number: state.number.0.into(),
        lease_until: now.after(state.lease_left).0,
        stay: state.stay,
        last_entry: state.last_entry,
        last_call: state.last_call,
        entries,
        entry_numbers,
        claimed_devices,
        claimed_conns,
    }
}

/// What [`configured_as`](super::configured_as) needs.
pub(crate) fn node_state(node: v1::BrokerNode, now: Nanos) -> Result<NodeState, NotUnderstood> {
    check_column("broker_node.entries", node.entries.len(), node.entry_numbers.len())?;
    let conns = node.claimed_conns;
    check_column("broker_node.claimed_devices", node.claimed_devices.len(), conns.len())?;
    let entries = node.entries.into_iter().zip(node.entry_numbers);
    let claimed = node.claimed_devices.into_iter().zip(conns);
    Ok(NodeState {
        instance: node.instance,
        number: NodeNumber(narrow("broker_node.number", node.number)?),
        // A day at most, so that a damaged time keeps nothing for ever.
        lease_left: Nanos(node.lease_until).since(now).min(LEASE_MAX),
        stay: count("broker_node.stay", node.stay)?,
        last_entry: count("broker_node.last_entry", node.last_entry)?,
        last_call: count("broker_node.last_call", node.last_call)?,
        entries: entries.map(|(name, number)| (name.into(), number)).collect(),
        claimed: claimed.map(|(device, conn)| (device.into(), ConnectionNumber(conn))).collect(),
    })
}

const LEASE_MAX: Duration = Duration::from_secs(86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_stays_what_it_is() {
        let state = NodeState {
            instance: "0123456789abcdef".to_owned(),
            number: NodeNumber(7),
            lease_left: Duration::from_secs(60),
            stay: 2,
            last_entry: 9,
            last_call: 11,
            entries: vec![("room".into(), 3), ("\u{1}room".into(), 4)],
            claimed: vec![("phone".into(), ConnectionNumber(1 << 60))],
        };
        let now = Nanos(5_000_000_000);
        let node = export(state.clone(), now);
        let later = now.after(Duration::from_secs(1));
        let left = NodeState { lease_left: Duration::from_secs(59), ..state };
        assert_eq!(node_state(node.clone(), later), Ok(left));
        let damages: &[fn(&mut v1::BrokerNode)] = &[
            |node| node.number = 1 << 16,
            |node| node.entries.clear(),
            |node| node.stay = u64::MAX,
            |node| node.claimed_conns.push(1),
        ];
        for damage in damages {
            let mut node = node.clone();
            damage(&mut node);
            assert!(node_state(node, now).is_err());
        }
        let eternal = v1::BrokerNode { lease_until: u64::MAX, ..node };
        assert_eq!(node_state(eternal, now).unwrap().lease_left, LEASE_MAX);
    }
}
