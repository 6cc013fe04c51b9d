//! Tests of the form of lines, with any bytes in a request.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, Version};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::ids::{Ids, Wanted};
use super::super::stamp::Stamp;
use super::super::{Entry, line};
use super::{entry, no_ids};
use crate::base::config::AccessLogFormat;

fn show(format: AccessLogFormat, entry: &Entry<'_>) -> String {
    let (mut out, mut stamp) = (Vec::new(), Stamp::new());
    stamp.set(1_795_292_341_123_999);
    line::write(format, &mut out, &stamp, entry);
    assert!(out.len() <= line::bytes_max(entry), "{} bytes", out.len());
    assert!(line::bytes_max(entry) <= line::LINE_BYTES_MAX);
    String::from_utf8(out).unwrap()
}

#[test]
fn a_line_shows_the_request() {
    let mut head = HeaderMap::new();
    head.insert("x-request-id", HeaderValue::from_static("a\"b"));
    head.insert(
        "traceparent",
        HeaderValue::from_static("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    );
    let ids = Ids::of(&head, Wanted::default());
    let entry = Entry {
        took: Duration::from_millis(1500),
        version: Version::HTTP_2,
        status: 503,
        bytes: u64::MAX,
        referer: Some(b"https://a.example/x?y"),
        device: Some("shop 7"),
        ..entry("/v1/publish", &ids)
    };
    let line: Value = serde_json::from_str(&show(AccessLogFormat::Json, &entry)).unwrap();
    let expected = json!({
        "time": "2026-11-21T20:19:01.123Z", "remote": "127.0.0.1", "method": "GET",
        "path": "/v1/publish", "version": "2.0", "status": 503, "bytes": u64::MAX,
        "duration_us": 1_500_000, "host": "gate.example", "user_agent": "test",
        "referer": "https://a.example/x", "device": "shop 7", "request_id": "a\"b",
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": ids.trace().unwrap().span_id(),
    });
    assert_eq!(line, expected);
    assert_eq!(
        show(AccessLogFormat::Combined, &entry),
        "127.0.0.1 - shop\\x207 [21/Nov/2026:20:19:01 +0000] \"GET /v1/publish HTTP/2.0\" 503 \
         18446744073709551615 \"https://a.example/x\" \"test\"\n"
    );
}

#[test]
fn addresses_are_shown_as_people_write_them() {
    let ids = no_ids();
    let check = |remote: &str, shown: &str| {
        let remote = remote.parse().ok();
        let entry = Entry { remote, ..entry("/", &ids) };
        let line: Value = serde_json::from_str(&show(AccessLogFormat::Json, &entry)).unwrap();
        assert_eq!(line["remote"], shown);
        assert!(show(AccessLogFormat::Combined, &entry).starts_with(&format!("{shown} - ")));
    };
    check("192.0.2.255", "192.0.2.255");
    check("2001:db8::1", "2001:db8::1");
    check("::ffff:192.0.2.1", "192.0.2.1");
    check("", "-");
}

#[test]
fn what_stands_in_a_query_is_never_shown() {
    let ids = no_ids();
    for target in [
        "/v1/sse?topic=a&access_token=SECRET",
        "/v1/sse?token=SECRET",
        "/v1/sse?%74oken=SECRET",
        "/v1/sse?a=b#token=SECRET",
        "/v1/sse#token=SECRET",
        "/v1/sse??token=SECRET?",
    ] {
        let entry = Entry { referer: Some(target.as_bytes()), ..entry(target, &ids) };
        for format in AccessLogFormat::ALL {
            let line = show(format, &entry);
            assert!(line.contains("/v1/sse") && !line.contains("SECRET"), "{line}");
        }
    }
}

#[test]
fn long_texts_are_cut() {
    let (ids, long) = (no_ids(), "\u{1}".repeat(20_000));
    let text = Some(long.as_bytes());
    let entry = Entry {
        method: &long,
        host: text,
        user_agent: text,
        referer: text,
        device: Some(&long),
        ..entry(&long, &ids)
    };
    let line: Value = serde_json::from_str(&show(AccessLogFormat::Json, &entry)).unwrap();
    let check = |member: &str, bytes: usize| {
        let expected = "\u{1}".repeat(bytes) + "...";
        assert_eq!(line[member].as_str(), Some(expected.as_str()), "{member}");
    };
    check("method", 32);
    check("path", 2_048);
    check("host", 261);
    check("user_agent", 512);
    check("referer", 1_024);
    check("device", 1_024);
    show(AccessLogFormat::Combined, &entry);
}

/// The fields of a combined line without escapes; `None` if the line is invalid.
fn combined_fields(line: &str) -> Option<Vec<Vec<u8>>> {
    let line = line.strip_suffix('\n')?;
    let (remote, rest) = line.split_once(" - ")?;
    let (device, rest) = rest.split_once(" [")?;
    let (_, rest) = rest.split_once("] \"")?;
    let (request, rest) = quoted(rest)?;
    let (numbers, rest) = rest.strip_prefix(' ')?.split_once(" \"")?;
    let (status, bytes) = numbers.split_once(' ')?;
    let (referer, rest) = quoted(rest)?;
    let (user_agent, rest) = quoted(rest.strip_prefix(" \"")?)?;
    if !rest.is_empty() || remote.contains(' ') || device.contains(' ') {
        return None;
    }
    status.parse::<u16>().ok()?;
    bytes.parse::<u64>().ok()?;
    Some(vec![undone(device)?, request, referer, user_agent])
}

/// The text before the next unescaped quotation mark, without escapes, and the rest after it.
fn quoted(text: &str) -> Option<(Vec<u8>, &str)> {
    let mut is_escaped = false;
    let end = text.find(|c: char| {
        let is_end = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_end
    })?;
    Some((undone(&text[..end])?, &text[end + 1..]))
}

fn undone(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut out = Vec::new();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => match bytes.next()? {
                b'x' => {
                    let digits = [bytes.next()?, bytes.next()?];
                    out.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
                }
                escaped @ (b'"' | b'\\') => out.push(escaped),
                _ => return None,
            },
            b' '..=b'~' => out.push(byte),
            _ => return None,
        }
    }
    Some(out)
}

/// Bytes of a request; dangerous ones are more frequent.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let nasty = prop::sample::select(b"\"\\\r\n\0 []?#\x1b\x7f\xc3\xa9\xf0\xff".as_slice());
    prop::collection::vec(prop_oneof![any::<u8>(), nasty], 0..60)
}

proptest! {
    #[test]
    fn every_line_is_one_line_and_tells_what_came(
        method in any::<String>(),
        target in "[^?#]{0,40}",
        host in prop::option::of(bytes()),
        user_agent in bytes(),
        referer in bytes(),
        device in any::<String>(),
    ) {
        let ids = no_ids();
        let entry = Entry {
            method: &method,
            host: host.as_deref(),
            user_agent: Some(&user_agent),
            referer: Some(&referer),
            device: Some(&device),
            ..entry(&target, &ids)
        };
        prop_assume!(method.len() <= 32);
        let line = show(AccessLogFormat::Json, &entry);
        prop_assert_eq!(line.find('\n'), Some(line.len() - 1));
        prop_assert!(line.trim_end().bytes().all(|byte| (b' '..=b'~').contains(&byte)));
        let line: Value = serde_json::from_str(&line).unwrap();
        let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let before_query = referer.split(|byte| matches!(byte, b'?' | b'#')).next().unwrap();
        prop_assert_eq!(line["method"].as_str(), Some(method.as_str()));
        prop_assert_eq!(line["path"].as_str(), Some(target.as_str()));
        prop_assert_eq!(line["user_agent"].as_str().map(str::to_owned), Some(shown(&user_agent)));
        prop_assert_eq!(line["host"].as_str().map(str::to_owned), host.as_deref().map(shown));
        prop_assert_eq!(line["referer"].as_str().map(str::to_owned), Some(shown(before_query)));
        prop_assert_eq!(line["device"].as_str(), Some(device.as_str()));

        let line = show(AccessLogFormat::Combined, &entry);
        let fields = combined_fields(&line);
        let device = if device.is_empty() { "-" } else { &device };
        let request = format!("{method} {target} HTTP/1.1");
        let expected = [device.as_bytes(), request.as_bytes(), before_query, &user_agent];
        prop_assert_eq!(fields, Some(expected.map(<[u8]>::to_vec).to_vec()), "{}", line);
    }
}
