//! What a client remembers of its topics, and how the next connection goes on.

use weir_client::{Client, Event, Options, Position, Subscribed, Subscription, Unsubscribed};
use weir_wire::hot;
use weir_wire::v1::client_message::Kind as FromDevice;
use weir_wire::v1::server_message::Kind as ToDevice;
use weir_wire::{ProstMessage, frame, v1};

use crate::peer::{Peer, framed, listener, pair, push, pushed, quiet_pair};

fn subscription(topic: &str, from: Option<(u64, u64)>) -> Subscription {
    let from = from.map(|(epoch, offset)| Position { epoch, offset });
    Subscription { topic: topic.to_owned(), from, presence: false }
}

fn subscribed(topic: &str, epoch: u64, offset: u64, recovered: bool) -> ToDevice {
    let position = Some(v1::Position { epoch, offset });
    ToDevice::Subscribed(v1::Subscribed { topic: topic.to_owned(), position, recovered })
}

#[tokio::test]
async fn the_next_connection_goes_on_where_the_last_one_ended() {
    let options = Options::device("d").topic("news").topic("sport");
    let (mut client, mut peer) = pair(options.clone(), 60_000).await;
    assert_eq!(client.positions(), [subscription("news", None), subscription("sport", None)]);
    peer.says(subscribed("news", 5, 10, false)).await;
    peer.says(ToDevice::Push(push("news", "one", 11))).await;
    peer.says(ToDevice::Push(push("", "to the device", 0))).await;
    drop(peer);
    while client.next().await.unwrap().is_some() {}

    let positions = client.positions();
    assert_eq!(positions, [subscription("news", Some((5, 11))), subscription("sport", None)]);
    let (listener, addr) = listener().await;
    let options = Options { topics: positions, ..options };
    let connecting = tokio::spawn(Client::connect(addr, options));
    let mut peer = Peer::accept(&listener).await;
    let hello = peer.hears_hello().await;
    let position = Some(v1::Position { epoch: 5, offset: 11 });
    let asked = v1::Subscribe { topic: "news".to_owned(), position, presence: false };
    assert_eq!(hello.topics[0], asked);
    peer.welcomes(60_000).await;

    let mut client = connecting.await.unwrap().unwrap();
    peer.says(subscribed("news", 5, 11, true)).await;
    peer.says(ToDevice::Push(push("news", "missed", 12))).await;
    let position = Some(Position { epoch: 5, offset: 11 });
    let (topic, lost_after) = ("news".to_owned(), None);
    let told = Subscribed { topic, position, recovered: true, lost_after };
    assert_eq!(client.next().await.unwrap(), Some(Event::Subscribed(told)));
    assert_eq!(client.next().await.unwrap(), Some(pushed("news", "missed", 12)));
}

/// The bytes that the codec makes of a tick, in two frames because one would be over its limit.
#[tokio::test]
async fn a_message_of_a_batch_counts_as_seen_when_it_is_told() {
    let (mut client, mut peer) = pair(Options::device("d").topic("t"), 60_000).await;
    let offsets = [11, 13, 14];
    let frames = offsets.map(|offset| framed(ToDevice::Push(push("t", "x", offset))));
    let singles: Vec<_> = offsets.into_iter().zip(frames.iter().map(Vec::as_slice)).collect();
    let mut bytes = framed(subscribed("t", 5, 10, false));
    let head = bytes.len();
    hot::encode_batch_frames("t", &singles, 120, &mut bytes);
    let (first, _) = frame::decode(&bytes[head..], 120).unwrap().unwrap();
    let first = v1::ServerMessage::decode(first).unwrap().kind;
    assert!(matches!(first, Some(ToDevice::Batch(batch)) if batch.messages.len() == 2));
    peer.says_bytes(&bytes).await;

    assert!(matches!(client.next().await.unwrap(), Some(Event::Subscribed(_))));
    for offset in offsets {
        assert_eq!(client.next().await.unwrap(), Some(pushed("t", "x", offset)));
        assert_eq!(client.positions(), [subscription("t", Some((5, offset)))]);
    }
}

#[tokio::test]
async fn a_topic_is_resumed_on_a_running_connection() {
    let (mut client, mut peer) = quiet_pair().await;
    let position = Position { epoch: 9, offset: 4 };

    client.subscribe_from("t", position).await.unwrap();
    let asked = Some(v1::Position { epoch: 9, offset: 4 });
    let asked = v1::Subscribe { topic: "t".to_owned(), position: asked, presence: false };
    assert_eq!(peer.hears().await, FromDevice::Subscribe(asked));

    peer.says(subscribed("t", 9, 4, true)).await;
    peer.says(ToDevice::Push(push("t", "missed", 5))).await;
    assert!(matches!(client.next().await.unwrap(), Some(Event::Subscribed(_))));
    assert_eq!(client.next().await.unwrap(), Some(pushed("t", "missed", 5)));

    // Others publish faster than this client reads what it missed.
    peer.says(ToDevice::Unsubscribed(v1::Unsubscribed {
        topic: "t".to_owned(),
        reason: "fell_behind".to_owned(),
        position: Some(v1::Position { epoch: 9, offset: 5 }),
    }))
    .await;
    let told = Unsubscribed {
        topic: "t".to_owned(),
        reason: "fell_behind".to_owned(),
        position: Some(Position { epoch: 9, offset: 5 }),
    };
    assert_eq!(client.next().await.unwrap(), Some(Event::Unsubscribed(told)));
    assert_eq!(client.positions(), []);
}

#[tokio::test]
async fn a_topic_that_was_left_is_not_asked_for_again() {
    let (mut client, mut peer) = quiet_pair().await;
    client.subscribe("t").await.unwrap();
    peer.says(subscribed("t", 5, 10, false)).await;
    assert!(matches!(client.next().await.unwrap(), Some(Event::Subscribed(_))));
    assert_eq!(client.positions(), [subscription("t", Some((5, 10)))]);

    client.unsubscribe("t").await.unwrap();
    assert_eq!(client.positions(), []);
}
