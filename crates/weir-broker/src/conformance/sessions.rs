//! Promises about sessions.

use std::time::Duration;

use super::peer::{Peer, until};
use super::{Make, cluster};
use crate::contract::Error;
use crate::records::{SessionId, StoredSession};

/// A session is found at every node, byte by byte, also after the node that kept it has ended. A newer one with the same
/// id takes its place.
pub async fn sessions_are_found_at_every_node(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    assert_eq!(find(&two, 1).await, None);
    let bytes: Vec<u8> = (0..=255).chain(*b"\r\n\0{}").collect();
    // So many that they lie in all parts of a broker.
    let many: Vec<StoredSession> =
        (1..=100).map(|number| session(number, &[&bytes[..], &[number]].concat())).collect();
    one.broker.keep_sessions(many, vec![]).await.expect("the broker answers");
    for peer in [&one, &two] {
        for number in 1..=100 {
            assert_eq!(find(peer, number).await, Some([&bytes[..], &[number]].concat()));
        }
        assert_eq!(find(peer, 101).await, None);
    }
    keep(&two, session(7, b"newer")).await;
    assert_eq!(find(&one, 7).await.as_deref(), Some(&b"newer"[..]));
    keep(&one, session(8, b"")).await;
    assert_eq!(find(&two, 8).await.as_deref(), Some(&b""[..]));
    one.die().await;
    assert_eq!(find(&two, 9).await, Some([&bytes[..], &[9]].concat()));
}

/// What a node forgets is found no more. A call may keep and forget at once.
pub async fn sessions_are_forgotten(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    let three = (1..=3).map(|number| session(number, &[number])).collect();
    one.broker.keep_sessions(three, vec![]).await.expect("the broker answers");
    let forgotten = vec![id(1), id(3), id(99)];
    let four = vec![session(4, &[4])];
    one.broker.keep_sessions(four, forgotten).await.expect("the broker answers");
    for (number, expected) in [(1, None), (2, Some(vec![2])), (3, None), (4, Some(vec![4]))] {
        assert_eq!(find(&two, number).await, expected, "{number}");
    }
    one.broker.keep_sessions(vec![], vec![id(2)]).await.expect("the broker answers");
    assert_eq!(find(&two, 2).await, None);
    one.broker.keep_sessions(vec![], vec![]).await.expect("the broker answers");
}

/// A session is not found any more when its time is over. Other sessions are.
pub async fn sessions_end_with_their_time(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    keep(&one, session(1, b"long")).await;
    keep(&one, StoredSession { ttl: Duration::from_millis(1), ..session(2, b"short") }).await;
    until("its time is over", async || find(&two, 2).await.is_none().then_some(())).await;
    assert_eq!(find(&two, 1).await.as_deref(), Some(&b"long"[..]));
    // To keep it again renews it.
    keep(&one, session(2, b"again")).await;
    assert_eq!(find(&two, 2).await.as_deref(), Some(&b"again"[..]));
}

/// A session that is too large is refused, and so is what it came with.
pub async fn a_session_has_a_largest_size(make: &impl Make) {
    let cluster = cluster(make).await;
    let peer = Peer::open(&cluster, "one").await;
    let largest = vec![7; StoredSession::BYTES_MAX];
    keep(&peer, session(1, &largest)).await;
    assert_eq!(find(&peer, 1).await.as_ref(), Some(&largest));
    let too_large = session(2, &[&largest[..], &[7]].concat());
    let refused = peer.broker.keep_sessions(vec![session(3, b"small"), too_large], vec![id(1)]);
    let refused = refused.await;
    let Err(Error::Refused(why)) = refused else { panic!("expected a refusal, not {refused:?}") };
    assert!(why.contains("16385") && why.contains("16384"), "{why}");
    assert_eq!((find(&peer, 2).await, find(&peer, 3).await), (None, None));
    assert_eq!(find(&peer, 1).await, Some(largest));
}

fn id(number: u8) -> SessionId {
    SessionId([number; 32])
}

fn session(number: u8, sealed: &[u8]) -> StoredSession {
    StoredSession { id: id(number), sealed: sealed.to_vec(), ttl: Duration::from_secs(3600) }
}

async fn keep(peer: &Peer, session: StoredSession) {
    peer.broker.keep_sessions(vec![session], vec![]).await.expect("the broker answers");
}

async fn find(peer: &Peer, number: u8) -> Option<Vec<u8>> {
    peer.broker.session(id(number)).await.expect("the broker answers")
}
