//! Promises about revocations.

use std::sync::Arc;

use super::peer::Peer;
use super::{Make, cluster};
use crate::contract::Event;
use crate::records::{Revocation, RevocationId, Revocations};

/// A revocation reaches every node, and can be read afterwards, also by a node that comes later.
pub async fn revocations_are_told_and_kept(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    assert_eq!(read(&one, None).await, (vec![], true));
    let mut ids = Vec::new();
    for (peer, device) in [(&one, "a"), (&two, "{b} "), (&one, "c"), (&one, "a")] {
        ids.push(peer.broker.revoke(device.into()).await.expect("the broker answers"));
    }
    assert!(ids.windows(2).all(|two| two[0] < two[1]), "later ones are greater: {ids:?}");
    let devices = ["a", "{b} ", "c", "a"];
    for peer in [&one, &two] {
        let heard = peer.ears.until("four revocations", |events| {
            let revocations: Vec<Revocation> = events.iter().filter_map(revocation).collect();
            (revocations.len() == 4).then_some(revocations)
        });
        let heard = heard.await;
        assert!(heard.iter().map(|revocation| &revocation.id).eq(&ids), "{heard:?}");
        assert!(heard.iter().map(|revocation| &*revocation.device).eq(devices), "{heard:?}");
    }
    let three = Peer::open(&cluster, "three").await;
    for (after, skipped) in [(None, 0), (Some(&ids[0]), 1), (Some(&ids[2]), 3), (Some(&ids[3]), 4)]
    {
        let (revoked, is_complete) = read(&three, after.cloned()).await;
        assert!(is_complete, "nothing is too old");
        let expected: Vec<(RevocationId, &str)> =
            ids.iter().cloned().zip(devices).skip(skipped).collect();
        let revoked: Vec<(RevocationId, &str)> =
            revoked.iter().map(|revoked| (revoked.id.clone(), &*revoked.device)).collect();
        assert_eq!(revoked, expected);
    }
}

/// Many revocations are read in pages.
pub async fn revocations_are_read_in_pages(make: &impl Make) {
    let cluster = cluster(make).await;
    let peer = Arc::new(Peer::open(&cluster, "one").await);
    let many = Revocations::PAGE + 10;
    let mut tasks = Vec::new();
    for share in 0..8 {
        let peer = Arc::clone(&peer);
        tasks.push(tokio::spawn(async move {
            for number in (share..many).step_by(8) {
                peer.broker.revoke(number.to_string().into()).await.expect("the broker answers");
            }
        }));
    }
    for task in tasks {
        task.await.expect("the task ends");
    }
    let (first, _) = read(&peer, None).await;
    assert_eq!(first.len(), Revocations::PAGE);
    let (second, is_complete) = read(&peer, first.last().map(|last| last.id.clone())).await;
    assert_eq!((second.len(), is_complete), (10, true));
    let all: Vec<Revocation> = first.into_iter().chain(second).collect();
    assert!(all.windows(2).all(|two| two[0].id < two[1].id), "they are in order");
    let mut devices: Vec<usize> =
        all.iter().map(|revocation| revocation.device.parse().expect("a number")).collect();
    devices.sort_unstable();
    assert_eq!(devices, (0..many).collect::<Vec<_>>());
}

async fn read(peer: &Peer, after: Option<RevocationId>) -> (Vec<Revocation>, bool) {
    let Revocations { revoked, is_complete } =
        peer.broker.revocations(after).await.expect("the broker answers");
    (revoked, is_complete)
}

fn revocation(event: &Event) -> Option<Revocation> {
    if let Event::Revoked(revocation) = event { Some(revocation.clone()) } else { None }
}
