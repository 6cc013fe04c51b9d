//! Requests to servers that do as they like.

use super::*;
use crate::protocol::{HttpEnd, HttpStyle, Message, Posts};

/// A server that closes the connection behind every second answer.
fn fickle() -> SocketAddr {
    use std::io::Read;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    // Ends with the test program.
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            for close in ["keep-alive", "close"] {
                let mut request = Vec::new();
                let mut byte = [0];
                while !request.ends_with(b"\r\n\r\n") {
                    if socket.read(&mut byte).unwrap_or(0) == 0 {
                        return;
                    }
                    request.push(byte[0]);
                }
                write!(
                    socket,
                    "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: {close}\r\n\r\nhi"
                )
                .unwrap();
            }
        }
    });
    addr
}

fn plan(addr: SocketAddr, style: HttpStyle, depth: u32) -> HttpPlan {
    HttpPlan {
        addr,
        source: 98,
        path: "/rest/hello".to_owned(),
        style,
        connections: 2,
        depth,
        tls: None,
        warm_up_ms: 0,
        until: HttpEnd::Answers(500),
        pid: Some(std::process::id()),
        helpers: Vec::new(),
        posts: None,
    }
}

fn run(plan: &HttpPlan) -> Result<HttpTally> {
    let tls = plan.tls.as_ref().map(TlsClient::new).transpose()?;
    Load::new(plan, tls.as_ref(), &mut Inbox::new(READ_BYTES))?.run()
}

#[test]
fn a_connection_that_the_server_closes_in_good_order_is_replaced() {
    let tally = run(&HttpPlan { connections: 1, ..plan(fickle(), HttpStyle::Http1, 1) }).unwrap();
    assert!(tally.errors.is_empty(), "{:?}", tally.errors);
    assert!(tally.answered >= 500 && tally.reopened >= 249, "{tally:?}");
    assert!(tally.answer.ends_with(b"hi"));
}

#[test]
fn a_message_is_published_as_the_documentation_says() {
    let message =
        Message { token: "secret".to_owned(), topic: "a/b".to_owned(), text: "hello".to_owned() };
    let plan = HttpPlan {
        path: "/v1/publish".to_owned(),
        posts: Some(Posts::Message(message)),
        ..plan("127.0.0.1:1".parse().unwrap(), HttpStyle::Http1, 1)
    };
    let mut out = Vec::new();
    Asker::new(&plan, "127.0.0.1:1").write(&mut out);
    let expected = "POST /v1/publish HTTP/1.1\r\nHost: 127.0.0.1:1\r\nAuthorization: Bearer secret\r\n\
                    Content-Type: application/json\r\nContent-Length: 30\r\n\r\n\
                    {\"topic\":\"a/b\",\"text\":\"hello\"}";
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}

#[test]
fn a_publish_is_right_if_it_reached_one_connection() {
    for (content, is_right) in [
        (&br#"{"id":"5d0c7a9e00000001","connections":1,"offset":1}"#[..], true),
        (br#"{"id":"5d0c7a9e00000001","connections":1}"#, true),
        (br#"{"id":"5d0c7a9e00000001","connections":12,"offset":1}"#, false),
        (br#"{"id":"5d0c7a9e00000001","connections":0,"offset":1}"#, false),
    ] {
        assert_eq!(conn::is_queued(content), is_right);
    }
}

#[test]
fn nobody_there_is_told_and_ends_the_run() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    drop(listener);
    let error = run(&plan(addr, HttpStyle::Http1, 1)).unwrap_err().to_string();
    assert!(error.contains("connect_connectionrefused"), "{error}");
}

#[test]
fn a_path_that_cannot_be_asked_for_is_refused() {
    let plan = plan("127.0.0.1:1".parse().unwrap(), HttpStyle::Http2, 1);
    for path in [String::new(), "hello".to_owned(), format!("/{}", "x".repeat(126))] {
        assert!(run(&HttpPlan { path, ..plan.clone() }).is_err());
    }
}
