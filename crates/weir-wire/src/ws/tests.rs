//! The examples of RFC 6455 §5.7, and every rule by its bytes. tests/ws.rs compares long streams.

use super::*;

const LIMITS: Limits = Limits { message_bytes_max: 300, fragments_max: 3 };
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// A frame of a client, with any head.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![first];
    match payload.len() {
        0..126 => frame.push(0x80 | length[1]),
        _ => frame.extend([0x80 | 126, length[0], length[1]]),
    }
    frame.extend(MASK);
    frame.extend(payload.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    frame
}

/// Checks the first step in `input`. Every shorter cut must ask for more.
#[track_caller]
fn check(input: &[u8], expected: &Step) -> Vec<u8> {
    for end in 0..input.len() {
        let mut cut = input[..end].to_vec();
        let step = next(&mut Assembly::default(), &mut cut, LIMITS);
        let Ok(Step::More { needed }) = step else { panic!("cut at {end}: {step:?}") };
        assert!(end < needed && needed <= input.len(), "cut at {end}: {needed}");
        assert_eq!(cut, input[..end]);
    }
    let mut input = input.to_vec();
    assert_eq!(next(&mut Assembly::default(), &mut input, LIMITS).as_ref(), Ok(expected));
    input
}

/// Checks an error that appears with the last byte of `input`, and not before. The valid bytes
/// `before` come first.
#[track_caller]
fn check_error_behind(before: &[u8], input: &[u8], expected: WsError, code: u16) {
    let error_of = |input: &[u8]| {
        let (mut assembly, mut input) = (Assembly::default(), [before, input].concat());
        loop {
            let used = match next(&mut assembly, &mut input, LIMITS) {
                Ok(Step::More { .. }) => return None,
                Ok(
                    Step::Fragment { used }
                    | Step::Control { used, .. }
                    | Step::Message { used, .. },
                ) => used,
                Err(error) => return Some(error),
            };
            input.drain(assembly.bytes()..used);
        }
    };
    assert_eq!(error_of(&input[..input.len() - 1]), None);
    assert_eq!(error_of(input), Some(expected));
    assert_eq!(expected.close_code(), code);
}

#[track_caller]
fn check_error(input: &[u8], expected: WsError) {
    check_error_behind(&[], input, expected, 1002);
}

#[test]
fn a_masked_text_of_one_frame() {
    let input = [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
    let after = check(&input, &Step::Message { is_text: true, body: 6..11, used: 11 });
    assert_eq!(&after[6..], b"Hello");
    let mut out = Vec::new();
    encode_client_frame(Opcode::Text, b"Hello", MASK, &mut out);
    assert_eq!(out, input);
}

#[test]
fn a_masked_pong() {
    let input = [0x8a, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
    let step = Step::Control { control: Control::Pong, payload: 6..11, used: 11 };
    assert_eq!(&check(&input, &step)[6..], b"Hello");
}

/// The examples without a mask are frames of a server.
#[test]
fn frames_of_a_server() {
    let head = |opcode, payload: &[u8]| {
        let mut out = Vec::new();
        put_frame_head(opcode, payload.len(), &mut out);
        out.extend(payload);
        out
    };
    let mut large = vec![0x82, 0x7e, 0x01, 0x00];
    large.resize(4 + 256, 7);
    let mut larger = vec![0x82, 0x7f, 0, 0, 0, 0, 0, 0x01, 0, 0];
    larger.resize(10 + 65_536, 7);
    for (frame, opcode) in [
        (&[0x81, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f][..], Opcode::Text),
        (&[0x89, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f], Opcode::Ping),
        (&large, Opcode::Binary),
        (&larger, Opcode::Binary),
    ] {
        let (read, used) = decode_server_frame(frame, 65_536).unwrap().unwrap();
        assert_eq!((read.opcode, read.is_final, used), (opcode, true, frame.len()));
        assert_eq!(head(opcode, &frame[read.payload]), frame);
        for end in (0..frame.len()).take(20).chain(frame.len() - 1..frame.len()) {
            assert_eq!(decode_server_frame(&frame[..end], 65_536), Ok(None));
        }
    }
    let part = decode_server_frame(&[0x01, 0x03, 0x48, 0x65, 0x6c], 3).unwrap().unwrap();
    assert_eq!(part, (ServerHead { opcode: Opcode::Text, is_final: false, payload: 2..5 }, 5));
    let part = decode_server_frame(&[0x80, 0x02, 0x6c, 0x6f, 0x00], 3).unwrap().unwrap();
    assert_eq!(
        part,
        (ServerHead { opcode: Opcode::Continuation, is_final: true, payload: 2..4 }, 4)
    );
}

#[test]
fn what_a_server_must_not_send() {
    assert_eq!(decode_server_frame(&[0x81, 0x85], 300), Err(WsError::Masked));
    assert_eq!(decode_server_frame(&[0xc1], 300), Err(WsError::ReservedBit));
    let too_large = WsError::MessageTooLarge { bytes: 301, limit: 300 };
    assert_eq!(decode_server_frame(&[0x82, 0x7e, 0x01, 0x2d], 300), Err(too_large));
}

#[test]
fn a_message_in_parts_with_a_ping_between() {
    let parts = [frame(0x01, b"Hel"), frame(0x89, b"?"), frame(0x00, b""), frame(0x80, b"lo!")];
    let mut input = parts.concat();
    let mut assembly = Assembly::default();
    let mut step = |expected: Step, used: usize, gathered: &[u8]| -> Vec<u8> {
        // The form in which it lies in front of received bytes.
        assembly = Assembly::from_bytes(assembly.to_bytes());
        assert_eq!(next(&mut assembly, &mut input, LIMITS), Ok(expected));
        let seen = input.clone();
        input.drain(assembly.bytes()..used);
        assert_eq!(input[..assembly.bytes()], *gathered);
        assert_eq!(assembly.is_idle(), gathered.is_empty());
        seen
    };
    step(Step::Fragment { used: 9 }, 9, b"Hel");
    let control = Step::Control { control: Control::Ping, payload: 9..10, used: 10 };
    assert_eq!(step(control, 10, b"Hel")[9], b'?');
    step(Step::Fragment { used: 9 }, 9, b"Hel");
    let message = Step::Message { is_text: true, body: 0..6, used: 12 };
    assert_eq!(step(message, 12, b"")[..6], *b"Hello!");
    assert_eq!(input, b"");
    assert_eq!(assembly, Assembly::default());
}

#[test]
fn a_message_may_be_as_long_and_in_as_many_parts_as_the_limits_say() {
    let whole = frame(0x82, &[7; 300]);
    let after = check(&whole, &Step::Message { is_text: false, body: 8..308, used: 308 });
    assert_eq!(after[8..], [7; 300]);
    check(&frame(0x82, b""), &Step::Message { is_text: false, body: 6..6, used: 6 });
    check(
        &frame(0x88, &[7; 125]),
        &Step::Control { control: Control::Close, payload: 6..131, used: 131 },
    );
    // A message in one frame has no fragments.
    let none = Limits { fragments_max: 0, ..LIMITS };
    let step = next(&mut Assembly::default(), &mut frame(0x82, b"hi"), none);
    assert_eq!(step, Ok(Step::Message { is_text: false, body: 6..8, used: 8 }));
    let error = next(&mut Assembly::default(), &mut frame(0x02, b"hi"), none);
    assert_eq!(error, Err(WsError::TooManyFragments { limit: 0 }));
}

#[test]
fn heads_that_must_not_be() {
    check_error(&[0x81, 0x00], WsError::Unmasked);
    check_error(&[0x89, 0x00], WsError::Unmasked);
    for bit in [0x40, 0x20, 0x10] {
        check_error(&[0x81 | bit], WsError::ReservedBit);
    }
    for opcode in [3, 4, 5, 6, 7, 11, 12, 13, 14, 15] {
        check_error(&[0x80 | opcode], WsError::ReservedOpcode(opcode));
    }
    for opcode in [8, 9, 10] {
        check_error(&[opcode], WsError::ControlFragmented);
        check_error(&[0x80 | opcode, 0x80 | 126], WsError::ControlTooLong);
        check_error(&[0x80 | opcode, 0x80 | 127], WsError::ControlTooLong);
    }
}

#[test]
fn a_length_has_one_form() {
    check_error(&[0x82, 0xfe, 0, 125], WsError::LengthMalformed);
    check_error(&[0x82, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff], WsError::LengthMalformed);
    check_error(&[0x82, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0], WsError::LengthMalformed);
}

#[test]
fn parts_must_follow_each_other() {
    check_error(&[0x80, 0x80], WsError::NothingToContinue);
    check_error(&[0x00, 0x80], WsError::NothingToContinue);
    for first in [0x81, 0x82, 0x01, 0x02] {
        for before in [frame(0x01, b"a"), frame(0x02, b"")] {
            check_error_behind(&before, &[first, 0x80], WsError::MessageNotEnded, 1002);
        }
    }
    let whole = [frame(0x01, b"a"), frame(0x80, b"b")].concat();
    check_error_behind(&whole, &[0x80, 0x80], WsError::NothingToContinue, 1002);
}

#[test]
fn a_message_over_the_limits_is_refused_when_its_head_is_there() {
    let too_large = |bytes| WsError::MessageTooLarge { bytes, limit: 300 };
    check_error_behind(&[], &[0x82, 0xfe, 0x01, 0x2d], too_large(301), 1009);
    let longest = [0x82, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
    check_error_behind(&[], &longest, too_large(u64::MAX / 2), 1009);
    let before = [frame(0x02, &[7; 200]), frame(0x89, b"?"), frame(0x00, &[7; 90])].concat();
    check_error_behind(&before, &[0x80, 0x80 | 11], too_large(301), 1009);
    check_error_behind(&before, &[0x00, 0x80 | 11], too_large(301), 1009);
    let longest = [&[0x80], &longest[1..]].concat();
    check_error_behind(&before, &longest, too_large(u64::MAX / 2 + 290), 1009);

    let three = [frame(0x02, b""), frame(0x00, b""), frame(0x00, b"")].concat();
    let too_many = WsError::TooManyFragments { limit: 3 };
    check_error_behind(&three, &[0x80, 0x80], too_many, 1009);
    check_error_behind(&three, &[0x00, 0x80], too_many, 1009);
}

#[test]
fn text_is_utf8_as_a_whole() {
    let snowman = "☃".as_bytes();
    let whole = [frame(0x01, &snowman[..1]), frame(0x80, &snowman[1..])].concat();
    check_error_behind(&whole, &frame(0x81, &[0xff]), WsError::NotUtf8, 1007);
    let cut = frame(0x01, &snowman[..2]);
    check_error_behind(&cut, &frame(0x80, b"a"), WsError::NotUtf8, 1007);
    let binary = frame(0x82, &[0xff]);
    check(&binary, &Step::Message { is_text: false, body: 6..7, used: 7 });
}

#[test]
fn masks_of_every_length_come_off() {
    for bytes in 0..40 {
        let plain: Vec<u8> = (0..bytes).collect();
        let mut masked = plain.clone();
        unmask(&mut masked, MASK);
        let twin: Vec<u8> = plain.iter().zip(MASK.iter().cycle()).map(|(a, b)| a ^ b).collect();
        assert_eq!(masked, twin);
        unmask(&mut masked, MASK);
        assert_eq!(masked, plain);
    }
}

#[test]
fn close_codes_are_those_that_may_be_sent() {
    let with = |code: u16, reason: &[u8]| [&code.to_be_bytes()[..], reason].concat();
    assert_eq!(close_code(&[]), Ok(None));
    assert_eq!(close_code(&[3]), Err(WsError::CloseMalformed));
    for code in 0..=u16::MAX {
        // RFC 6455 §7.4, and what IANA has registered since.
        let may_be_sent = match code {
            1004..=1006 | 1015 => false,
            1000..=1014 | 3000..=4999 => true,
            _ => false,
        };
        let expected = if may_be_sent { Ok(Some(code)) } else { Err(WsError::CloseMalformed) };
        assert_eq!(close_code(&with(code, b"")), expected);
    }
    assert_eq!(close_code(&with(1000, "schüß".as_bytes())), Ok(Some(1000)));
    assert_eq!(close_code(&with(1000, &[0xc3])), Err(WsError::NotUtf8));
    assert_eq!(close_code(&with(999, &[0xc3])), Err(WsError::CloseMalformed));
    assert_eq!(WsError::CloseMalformed.close_code(), 1002);
}
