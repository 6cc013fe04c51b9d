//! The client of HTTP/2 against frames written by hand.

use super::*;

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
    assert_eq!(http2.ask(1, u32::MAX, &mut out), 0, "nothing is asked before the settings");
    http2.next(&frame(SETTINGS, 0, 0, settings), &mut out).unwrap();
    assert_eq!(out, frame(SETTINGS, ACK, 0, &[]));
    http2
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
    assert_eq!(http2.ask(1, u32::MAX, &mut out), 2);
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
    http2.ask(1, u32::MAX, &mut out);
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
        http2.ask(1, 1, &mut Vec::new());
        let (answered, used) = take(&mut http2, &answer[..end]).unwrap();
        assert_eq!(answered, end == answer.len(), "{end}");
        assert!(used <= end);
    }
}

#[test]
fn no_more_streams_than_the_server_takes() {
    let mut http2 = ready(32, &[0, 3, 0, 0, 0, 2]);
    let mut out = Vec::new();
    assert_eq!(http2.ask(1, u32::MAX, &mut out), 2);
    assert_eq!(http2.ask(1, u32::MAX, &mut out), 0);
    assert!(take(&mut http2, &answer(1)).unwrap().0);
    assert_eq!(http2.ask(2, u32::MAX, &mut out), 1);
}

#[test]
fn a_goodbye_ends_the_connection_once_what_it_takes_is_answered() {
    let mut http2 = ready(3, &[]);
    http2.ask(1, u32::MAX, &mut Vec::new());
    take(&mut http2, &frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0])).unwrap();
    assert!(!http2.is_over());
    assert_eq!(http2.ask(1, u32::MAX, &mut Vec::new()), 0);
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
        http2.ask(1, 1, &mut Vec::new());
        take(&mut http2, bytes).unwrap_err().kind()
    };
    assert_eq!(fault(&frame(HEADERS, END_HEADERS, 1, &[0x8d])), "status_404");
    assert_eq!(fault(&frame(HEADERS, END_HEADERS, 1, b"\x20\x08\x03503")), "status_503");
    assert_eq!(fault(&frame(HEADERS, END_HEADERS, 9, &[0x88])), "malformed");
    assert_eq!(fault(&frame(DATA, END_STREAM, 1, b"hi")), "malformed");
    assert_eq!(fault(&frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])), "reset_stream_8");
    assert_eq!(fault(&frame(GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 11])), "goaway_11");
    assert_eq!(fault(&frame(DATA, 0, 1, &[0; 20_000])), "malformed");
}

#[test]
fn padding_and_priority_are_taken_off() {
    let mut http2 = ready(1, &[]);
    http2.ask(1, 1, &mut Vec::new());
    let head = [2, 0, 0, 0, 0, 16, 0x88, 0, 0];
    let head = frame(HEADERS, END_HEADERS | PADDED | PRIORITISED, 1, &head);
    let content = frame(DATA, END_STREAM | PADDED, 1, b"\x01hi\x00");
    assert!(take(&mut http2, &[head, content].concat()).unwrap().0);
    let mut http2 = ready(1, &[]);
    http2.ask(1, 1, &mut Vec::new());
    assert!(take(&mut http2, &frame(HEADERS, END_HEADERS | PADDED, 1, &[9, 0x88])).is_err());
}
