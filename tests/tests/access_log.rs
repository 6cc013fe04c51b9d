//! The access log of the program: whom its lines name, and that none is missing when it has ended.

use std::fs::read_to_string;
use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result};
use rustix::process::Signal;
use serde_json::Value;
use weir_tests::{Answer, PATIENCE, Server};

fn parsed(text: &str) -> Result<Vec<Value>> {
    assert!(text.ends_with('\n'), "the last line is whole: {text}");
    // To standard output the program says more.
    let lines = text.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(line).context(line.to_owned())).collect()
}

#[test]
fn a_line_names_whom_a_request_is_from() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("access.log");
    let mut server = Server::start_with_http(&format!(
        "[access_log]\npath = {path:?}\n\
         [auth]\nanonymous = false\n\
         [[auth.tokens]]\ntoken = \"van\"\ndevice = \"van-7\"\n\
         [[auth.tokens]]\ntoken = \"any\"\n\
         [[auth.services]]\ntoken = \"desk\"\nname = \"control\"\nmay = [\"publish\", \"subscribe\"]\n\
         [[topic_classes]]\npattern = \"keep/*\"\npublish = [\"devices\", \"services\"]\n\
         retention_messages = 10\nhistory = true\n",
    ))?;
    let http = server.http.context("it speaks HTTP")?;
    let body = r#"{"topic":"keep/1","text":"x"}"#;
    let publish = format!(
        "Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let history = "GET /v1/topics/keep%2F1/history";
    for (asked, token, rest, status) in [
        ("POST /v1/publish", "van", publish.as_str(), 200),
        ("POST /v1/publish", "desk", &publish, 200),
        ("POST /v1/publish", "any", &publish, 200),
        ("POST /v1/publish", "nobody's", &publish, 401),
        ("POST /v1/publish", "van", "Content-Length: 0\r\nConnection: close\r\n\r\n", 415),
        (history, "van", "Connection: close\r\n\r\n", 200),
        (history, "desk", "Connection: close\r\n\r\n", 200),
    ] {
        let head = format!("{asked} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n");
        let answer = Answer::ask(http, &format!("{head}{rest}"))?;
        assert_eq!(answer.status, status, "{asked} with {token}: {}", answer.body);
    }
    server.signal(Signal::TERM)?;
    assert!(server.wait()?.success(), "{}", server.log());
    let lines = parsed(&read_to_string(path)?)?;
    let mut named: Vec<_> = lines
        .iter()
        .map(|line| (line["path"].as_str(), line["device"].as_str(), line["status"].as_u64()))
        .collect();
    let (publish, history) = (Some("/v1/publish"), Some("/v1/topics/keep%2F1/history"));
    let mut expected = [
        (publish, Some("van-7"), Some(200)),
        (publish, Some("control"), Some(200)),
        (publish, None, Some(200)),
        (publish, None, Some(401)),
        (publish, Some("van-7"), Some(415)),
        (history, Some("van-7"), Some(200)),
        (history, Some("control"), Some(200)),
    ];
    // Each thread's lines are in their order; which thread's come first says nobody.
    named.sort_unstable();
    expected.sort_unstable();
    assert_eq!(named, expected);
    Ok(())
}

/// Nothing of the log is read before the program ends: what waits leaves then.
#[test]
fn an_end_loses_no_line() -> Result<()> {
    const REQUESTS: usize = 20_000;
    let mut server = Server::start_with_http("[access_log]\npath = \"-\"\n")?;
    let mut stream = TcpStream::connect(server.http.context("it speaks HTTP")?)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut asking = stream.try_clone()?;
    let asking = std::thread::spawn(move || {
        let (head, rest) = ("GET /rest/hello HTTP/1.1\r\nHost: a\r\n", "\r\n");
        asking.write_all(format!("{head}{rest}").repeat(REQUESTS - 1).as_bytes())?;
        asking.write_all(format!("{head}Connection: close\r\n{rest}").as_bytes())
    });
    let mut answers = String::new();
    stream.read_to_string(&mut answers)?;
    asking.join().expect("it does not panic")?;
    assert_eq!(answers.matches("Hello World").count(), REQUESTS);
    let metrics = server.metrics()?;
    assert_eq!(metrics.sum("weir_access_log_dropped_total", ""), 0.0);
    // As much as a pipe holds, and far less than there is.
    assert!(metrics.sum("weir_access_log_lines_total", "") < REQUESTS as f64 / 2.0);
    server.signal(Signal::TERM)?;
    server.await_silence()?;
    let mut text = String::new();
    server.output().context("its output")?.read_to_string(&mut text)?;
    assert!(server.wait()?.success(), "{}", server.log());
    assert_eq!(parsed(&text)?.len(), REQUESTS);
    Ok(())
}
