//! Surveys: where a shard says its memory is.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use weir_engine::{
    BlockAge, BlockPurpose, Footprint, HoldingKind, ShardMemory, Survey, SurveyPage, Urgent,
};

use crate::stage::Stage;

/// Asks for all pages.
fn survey(stage: &mut Stage, holdings_max: usize) -> (ShardMemory, Vec<SurveyPage>) {
    let (mut memory, mut pages, mut cursor) = (ShardMemory::default(), Vec::new(), Some(0));
    while let Some(from) = cursor {
        let answer = Arc::new(Mutex::new(None::<SurveyPage>));
        let slot = Arc::clone(&answer);
        let reply = Box::new(move |page| *slot.lock().expect("one thread") = Some(page));
        stage.shard.push_urgent(Urgent::Survey(Survey { cursor: from, holdings_max, reply }));
        stage.shard.turn();
        let page =
            answer.lock().expect("one thread").take().expect("a shard answers within a turn");
        memory.add(&page.memory);
        cursor = page.next_cursor;
        pages.push(page);
    }
    (memory, pages)
}

fn kinds(pages: &[SurveyPage]) -> Vec<HoldingKind> {
    pages.iter().flat_map(|page| &page.holdings).map(|holding| holding.kind).collect()
}

/// Fails if memory is not counted, or still counted when it has been given back.
#[test]
fn what_waits_and_what_has_begun_is_counted_while_it_is_there() {
    let mut stage = Stage::new();
    let devices = stage.members(1, 3);
    let (empty, _) = survey(&mut stage, 0);
    assert_eq!((empty.connections.count, empty.members.count), (3, 3));
    assert!(empty.connections.bytes >= 3 * 112 && empty.members.bytes >= 3 * 8);
    assert_eq!(empty.outboxes, [Footprint::default()]);
    stage.shard.net().set_send_buffer(devices[0].peer, 8, 4);
    stage.publish(1, "what waits");
    stage.shard.peer_write(devices[1].peer, &[200, 1, 0, 0]);
    stage.settle();
    stage.shard.advance(Duration::from_millis(1500));
    let (memory, pages) = survey(&mut stage, 10);
    assert_eq!(memory.outboxes[0].count, 1);
    assert!(memory.outboxes[0].bytes > 100);
    let old = memory.blocks[BlockPurpose::Frame as usize][BlockAge::Old as usize];
    assert_eq!(old.count, 1);
    assert!(old.bytes >= 256);
    let mut found = kinds(&pages);
    found.sort_unstable_by_key(|kind| *kind as usize);
    use HoldingKind::{Block, Message, Outbox, Subscription};
    assert_eq!(found, [Outbox, Message, Block, Subscription, Subscription, Subscription]);
    assert_eq!(stage.heard_slowly(devices[0]), ["what waits"]);
    let (after, _) = survey(&mut stage, 0);
    assert_eq!(after.outboxes, [Footprint::default()]);
    assert_eq!(after.spare_outboxes.count, 1);
}

/// Fails if a page looks at more than its part of the connections, or leaves one out.
#[test]
fn a_page_is_bounded_and_pages_are_complete() {
    let mut stage = Stage::new();
    stage.members(1, 5000);
    let (memory, pages) = survey(&mut stage, 7);
    assert_eq!((memory.connections.count, memory.members.count), (5000, 5000));
    assert!(pages.len() >= 3, "each membership is a look");
    assert!(pages.iter().all(|page| page.holdings.len() == 7));
    let (_, pages) = survey(&mut stage, 0);
    assert_eq!(pages.len(), 2);
}
