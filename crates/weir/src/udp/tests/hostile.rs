//! Attacks by unknown peers.

use super::*;
use crate::observe::counters::udp::Count;
use weir_wire::ProstMessage as _;

#[test]
fn what_is_malformed_is_named_and_counted_and_harms_nobody() {
    let scene = Scene::open(|_| {});
    let client = scene.client();
    let deep = format!(r#"{{"pt":"t","count":1,"x":{}"#, "[".repeat(1000));
    let long =
        |name: &str| format!(r#"{{"{name}":"{}","devSn":"s","devKey":"k"}}"#, "x".repeat(900));
    let oversized = format!(r#"{{"pt":"t","count":1,"x":"{}"}}"#, "x".repeat(2000));
    for (datagram, field, says) in [
        (r#"{"pt":"ttttttttttttttttttttttttttttttttttttt","count":}"#, "count", "expected value"),
        (r#"{"pt":5,"count":1,"room for":"what is to be told"}"#, "pt", "expected a string"),
        (r#"{"pt":"t","count":"1","room for":"what is to be told"}"#, "count", "invalid type"),
        (r#"{"devSn":"a\u0000","devKey":"room for what is to be told"}"#, "devSn", "U+0000"),
        (r#"{"devSn":"a","room for":"what is to be told of it"}"#, "devKey", "is missing"),
        (r#"{"pt":"t","publish":{"topic":"a"},"x":"room for what is told"}"#, "publish", "neither"),
        (&deep, "datagram", "8 levels deep"),
        (&long("id"), "id", "1 to 64 bytes"),
        (&oversized, "datagram", "limit of 1200 bytes"),
    ] {
        let refused = client.ask(datagram);
        assert_eq!((&refused["error"], &refused["field"]), (&json!("malformed"), &json!(field)));
        assert!(refused["message"].as_str().unwrap().contains(says), "{datagram}: {refused}");
    }
    let serial = client.ask(&format!(r#"{{"devSn":"{}","devKey":"k"}}"#, "s".repeat(200)));
    assert!(serial["message"].as_str().unwrap().contains("limit of 128"), "{serial}");
    assert_eq!(client.ask(r#"{"pt":"t","count":1}"#)["count"], 1);
    let malformed = |name: &str| {
        let mut counts = scene.counters.udp.malformed();
        counts.find(|(field, _)| field.name() == name).unwrap().1
    };
    scene.wait_for(Count::Calls, 1);
    let counts = ["count", "pt", "devSn", "devKey", "publish", "datagram", "id"].map(malformed);
    assert_eq!(counts, [2, 1, 2, 1, 1, 2, 1]);
    scene.end();
}

/// Sends each kind of answer back unchanged, as another gateway or this one might.
#[test]
fn no_answer_is_answered() {
    let scene = Scene::open(|udp| udp.queue_max = 2);
    let pad = "x".repeat(200);
    let protobuf = |token: &str, kind| {
        let token = token.to_owned();
        v1::DatagramRequest { id: 300, token, kind: Some(kind) }.encode_to_vec()
    };
    let activate = v1::Activate { serial: "add".to_owned(), key: "abc".to_owned() };
    let mut requests: Vec<Vec<u8>> = [
        r#"{"pt":"t","count":1}"#.to_owned(),
        format!(r#"{{"pt":"wrong","count":1,"id":"i","x":"{pad}"}}"#),
        format!(r#"{{"pt":"panic","count":1,"x":"{pad}"}}"#),
        r#"{"devSn":"s","devKey":"k"}"#.to_owned(),
        format!(r#"{{"devSn":"s","devKey":"k","x":"{pad}"}}"#),
        format!(r#"{{"devSn":"s","devKey":"wrong","x":"{pad}"}}"#),
        format!(r#"{{"devSn":"later","devKey":"k","x":"{pad}"}}"#),
        format!(r#"{{"pt":"t","publish":{{"topic":"a","text":"b"}},"id":5,"x":"{pad}"}}"#),
        format!(r#"{{"pt":"t","x":"{pad}"}}"#),
        format!(r#"{{"pt":"t","count":1,"x":"{}"}}"#, pad.repeat(9)),
    ]
    .map(String::into_bytes)
    .into();
    requests.push(protobuf("t", v1::datagram_request::Kind::Count(5)));
    requests.push(protobuf("wrong, with some room", v1::datagram_request::Kind::Count(5)));
    requests.push(protobuf("", v1::datagram_request::Kind::Activate(activate)));
    let mut answers = Vec::new();
    for request in &requests {
        let client = scene.client();
        client.send(request);
        answers.push(client.hear());
    }
    let sent = answers.len() as u64;
    scene.wait_for(Count::Sent, sent);
    let client = scene.client();
    answers.iter().for_each(|answer| client.send(answer));
    scene.wait_for(Count::RefusedAnswer, sent);
    // Answers come in order, so any answer to these datagrams has been sent by then.
    client.ask(r#"{"pt":"t","count":1}"#);
    scene.wait_for(Count::Sent, sent + 1);
    scene.end();
}

/// The owner of a forged address receives at most three times the bytes sent in his name.
#[test]
fn nobody_is_made_to_hear_more_than_three_times_what_was_sent() {
    let scene = Scene::open(|_| {});
    let activate = br#"{"devSn":"s","devKey":"k"}"#;
    let mut datagrams: Vec<Vec<u8>> = vec![
        b"{}".to_vec(),
        b"{\"x\":0}".to_vec(),
        b"x".to_vec(),
        vec![],
        br#"{"pt":"wrong","count":1}"#.to_vec(),
        br#"{"pt":"t","count":1}"#.to_vec(),
        br#"{"pt":"t","publish":{"topic":"a","text":""}}"#.to_vec(),
        vec![0x22, 6, 0x0a, 1, b's', 0x12, 1, b'k'],
    ];
    datagrams.extend((0..activate.len()).map(|end| activate[..end].to_vec()));
    datagrams.extend((0..60).map(|spaces| {
        let id = "x".repeat(spaces + 1);
        format!(r#"{{"devSn":"s","devKey":"k","id":"{id}"}}"#).into_bytes()
    }));
    datagrams.push(activate.to_vec());
    let mut answered = 0;
    for (index, datagram) in datagrams.iter().enumerate() {
        let client = scene.client();
        client.send(datagram);
        let counts = &scene.counters.udp;
        let dropped = || counts.get(Count::TooShort) + counts.get(Count::RefusedForeign);
        while counts.get(Count::Sent) + dropped() <= index as u64 {
            std::thread::yield_now();
        }
        // Datagrams sent on this machine have arrived.
        client.0.set_nonblocking(true).unwrap();
        let mut buf = [0; 2000];
        if let Ok(bytes) = client.0.recv(&mut buf) {
            let answer = &buf[..bytes];
            assert!(bytes > 0 && bytes <= 3 * datagram.len(), "{datagram:?}: {answer:?}");
            answered += 1;
        }
    }
    assert!(answered > 60, "{answered}");
    assert!(scene.counters.udp.get(Count::TooShort) > 0);
    scene.end();
}

#[test]
fn gateways_are_left_out_first_and_then_the_end_of_the_token() {
    let scene = Scene::open(|_| {});
    let client = scene.client();
    let mut lengths = Vec::new();
    for key in [1, 10, 66] {
        let key = "k".repeat(key);
        let activated = client.ask(&format!(r#"{{"devSn":"s","devKey":"{key}"}}"#));
        lengths.push(activated.as_object().unwrap().len());
        assert!(activated["pt"].is_string());
    }
    assert_eq!(lengths, [3, 3, 4]);
    client.send([0x22, 7, 0x0a, 1, b's', 0x12, 2, b'k', b'2']);
    let answer = weir_wire::ProstMessage::decode(&*client.hear()).unwrap();
    let v1::DatagramAnswer { token, expires_at_ms, .. } = answer;
    assert_eq!((token.len(), expires_at_ms), (22, 0));
    scene.end();
}

#[test]
fn a_source_that_sends_too_fast_is_not_answered_and_costs_the_front_nothing() {
    let scene = Scene::open(|udp| {
        udp.datagrams_per_source_per_second = 1;
        udp.datagrams_per_source_burst = 5;
    });
    let clients: Vec<Client> = (0..10).map(|_| scene.client()).collect();
    for number in 0..200 {
        clients[number % 10].send(format!(r#"{{"devSn":"{number}","devKey":"guess"}}"#));
    }
    while scene.counters.udp.get(Count::Received) < 200 {
        std::thread::yield_now();
    }
    let refused = scene.counters.udp.get(Count::RefusedRate);
    let activations = scene.backend.activations.load(Ordering::Relaxed);
    // On a slow machine the rate permits a few more.
    assert!((100..=195).contains(&refused) && activations <= 200 - refused, "{refused}");
    // Another address is another source.
    let other = UdpSocket::bind("127.0.0.9:0").unwrap();
    other.connect(scene.addr).unwrap();
    other.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert!(Client(other).ask(r#"{"devSn":"s","devKey":"k"}"#)["pt"].is_string());
    scene.end();
}

#[test]
fn a_flood_of_forged_tokens_takes_no_more_than_the_queue() {
    let scene = Scene::new(|udp| {
        udp.queue_max = 10;
        udp.datagrams_per_source_per_second = 0;
        udp.token_cache_max = 100;
    });
    let client = scene.client();
    for number in 0..2_000 {
        client.send(format!(r#"{{"pt":"forged-{number:020}","count":1}}"#));
        // Never send more than the kernel's buffer holds.
        if number >= 10 {
            assert_eq!(client.hear_json()["error"], "busy");
        }
    }
    assert!(scene.counters.udp.waiting() <= 11);
    assert!(scene.backend.checks.load(Ordering::Relaxed) <= 10);
    scene.backend.open();
    for _ in 0..10 {
        client.hear();
    }
    scene.end();
}

#[test]
fn a_replay_within_the_window_is_answered_from_memory() {
    let scene = Scene::open(|_| {});
    let client = scene.client();
    let activate = r#"{"devSn":"add","devKey":"abc"}"#;
    let first = client.ask(activate);
    for _ in 0..300 {
        assert_eq!(client.ask(activate), first);
    }
    assert_eq!(scene.backend.activations.load(Ordering::Relaxed), 1);
    // A failed guess is not remembered, so guesses cannot push out answers.
    for number in 2..12 {
        let refused = client.ask(r#"{"devSn":"add","devKey":"wrong"}"#);
        assert_eq!(refused["error"], "unauthorized");
        assert_eq!(scene.backend.activations.load(Ordering::Relaxed), number);
    }
    scene.end();
}
