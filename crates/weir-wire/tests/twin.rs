//! The decoders against their twin, prost: the fuzzer's corpus, random messages, random bytes, what mutation makes of
//! them, and every cut.

use std::fs;
use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use weir_wire::v1::{self, client_message, server_message};
use weir_wire::{ProstMessage, frame};

#[path = "../../../fuzz/src/targets.rs"]
pub mod targets;

#[test]
fn the_corpus_of_every_fuzz_target() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, target) in targets::ALL {
        let mut inputs = 0;
        for entry in fs::read_dir(corpus.join(name)).expect("a corpus for every target") {
            let path = entry.expect("a readable corpus").path();
            println!("{}", path.display());
            target(&fs::read(&path).expect("a readable input"));
            inputs += 1;
        }
        assert!(inputs > 0, "the corpus of {name} is empty");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes(bytes in vec(any::<u8>(), 0..64)) {
        every_target(&bytes);
    }

    #[test]
    fn bytes_that_look_like_fields(bytes in vec(field(), 0..6)) {
        every_target(&bytes.concat());
    }

    #[test]
    fn messages_from_devices(message in client_message()) {
        every_cut(&message.encode_to_vec());
    }

    #[test]
    fn messages_to_devices(message in server_message()) {
        every_cut(&message.encode_to_vec());
    }

    #[test]
    fn several_kinds_in_one_message(messages in vec(client_message(), 2..4)) {
        every_cut(&messages.iter().flat_map(ProstMessage::encode_to_vec).collect::<Vec<_>>());
    }

    #[test]
    fn several_pushes_in_one_message(messages in vec(server_message(), 2..4)) {
        every_cut(&messages.iter().flat_map(ProstMessage::encode_to_vec).collect::<Vec<_>>());
    }

    #[test]
    fn mutated(message in client_message(), pushed in server_message(), mutations in vec(mutation(), 1..4)) {
        for mut bytes in [message.encode_to_vec(), pushed.encode_to_vec()] {
            for mutation in &mutations {
                mutation.apply(&mut bytes);
            }
            every_target(&bytes);
        }
    }

    /// A stream of frames yields the same frames however it arrives.
    #[test]
    fn frames_in_pieces(messages in vec(client_message(), 1..5), pieces in vec(1..40_usize, 1..20)) {
        let mut stream = Vec::new();
        let mut expected = Vec::new();
        for message in &messages {
            frame::encode(message, &mut stream);
            expected.push(message.encode_to_vec());
        }
        let mut buffer = Vec::new();
        let mut frames = Vec::new();
        let mut rest = stream.as_slice();
        for piece in pieces.iter().cycle() {
            let (arrived, later) = rest.split_at((*piece).min(rest.len()));
            buffer.extend_from_slice(arrived);
            while let Some((body, taken)) = frame::decode(&buffer, 1 << 20).expect("our own encoding") {
                frames.push(body.to_vec());
                buffer.drain(..taken);
            }
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert!(buffer.is_empty());
        prop_assert_eq!(frames, expected);
    }
}

fn every_target(bytes: &[u8]) {
    for (_, target) in targets::ALL {
        target(bytes);
    }
}

/// Every prefix, so that each decoder meets its input cut at every byte.
fn every_cut(bytes: &[u8]) {
    for end in 0..=bytes.len() {
        every_target(&bytes[..end]);
    }
}

/// One change to an encoded message.
#[derive(Debug, Clone)]
enum Mutation {
    Set(prop::sample::Index, u8),
    Insert(prop::sample::Index, Vec<u8>),
    Remove(prop::sample::Index),
    Duplicate(prop::sample::Index, prop::sample::Index),
}

impl Mutation {
    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        match self {
            Mutation::Set(index, byte) => *index.get_mut(bytes) = *byte,
            Mutation::Insert(index, inserted) => {
                let at = index.index(bytes.len() + 1);
                bytes.splice(at..at, inserted.iter().copied());
            }
            Mutation::Remove(index) => drop(bytes.remove(index.index(bytes.len()))),
            Mutation::Duplicate(from, to) => {
                let (from, to) = (from.index(bytes.len()), to.index(bytes.len()));
                let copied = bytes[from.min(to)..from.max(to)].to_vec();
                bytes.extend_from_slice(&copied);
            }
        }
    }
}

fn mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        (any::<prop::sample::Index>(), any::<u8>())
            .prop_map(|(index, byte)| Mutation::Set(index, byte)),
        (any::<prop::sample::Index>(), field())
            .prop_map(|(index, bytes)| Mutation::Insert(index, bytes)),
        any::<prop::sample::Index>().prop_map(Mutation::Remove),
        (any::<prop::sample::Index>(), any::<prop::sample::Index>())
            .prop_map(|(from, to)| Mutation::Duplicate(from, to)),
    ]
}

/// A field of any wire type, well-formed more often than not; groups and embedded messages nest.
fn field() -> impl Strategy<Value = Vec<u8>> {
    let leaf = prop_oneof![
        (1..16_u8, vec(0x80..=0xff_u8, 0..10), 0..0x80_u8).prop_map(|(number, head, last)| [
            vec![number << 3],
            head,
            vec![last]
        ]
        .concat()),
        (1..16_u8, any::<[u8; 8]>()).prop_map(|(number, value)| [
            vec![number << 3 | 1],
            value.to_vec()
        ]
        .concat()),
        (1..16_u8, any::<[u8; 4]>()).prop_map(|(number, value)| [
            vec![number << 3 | 5],
            value.to_vec()
        ]
        .concat()),
        (1..16_u8, vec(any::<u8>(), 0..12)).prop_map(|(number, value)| delimited(number, &value)),
        (1..16_u8, "\\PC{0,8}").prop_map(|(number, value)| delimited(number, value.as_bytes())),
        vec(any::<u8>(), 0..3),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            (1..16_u8, vec(inner.clone(), 0..4))
                .prop_map(|(number, fields)| delimited(number, &fields.concat())),
            (1..16_u8, vec(inner, 0..4)).prop_map(|(number, fields)| {
                [vec![number << 3 | 3], fields.concat(), vec![number << 3 | 4]].concat()
            }),
        ]
    })
}

fn delimited(number: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    prost::encode_length_delimiter(value.len(), &mut bytes)
        .expect("a vector takes any number of bytes");
    bytes.extend_from_slice(value);
    bytes
}

fn client_message() -> impl Strategy<Value = v1::ClientMessage> {
    use client_message::Kind;
    prop_oneof![
        1 => Just(None),
        4 => ping_data().prop_map(|data| Some(Kind::Ping(v1::Ping { data }))),
        6 => publish().prop_map(|publish| Some(Kind::Publish(publish))),
        1 => subscribe().prop_map(|subscribe| Some(Kind::Subscribe(subscribe))),
        1 => (text(), text(), vec(subscribe(), 0..3)).prop_map(|(device_id, token, topics)| {
            Some(Kind::Hello(v1::Hello { device_id, token, topics, ..v1::Hello::default() }))
        }),
        1 => text().prop_map(|topic| Some(Kind::Unsubscribe(v1::Unsubscribe { topic }))),
        1 => text().prop_map(|token| Some(Kind::Refresh(v1::Refresh { token }))),
        1 => call().prop_map(|call| Some(Kind::Call(call))),
        1 => answer().prop_map(|answer| Some(Kind::Answer(answer))),
        1 => number32().prop_map(|id| Some(Kind::Cancel(v1::Cancel { id }))),
    ]
    .prop_map(|kind| v1::ClientMessage { kind })
}

fn server_message() -> impl Strategy<Value = v1::ServerMessage> {
    use server_message::Kind;
    prop_oneof![
        1 => Just(None),
        1 => ping_data().prop_map(|data| Some(Kind::Pong(v1::Pong { data }))),
        6 => push().prop_map(|push| Some(Kind::Push(push))),
        4 => batch().prop_map(|batch| Some(Kind::Batch(batch))),
        1 => text().prop_map(|reason| Some(Kind::Goodbye(v1::Goodbye { reason, ..v1::Goodbye::default() }))),
        1 => call().prop_map(|call| Some(Kind::Call(call))),
        1 => answer().prop_map(|answer| Some(Kind::Answer(answer))),
        1 => number32().prop_map(|id| Some(Kind::Cancel(v1::Cancel { id }))),
    ]
    .prop_map(|kind| v1::ServerMessage { kind })
}

fn call() -> impl Strategy<Value = v1::Call> {
    let payload = prop_oneof![
        Just(None),
        text().prop_map(|text| Some(v1::call::Payload::Text(text))),
        vec(any::<u8>(), 0..200).prop_map(|data| Some(v1::call::Payload::Data(data))),
    ];
    (number32(), text(), payload, text(), number32()).prop_map(
        |(id, method, payload, content_type, deadline_ms)| v1::Call {
            id,
            method,
            payload,
            content_type,
            deadline_ms,
        },
    )
}

fn answer() -> impl Strategy<Value = v1::Answer> {
    let payload = prop_oneof![
        Just(None),
        text().prop_map(|text| Some(v1::answer::Payload::Text(text))),
        vec(any::<u8>(), 0..200).prop_map(|data| Some(v1::answer::Payload::Data(data))),
    ];
    (number32(), text(), payload, text(), text(), number32()).prop_map(
        |(id, code, payload, content_type, message, status)| v1::Answer {
            id,
            code,
            payload,
            content_type,
            message,
            status,
        },
    )
}

fn publish() -> impl Strategy<Value = v1::Publish> {
    let payload = prop_oneof![
        Just(None),
        text().prop_map(|text| Some(v1::publish::Payload::Text(text))),
        vec(any::<u8>(), 0..200).prop_map(|data| Some(v1::publish::Payload::Data(data))),
    ];
    (text(), payload, text(), text(), number32()).prop_map(
        |(topic, payload, content_type, key, request)| v1::Publish {
            topic,
            payload,
            content_type,
            key,
            request,
        },
    )
}

fn push() -> impl Strategy<Value = v1::Push> {
    let payload = prop_oneof![
        Just(None),
        text().prop_map(|text| Some(v1::push::Payload::Text(text))),
        vec(any::<u8>(), 0..200).prop_map(|data| Some(v1::push::Payload::Data(data))),
    ];
    (text(), payload, text(), text(), number(), number(), number()).prop_map(
        |(topic, payload, content_type, key, message_id, offset, sender)| v1::Push {
            topic,
            payload,
            content_type,
            key,
            message_id,
            offset,
            sender,
        },
    )
}

/// A topic in a message of a batch is what no server writes, so it is there less often than not.
fn batch() -> impl Strategy<Value = v1::Batch> {
    (text(), number(), number(), vec(push(), 0..5), prop::bool::weighted(0.2)).prop_map(
        |(topic, first_offset, last_offset, mut messages, has_topics)| {
            if !has_topics {
                messages.iter_mut().for_each(|message| message.topic.clear());
            }
            v1::Batch { topic, first_offset, last_offset, messages }
        },
    )
}

fn subscribe() -> impl Strategy<Value = v1::Subscribe> {
    (text(), proptest::option::of((number(), number())), any::<bool>()).prop_map(
        |(topic, position, presence)| {
            let position = position.map(|(epoch, offset)| v1::Position { epoch, offset });
            v1::Subscribe { topic, position, presence }
        },
    )
}

/// On both sides of `PING_BYTES_MAX`.
fn ping_data() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![3 => vec(any::<u8>(), 0..20), 1 => vec(any::<u8>(), 250..262)]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "\\PC{0,12}"]
}

/// Any length of varint.
fn number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64_u32).prop_map(|(value, shift)| value >> shift)
}

fn number32() -> impl Strategy<Value = u32> {
    (any::<u32>(), 0..32_u32).prop_map(|(value, shift)| value >> shift)
}
