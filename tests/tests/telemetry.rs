//! Traces of the real program, taken by a collector in Python that decodes with OpenTelemetry's own messages.

use std::io::{BufRead as _, BufReader, Lines, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use weir_tests::{Answer, Device, PATIENCE, Server, installed};
use weir_wire::v1::{
    self, Publish, answer, client_message::Kind, publish::Payload, server_message,
};

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

    /// The next spans, whatever their order.
    fn spans<const N: usize>(&mut self) -> Result<Spans> {
        (0..N).map(|_| self.span()).collect::<Result<_>>().map(Spans)
    }

    fn span(&mut self) -> Result<Value> {
        Ok(serde_json::from_str(&self.lines.next().context("a span")??)?)
    }
}

struct Spans(Vec<Value>);

impl Spans {
    /// The only one with this name.
    fn named(&self, name: &str) -> Result<&Value> {
        let mut named = self.0.iter().filter(|span| span["name"] == name);
        let found = named.next().with_context(|| format!("no span {name} in {:?}", self.0))?;
        ensure!(named.next().is_none(), "several spans {name} in {:?}", self.0);
        Ok(found)
    }

    /// The span of this name, and the try below it, which `head` names.
    fn with_try(&self, name: &str, head: &str) -> Result<&Value> {
        let (span, tried) = (self.named(name)?, self.named("try")?);
        assert_eq!((&tried["trace"], &tried["parent"]), (&span["trace"], &span["span"]));
        assert_eq!((&tried["kind"], &tried["status"]), (&json!(3), &json!(0)));
        assert_eq!(tried["attributes"]["http.response.status_code"], "200");
        let text = |key: &str| tried[key].as_str().unwrap_or_default().to_owned();
        let own = format!("\r\ntraceparent: 00-{}-{}-01\r\n", text("trace"), text("span"));
        ensure!(head.contains(&own), "{own} in {head}");
        ensure!(head.matches("traceparent").count() == 1, "{head}");
        Ok(span)
    }
}

/// A service that permits everything. Returns its address, and the heads of requests.
fn backend() -> Result<(SocketAddr, mpsc::Receiver<String>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (addr, (send, heads)) = (listener.local_addr()?, mpsc::sync_channel(64));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let send = send.clone();
            thread::spawn(move || serve(stream, &send));
        }
    });
    Ok((addr, heads))
}

fn serve(mut stream: TcpStream, heads: &mpsc::SyncSender<String>) -> Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            ensure!(reader.read_line(&mut head)? > 0, "the end");
        }
        let head = head.to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.unwrap_or("0").parse()?];
        reader.read_exact(&mut body)?;
        heads.send(head)?;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{\"allow\":true}")?;
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

/// A gateway that calls a service in each way.
fn calling_out(service: SocketAddr, rest: &str) -> Result<Server> {
    Server::start_with_http(&format!(
        r#"
{rest}
[[upstreams]]
name = "back"
addresses = ["{service}"]
[[http.routes]]
prefix = "/app"
upstream = "back"
[[calls.routes]]
method = "web/*"
upstream = "back"
[hooks.publish]
upstream = "back"
"#
    ))
}

/// Fails unless each of these lines stands in the head, in whatever order.
fn has_lines(head: &str, lines: &str) -> Result<()> {
    for line in lines.lines() {
        ensure!(head.lines().filter(|sent| *sent == line).count() == 1, "{line} in {head}");
    }
    Ok(())
}

/// The answer to a `GET` with these lines in its head.
fn get(server: &Server, lines: &str) -> Result<Answer> {
    let http = server.http()?;
    let head = format!("GET /app/a HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\n");
    Answer::ask(http, &format!("{head}{lines}\r\n"))
}

#[test]
fn a_trace_goes_on_in_the_services_that_are_asked() -> Result<()> {
    let (mut collector, (service, heads)) = (Collector::start()?, backend()?);
    let server = calling_out(service, &config(collector.port, "sample_one_in = 1\n"))?;
    let head = || heads.recv_timeout(PATIENCE);

    let recorded = format!("traceparent: 00-{TRACE}-{PARENT}-01\r\ntracestate: a=1\r\n");
    assert_eq!(get(&server, &recorded)?.status, 200);
    let (sent, spans) = (head()?, collector.spans::<2>()?);
    let span = spans.with_try("proxy", &sent)?;
    assert_eq!((&span["trace"], &span["parent"]), (&json!(TRACE), &json!(PARENT)));
    assert_eq!((&span["kind"], &span["attributes"]["url.path"]), (&json!(2), &json!("/app/a")));
    assert_eq!(span["attributes"]["http.response.status_code"], "200");
    ensure!(sent.contains("\r\ntracestate: a=1\r\n"), "{sent}");
    // The sender of this one does not record it.
    let unrecorded = recorded.replace("-01", "-00");
    get(&server, &unrecorded)?;
    has_lines(&head()?, &unrecorded)?;
    // This one belongs to no trace: chance begins one.
    get(&server, "traceparent: 00-1-2-01\r\ntracestate: a=1\r\n")?;
    let (sent, spans) = (head()?, collector.spans::<2>()?);
    assert_eq!(spans.with_try("proxy", &sent)?["parent"], "");
    ensure!(!sent.contains("tracestate"), "{sent}");

    let mut device = Device::connect(server.tcp)?;
    let device_id = "lamp-1".to_owned();
    device.send(Kind::Hello(v1::Hello { device_id, calls: true, ..v1::Hello::default() }))?;
    device.hear()?.context("a Welcome")?;
    let method = "web/read".to_owned();
    device.send(Kind::Call(v1::Call { id: 1, method, ..v1::Call::default() }))?;
    let (sent, spans) = (head()?, collector.spans::<2>()?);
    let span = spans.with_try("call", &sent)?;
    assert_eq!((&span["parent"], &span["status"]), (&json!(""), &json!(0)));
    assert_eq!(span["attributes"]["rpc.method"], "web/read");
    device.hear()?.context("an Answer")?;
    device.send(Kind::Call(v1::Call { id: 2, ..v1::Call::default() }))?;
    let refused = collector.span()?;
    assert_eq!((&refused["name"], &refused["status"]), (&json!("call"), &json!(2)));
    assert_eq!(refused["attributes"]["error.type"], "invalid_field");
    device.hear()?.context("an Answer")?;

    let payload = Some(Payload::Text("on".to_owned()));
    let topic = "open/lamp-1".to_owned();
    device.send(Kind::Publish(Publish { topic, payload, ..Publish::default() }))?;
    let (sent, spans) = (head()?, collector.spans::<3>()?);
    let span = spans.with_try("hook", &sent)?;
    assert_eq!((&span["kind"], &span["attributes"]["weir.hook"]), (&json!(1), &json!("publish")));
    assert_eq!(span["attributes"]["weir.upstream"], "back");
    assert_eq!(spans.named("publish")?["status"], 0);
    called_by_a_backend(&server, &mut device, &mut collector)
}

fn called_by_a_backend(
    server: &Server,
    device: &mut Device,
    collector: &mut Collector,
) -> Result<()> {
    let body = json!({"method": "lamp/on"}).to_string();
    let request = format!(
        "POST /v1/devices/lamp-1/call HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
         Content-Type: application/json\r\ntraceparent: 00-{TRACE}-{PARENT}-01\r\n\
         Content-Length: {}\r\n\r\n{body}",
        server.admin,
        body.len()
    );
    let admin = server.admin;
    let asking = thread::spawn(move || Answer::ask(admin, &request));
    let call = loop {
        if let server_message::Kind::Call(call) = device.hear()?.context("a Call")? {
            break call;
        }
    };
    let payload = Some(answer::Payload::Text("done".to_owned()));
    device.send(Kind::Answer(v1::Answer { id: call.id, payload, ..v1::Answer::default() }))?;
    let answer = asking.join().map_err(|_| anyhow::anyhow!("the caller has panicked"))??;
    let span = collector.span()?;
    assert_eq!((answer.status, &span["name"]), (200, &json!("call_device")));
    assert_eq!((&span["trace"], &span["parent"]), (&json!(TRACE), &json!(PARENT)));
    assert_eq!((&span["kind"], &span["status"]), (&json!(2), &json!(0)));
    assert_eq!(span["attributes"]["rpc.method"], "lamp/on");
    Ok(())
}

#[test]
fn without_a_collector_a_trace_passes_unchanged() -> Result<()> {
    let (service, heads) = backend()?;
    let server = calling_out(service, "")?;
    for lines in [
        format!("traceparent: 00-{TRACE}-{PARENT}-01\r\ntracestate: a=1,b=2\r\n"),
        "traceparent: none\r\ntracestate: a=1\r\n".to_owned(),
    ] {
        assert_eq!(get(&server, &lines)?.status, 200);
        has_lines(&heads.recv_timeout(PATIENCE)?, &lines)?;
    }
    get(&server, "")?;
    let head = heads.recv_timeout(PATIENCE)?;
    ensure!(!head.contains("trace"), "{head}");
    Ok(())
}
