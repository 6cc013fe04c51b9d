//! Single rules, each by its text. tests/json.rs compares both encoders on many messages.

use super::*;
use crate::v1::{client_message, publish};

#[track_caller]
fn check_publish(text: &str, expected: v1::Publish) {
    let message = v1::ClientMessage { kind: Some(client_message::Kind::Publish(expected)) };
    assert_eq!(client_body(text), Ok(message.encode_to_vec()));
    assert_eq!(client_message(text), Ok(message));
}

#[track_caller]
fn check_error(text: &str, path: &str, reason: &str) {
    let error = client_message(text).unwrap_err();
    assert_eq!((error.path(), error.reason()), (path, reason));
}

fn publish(topic: &str, data: &[u8]) -> v1::Publish {
    let payload = Some(publish::Payload::Data(data.to_vec()));
    v1::Publish { topic: topic.to_owned(), payload, ..v1::Publish::default() }
}

#[test]
fn names_numbers_and_base64_have_two_forms() {
    let expected = v1::Publish {
        content_type: "text/plain".to_owned(),
        request: 7,
        ..publish("a", &[0xfb, 0xff, 0xfe, 0x00])
    };
    for text in [
        r#"{"publish":{"topic":"a","data":"+//+AA==","contentType":"text/plain","request":7}}"#,
        r#"{"publish":{"topic":"a","data":"-__-AA","content_type":"text/plain","request":"7"}}"#,
        r#" { "publish" : { "request":7 , "data":"+//+AA" , "contentType":"text\/plain" , "topic":"\u0061" } } "#,
        r#"{"x":[{}],"publish":{"topic":"a","y":null,"data":"+//+AA==","contentType":"text/plain","request":7}}"#,
    ] {
        check_publish(text, expected.clone());
    }
}

#[test]
fn null_is_nothing_where_a_message_or_an_alternative_may_stand() {
    let text = r#"{"hello":null,"publish":{"topic":"a","text":null,"data":""}}"#;
    check_publish(text, publish("a", b""));
    let subscribe = v1::Subscribe { topic: "a".to_owned(), position: None, presence: false };
    let message = v1::ClientMessage { kind: Some(client_message::Kind::Subscribe(subscribe)) };
    assert_eq!(client_message(r#"{"subscribe":{"topic":"a","position":null}}"#), Ok(message));
}

#[test]
fn what_has_no_known_kind_is_a_message_without_one() {
    for text in ["{}", r#"{"acknowledge":{"offset":"5"}}"#, r#"{"publish":null}"#] {
        assert_eq!(client_message(text), Ok(v1::ClientMessage { kind: None }));
        assert_eq!(client_body(text), Ok(Vec::new()));
    }
}

#[test]
fn an_error_names_the_field() {
    check_error(
        r#"{"hello":{"topics":[{"topic":"a"},{"topic":"b","position":{"epoch":-1}}]}}"#,
        "hello.topics[1].position.epoch",
        "expected a whole number that the field can hold, or a string of one at line 1 column 70",
    );
    check_error(
        r#"{"hello":{"deviceId":5}}"#,
        "hello.deviceId",
        "invalid type: integer `5`, expected a string at line 1 column 22",
    );
    check_error("", "", "EOF while parsing a value at line 1 column 0");
    check_error(
        "[]",
        "",
        "invalid type: sequence, expected struct weir.v1.ClientMessage at line 1 column 2",
    );
    check_error("{} {}", "", "trailing characters at line 1 column 4");
    let error = client_message(r#"{"publish":{"data":"*"}}"#).unwrap_err();
    assert_eq!(error.path(), "publish.data");
    assert!(error.to_string().starts_with("message is malformed: publish.data: "), "{error}");
    let error = client_message("{").unwrap_err();
    assert!(error.to_string().starts_with("message is malformed: EOF"), "{error}");
}

#[test]
fn what_is_refused_stays_refused() {
    for text in [
        r#"{"publish":{"topic":null}}"#,
        r#"{"publish":{"request":1.0}}"#,
        r#"{"publish":{"request":1e2}}"#,
        r#"{"publish":{"request":"1.0"}}"#,
        r#"{"publish":{"request":4294967296}}"#,
        r#"{"publish":{"topic":"a","topic":"a"}}"#,
        r#"{"publish":{"text":"a","data":""}}"#,
        r#"{"ping":{},"hello":{}}"#,
        r#"{"publish":{"topic":"\ud800"}}"#,
        r#"{"publish":{"topic":"a"},}"#,
        "{\"publish\":{\"topic\":\"\n\"}}",
    ] {
        assert!(client_message(text).is_err(), "{text}");
    }
}

#[test]
fn an_error_is_short_whatever_it_is_about() {
    let text = format!(r#"{{"hello":{{"heartbeatMs":{{}},"deviceId":["{}"]}}}}"#, "ö".repeat(9000));
    assert!(client_message(&text).unwrap_err().to_string().len() < 500);
    let text = format!(r#"{{"{}":5,"hello":"{}"}}"#, "ö".repeat(9000), "ä".repeat(9000));
    let error = client_message(&text).unwrap_err();
    assert!(error.to_string().len() < 500, "{error}");
}

#[test]
fn depth_costs_no_stack() {
    for open in ["[", "{\"a\":"] {
        let deep = open.repeat(100_000);
        assert!(client_message(&deep).is_err());
        assert!(client_message(&format!("{{\"x\":{deep}")).is_err());
        assert!(client_message(&format!("{{\"hello\":{{\"heartbeatMs\":{deep}")).is_err());
        assert!(client_message(&format!("{{\"hello\":{{\"deviceId\":{deep}")).is_err());
    }
    let deep = format!("{{\"x\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(client_message(&deep), Ok(v1::ClientMessage { kind: None }));
}
