//! Streams of WebSocket frames, fragmented and cut at random, against the plain list of what was sent.

use proptest::collection::vec;
use proptest::prelude::*;
use weir_wire::ws::{self, Assembly, Control, Limits, Opcode, Step, WsError};

const LIMITS: Limits = Limits { message_bytes_max: 70_000, fragments_max: 8 };

/// What a client sends, and what the server must hear.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Event {
    Message { is_text: bool, body: Vec<u8> },
    Control { control: Control, payload: Vec<u8> },
}

/// A message, where it is cut into fragments, and a control frame that stands before some of them.
#[derive(Debug, Clone)]
struct Sent {
    is_text: bool,
    body: Vec<u8>,
    cuts: Vec<prop::sample::Index>,
    controls: Vec<Option<(Control, Vec<u8>)>>,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_sent_is_heard(
        sent in vec(sent(), 0..6),
        masks in vec(any::<[u8; 4]>(), 1..9),
        cuts in vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let (stream, expected) = encode(&sent, &masks);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.sort_unstable();
        prop_assert_eq!(received(&stream, &cuts), (expected, None));
    }

    #[test]
    fn byte_by_byte_too(sent in vec(sent(), 1..3), masks in vec(any::<[u8; 4]>(), 1..9)) {
        let (stream, expected) = encode(&sent, &masks);
        prop_assume!(stream.len() < 5_000);
        let cuts: Vec<usize> = (0..stream.len()).collect();
        prop_assert_eq!(received(&stream, &cuts), (expected, None));
    }

    /// Whatever comes behind it, what came before an error is heard, and the same error however the stream is cut.
    #[test]
    fn rubbish_is_refused_alike(
        sent in vec(sent(), 0..3),
        rubbish in vec(any::<u8>(), 0..20),
        cuts in vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let (mut stream, expected) = encode(&sent, &[[1, 2, 3, 4]]);
        stream.extend(rubbish);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.sort_unstable();
        let at_once = received(&stream, &[]);
        prop_assert_eq!(&at_once.0[..expected.len()], &expected);
        prop_assert_eq!(received(&stream, &cuts), at_once);
    }

    #[test]
    fn a_client_writes_what_a_server_reads((is_text, body) in message(), mask in any::<[u8; 4]>()) {
        let opcode = if is_text { Opcode::Text } else { Opcode::Binary };
        let mut stream = Vec::new();
        ws::encode_client_frame(opcode, &body, mask, &mut stream);
        let mut twin = Vec::new();
        put_frame(opcode, true, &body, mask, &mut twin);
        prop_assert_eq!(&stream, &twin);
        prop_assert_eq!(received(&stream, &[]), (vec![Event::Message { is_text, body }], None));
    }

    #[test]
    fn a_server_writes_what_a_client_reads((_, body) in message()) {
        let mut stream = Vec::new();
        ws::put_frame_head(Opcode::Binary, body.len(), &mut stream);
        stream.extend(&body);
        let (head, used) = ws::decode_server_frame(&stream, body.len()).unwrap().unwrap();
        prop_assert_eq!((head.opcode, head.is_final, used), (Opcode::Binary, true, stream.len()));
        prop_assert_eq!(&stream[head.payload], &body[..]);
        prop_assert_eq!(ws::decode_server_frame(&stream[..used - 1], body.len()), Ok(None));
    }
}

/// What a server hears that keeps nothing between pieces but what a message has begun with.
fn received(stream: &[u8], cuts: &[usize]) -> (Vec<Event>, Option<WsError>) {
    let (mut kept, mut input, mut events) = (None::<[u8; 16]>, Vec::new(), Vec::new());
    let ends = cuts.iter().copied().chain([stream.len()]);
    let mut start = 0;
    let mut least = 0;
    for end in ends {
        input.extend_from_slice(&stream[start..end]);
        start = end;
        let mut assembly = kept.map(Assembly::from_bytes).unwrap_or_default();
        loop {
            let before = input.clone();
            let step = match ws::next(&mut assembly, &mut input, LIMITS) {
                Ok(step) => step,
                Err(error) => return (events, Some(error)),
            };
            let is_enough = input.len() >= least;
            let used = match step {
                Step::More { needed } => {
                    assert_eq!(input, before);
                    assert!(needed > input.len());
                    assert!(needed <= LIMITS.message_bytes_max + ws::INPUT_BYTES_OVER);
                    least = needed;
                    break;
                }
                Step::Fragment { used } => used,
                Step::Control { control, payload, used } => {
                    events.push(Event::Control { control, payload: input[payload].to_vec() });
                    used
                }
                Step::Message { is_text, body, used } => {
                    events.push(Event::Message { is_text, body: input[body].to_vec() });
                    used
                }
            };
            assert!(is_enough, "less than was said to be needed");
            least = 0;
            input.drain(assembly.bytes()..used);
        }
        kept = (!assembly.is_idle()).then(|| assembly.to_bytes());
    }
    (events, None)
}

/// The stream, by hand, and what it says.
fn encode(sent: &[Sent], masks: &[[u8; 4]]) -> (Vec<u8>, Vec<Event>) {
    let mut masks = masks.iter().copied().cycle();
    let (mut stream, mut events) = (Vec::new(), Vec::new());
    for message in sent {
        let mut cuts: Vec<usize> =
            message.cuts.iter().map(|cut| cut.index(message.body.len() + 1)).collect();
        cuts.sort_unstable();
        cuts.push(message.body.len());
        let mut start = 0;
        for (index, end) in cuts.iter().copied().enumerate() {
            if let Some(Some((control, payload))) = message.controls.get(index) {
                put_frame(
                    (*control).into(),
                    true,
                    payload,
                    masks.next().expect("a cycle"),
                    &mut stream,
                );
                events.push(Event::Control { control: *control, payload: payload.clone() });
            }
            let opcode = match (index, message.is_text) {
                (0, true) => Opcode::Text,
                (0, false) => Opcode::Binary,
                (1.., _) => Opcode::Continuation,
            };
            let (part, is_final) = (&message.body[start..end], index == cuts.len() - 1);
            put_frame(opcode, is_final, part, masks.next().expect("a cycle"), &mut stream);
            start = end;
        }
        events.push(Event::Message { is_text: message.is_text, body: message.body.clone() });
    }
    (stream, events)
}

fn put_frame(opcode: Opcode, is_final: bool, payload: &[u8], mask: [u8; 4], out: &mut Vec<u8>) {
    out.push(u8::from(is_final) << 7 | opcode as u8);
    let length = (payload.len() as u64).to_be_bytes();
    match payload.len() {
        0..126 => out.push(0x80 | length[7]),
        126..65_536 => out.extend([&[0xfe], &length[6..]].concat()),
        _ => out.extend([&[0xff], &length[..]].concat()),
    }
    out.extend(mask);
    out.extend(payload.iter().enumerate().map(|(index, byte)| byte ^ mask[index % 4]));
}

fn sent() -> impl Strategy<Value = Sent> {
    let control = prop_oneof![Just(Control::Close), Just(Control::Ping), Just(Control::Pong)];
    let control = prop::option::weighted(0.3, (control, vec(any::<u8>(), 0..=125)));
    let cuts = vec(any::<prop::sample::Index>(), 0..8);
    (message(), cuts, vec(control, 8)).prop_map(|((is_text, body), cuts, controls)| Sent {
        is_text,
        body,
        cuts,
        controls,
    })
}

/// Whether it is text, and its bytes; lengths round those at which a head grows are among them.
fn message() -> impl Strategy<Value = (bool, Vec<u8>)> {
    let text = vec(any::<char>(), 0..50).prop_map(|chars| String::from_iter(chars).into_bytes());
    let body = prop_oneof![
        8 => vec(any::<u8>(), 0..40),
        2 => vec(any::<u8>(), 120..132),
        1 => (65_530..65_540_usize, any::<u8>()).prop_map(|(bytes, byte)| vec![byte; bytes]),
    ];
    prop_oneof![text.prop_map(|body| (true, body)), body.prop_map(|body| (false, body))]
}
