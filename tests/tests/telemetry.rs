//! Traces of the real program, taken by a collector in Python that decodes with OpenTelemetry's own messages.

use std::io::{BufRead as _, BufReader, Lines};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use weir_tests::{Answer, Device, Server, installed};
use weir_wire::v1::{Publish, client_message::Kind, publish::Payload};

/// A collector; killed when dropped.
struct Collector {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    port: u16,
}

impl Collector {
    fn start() -> Result<Collector> {
        let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let mut command = Command::new(installed("python/bin/python")?);
        command.arg(here.join("clients/otlp/collector.py"));
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(child.stdout.take().context("a pipe")?).lines();
        let port = lines.next().context("a port")??.parse()?;
        Ok(Collector { child, lines, port })
    }

    fn span(&mut self) -> Result<Value> {
        Ok(serde_json::from_str(&self.lines.next().context("a span")??)?)
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn config(port: u16, rest: &str) -> String {
    format!(
        "[store]\npath = \"devices.db\"\n[[upstreams]]\nname = \"otel\"\naddresses = [\"127.0.0.1:{port}\"]\n\
         [[topic_classes]]\npattern = \"open/*\"\npublish = [\"devices\"]\n\
         [telemetry]\nupstream = \"otel\"\nflush_interval = \"10ms\"\n{rest}"
    )
}

/// The answer to a request with this `traceparent`.
fn post(server: &Server, path: &str, parent: &str, body: &Value) -> Result<Answer> {
    let (http, body) = (server.http()?, body.to_string());
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    );
    Answer::ask(
        http,
        &format!("{head}traceparent: {parent}\r\nContent-Length: {length}\r\n\r\n{body}"),
    )
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

#[test]
fn a_collector_gets_the_spans_of_recorded_traces() -> Result<()> {
    let mut collector = Collector::start()?;
    let server = Server::start_with_http(&config(collector.port, "sample_one_in = 1\n"))?;
    let message = json!({"topic": "open/a", "text": "hello"});
    // The sender does not record its trace.
    post(&server, "/v1/publish", &format!("00-{TRACE}-{PARENT}-00"), &message)?;
    let recorded = format!("00-{TRACE}-{PARENT}-01");
    let answer = post(&server, "/v1/publish", &recorded, &message)?;
    let span = collector.span()?;
    let named = |name: &str| span[name].as_str().unwrap_or_default();
    assert_eq!((named("service"), named("name"), named("scope")), ("weir", "publish", "weir"));
    assert_eq!((named("trace"), named("parent")), (TRACE, PARENT));
    assert_eq!((&span["kind"], &span["status"]), (&json!(2), &json!(0)));
    let own = format!("traceparent: 00-{TRACE}-{}-01", named("span"));
    ensure!(answer.status == 200 && answer.head.contains(&own), "{own} in {answer:?}");
    assert_eq!(span["attributes"]["http.response.status_code"], "200");

    let refused = post(&server, "/v1/publish", &recorded, &json!({"topic": "shut", "text": ""}))?;
    let span = collector.span()?;
    assert_eq!((refused.status, &span["status"]), (403, &json!(2)));
    assert_eq!(span["attributes"]["error.type"], "403");

    let nobody = json!({"devSn": "nobody", "devKey": "none"});
    post(&server, "/v1/devices/activate", &recorded, &nobody)?;
    let span = collector.span()?;
    assert_eq!((&span["name"], &span["parent"]), (&json!("activate"), &json!(PARENT)));

    // By a connection there is no sender's trace.
    let mut device = Device::greet(server.tcp, "lamp-1", &[])?;
    let payload = Some(Payload::Text("on".to_owned()));
    let topic = "open/lamp-1".to_owned();
    device.send(Kind::Publish(Publish { topic, payload, ..Publish::default() }))?;
    let span = collector.span()?;
    assert_eq!((&span["name"], &span["parent"]), (&json!("publish"), &json!("")));
    assert_eq!(span["attributes"]["messaging.destination.name"], "open/lamp-1");
    assert_ne!(span["trace"], TRACE);

    // What backends publish by the admin API counts too.
    server.publish(&json!({"topic": "open/a", "text": "hello"}))?;
    assert_eq!(collector.span()?["name"], "publish");
    server.await_metrics("the exports", |metrics| {
        metrics.sum("weir_trace_spans_total", "exported") == 5.0
            && metrics.sum("weir_trace_spans_waiting", "") == 0.0
    })?;
    Ok(())
}

#[test]
fn a_collector_that_is_down_costs_nobody_anything() -> Result<()> {
    let config = config(1, "sample_one_in = 1\nqueue_max = 64\ntimeout = \"30s\"\n");
    let server = Server::start_with_http(&config)?;
    for _ in 0..1_000 {
        server.publish(&json!({"topic": "open/a", "text": "hello"}))?;
    }
    // One batch waits for its next try, and the queue is full.
    let metrics = server.metrics()?;
    let dropped = metrics.sum("weir_trace_spans_total", "dropped");
    assert!(dropped >= 1_000.0 - 512.0 - 64.0, "{dropped}");
    assert!(metrics.sum("weir_trace_spans_waiting", "") <= 64.0);
    Ok(())
}
