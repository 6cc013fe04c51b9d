//! Datagrams read and written, well-formed and not.

use std::borrow::Cow;

use super::*;
use crate::ProstMessage;
use crate::v1::datagram_request::Kind;

fn call<'a>(form: Form, token: &'a str, count: u64, id: Id<'a>) -> Datagram<'a> {
    Datagram { form, id, request: Request::Call { token: Cow::Borrowed(token), count } }
}

fn text(id: &str) -> Id<'_> {
    Id::Text(Cow::Borrowed(id))
}

#[test]
fn a_call_is_read_however_it_is_written() {
    for (json, id, is_short) in [
        (r#"{"pt":"abc","count":7}"#, Id::None, true),
        (r#"{ "count" : 7 , "pt" : "abc" }  "#, Id::None, true),
        (r#"{"id":"x-1","pt":"abc","count":7}"#, text("x-1"), true),
        (r#"{"pt":"abc","count":7,"id":18446744073709551615}"#, Id::Number(u64::MAX), true),
        (r#"{"pt":"\u0061bc","count":7}"#, Id::None, false),
        (r#"{"pt":"abc","count":7,"more":[{"a":"}"}]}"#, Id::None, false),
        (r#"{"pt":"abc","count":7,"id":"é"}"#, text("é"), false),
        (r#"{"pt":"abc","count":7,"id":null,"devSn":null}"#, Id::None, false),
    ] {
        let expected = call(Form::Json, "abc", 7, id);
        assert_eq!(decode(json.as_bytes()), Ok(expected.clone()), "{json}");
        assert_eq!(call::decode(json.as_bytes()).is_some(), is_short, "{json}");
        assert_eq!(decode_by_library(json.as_bytes()), Ok(expected), "{json}");
    }
}

#[test]
fn an_activation_and_a_publish_are_read() {
    let datagram = decode(br#"{"devSn":"add","devKey":"abc"}"#).unwrap();
    let request = Request::Activate { serial: "add".to_owned(), key: "abc".to_owned() };
    assert_eq!(datagram, Datagram { form: Form::Json, id: Id::None, request });
    let publish = r#"{"pt":"t","publish":{"topic":"a","data":"AAE=","contentType":"x/y"},"id":1}"#;
    let datagram = decode(publish.as_bytes()).unwrap();
    let publish = v1::Publish {
        topic: "a".to_owned(),
        payload: Some(v1::publish::Payload::Data(vec![0, 1])),
        content_type: "x/y".to_owned(),
        ..v1::Publish::default()
    };
    let request = Request::Publish { token: "t".to_owned(), publish };
    assert_eq!(datagram, Datagram { form: Form::Json, id: Id::Number(1), request });
}

#[test]
fn both_forms_say_the_same() {
    let publish = v1::Publish {
        topic: "a".to_owned(),
        payload: Some(v1::publish::Payload::Text(String::new())),
        ..v1::Publish::default()
    };
    let activate = v1::Activate { serial: "s".to_owned(), key: "k".to_owned() };
    for (token, kind, json) in [
        ("t", Kind::Count(0), r#"{"id":5,"pt":"t","count":0}"#),
        ("", Kind::Activate(activate), r#"{"id":5,"devSn":"s","devKey":"k"}"#),
        ("t", Kind::Publish(publish), r#"{"id":5,"pt":"t","publish":{"topic":"a","text":""}}"#),
    ] {
        let message = v1::DatagramRequest { id: 5, token: token.to_owned(), kind: Some(kind) };
        let bytes = message.encode_to_vec();
        let read = decode(&bytes).unwrap();
        assert_eq!(read.form, Form::Protobuf);
        assert_eq!(Datagram { form: Form::Json, ..read }, decode(json.as_bytes()).unwrap());
    }
}

#[test]
fn no_protobuf_request_begins_like_json() {
    let descriptor = include_str!("../../proto/weir/v1.proto");
    let request = descriptor.split("message DatagramRequest {").nth(1).unwrap();
    let request = request.split("\n}").next().unwrap();
    for line in request.lines().filter(|line| line.contains(" = ")) {
        let number: u32 = line.rsplit(" = ").next().unwrap().trim_end_matches(';').parse().unwrap();
        for wire_type in 0..8 {
            assert_ne!(number << 3 | wire_type, u32::from(b'{'), "{line}");
        }
    }
}

#[test]
fn what_is_wrong_is_named() {
    let long = |bytes: usize| "x".repeat(bytes);
    for (json, field, says) in [
        (r#"{"pt":"a","count":1"#.to_owned(), Field::Datagram, "EOF"),
        (r#"{"pt":"a"}"#.to_owned(), Field::Count, "is missing"),
        (r#"{"pt":null}"#.to_owned(), Field::Datagram, "asks for nothing"),
        (r#"{"count":1}"#.to_owned(), Field::Token, "is missing or empty"),
        (r#"{"pt":5,"count":1}"#.to_owned(), Field::Token, "expected a string"),
        (r#"{"pt":"a","count":-1}"#.to_owned(), Field::Count, "invalid value"),
        (r#"{"pt":"a","count":1.5}"#.to_owned(), Field::Count, "invalid type"),
        (r#"{"pt":"a","count":18446744073709551616}"#.to_owned(), Field::Count, "invalid"),
        (r#"{"pt":"a","pt":"a","count":1}"#.to_owned(), Field::Datagram, "duplicate field `pt`"),
        (r#"{"pt":"a","count":1,"id":""}"#.to_owned(), Field::Id, "1 to 64 bytes"),
        (r#"{"pt":"a","count":1,"id":[]}"#.to_owned(), Field::Id, "1 to 64 bytes"),
        (format!(r#"{{"pt":"a","count":1,"id":"{}"}}"#, long(65)), Field::Id, "1 to 64 bytes"),
        (format!(r#"{{"pt":"{}","count":1}}"#, long(4097)), Field::Token, "limit of 4096"),
        (r#"{"devSn":"a"}"#.to_owned(), Field::Key, "is missing or empty"),
        (r#"{"devKey":"a"}"#.to_owned(), Field::Serial, "is missing or empty"),
        (r#"{"devSn":"a\u0000b","devKey":"a"}"#.to_owned(), Field::Serial, "U+0000"),
        (format!(r#"{{"devSn":"{}","devKey":"a"}}"#, long(129)), Field::Serial, "limit of 128"),
        (format!(r#"{{"devSn":"a","devKey":"{}"}}"#, long(257)), Field::Key, "limit of 256"),
        (r#"{"devSn":"a","devKey":"b","pt":"c"}"#.to_owned(), Field::Token, "does not go"),
        (r#"{"devSn":"a","devKey":"b","count":1}"#.to_owned(), Field::Count, "one thing"),
        (r#"{"pt":"a","publish":{"topic":"a"}}"#.to_owned(), Field::Publish, "neither text"),
        (r#"{"pt":"a","publish":{"text":"a"}}"#.to_owned(), Field::Publish, "is missing"),
        (r#"{"pt":"a","publish":{"topic":5}}"#.to_owned(), Field::Publish, "expected a string"),
        (format!(r#"{{"pt":"a","b":{}"#, "[".repeat(500)), Field::Datagram, "8 levels"),
    ] {
        let malformed = malformed(json.as_bytes());
        assert_eq!((malformed.form, malformed.field), (Form::Json, field), "{json}: {malformed}");
        assert!(malformed.to_string().contains(says), "{json}: {malformed}");
        assert!(malformed.reason.len() < 300);
    }
    let half = malformed(br#"{"id":"x","pt":"a","publish":{"topic":"a"}}"#);
    assert_eq!(half.id, text("x"), "what could be read of the id is told");
    let not_utf8 = malformed(&[0x12, 1, 0xff, 0x18, 1]);
    assert_eq!((not_utf8.form, not_utf8.field), (Form::Protobuf, Field::Token));
    let NoRequest::Malformed(long) = too_long(br#"{"pt":"aaa"#, 9) else { panic!("a request") };
    assert_eq!(
        (long.field, &*long.reason),
        (Field::Datagram, "longer than the limit of 9 bytes (udp.datagram_bytes_max)")
    );
}

fn malformed(datagram: &[u8]) -> Malformed {
    match decode(datagram) {
        Err(NoRequest::Malformed(malformed)) => malformed,
        other => panic!("{:?}: {other:?}", String::from_utf8_lossy(datagram)),
    }
}

/// Replies of other services, or parts of datagrams, are not answered.
#[test]
fn what_has_no_field_of_a_request_is_foreign() {
    let foreign: [&[u8]; 11] = [
        b"",
        b"{",
        b"{}",
        br#"{"id":7}"#,
        br#"{"jsonrpc":"2.0","result":{"pt":"t","count":1},"id":7}"#,
        br#"{"status":"pt","count":[{"count":1}"#.split_at(14).0,
        br#"{"pt"#,
        b"[1,2]",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        &[0xff; 40],
        // A number alone.
        &[8, 5],
    ];
    for datagram in foreign {
        let shown = String::from_utf8_lossy(datagram);
        assert_eq!(decode(datagram), Err(NoRequest::Foreign), "{shown}");
        assert_eq!(too_long(datagram, 9), NoRequest::Foreign, "{shown}");
    }
}

/// Answers of each kind as they leave, in both encodings, with each kind of id, and cut to each
/// length.
fn answers() -> Vec<Vec<u8>> {
    let gateways = ["a:1".to_owned(), "b:2".to_owned()];
    let published = v1::Published { message_id: 7, offset: 8, ..v1::Published::default() };
    let nothing = v1::Published::default();
    let refused = |field, message, retry_after_ms| {
        Answer::Refused(Refused { code: "malformed", field, message, retry_after_ms })
    };
    let kinds = [
        Answer::Call { token: "t", count: 0 },
        Answer::Call { token: "a \"token\" with\ttabs", count: u64::MAX },
        Answer::Activated { token: "t", expires_at_ms: 5, gateways: &gateways },
        Answer::Activated { token: "t", expires_at_ms: 0, gateways: &[] },
        Answer::Published(&published),
        Answer::Published(&nothing),
        refused("pt", "is \"missing\"", 0),
        refused("", "", 9),
        refused("", "", 0),
    ];
    let long = "i".repeat(ID_BYTES_MAX);
    let ids = [Id::None, Id::Number(0), Id::Number(u64::MAX), text("x"), text(&long)];
    let mut all = Vec::new();
    for answer in kinds {
        for id in &ids {
            for form in [Form::Json, Form::Protobuf] {
                for bytes_max in 0..300 {
                    let mut out = Vec::new();
                    if answer.encode(form, id, bytes_max, &mut out) && !all.contains(&out) {
                        all.push(out);
                    }
                }
            }
        }
    }
    all
}

#[test]
fn no_answer_is_a_request_or_is_answered() {
    let answers = answers();
    assert!(answers.len() > 80, "{}", answers.len());
    for answer in &answers {
        let shown = String::from_utf8_lossy(answer);
        assert_eq!(decode(answer), Err(NoRequest::Answer), "{shown}");
        assert_eq!(decode_by_library(answer), Err(NoRequest::Answer), "{shown}");
        // Also with only a part of the datagram.
        for end in 0..answer.len() {
            let part = &answer[..end];
            assert!(matches!(decode(part), Err(NoRequest::Answer | NoRequest::Foreign)), "{shown}");
            let long = too_long(part, end);
            assert!(matches!(long, NoRequest::Answer | NoRequest::Foreign), "{shown}");
        }
    }
}

/// Gateways of earlier versions do not mark their answers.
#[test]
fn answers_without_a_mark_are_known_by_their_other_fields() {
    let error = v1::DatagramError { code: "busy".to_owned(), ..v1::DatagramError::default() };
    let activated = v1::DatagramAnswer {
        token: "t".to_owned(),
        expires_at_ms: 5,
        ..v1::DatagramAnswer::default()
    };
    let refused = v1::DatagramAnswer { error: Some(error), ..v1::DatagramAnswer::default() };
    let published = v1::DatagramAnswer {
        id: 4,
        published: Some(v1::Published::default()),
        ..v1::DatagramAnswer::default()
    };
    let json: [&[u8]; 5] = [
        br#"{"pt":"t","expiresAt":5,"gateways":["a:1"],"id":1}"#,
        br#"{"published":{"messageId":"1","offset":"9","connections":2},"id":1}"#,
        br#"{"error":"malformed","field":"pt","message":"is missing"}"#,
        br#"{"error":"busy","retryAfterMs":9"#,
        br#"{ "pt" : "t" , "count" : 1, "answer" : false }"#,
    ];
    let protobuf = [activated, refused, published].map(|answer| answer.encode_to_vec());
    for answer in json.into_iter().chain(protobuf.iter().map(Vec::as_slice)) {
        assert_eq!(decode(answer), Err(NoRequest::Answer), "{}", String::from_utf8_lossy(answer));
    }
}

/// A value may contain any text.
#[test]
fn a_request_may_speak_of_answers() {
    let publish = r#"{"pt":"t","publish":{"topic":"a","text":"{\"error\":1}"},"x":{"answer":"error"},"y":["error"]}"#;
    assert!(matches!(
        decode(publish.as_bytes()),
        Ok(Datagram { request: Request::Publish { .. }, .. })
    ));
    let text = r#"{"pt":"answer","count":1,"id":"error"}"#;
    assert_eq!(
        decode(text.as_bytes()),
        Ok(call(Form::Json, "answer", 1, Id::Text("error".into())))
    );
}

fn check(answer: Answer<'_>, id: Id<'_>, bytes_max: usize, json: Option<&str>) {
    let mut out = b"before".to_vec();
    assert_eq!(answer.encode(Form::Json, &id, bytes_max, &mut out), json.is_some());
    assert_eq!(out, format!("before{}", json.unwrap_or_default()).as_bytes());
}

#[test]
fn an_answer_is_cut_to_what_it_may_be() {
    let gateways = ["a:1".to_owned(), "b:2".to_owned()];
    let answer = Answer::Activated { token: "t", expires_at_ms: 5, gateways: &gateways };
    let whole = r#"{"answer":true,"pt":"t","expiresAt":5,"gateways":["a:1","b:2"],"id":1}"#;
    check(answer, Id::Number(1), 100, Some(whole));
    check(answer, Id::Number(1), whole.len(), Some(whole));
    let shorter = r#"{"answer":true,"pt":"t","expiresAt":5,"id":1}"#;
    check(answer, Id::Number(1), whole.len() - 1, Some(shorter));
    check(answer, Id::Number(1), shorter.len() - 1, Some(r#"{"answer":true,"pt":"t","id":1}"#));
    check(answer, Id::Number(1), 30, None);

    let refused =
        Refused { code: "malformed", field: "pt", message: "is \"missing\"", retry_after_ms: 0 };
    let answer = Answer::Refused(refused);
    let whole =
        r#"{"answer":true,"error":"malformed","field":"pt","message":"is \"missing\"","id":"x"}"#;
    check(answer, text("x"), whole.len(), Some(whole));
    let shorter = r#"{"answer":true,"error":"malformed","field":"pt","id":"x"}"#;
    check(answer, text("x"), whole.len() - 1, Some(shorter));
    check(
        answer,
        text("x"),
        shorter.len() - 1,
        Some(r#"{"answer":true,"error":"malformed","id":"x"}"#),
    );
    check(answer, text("x"), 34, None);
    let busy = Answer::Refused(Refused { code: "busy", field: "", message: "", retry_after_ms: 9 });
    check(busy, Id::None, 100, Some(r#"{"answer":true,"error":"busy","retryAfterMs":9}"#));
    check(
        Answer::Call { token: "t\"", count: 0 },
        Id::None,
        60,
        Some(r#"{"answer":true,"pt":"t\"","count":0}"#),
    );
}

#[test]
fn an_answer_in_protobuf_is_what_the_library_reads() {
    let gateways = ["a:1".to_owned()];
    let published = v1::Published { message_id: 7, offset: 8, ..v1::Published::default() };
    let refused = Refused { code: "c", field: "f", message: "m", retry_after_ms: 300 };
    let empty = || v1::DatagramAnswer { id: 9, answer: true, ..v1::DatagramAnswer::default() };
    let token = "t".to_owned();
    let error = v1::DatagramError {
        code: "c".to_owned(),
        field: "f".to_owned(),
        message: "m".to_owned(),
        retry_after_ms: 300,
    };
    for (answer, expected) in [
        (
            Answer::Call { token: "t", count: 0 },
            v1::DatagramAnswer { token: token.clone(), count: Some(0), ..empty() },
        ),
        (
            Answer::Activated { token: "t", expires_at_ms: 5, gateways: &gateways },
            v1::DatagramAnswer { token, expires_at_ms: 5, gateways: gateways.to_vec(), ..empty() },
        ),
        (
            Answer::Published(&published),
            v1::DatagramAnswer { published: Some(published), ..empty() },
        ),
        (Answer::Refused(refused), v1::DatagramAnswer { error: Some(error), ..empty() }),
    ] {
        let mut out = Vec::new();
        assert!(answer.encode(Form::Protobuf, &Id::Number(9), 200, &mut out));
        assert_eq!(v1::DatagramAnswer::decode(&*out), Ok(expected));
    }
}

/// An activation whose serial number and key have three bytes together gets its token, however
/// short the rest is.
#[test]
fn a_short_activation_can_be_answered() {
    let token = "AAAAAAAAAAAAAAAAAAAAAA";
    let answer = Answer::Activated { token, expires_at_ms: 1, gateways: &[] };
    let activate = v1::Activate { serial: "s".to_owned(), key: "k2".to_owned() };
    let message =
        v1::DatagramRequest { kind: Some(Kind::Activate(activate)), ..Default::default() };
    let mut out = Vec::new();
    assert!(answer.encode(Form::Protobuf, &Id::None, 3 * message.encoded_len(), &mut out));
    let json = br#"{"devSn":"s","devKey":"k"}"#;
    assert!(answer.encode(Form::Json, &Id::None, 3 * json.len(), &mut out));
}
