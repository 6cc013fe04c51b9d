//! This node goes on in another process. What it is for its broker moves with
//! [`Cluster::export`](crate::cluster::Cluster::export); this is what the front knows of it.
//!
//! Questions and calls between nodes stay behind. Those who wait for an answer ask again, or count
//! the node as silent.

use weir_engine::handover::NotUnderstood;
use weir_engine::{ConnId, DeviceRef};
use weir_wire::handover::v1;

use super::ClusterNode;
use crate::auth::devices::Devices;
use crate::base::handover::check_column;

impl ClusterNode {
    /// How far the revocations are, and what the broker is still to be told. What is claimed and
    /// released here afterwards is told twice, which does no harm.
    pub(in crate::core) fn export(&self) -> v1::ClusterNode {
        let mut node = v1::ClusterNode::default();
        self.revoked.export_to(&mut node);
        let (claims, releases) = self.claims.untold();
        for (DeviceRef(device), conn) in claims {
            node.entered_devices.push(device);
            node.entered_conns.push(conn.to_u64());
        }
        for (device, conn) in releases {
            node.released_devices.push(device.to_string());
            node.released_conns.push(conn.to_u64());
        }
        node
    }

    /// Goes on where the other process has stopped. The devices are there already.
    pub(in crate::core) fn import(
        &self,
        node: &v1::ClusterNode,
        devices: &Devices,
    ) -> Result<(), NotUnderstood> {
        let (entered, released) = (&node.entered_conns, &node.released_conns);
        check_column("node.entered_devices", node.entered_devices.len(), entered.len())?;
        check_column("node.released_devices", node.released_devices.len(), released.len())?;
        self.revoked.go_on(node)?;
        let claims = node.entered_devices.iter().zip(entered);
        let claims = claims.map(|(device, conn)| (DeviceRef(*device), ConnId::from_u64(*conn)));
        let releases = node.released_devices.iter().zip(released);
        let releases =
            releases.map(|(device, conn)| (device.as_str().into(), ConnId::from_u64(*conn)));
        self.claims.go_on(devices, (claims.collect(), releases.collect()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use weir_broker::{Revocation, RevocationId};

    use super::super::claims::Claims;
    use super::super::revocations::{Progress, Revoked};
    use super::*;
    use crate::limits::admission::AcceptOrder;
    use crate::observe::counters::Counters;

    #[test]
    fn what_the_broker_may_not_have_heard_is_told_again() {
        let counters = Arc::<Counters>::default();
        let (devices, claims) = (Devices::new(1), Claims::new(&counters));
        let mut entered = Vec::new();
        for number in 0..3 {
            let (pin, conn) = (devices.pin(&format!("d{number}")), ConnId::from_u64(number));
            devices.enter(&pin, (AcceptOrder(number), conn), true, || ()).unwrap();
            claims.claim(&devices, pin.device(), conn);
            entered.push((pin.device(), conn));
        }
        claims.release("gone", ConnId::from_u64(9));
        let (waiting, released) = claims.untold();
        assert_eq!((waiting, released.len()), (entered.clone(), 1));
        let mut place = crate::auth::devices::DevicePlace::default();
        drop(claims.take(&devices, &mut place));
        // They are on their way.
        let (mut waiting, released) = claims.untold();
        waiting.sort_unstable_by_key(|(_, conn)| conn.to_u64());
        assert_eq!((&waiting, released.len()), (&entered, 1));
        let (other, counted) = (Claims::new(&counters), released.len());
        other.go_on(&devices, (waiting, released));
        assert_eq!(other.waiting(&devices), (entered.len(), counted));
        // The next batch is empty: the broker has heard of the one before.
        drop(claims.take(&devices, &mut place));
        assert_eq!(claims.untold(), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_revocation_is_carried_out_once_by_both_processes() {
        let revocation = |first: u64| Revocation {
            id: RevocationId(first, 0),
            device: format!("d{first}").into(),
        };
        let revoked = Revoked::default();
        let progress = Progress {
            last: Some(RevocationId(4, 0)),
            heard: Some(RevocationId(5, 0)),
            gaps: 3,
            filled: 2,
            carried: (3..6).map(revocation).collect::<VecDeque<_>>(),
        };
        *revoked.lock() = progress;
        let mut node = v1::ClusterNode::default();
        revoked.export_to(&mut node);
        let other = Revoked::default();
        other.go_on(&node).unwrap();
        assert_eq!(other.last(), Some(RevocationId(4, 0)));
        let mut progress = other.lock();
        assert!(!progress.begin(&revocation(5)) && progress.begin(&revocation(6)));
        // What came meanwhile is read.
        assert!(progress.gaps > progress.filled && progress.heard.is_none());
        drop(progress);
        let damages: &[fn(&mut v1::ClusterNode)] = &[
            |node| node.carried_devices.clear(),
            |node| node.filled = 9,
            |node| node.gaps = u64::MAX,
            |node| {
                node.carried = vec![node.carried[0]; 10_000];
                node.carried_devices = vec![String::new(); 10_000];
            },
        ];
        for damage in damages {
            let mut node = node.clone();
            damage(&mut node);
            assert!(Revoked::default().go_on(&node).is_err());
        }
    }
}
