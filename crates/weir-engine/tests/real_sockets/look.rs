//! What an operator sees.

use std::collections::BTreeSet;

use weir_engine::{InspectWhat, ShardSettings, TopicId};

use crate::rig::{NEVER, Rig};

#[test]
fn a_look_finds_one_all_and_the_members_of_a_topic() {
    let mut rig = Rig::start(2, &ShardSettings::default());
    let topic = TopicId(1500);
    let mut devices: Vec<_> = (0..30).map(|number| rig.device(number % 2)).collect();
    for (peer, conn) in devices.iter_mut().step_by(4) {
        rig.subscribe(*conn, topic);
        peer.hear_subscribed();
    }
    let (peer, conn) = &devices[4];
    let page = rig.inspect(0, InspectWhat::One(*conn));
    let [info] = &page.connections[..] else { panic!("one is found: {page:?}") };
    assert_eq!((info.id, info.peer), (*conn, peer.stream.local_addr().ok()));
    assert_eq!((info.heartbeat, info.queued_bytes, info.stalled), (NEVER, 0, None));
    assert_eq!((&info.topics[..], page.next_cursor), (&[topic][..], None));

    let in_topic: BTreeSet<_> = devices.iter().step_by(4).map(|(_, conn)| *conn).collect();
    assert_eq!(walk(&rig, 0, |cursor| InspectWhat::Topic { topic, cursor, limit: 3 }), in_topic);
    let empty = walk(&rig, 1, |cursor| InspectWhat::Topic { topic, cursor, limit: 3 });
    assert!(empty.is_empty(), "its members are on the other shard");

    let (gone, gone_conn) = devices.remove(7);
    drop(gone);
    rig.closed(gone_conn);
    assert!(rig.inspect(1, InspectWhat::One(gone_conn)).connections.is_empty());
    for shard in 0..2 {
        let all = walk(&rig, shard, |cursor| InspectWhat::All { cursor, limit: 4 });
        let held = devices.iter().map(|(_, conn)| *conn).filter(|conn| conn.shard() == shard);
        assert_eq!(all, held.collect());
    }
    let beyond = rig.inspect(0, InspectWhat::All { cursor: u32::MAX, limit: 4 });
    assert!(beyond.connections.is_empty() && beyond.next_cursor.is_none());
}

/// All pages of a look.
fn walk(
    rig: &Rig,
    shard: usize,
    what: impl Fn(u32) -> InspectWhat,
) -> BTreeSet<weir_engine::ConnId> {
    let mut found = BTreeSet::new();
    let mut cursor = Some(0);
    while let Some(from) = cursor {
        let page = rig.inspect(shard, what(from));
        for info in page.connections {
            assert!(found.insert(info.id), "found once");
        }
        cursor = page.next_cursor;
    }
    found
}
