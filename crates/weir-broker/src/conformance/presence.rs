//! Promises about presence: who is in a topic, and what is told of it.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use super::peer::{Peer, until};
use super::{HELD_BACK, Make, cluster};
use crate::contract::{Error, Event};
use crate::records::{ConnectionNumber, Member, MemberPage, Name, Scope};

/// Who is present on any node is listed by connection number, in pages; connections and devices are counted.
pub async fn members_are_listed_in_pages(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    assert_eq!(page(&one, "t", None, 10).await, (vec![], true, 0, 0));
    enter(&one, "t", &[(30, "a"), (10, "b"), (1 << 63, "c")]).await;
    enter(&two, "t", &[(20, "a"), (40, "d")]).await;
    enter(&two, "u", &[(50, "e")]).await;
    let last = 1 << 63;
    assert_eq!(page(&one, "t", None, 10).await, (vec![10, 20, 30, 40, last], true, 5, 4));
    assert_eq!(page(&two, "t", None, 5).await, (vec![10, 20, 30, 40, last], true, 5, 4));
    assert_eq!(page(&two, "t", None, 2).await, (vec![10, 20], false, 5, 4));
    assert_eq!(page(&two, "t", Some(20), 2).await, (vec![30, 40], false, 5, 4));
    assert_eq!(page(&two, "t", Some(40), 2).await, (vec![last], true, 5, 4));
    assert_eq!(page(&two, "t", Some(35), 2).await, (vec![40, last], true, 5, 4));
    assert_eq!(page(&two, "t", Some(last), 2).await, (vec![], true, 5, 4));
    assert_eq!(page(&one, "u", None, 10).await, (vec![50], true, 1, 1));
}

/// To enter twice is to enter once; who exits is not listed, at its own node's word alone.
pub async fn members_enter_and_exit(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    enter(&one, "t", &[(1, "a"), (2, "b")]).await;
    enter(&one, "t", &[(1, "a")]).await;
    enter(&two, "t", &[(3, "a")]).await;
    assert_eq!(page(&one, "t", None, 10).await, (vec![1, 2, 3], true, 3, 2));
    for _ in 0..2 {
        exit(&one, "t", &[(1, "a"), (7, "never entered")]).await;
        assert_eq!(page(&two, "t", None, 10).await, (vec![2, 3], true, 2, 2));
    }
    exit(&one, "never entered", &[(1, "a")]).await;
    exit(&one, "t", &[(2, "b")]).await;
    exit(&two, "t", &[(3, "a")]).await;
    assert_eq!(page(&one, "t", None, 10).await, (vec![], true, 0, 0));
    enter(&one, "t", &[(1, "a")]).await;
    assert_eq!(page(&one, "t", None, 10).await, (vec![1], true, 1, 1));
}

/// The members of a node count as long as the node lives, whether it dies or retires.
pub async fn members_of_a_node_that_ends_are_not_listed(make: &impl Make) {
    let cluster = cluster(make).await;
    let one = Peer::open(&cluster, "one").await;
    let (dead, retired) =
        (Peer::open(&cluster, "dead").await, Peer::open(&cluster, "retired").await);
    enter(&one, "t", &[(1, "a")]).await;
    enter(&dead, "t", &[(2, "b")]).await;
    enter(&retired, "t", &[(3, "a")]).await;
    assert_eq!(page(&one, "t", None, 10).await, (vec![1, 2, 3], true, 3, 2));
    retired.silence().await;
    retired.broker.retire().await.expect("the broker answers");
    assert_eq!(page(&one, "t", None, 10).await, (vec![1, 2], true, 2, 2));
    dead.die().await;
    until("the dead node's member is gone", async || {
        (page(&one, "t", None, 10).await == (vec![1], true, 1, 1)).then_some(())
    })
    .await;
}

/// Many members, so that a broker that works in portions shows it.
pub async fn many_members_are_listed(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    for (peer, parity) in [(&one, 0), (&two, 1)] {
        let members = (0..1500).map(|number| (2 * number + parity, format!("d{}", number / 3)));
        let members: Vec<(u64, String)> = members.collect();
        let members: Vec<(u64, &str)> =
            members.iter().map(|(number, device)| (*number, device.as_str())).collect();
        enter(peer, "t", &members).await;
    }
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let (members, is_last, connections, devices) = page(&one, "t", after, 700).await;
        assert_eq!((connections, devices), (3000, 500));
        after = members.last().copied();
        all.extend(members);
        if is_last {
            break;
        }
    }
    assert_eq!(all, (0..3000).collect::<Vec<u64>>());
}

/// Who enters and who leaves is told to the nodes that have joined the topic, in one event for each call.
pub async fn changes_of_presence_are_told(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    let three = Peer::open(&cluster, "three").await;
    for (peer, topic) in [(&one, "t"), (&two, "t"), (&two, "u"), (&three, "other")] {
        peer.join(topic).await;
    }
    let both = [members("t", &[(2, "ü b"), (1, "a")]), members("u", &[(1, "a")])].concat();
    one.broker.enter(both).await.expect("the broker answers");
    enter(&two, "t", &[(3, "a")]).await;
    exit(&one, "t", &[(1, "a")]).await;
    let expected =
        [(vec![(1, "a"), (2, "ü b")], vec![]), (vec![(3, "a")], vec![]), (vec![], vec![(1, "a")])];
    for peer in [&one, &two] {
        assert_eq!(changes(peer, &two, "t").await, expected.clone().map(owned));
    }
    assert_eq!(changes(&two, &one, "u").await, [(vec![(1, "a")], vec![])].map(owned));
    two.leave("t").await;
    enter(&one, "t", &[(4, "d")]).await;
    assert_eq!(changes(&one, &one, "t").await, [(vec![(4, "d")], vec![])].map(owned));
    for peer in [&one, &two, &three] {
        // What is heard of others' questions is no change.
        let told = told(&peer.ears.events(), "t");
        let mut members = told.iter().flat_map(|(joined, left)| joined.iter().chain(left));
        assert!(members.all(is_fence), "{told:?}");
    }
    let is_told = |event: &Event| matches!(event, Event::Presence { .. });
    assert!(!three.ears.events().iter().any(is_told), "{:?}", three.ears.events());
}

/// To enter again is to renew, and is not told; nor is the exit of what is not there.
pub async fn what_does_not_change_is_not_told(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    two.join("t").await;
    enter(&one, "t", &[(1, "a"), (2, "b")]).await;
    for _ in 0..2 {
        enter(&one, "t", &[(2, "b"), (1, "a")]).await;
        exit(&one, "t", &[(3, "c")]).await;
        exit(&two, "t", &[(1, "a")]).await;
    }
    enter(&one, "t", &[(4, "d"), (1, "a")]).await;
    exit(&one, "t", &[(4, "d"), (3, "c")]).await;
    exit(&one, "t", &[(4, "d")]).await;
    let told =
        [(vec![(1, "a"), (2, "b")], vec![]), (vec![(4, "d")], vec![]), (vec![], vec![(4, "d")])];
    assert_eq!(changes(&two, &one, "t").await, told.map(owned));
}

/// A connection is in a topic once. With another device it leaves and enters; which device an exit names does not matter.
pub async fn a_connection_has_one_device(make: &impl Make) {
    let cluster = cluster(make).await;
    let one = Peer::open(&cluster, "one").await;
    one.join("t").await;
    enter(&one, "t", &[(1, "a"), (2, "a")]).await;
    enter(&one, "t", &[(1, "b"), (2, "a")]).await;
    assert_eq!(page(&one, "t", None, 10).await, (vec![1, 2], true, 2, 2));
    // Of one call the last counts.
    enter(&one, "t", &[(2, "c"), (2, "b")]).await;
    assert_eq!(page(&one, "t", None, 10).await, (vec![1, 2], true, 2, 1));
    exit(&one, "t", &[(1, "a")]).await;
    let told = [
        (vec![(1, "a"), (2, "a")], vec![]),
        (vec![(1, "b")], vec![(1, "a")]),
        (vec![(2, "b")], vec![(2, "a")]),
        (vec![], vec![(1, "b")]),
    ];
    assert_eq!(changes(&one, &one, "t").await, told.map(owned));
    assert_eq!(page(&one, "t", None, 10).await, (vec![2], true, 1, 1));
}

/// Many members at once are told in several events of bounded size.
pub async fn many_changes_are_told_in_pieces(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    two.join("t").await;
    let many: Vec<(u64, String)> = (1..=2000).map(|at| (at, format!("d{}", at % 900))).collect();
    let many: Vec<(u64, &str)> = many.iter().map(|(at, device)| (*at, device.as_str())).collect();
    enter(&one, "t", &many).await;
    exit(&one, "t", &many).await;
    let told = changes(&two, &one, "t").await;
    assert!(told.len() <= 2 * 2000 / 100, "at least some hundred go together: {}", told.len());
    let (joined, left): (Vec<_>, Vec<_>) = told.into_iter().unzip();
    let expected = owned((many, vec![])).0;
    assert_eq!(joined.concat(), expected);
    assert_eq!(left.concat(), expected);
}

/// When a node has died, its members leave, each told once, in events of bounded size; nobody else's.
pub async fn members_of_a_dead_node_leave(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    let dead = Peer::open(&cluster, "dead").await;
    for peer in [&one, &two] {
        peer.join("t").await;
        peer.join("u").await;
    }
    let many: Vec<(u64, &str)> = (100..1500).map(|at| (at, "a")).collect();
    enter(&one, "t", &[(1, "a")]).await;
    enter(&dead, "t", &many).await;
    enter(&dead, "u", &[(7, "b")]).await;
    enter(&dead, "empty", &[(7, "b")]).await;
    exit(&dead, "empty", &[(7, "b")]).await;
    enter(&two, "t", &[(2, "b")]).await;
    for peer in [&one, &two] {
        changes(peer, &one, "t").await;
        changes(peer, &one, "u").await;
    }
    dead.die().await;
    for (topic, count) in [("t", 1400), ("u", 1)] {
        one.ears
            .until("the members leave", |events| (left(events, topic) >= count).then_some(()))
            .await;
    }
    for peer in [&one, &two] {
        let told = changes(peer, &one, "t").await;
        let (joined, left): (Vec<_>, Vec<_>) = told.into_iter().unzip();
        assert_eq!(joined.concat(), []);
        assert_eq!(left.concat(), owned((many.clone(), vec![])).0);
        assert_eq!(changes(peer, &one, "u").await, [(vec![], vec![(7, "b")])].map(owned));
    }
    assert_eq!(page(&one, "t", None, 10).await, (vec![1, 2], true, 2, 2));
    assert_eq!(page(&one, "u", None, 10).await, (vec![], true, 0, 0));
}

/// A node that is away for less than [`Cluster::presence_kept`](super::Cluster::presence_kept) has its members when it is
/// back, and nobody is told.
pub async fn a_node_that_is_away_for_less_keeps_its_members(make: &impl Make) {
    loop {
        let cluster = cluster(make).await;
        let one = Peer::open(&cluster, "one").await;
        let (away, dead) = (Peer::open(&cluster, "away").await, Peer::open(&cluster, "dead").await);
        one.join("t").await;
        enter(&away, "t", &[(1, "a")]).await;
        enter(&dead, "t", &[(2, "b")]).await;
        changes(&one, &one, "t").await;
        away.silence().await;
        dead.die().await;
        let mut lived = Instant::now();
        until("both have died", async || {
            let asked = Instant::now();
            let is_empty = page(&one, "t", None, 10).await.0.is_empty();
            if !is_empty {
                lived = asked;
            }
            is_empty.then_some(())
        })
        .await;
        away.announce().await;
        if lived.elapsed() >= cluster.presence_kept() {
            // The machine was too slow to show anything.
            continue;
        }
        until("the members of the dead node leave", async || {
            away.announce().await;
            (left(&one.ears.events(), "t") > 0).then_some(())
        })
        .await;
        assert_eq!(changes(&one, &one, "t").await, [(vec![], vec![(2, "b")])].map(owned));
        assert_eq!(page(&one, "t", None, 10).await, (vec![1], true, 1, 1));
        exit(&away, "t", &[(1, "a")]).await;
        assert_eq!(changes(&one, &one, "t").await, [(vec![], vec![(1, "a")])].map(owned));
        return;
    }
}

/// A node that was away for longer is told a gap when it is back, and enters its members again.
pub async fn a_node_that_was_away_for_long_enters_again(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, away) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "away").await);
    one.join("t").await;
    enter(&away, "t", &[(1, "a"), (2, "b")]).await;
    let (both, nobody) = owned((vec![(1, "a"), (2, "b")], vec![]));
    assert_eq!(changes(&one, &one, "t").await, [(both.clone(), nobody.clone())]);
    away.silence().await;
    one.ears.until("the members leave", |events| (left(events, "t") >= 2).then_some(())).await;
    assert_eq!(changes(&one, &one, "t").await, [(nobody, both)]);
    assert_eq!(page(&one, "t", None, 10).await, (vec![], true, 0, 0));
    away.ears.forget(|event| matches!(event, Event::Gap(_)));
    away.announce().await;
    let is_gap = |event: &Event| *event == Event::Gap(Scope::All);
    away.ears.until("a gap", |events| events.iter().any(is_gap).then_some(())).await;
    enter(&away, "t", &[(1, "a")]).await;
    assert_eq!(changes(&one, &one, "t").await, [(vec![(1, "a")], vec![])].map(owned));
    assert_eq!(page(&one, "t", None, 10).await, (vec![1], true, 1, 1));
    exit(&away, "t", &[(1, "a")]).await;
    assert_eq!(changes(&one, &one, "t").await, [(vec![], vec![(1, "a")])].map(owned));
}

/// The members of a node that retires leave at once, each told once, in events of bounded size.
pub async fn members_of_a_retired_node_leave(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, retired) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "retired").await);
    one.join("t").await;
    one.join("u").await;
    let many: Vec<(u64, &str)> = (0..1000).map(|at| (at, "a")).collect();
    enter(&retired, "t", &many).await;
    enter(&retired, "u", &[(7, "b")]).await;
    changes(&one, &one, "t").await;
    changes(&one, &one, "u").await;
    retired.silence().await;
    retired.broker.retire().await.expect("the broker answers");
    let (joined, left): (Vec<_>, Vec<_>) = changes(&one, &one, "t").await.into_iter().unzip();
    assert_eq!(joined.concat(), []);
    assert_eq!(left.concat(), owned((many, vec![])).0);
    assert_eq!(changes(&one, &one, "u").await, [(vec![], vec![(7, "b")])].map(owned));
    assert_eq!(page(&one, "t", None, 10).await, (vec![], true, 0, 0));
}

/// Connections to the broker that break change nothing: members that are entered again are not told, and new ones are.
pub async fn presence_outlives_broken_connections(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    two.join("t").await;
    enter(&one, "t", &[(1, "a")]).await;
    changes(&two, &one, "t").await;
    for round in 0..3_u64 {
        cluster.break_connections().await.expect("connections break");
        let is_gap = |event: &Event| {
            let topics = Event::Gap(Scope::Topics(vec!["t".into()]));
            *event == Event::Gap(Scope::All) || *event == topics
        };
        two.ears.until("a gap", |events| events.iter().any(is_gap).then_some(())).await;
        let new = round + 10;
        retried(async || one.broker.enter(members("t", &[(1, "a"), (new, "b")])).await).await;
        let (joined, left): (Vec<_>, Vec<_>) = changes(&two, &one, "t").await.into_iter().unzip();
        // The connection may break once more, if it did not stand yet.
        assert!(joined.concat().iter().all(|(at, _)| *at == new), "{joined:?}");
        assert_eq!(left.concat(), []);
        assert_eq!(page(&two, "t", Some(1), 1).await.0, [10]);
        two.ears.forget(|event| matches!(event, Event::Gap(_)));
    }
    assert_eq!(page(&one, "t", None, 10).await.0, [1, 10, 11, 12]);
}

/// A call that is carried out late changes nothing in a topic for which a later call of its node was carried out.
pub async fn a_late_call_changes_nothing(make: &impl Make) {
    let cluster = cluster(make).await;
    let one = Peer::open(&cluster, "one").await;
    let late = Peer::open(&cluster, HELD_BACK).await;
    one.join("t").await;
    one.join("u").await;
    // In topics with members: elsewhere a broker may need several requests.
    enter(&late, "t", &[(1, "a"), (2, "b")]).await;
    enter(&late, "u", &[(4, "d")]).await;
    // One comes and leaves; another one leaves and comes back. In the second topic nothing else happens.
    let come = [members("t", &[(3, "c")]), members("u", &[(3, "c")])].concat();
    let held_back = cluster.hold_back(late.broker.enter(come)).await;
    assert!(matches!(held_back, Err(Error::Uncertain(_))), "{held_back:?}");
    retried(async || late.broker.exit(members("t", &[(3, "c")])).await).await;
    let gone = members("t", &[(1, "a")]);
    let held_back = cluster.hold_back(late.broker.exit(gone)).await;
    assert!(matches!(held_back, Err(Error::Uncertain(_))), "{held_back:?}");
    retried(async || late.broker.enter(members("t", &[(1, "a")])).await).await;
    assert_eq!(page(&one, "u", None, 10).await, (vec![4], true, 1, 1));
    cluster.deliver().await.expect("it is delivered");
    assert_eq!(page(&one, "t", None, 10).await, (vec![1, 2], true, 2, 2));
    assert_eq!(page(&one, "u", None, 10).await, (vec![3, 4], true, 2, 2));
    let told = [(vec![(1, "a"), (2, "b")], vec![])].map(owned);
    assert_eq!(changes(&one, &late, "t").await, told);
    let told = [(vec![(4, "d")], vec![]), (vec![(3, "c")], vec![])].map(owned);
    assert_eq!(changes(&one, &late, "u").await, told);
}

/// Connection and device of a member.
type Listed<'a> = (u64, &'a str);

/// Who has entered and who has left, as it was told at once.
type Told = (Vec<(u64, String)>, Vec<(u64, String)>);

fn owned<'a>((joined, left): (Vec<Listed<'a>>, Vec<Listed<'a>>)) -> Told {
    let owned = |members: Vec<Listed<'a>>| {
        members.into_iter().map(|(at, device)| (at, device.to_owned())).collect()
    };
    (owned(joined), owned(left))
}

/// What was told of a topic's presence and not asked for yet. Another node shows that nothing more was to come.
async fn changes(peer: &Peer, by: &Peer, topic: &str) -> Vec<Told> {
    let fence_at = FENCES.fetch_add(1, Ordering::Relaxed);
    for is_done in [false, true] {
        let fence = members(topic, &[(fence_at, FENCE)]);
        retried(async || match is_done {
            false => by.broker.enter(fence.clone()).await,
            true => by.broker.exit(fence.clone()).await,
        })
        .await;
    }
    let is_there = |(_, left): &Told| left.iter().any(|(at, _)| *at == fence_at);
    let find = |events: &[Event]| {
        let told = told(events, topic);
        told.iter().any(is_there).then_some(told)
    };
    let mut told = peer.ears.until("a change of presence", find).await;
    peer.ears.forget(|event| matches!(event, Event::Presence { topic: of, .. } if **of == *topic));
    told.retain(|(joined, left)| !joined.iter().chain(left).any(is_fence));
    told
}

fn told(events: &[Event], topic: &str) -> Vec<Told> {
    let mut told = Vec::new();
    for event in events {
        if let Event::Presence { topic: of, joined, left } = event
            && **of == *topic
        {
            assert!((1..=Event::MEMBERS_MAX).contains(&(joined.len() + left.len())), "{event:?}");
            let read = |members: &[Member]| {
                let read = |member: &Member| (member.connection.0, member.device.to_string());
                members.iter().map(read).collect()
            };
            told.push((read(joined), read(left)));
        }
    }
    told
}

/// How many have left a topic.
fn left(events: &[Event], topic: &str) -> usize {
    let told = told(events, topic);
    told.iter().flat_map(|(_, left)| left).filter(|member| !is_fence(member)).count()
}

fn is_fence((_, device): &(u64, String)) -> bool {
    device == FENCE
}

/// Asks again until there is an answer.
async fn retried(ask: impl AsyncFn() -> Result<(), Error>) {
    until("the broker answers", async || match ask().await {
        Ok(()) => Some(()),
        Err(Error::Unavailable(_) | Error::Uncertain(_)) => None,
        Err(error) => panic!("{error}"),
    })
    .await;
}

/// A device that shows what came before it, with connections that no node has.
const FENCE: &str = "fence";

static FENCES: AtomicU64 = AtomicU64::new(1 << 60);

fn members(topic: &str, members: &[(u64, &str)]) -> Vec<(Name, Member)> {
    let member = |(connection, device): &(u64, &str)| Member {
        connection: ConnectionNumber(*connection),
        device: (*device).into(),
    };
    members.iter().map(|entry| (topic.into(), member(entry))).collect()
}

async fn enter(peer: &Peer, topic: &str, entered: &[(u64, &str)]) {
    peer.broker.enter(members(topic, entered)).await.expect("the broker answers");
}

async fn exit(peer: &Peer, topic: &str, gone: &[(u64, &str)]) {
    peer.broker.exit(members(topic, gone)).await.expect("the broker answers");
}

/// Connections, whether they are the last, connections in all, devices in all.
async fn page(
    peer: &Peer,
    topic: &str,
    after: Option<u64>,
    limit: usize,
) -> (Vec<u64>, bool, u64, u64) {
    let after = after.map(ConnectionNumber);
    let page = peer.broker.members(topic.into(), after, limit).await.expect("the broker answers");
    let MemberPage { members, is_last, connections, devices } = page;
    (members.iter().map(|member| member.connection.0).collect(), is_last, connections, devices)
}
