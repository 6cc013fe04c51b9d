//! Promises about occupancy: exactly one node begins it, and one ends it.

use super::peer::{Peer, until};
use super::{HELD_BACK, Make, cluster};
use crate::contract::{Error, Event};
use crate::records::{Attendance, Occupancy};

/// The first node that attends a topic begins its occupancy, and the last one ends it.
pub async fn an_occupancy_begins_once_and_ends_once(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    let first = begun(attend(&one, "t", true).await);
    assert_eq!(attend(&two, "t", true).await, NOTHING);
    // To say it again changes nothing, for other topics neither.
    assert_eq!(attend(&one, "t", true).await, NOTHING);
    let other = begun(attend(&two, "u", true).await);
    assert_eq!(attend(&one, "t", false).await, NOTHING);
    assert_eq!(attend(&one, "t", false).await, NOTHING);
    assert_eq!(attend(&two, "t", false).await, ended(first));
    assert_eq!(attend(&two, "t", false).await, NOTHING);
    assert_eq!(attend(&one, "never attended", false).await, NOTHING);
    let second = begun(attend(&two, "t", true).await);
    assert!(second > first, "{second} comes after {first}");
    assert_eq!(attend(&two, "t", false).await, ended(second));
    assert_eq!(attend(&two, "u", false).await, ended(other));
    let many = |is_attended| {
        let one = |number| attendance(&format!("m{number}"), is_attended, true);
        (0..700).map(one).collect::<Vec<_>>()
    };
    let began = two.broker.attend(many(true)).await.expect("the broker answers");
    assert!(began.len() == 700 && began.iter().all(|one| one.begun.is_some()), "{began:?}");
    let ended = two.broker.attend(many(false)).await.expect("the broker answers");
    let pairs = began.iter().zip(&ended);
    assert!(pairs.clone().all(|(begin, end)| begin.begun == end.ended), "{ended:?}");
    assert_eq!(vacated(&one), []);
    assert_eq!(vacated(&two), []);
}

/// When a node has died, one of the others ends the occupancies that it leaves behind.
pub async fn a_dead_node_attends_nothing(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, two) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "two").await);
    let dead = Peer::open(&cluster, "dead").await;
    let both = begun(attend(&dead, "both", true).await);
    assert_eq!(attend(&two, "both", true).await, NOTHING);
    let alone = begun(attend(&dead, "alone", true).await);
    begun(attend(&dead, "left", true).await);
    attend(&dead, "left", false).await;
    dead.die().await;
    let told = || {
        let mut told = [vacated(&one), vacated(&two)].concat();
        told.sort();
        told
    };
    let is_told = async || (!told().is_empty()).then_some(());
    until("the occupancy ends", is_told).await;
    assert_eq!(told(), [("alone".to_owned(), alone)]);
    assert_eq!(attend(&two, "both", false).await, ended(both));
    let next = begun(attend(&one, "alone", true).await);
    assert!(next > alone, "{next} comes after {alone}");
    assert_eq!(told(), [("alone".to_owned(), alone)]);
}

/// A node that retires hears which occupancies end with it.
pub async fn a_retired_node_attends_nothing(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, retired) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, "retired").await);
    let both = begun(attend(&retired, "both", true).await);
    attend(&one, "both", true).await;
    let mut expected = Vec::new();
    for number in 0..100 {
        let topic = format!("t{number}");
        let number = begun(attend(&retired, &topic, true).await);
        expected.push((topic, number));
    }
    expected.sort();
    retired.silence().await;
    retired.broker.retire().await.expect("the broker answers");
    let all = |events: &[Event]| {
        let ends = events.iter().filter(|event| matches!(event, Event::Vacated { .. })).count();
        (ends >= expected.len()).then_some(())
    };
    retired.ears.until("the ends", all).await;
    let mut told = vacated(&retired);
    told.sort();
    assert_eq!(told, expected);
    assert_eq!(attend(&one, "both", false).await, ended(both));
}

/// When an answer was lost, the next one has what it would have said. What comes late changes nothing.
pub async fn a_lost_answer_about_an_occupancy_is_given_again(make: &impl Make) {
    let cluster = cluster(make).await;
    let (one, late) = (Peer::open(&cluster, "one").await, Peer::open(&cluster, HELD_BACK).await);
    let unsure = async |is_attended| {
        until("the broker answers", async || {
            let asked = vec![attendance("t", is_attended, false)];
            late.broker.attend(asked).await.ok().map(|answers| answers[0])
        })
        .await
    };
    // Unless the node is in the index already, the index is written first.
    let first = begun(attend(&late, "t", true).await);
    assert_eq!(unsure(true).await, Occupancy { begun: Some(first), ended: None });
    attend(&one, "t", true).await;
    let gone = late.broker.attend(vec![attendance("t", false, true)]);
    let held_back = cluster.hold_back(Box::pin(async { gone.await.map(drop) })).await;
    assert!(matches!(held_back, Err(Error::Uncertain(_))), "{held_back:?}");
    // It has subscribers again, and says so before the other request arrives.
    unsure(true).await;
    cluster.deliver().await.expect("it is delivered");
    assert_eq!(attend(&one, "t", false).await, NOTHING);
    assert_eq!(unsure(false).await, Occupancy { begun: Some(first), ended: Some(first) });
    assert_eq!(unsure(false).await, Occupancy { begun: Some(first), ended: Some(first) });
    let second = begun(attend(&one, "t", true).await);
    assert_eq!(unsure(true).await, Occupancy { begun: None, ended: Some(first) });
    assert_eq!(attend(&one, "t", false).await, NOTHING);
    assert_eq!(attend(&late, "t", false).await, ended(second));
}

const NOTHING: Occupancy = Occupancy { begun: None, ended: None };

fn attendance(topic: &str, is_attended: bool, is_sure: bool) -> Attendance {
    Attendance { topic: topic.into(), is_attended, is_sure }
}

async fn attend(peer: &Peer, topic: &str, is_attended: bool) -> Occupancy {
    let asked = vec![attendance(topic, is_attended, true)];
    let answers = peer.broker.attend(asked).await.expect("the broker answers");
    assert_eq!(answers.len(), 1, "one topic has one answer");
    answers[0]
}

/// The number of an occupancy that has begun.
fn begun(answer: Occupancy) -> u64 {
    assert_eq!(answer.ended, None);
    answer.begun.expect("an occupancy begins")
}

fn ended(number: u64) -> Occupancy {
    Occupancy { begun: None, ended: Some(number) }
}

/// What a node has heard of occupancies that ended.
fn vacated(peer: &Peer) -> Vec<(String, u64)> {
    let mut told = Vec::new();
    for event in peer.ears.events() {
        if let Event::Vacated { topic, occupancy } = event {
            told.push((topic.to_string(), occupancy));
        }
    }
    told
}
