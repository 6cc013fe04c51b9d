//! What each side says, line by line.

use std::time::Duration;

use tokio::time::timeout;
use weir_client::{
    Advice, Answered, Call, CallAnswer, Client, ClientError, Event, Member, Options, Payload,
    Position, Presence, Publication, Published, ServerError, Subscribed, Subscription,
    Unsubscribed,
};
use weir_wire::v1::client_message::Kind as FromDevice;
use weir_wire::v1::server_message::Kind as ToDevice;
use weir_wire::{ProstMessage, WireError, v1};

use crate::peer::{Peer, framed, listener, pair, push, pushed, quiet_pair};

#[tokio::test]
async fn hello_says_what_the_options_say() {
    let (listener, addr) = listener().await;
    let mut options = Options::device("d-1").token("secret").topic("news").calls();
    options.client = "test/1".to_owned();
    options.heartbeat = Some(Duration::from_secs(30));
    options.topics.push(Subscription {
        topic: "sport".to_owned(),
        from: Some(Position { epoch: 9, offset: 4 }),
        presence: true,
    });
    let connecting = tokio::spawn(Client::connect(addr, options));

    let mut peer = Peer::accept(&listener).await;
    let hello = peer.hears_hello().await;
    assert_eq!(
        hello,
        v1::Hello {
            device_id: "d-1".to_owned(),
            token: "secret".to_owned(),
            client: "test/1".to_owned(),
            heartbeat_ms: 30_000,
            topics: vec![
                v1::Subscribe { topic: "news".to_owned(), position: None, presence: false },
                v1::Subscribe {
                    topic: "sport".to_owned(),
                    position: Some(v1::Position { epoch: 9, offset: 4 }),
                    presence: true,
                },
            ],
            calls: true,
        }
    );
    peer.welcomes(45_000).await;

    let client = connecting.await.unwrap().unwrap();
    assert_eq!(client.connection_id(), 77);
    assert_eq!(client.heartbeat(), Duration::from_secs(45));
    assert_eq!(client.server_time_ms(), 1_700_000_000_000);
}

/// A server takes 16 KiB of the first message. What finds no room there is asked for behind the welcome.
#[tokio::test]
async fn topics_beyond_the_first_message_follow_the_welcome() {
    let topic = |index: u32| format!("room/{}/{index}", "x".repeat(60));
    let options = (0..400).fold(Options::device("d"), |options, index| options.topic(topic(index)));
    let (listener, addr) = listener().await;
    let connecting = tokio::spawn(Client::connect(addr, options));
    let mut peer = Peer::accept(&listener).await;
    let hello = peer.hears_hello().await;
    let first = v1::ClientMessage { kind: Some(FromDevice::Hello(hello.clone())) };
    assert!((15_500..=16_384).contains(&first.encoded_len()), "{}", first.encoded_len());
    peer.welcomes(60_000).await;
    let mut client = connecting.await.unwrap().unwrap();
    assert_eq!(client.positions().len(), 400);
    let reading = tokio::spawn(async move { client.next().await });
    let mut asked: Vec<String> = hello.topics.into_iter().map(|asked| asked.topic).collect();
    while asked.len() < 400 {
        let heard = peer.hears().await;
        let FromDevice::Subscribe(subscribe) = heard else { panic!("heard {heard:?}") };
        asked.push(subscribe.topic);
    }
    assert_eq!(asked, (0..400).map(topic).collect::<Vec<_>>());
    reading.abort();
}

#[tokio::test]
async fn topics_are_entered_pushed_to_and_left() {
    let (mut client, mut peer) = quiet_pair().await;

    client.subscribe("news").await.unwrap();
    let asked = v1::Subscribe { topic: "news".to_owned(), position: None, presence: false };
    assert_eq!(peer.hears().await, FromDevice::Subscribe(asked));
    let position = Some(v1::Position { epoch: 5, offset: 10 });
    peer.says(ToDevice::Subscribed(v1::Subscribed {
        topic: "news".to_owned(),
        position,
        recovered: true,
    }))
    .await;
    let position = Some(Position { epoch: 5, offset: 10 });
    let (topic, lost_after) = ("news".to_owned(), None);
    let told = Subscribed { topic, position, recovered: true, lost_after };
    assert_eq!(client.next().await.unwrap(), Some(Event::Subscribed(told)));

    peer.says(ToDevice::Push(push("news", "one", 11))).await;
    assert_eq!(client.next().await.unwrap(), Some(pushed("news", "one", 11)));

    client.unsubscribe("news").await.unwrap();
    let asked = v1::Unsubscribe { topic: "news".to_owned() };
    assert_eq!(peer.hears().await, FromDevice::Unsubscribe(asked));
    peer.says(ToDevice::Unsubscribed(v1::Unsubscribed {
        topic: "news".to_owned(),
        reason: String::new(),
        position: None,
    }))
    .await;
    let told = Unsubscribed { topic: "news".to_owned(), reason: String::new(), position: None };
    assert_eq!(client.next().await.unwrap(), Some(Event::Unsubscribed(told)));
}

/// A node of a cluster may find that messages are lost, and tells those who are in the topic.
#[tokio::test]
async fn a_loss_in_a_running_subscription_is_told() {
    let (mut client, mut peer) = quiet_pair().await;
    client.subscribe("news").await.unwrap();
    peer.hears().await;
    for (epoch, offset, lost_after) in
        [(5, 10, None), (6, 0, Some(Position { epoch: 5, offset: 11 }))]
    {
        let (topic, recovered) = ("news".to_owned(), false);
        let position = Some(v1::Position { epoch, offset });
        peer.says(ToDevice::Subscribed(v1::Subscribed { topic, position, recovered })).await;
        let (topic, position) = ("news".to_owned(), Some(Position { epoch, offset }));
        let told = Subscribed { topic, position, recovered, lost_after };
        assert_eq!(client.next().await.unwrap(), Some(Event::Subscribed(told)));
        peer.says(ToDevice::Push(push("news", "x", offset + 1))).await;
        assert_eq!(client.next().await.unwrap(), Some(pushed("news", "x", offset + 1)));
    }
    let position = Some(Position { epoch: 6, offset: 1 });
    assert_eq!(client.positions()[0].from, position);
}

#[tokio::test]
async fn calls_go_both_ways() {
    let (mut client, mut peer) = quiet_pair().await;
    let call = Call {
        id: 7,
        method: "orders/price".to_owned(),
        payload: Payload::Text("{}".to_owned()),
        content_type: "application/json".to_owned(),
        deadline: Some(Duration::from_secs(2)),
    };
    let wire = v1::Call {
        id: 7,
        method: "orders/price".to_owned(),
        payload: Some(v1::call::Payload::Text("{}".to_owned())),
        content_type: "application/json".to_owned(),
        deadline_ms: 2_000,
    };
    client.call(call.clone()).await.unwrap();
    assert_eq!(peer.hears().await, FromDevice::Call(wire.clone()));
    client.cancel(7).await.unwrap();
    assert_eq!(peer.hears().await, FromDevice::Cancel(v1::Cancel { id: 7 }));
    let done = CallAnswer::text("5");
    let text = Some(v1::answer::Payload::Text("5".to_owned()));
    let answer = v1::Answer { id: 7, payload: text, ..v1::Answer::default() };
    peer.says(ToDevice::Answer(answer.clone())).await;
    let answered = Event::Answered(Answered { id: 7, answer: done.clone() });
    assert_eq!(client.next().await.unwrap(), Some(answered));

    peer.says(ToDevice::Call(wire)).await;
    assert_eq!(client.next().await.unwrap(), Some(Event::Call(call)));
    client.answer(7, done).await.unwrap();
    assert_eq!(peer.hears().await, FromDevice::Answer(answer));
    peer.says(ToDevice::Cancel(v1::Cancel { id: 8 })).await;
    assert_eq!(client.next().await.unwrap(), Some(Event::Cancelled(8)));

    // An error has a word, even where the program gives none.
    client.answer(9, CallAnswer::failed("", "no paper")).await.unwrap();
    let FromDevice::Answer(failed) = peer.hears().await else { panic!("no answer") };
    assert_eq!((&*failed.code, &*failed.message), ("failed", "no paper"));
    peer.says(ToDevice::Answer(failed)).await;
    let heard = client.next().await.unwrap();
    let Some(Event::Answered(Answered { id: 9, answer: CallAnswer::Failed(failed) })) = heard
    else {
        panic!("heard {heard:?}")
    };
    assert_eq!(failed.to_string(), "failed: no paper");
}

#[tokio::test]
async fn presence_is_told_where_it_is_asked_for() {
    let (mut client, mut peer) = quiet_pair().await;
    client.subscribe(Subscription::from("room").presence()).await.unwrap();
    let asked = v1::Subscribe { topic: "room".to_owned(), position: None, presence: true };
    assert_eq!(peer.hears().await, FromDevice::Subscribe(asked));
    let (joined, left) = (("a", 1_u64 << 60), ("b", 2));
    let told = |(device_id, connection_id): (&str, u64)| {
        let device_id = device_id.to_owned();
        vec![v1::Member { device_id, connection_id }]
    };
    let topic = "room".to_owned();
    let (joined_told, left_told, missed) = (told(joined), told(left), true);
    let presence = v1::Presence { topic, joined: joined_told, left: left_told, missed };
    peer.says(ToDevice::Presence(presence)).await;
    let member = |(device_id, connection_id): (&str, u64)| {
        let device_id = device_id.to_owned();
        vec![Member { device_id, connection_id }]
    };
    let topic = "room".to_owned();
    let presence = Presence { topic, joined: member(joined), left: member(left), missed };
    assert_eq!(client.next().await.unwrap(), Some(Event::Presence(presence)));
}

#[tokio::test]
async fn a_publish_is_answered_with_its_number() {
    let (mut client, mut peer) = quiet_pair().await;

    client.publish("t", Payload::Data(vec![0, 255]), 8).await.unwrap();
    let FromDevice::Publish(heard) = peer.hears().await else { panic!("expected Publish") };
    assert_eq!(heard.payload, Some(v1::publish::Payload::Data(vec![0, 255])));
    assert_eq!((heard.topic.as_str(), heard.request), ("t", 8));

    let answer = v1::Published { request: 8, message_id: 1, offset: 2, connections: 3, epoch: 4 };
    peer.says(ToDevice::Published(answer)).await;
    let told = Published { request: 8, message_id: 1, offset: 2, connections: 3, epoch: 4 };
    assert_eq!(client.next().await.unwrap(), Some(Event::Published(told)));

    let answer = v1::Error {
        code: "topic_name".to_owned(),
        message: "no".to_owned(),
        request: 9,
        topic: "x".to_owned(),
    };
    peer.says(ToDevice::Error(answer)).await;
    let told = ServerError {
        code: "topic_name".to_owned(),
        message: "no".to_owned(),
        request: 9,
        topic: "x".to_owned(),
    };
    assert_eq!(client.next().await.unwrap(), Some(Event::Error(told)));
}

#[tokio::test]
async fn a_message_may_carry_a_key_and_a_type() {
    let (mut client, mut peer) = quiet_pair().await;
    let message = Publication {
        topic: "room".to_owned(),
        payload: Payload::Text("{}".to_owned()),
        content_type: "application/json".to_owned(),
        key: "player-7".to_owned(),
        request: 1,
    };

    client.publish_message(message).await.unwrap();

    let expected = v1::Publish {
        topic: "room".to_owned(),
        payload: Some(v1::publish::Payload::Text("{}".to_owned())),
        content_type: "application/json".to_owned(),
        key: "player-7".to_owned(),
        request: 1,
    };
    assert_eq!(peer.hears().await, FromDevice::Publish(expected));
}

#[tokio::test]
async fn pings_keep_the_heartbeat_and_their_answers_are_told_to_nobody() {
    // Long enough that a slow machine is not taken for a dead server.
    let (mut client, mut peer) = pair(Options::device("d"), 500).await;
    let listening = tokio::spawn(async move { client.next().await });

    for _beat in 0..2 {
        assert_eq!(peer.hears().await, FromDevice::Ping(v1::Ping { data: Vec::new() }));
        peer.says(ToDevice::Pong(v1::Pong { data: Vec::new() })).await;
    }
    peer.says(ToDevice::Push(push("", "done", 0))).await;

    assert_eq!(listening.await.unwrap().unwrap(), Some(pushed("", "done", 0)));
}

#[tokio::test]
async fn a_ping_of_one_s_own_comes_back_as_pong() {
    let (mut client, mut peer) = quiet_pair().await;

    client.ping(b"now").await.unwrap();
    assert_eq!(peer.hears().await, FromDevice::Ping(v1::Ping { data: b"now".to_vec() }));
    peer.says(ToDevice::Pong(v1::Pong { data: b"now".to_vec() })).await;

    assert_eq!(client.next().await.unwrap(), Some(Event::Pong(b"now".to_vec())));
    let refused = client.ping(&[0; 257]).await.unwrap_err();
    assert!(matches!(refused, ClientError::TooLarge { bytes: 257, limit: 256 }), "{refused}");
}

#[tokio::test]
async fn a_server_that_answers_no_ping_counts_as_dead() {
    let (mut client, _silent) = pair(Options::device("d"), 10).await;

    let error = client.next().await.unwrap_err();

    assert!(matches!(error, ClientError::Silent { pings: 2, .. }), "{error}");
    assert_eq!(client.next().await.unwrap(), None);
}

#[tokio::test]
async fn a_batch_is_told_as_its_messages() {
    let (mut client, mut peer) = quiet_pair().await;

    peer.says(ToDevice::Batch(v1::Batch {
        topic: "t".to_owned(),
        first_offset: 1,
        last_offset: 3,
        messages: vec![push("", "one", 1), push("", "three", 3)],
    }))
    .await;

    assert_eq!(client.next().await.unwrap(), Some(pushed("t", "one", 1)));
    assert_eq!(client.next().await.unwrap(), Some(pushed("t", "three", 3)));
}

#[tokio::test]
async fn a_kind_of_message_from_a_later_version_is_skipped() {
    let (mut client, mut peer) = quiet_pair().await;

    // Field 99, length-delimited, empty; then a message without any field.
    peer.says_bytes(&[3, 0x9a, 0x06, 0x00, 0]).await;
    peer.says(ToDevice::Push(push("t", "known", 1))).await;

    assert_eq!(client.next().await.unwrap(), Some(pushed("t", "known", 1)));
}

#[tokio::test]
async fn goodbye_tells_why_and_what_to_do_and_is_the_last_event() {
    let (mut client, mut peer) = quiet_pair().await;

    let mut bytes = framed(ToDevice::Goodbye(v1::Goodbye {
        code: 4100,
        reason: "draining".to_owned(),
        retry_after_ms: 1_500,
    }));
    bytes.extend(framed(ToDevice::Push(push("t", "too late", 1))));
    peer.says_bytes(&bytes).await;

    let Some(Event::Goodbye(goodbye)) = client.next().await.unwrap() else {
        panic!("expected Goodbye")
    };
    assert_eq!((goodbye.code, goodbye.reason.as_str()), (4100, "draining"));
    assert_eq!(goodbye.advice, Advice::ReconnectLater);
    assert_eq!(goodbye.retry_after, Some(Duration::from_millis(1_500)));
    assert_eq!(client.next().await.unwrap(), None);
    assert!(matches!(client.subscribe("t").await, Err(ClientError::Ended)));
}

#[tokio::test]
async fn an_orderly_close_ends_the_events() {
    let (mut client, mut peer) = quiet_pair().await;

    peer.says(ToDevice::Push(push("t", "last", 1))).await;
    drop(peer);

    assert_eq!(client.next().await.unwrap(), Some(pushed("t", "last", 1)));
    assert_eq!(client.next().await.unwrap(), None);
}

#[tokio::test]
async fn a_close_in_the_middle_of_a_frame_is_an_error() {
    let (mut client, mut peer) = quiet_pair().await;

    peer.says_bytes(&[10, 1, 2]).await;
    drop(peer);

    assert!(matches!(client.next().await, Err(ClientError::Truncated)));
    assert_eq!(client.next().await.unwrap(), None);
}

#[tokio::test]
async fn a_frame_over_the_limit_is_refused_before_it_is_read() {
    let (mut client, mut peer) = quiet_pair().await;

    peer.says_bytes(&[0xff, 0xff, 0xff, 0xff, 0x0f]).await;

    let error = client.next().await.unwrap_err();
    let expected = WireError::FrameTooLarge { bytes: u64::from(u32::MAX), limit: 1 << 20 };
    assert!(matches!(error, ClientError::Wire(ref found) if *found == expected), "{error}");
}

#[tokio::test]
async fn bytes_that_are_no_message_are_the_server_s_fault() {
    let (mut client, mut peer) = quiet_pair().await;

    peer.says_bytes(&[2, 0xff, 0xff]).await;

    let error = client.next().await.unwrap_err();
    assert!(matches!(error, ClientError::Wire(WireError::MessageMalformed(_))), "{error}");
}

#[tokio::test]
async fn a_message_of_ours_over_the_limit_is_refused_and_the_connection_stays() {
    let mut options = Options::device("d");
    options.frame_bytes_max = 100;
    let (mut client, mut peer) = pair(options, 60_000).await;

    let refused = client.publish("t", Payload::Data(vec![0; 100]), 0).await.unwrap_err();
    assert!(matches!(refused, ClientError::TooLarge { limit: 100, .. }), "{refused}");

    client.publish("t", Payload::Data(vec![0; 10]), 0).await.unwrap();
    assert!(matches!(peer.hears().await, FromDevice::Publish(_)));
}

#[tokio::test]
async fn a_refusal_carries_the_server_s_reason() {
    let (listener, addr) = listener().await;
    let connecting = tokio::spawn(Client::connect(addr, Options::device("d").token("wrong")));

    let mut peer = Peer::accept(&listener).await;
    peer.hears_hello().await;
    peer.says(ToDevice::Goodbye(v1::Goodbye {
        code: 4200,
        reason: "unauthorized".to_owned(),
        retry_after_ms: 0,
    }))
    .await;

    let Err(ClientError::Refused(goodbye)) = connecting.await.unwrap() else {
        panic!("expected a refusal")
    };
    assert_eq!((goodbye.code, goodbye.advice), (4200, Advice::FixCredentials));
    assert_eq!(goodbye.retry_after, None);
}

#[tokio::test]
async fn a_close_or_another_message_instead_of_welcome_is_no_connection() {
    let (listener, addr) = listener().await;
    let connecting = tokio::spawn(Client::connect(addr, Options::device("d")));
    let mut peer = Peer::accept(&listener).await;
    peer.hears_hello().await;
    drop(peer);
    assert!(matches!(connecting.await.unwrap(), Err(ClientError::ClosedBeforeWelcome)));

    let connecting = tokio::spawn(Client::connect(addr, Options::device("d")));
    let mut peer = Peer::accept(&listener).await;
    peer.hears_hello().await;
    peer.says(ToDevice::Push(push("t", "early", 1))).await;
    assert!(matches!(connecting.await.unwrap(), Err(ClientError::Protocol(_))));
}

#[tokio::test]
async fn a_server_that_does_not_welcome_is_given_up_on() {
    let (listener, addr) = listener().await;
    let mut options = Options::device("d");
    options.connect_timeout = Duration::from_millis(20);

    let (connected, _peer) = tokio::join!(Client::connect(addr, options), Peer::accept(&listener));

    assert!(matches!(connected, Err(ClientError::ConnectTimedOut(_))));
}

#[tokio::test]
async fn an_event_cut_at_every_byte_survives_that_nobody_waits_for_it() {
    let (mut client, mut peer) = quiet_pair().await;
    let bytes = framed(ToDevice::Push(push("news", "in pieces", 1)));

    let (last, first) = bytes.split_last().unwrap();
    for byte in first {
        peer.says_bytes(&[*byte]).await;
        // Given up at once or after having read the byte: either way it must not be lost.
        let early = timeout(Duration::from_millis(1), client.next()).await;
        assert!(early.is_err(), "an event came before its last byte: {early:?}");
    }
    peer.says_bytes(&[*last]).await;

    assert_eq!(client.next().await.unwrap(), Some(pushed("news", "in pieces", 1)));
}

#[tokio::test]
async fn a_publish_given_up_half_way_arrives_once_and_whole() {
    let mut options = Options::device("d");
    options.frame_bytes_max = 64 << 20;
    let (mut client, mut peer) = pair(options, 60_000).await;
    let data: Vec<u8> = (0..32 << 20).map(|index: u32| index.to_le_bytes()[0]).collect();

    // Far more than the kernel buffers, and the peer reads nothing yet.
    let publish = client.publish("t", Payload::Data(data.clone()), 0);
    assert!(timeout(Duration::from_millis(50), publish).await.is_err());

    let listening = tokio::spawn(async move { client.next().await });
    let FromDevice::Publish(heard) = peer.hears().await else { panic!("expected Publish") };
    assert!(heard.payload == Some(v1::publish::Payload::Data(data)), "content differs");
    peer.says(ToDevice::Push(push("t", "done", 1))).await;
    assert_eq!(listening.await.unwrap().unwrap(), Some(pushed("t", "done", 1)));
    assert!(peer.unread.is_empty());
}
