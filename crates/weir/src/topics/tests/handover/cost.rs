//! How long it takes to hand topics over: run in release, and read what it prints.

use weir_wire::handover::v1 as export;

use super::*;

/// Prints the times of export, encoding, decoding and import.
fn measure(what: &str, config: &Config, fill: impl Fn(&Router)) {
    let made = || {
        let (mailboxes, ends): (Vec<Mailbox<OwnedFd>>, Vec<_>) =
            (0..4).map(|_| Detached::mailbox(1 << 15, 1)).unzip();
        let budget = Budget::with_classes(1 << 30, 1 << 29, CLASS_NUMBERS);
        let router =
            Router::new(mailboxes.into(), Arc::clone(&budget), Arc::default(), config, false);
        (router, budget, ends)
    };
    let (router, before, _ends) = made();
    fill(&router);
    let mut best = [Duration::MAX; 4];
    let mut bytes_sent = 0;
    for _ in 0..5 {
        let (other, budget, _ends) = made();
        let (mut sent, mut early) = (SentRings::default(), EarlyRings::new(&budget));
        let taken =
            router.send_rings(&mut sent, |part| early.take(&part.encode_to_vec()).map(|_| ()));
        taken.unwrap();
        let start = Nanos::now();
        let export = router.export(&mut sent);
        let exported = Nanos::now();
        let bytes = export.encode_to_vec();
        let encoded = Nanos::now();
        let export = export::Topics::decode(&*bytes).unwrap();
        let decoded = Nanos::now();
        other.import(export, &mut early).unwrap();
        let imported = Nanos::now();
        let times = [start, exported, encoded, decoded, imported];
        for (best, pair) in best.iter_mut().zip(times.windows(2)) {
            *best = (*best).min(pair[1].since(pair[0]));
        }
        bytes_sent = bytes.len();
        assert_eq!(other.topic_count(), router.topic_count());
        assert_eq!(other.retained.bytes(), router.retained.bytes());
        assert!(budget.used() <= before.used());
    }
    println!("{what}: export, encode, decode, import {best:?}, {bytes_sent} bytes");
}

#[test]
#[ignore = "measures"]
fn costs_of_many_topics_and_of_long_rings() {
    let mut config = Config::default();
    config.limits.topics_max = 200_000;
    for topics in [10_000, 100_000] {
        measure(&format!("{topics} topics with one member"), &config, |router| {
            for topic in 0..topics {
                let conn = conn(topic % 4, topic as u64);
                let shard = &router.mailboxes[conn.shard()];
                let credit = shard.try_credit(CreditKind::Control).unwrap();
                let subscriber = Subscriber::new(conn, Format::Stream);
                let name = format!("sensors/{topic:06}/temperature");
                assert!(router.subscribe(credit, &name, subscriber, || None).is_ok());
            }
        });
    }
    let mut config = config_of(TopicClass {
        pattern: "*".to_owned(),
        retention_messages: 1000,
        retention_bytes: 1 << 20,
        ..TopicClass::default()
    });
    config.memory.retention_bytes = 1 << 29;
    let payload = "x".repeat(200);
    measure("100 rings of 1000 messages of 200 bytes", &config, |router| {
        for topic in 0..100 {
            let name = format!("sensors/{topic:06}/temperature");
            for _ in 0..1000 {
                let made = |class: &Class, place: crate::topics::MessagePosition| {
                    let push = hot::Push {
                        topic: &name,
                        payload: hot::Payload::Text(&payload),
                        message_id: 1,
                        offset: place.offset,
                        ..hot::Push::default()
                    };
                    let mut frame = Vec::new();
                    push.encode_frame(&mut frame);
                    let of_topic = class.topic_message(place, 0..0);
                    Message::of_topic(&router.budget, frame, Nanos::now(), None, of_topic)
                };
                let offer = Offer { frame_bytes: 300, accepted_at: Nanos::now(), ..OFFER };
                let routed = router.publish(&name, router.destination(&name), offer, made);
                assert!(routed.unwrap().is_some());
            }
        }
    });
}
