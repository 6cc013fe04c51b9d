//! The client of HTTP/2 against frames written by hand.

use super::*;
use crate::activations::Activations;
use crate::protocol::{HttpEnd, HttpPlan, HttpStyle, Posts};

fn frame(kind: u8, flags: u8, id: u32, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame_head(content.len(), kind, flags, id, &mut out);
    out.extend_from_slice(content);
    out
}

/// A client whose server has sent these settings.
fn ready(depth: u32, settings: &[u8]) -> Http2 {
    let mut http2 = Http2::new("/rest/hello", "127.0.0.1:80", false, depth);
    let mut out = Vec::new();
    assert_eq!(
        http2.ask(1, u32::MAX, &mut getting(), &mut out),
        0,
        "nothing is asked before the settings"
    );
    http2.next(&frame(SETTINGS, 0, 0, settings), &mut out).unwrap();
    assert_eq!(out, frame(SETTINGS, ACK, 0, &[]));
    http2
}

fn getting() -> Asker {
    Asker::new(&plan(None), "127.0.0.1:80")
}

fn plan(activations: Option<Activations>) -> HttpPlan {
    HttpPlan {
        addr: ([127, 0, 0, 1], 80).into(),
        source: 98,
        path: "/rest/hello".to_owned(),
        style: HttpStyle::Http2,
        connections: 1,
        depth: 1,
        tls: None,
        warm_up_ms: 0,
        until: HttpEnd::Answers(1),
        pid: None,
        helpers: Vec::new(),
        posts: activations.map(Posts::Activations),
    }
}

fn take(http2: &mut Http2, bytes: &[u8]) -> Result<(bool, usize), Fault> {
    let mut used = 0;
    let mut answered = false;
    while let Some((brought, length)) = http2.next(&bytes[used..], &mut Vec::new())? {
        answered |= matches!(brought, Brought::Answer { last: b"hi", whole: true, .. });
        used += length;
    }
    Ok((answered, used))
}

fn answer(id: u32) -> Vec<u8> {
    [frame(HEADERS, END_HEADERS, id, &[0x88]), frame(DATA, END_STREAM, id, b"hi")].concat()
}

#[test]
fn the_first_request_is_spelt_out_and_the_next_are_looked_up() {
    let mut http2 = ready(2, &[]);
    let mut out = Vec::new();
    assert_eq!(http2.ask(1, u32::MAX, &mut getting(), &mut out), 2);
    let spelt = [&b"\x82\x86\x44\x0b/rest/hello\x41\x0c127.0.0.1:80"[..]].concat();
    let looked_up = [0x82, 0x86, 0x80 | 63, 0x80 | 62];
    let flags = END_STREAM | END_HEADERS;
    assert_eq!(
        out,
        [frame(HEADERS, flags, 1, &spelt), frame(HEADERS, flags, 3, &looked_up)].concat()
    );
}

#[test]
fn a_server_with_a_small_table_is_told_that_there_is_none() {
    let mut http2 = ready(2, &[0, 1, 0, 0, 0, 64]);
    let mut out = Vec::new();
    http2.ask(1, u32::MAX, &mut getting(), &mut out);
    let spelt = &b"\x82\x86\x04\x0b/rest/hello\x01\x0c127.0.0.1:80"[..];
    let flags = END_STREAM | END_HEADERS;
    let first = [&[TABLE_SIZE_0], spelt].concat();
    assert_eq!(out, [frame(HEADERS, flags, 1, &first), frame(HEADERS, flags, 3, spelt)].concat());
}

#[test]
fn an_answer_is_whole_at_its_last_byte() {
    let answer = answer(1);
    for end in 0..=answer.len() {
        let mut http2 = ready(1, &[]);
        http2.ask(1, 1, &mut getting(), &mut Vec::new());
        let (answered, used) = take(&mut http2, &answer[..end]).unwrap();
        assert_eq!(answered, end == answer.len(), "{end}");
        assert!(used <= end);
    }
}

#[test]
fn no_more_streams_than_the_server_takes() {
    let mut http2 = ready(32, &[0, 3, 0, 0, 0, 2]);
    let mut out = Vec::new();
    assert_eq!(http2.ask(1, u32::MAX, &mut getting(), &mut out), 2);
    assert_eq!(http2.ask(1, u32::MAX, &mut getting(), &mut out), 0);
    assert!(take(&mut http2, &answer(1)).unwrap().0);
    assert_eq!(http2.ask(2, u32::MAX, &mut getting(), &mut out), 1);
}

#[test]
fn a_goodbye_ends_the_connection_once_what_it_takes_is_answered() {
    let mut http2 = ready(3, &[]);
    http2.ask(1, u32::MAX, &mut getting(), &mut Vec::new());
    take(&mut http2, &frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0])).unwrap();
    assert!(!http2.is_over());
    assert_eq!(http2.ask(1, u32::MAX, &mut getting(), &mut Vec::new()), 0);
    assert!(take(&mut http2, &answer(1)).unwrap().0);
    assert!(http2.is_over());
}

#[test]
fn pings_are_answered_and_what_is_no_good_answer_is_told() {
    let mut out = Vec::new();
    let mut http2 = ready(1, &[]);
    http2.next(&frame(PING, 0, 0, b"12345678"), &mut out).unwrap();
    assert_eq!(out, frame(PING, ACK, 0, b"12345678"));
    let fault = |bytes: &[u8]| {
        let mut http2 = ready(1, &[]);
        http2.ask(1, 1, &mut getting(), &mut Vec::new());
        take(&mut http2, bytes).unwrap_err().kind()
    };
    assert_eq!(fault(&frame(HEADERS, END_HEADERS, 1, b"\x08\x03100")), "malformed");
    assert_eq!(fault(&frame(HEADERS, END_HEADERS, 1, b"\x08\x83\xff\xff\xff")), "malformed");
    assert_eq!(fault(&frame(HEADERS, END_HEADERS, 9, &[0x88])), "malformed");
    assert_eq!(fault(&frame(DATA, END_STREAM, 1, b"hi")), "malformed");
    assert_eq!(fault(&frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])), "reset_stream_8");
    assert_eq!(fault(&frame(GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 11])), "goaway_11");
    assert_eq!(fault(&frame(DATA, 0, 1, &[0; 20_000])), "malformed");
}

#[test]
fn padding_and_priority_are_taken_off() {
    let mut http2 = ready(1, &[]);
    http2.ask(1, 1, &mut getting(), &mut Vec::new());
    let head = [2, 0, 0, 0, 0, 16, 0x88, 0, 0];
    let head = frame(HEADERS, END_HEADERS | PADDED | PRIORITISED, 1, &head);
    let content = frame(DATA, END_STREAM | PADDED, 1, b"\x01hi\x00");
    assert!(take(&mut http2, &[head, content].concat()).unwrap().0);
    let mut http2 = ready(1, &[]);
    http2.ask(1, 1, &mut getting(), &mut Vec::new());
    assert!(take(&mut http2, &frame(HEADERS, END_HEADERS | PADDED, 1, &[9, 0x88])).is_err());
}

#[test]
fn a_status_is_understood_however_it_is_spelt() {
    for (block, expected) in [
        (&[0x8d][..], 404),
        (b"\x20\x08\x03503", 503),
        (b"\x48\x82\x64\x02", 302),
        (b"\x08\x82\x68\x01", 401),
        (b"\x08\x83\x69\xf7\xff", 499),
    ] {
        let mut http2 = ready(1, &[]);
        http2.ask(1, 1, &mut getting(), &mut Vec::new());
        let head = frame(HEADERS, END_HEADERS | END_STREAM, 1, block);
        let (brought, _) = http2.next(&head, &mut Vec::new()).unwrap().unwrap();
        let Brought::Answer { status, whole: true, .. } = brought else { panic!("{brought:?}") };
        assert_eq!(status, expected);
    }
}

#[test]
fn what_is_posted_follows_its_head() {
    let activations = Activations { devices: 2, misses: 0.5, first: 0 };
    let mut asker = Asker::new(&plan(Some(activations.clone())), "127.0.0.1:80");
    let mut http2 = ready(2, &[]);
    let mut out = Vec::new();
    assert_eq!(http2.ask(1, u32::MAX, &mut asker, &mut out), 2);
    let mut expected = Vec::new();
    for (id, head) in [
        (1, &b"\x83\x86\x44\x0b/rest/hello\x41\x0c127.0.0.1:80"[..]),
        (3, &[0x83, 0x86, 0x80 | 63, 0x80 | 62]),
    ] {
        let mut content = b"{".to_vec();
        assert_eq!(activations.write(id / 2, &mut content), id == 1);
        content.push(b'}');
        let id = u32::try_from(id).unwrap();
        expected.extend(frame(HEADERS, END_HEADERS, id, head));
        expected.extend(frame(DATA, END_STREAM, id, &content));
    }
    assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(&expected));
    for (id, expected) in [(3, false), (1, true)] {
        let head = frame(HEADERS, END_HEADERS | END_STREAM, id, &[0x88]);
        let (brought, _) = http2.next(&head, &mut Vec::new()).unwrap().unwrap();
        assert!(matches!(brought, Brought::Answer { is_hit, .. } if is_hit == expected));
    }
}
