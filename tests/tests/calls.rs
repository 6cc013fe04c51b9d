//! Calls over real sockets: a backend in Python with gRPC and HTTP, curl as a caller, and nodes over
//! a real Redis.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use weir_tests::{Answer, Device, PATIENCE, Redis, Server, free_port, installed, now, rest};
use weir_wire::v1::{self, answer, call, client_message, server_message};

/// The backend in Python, and what it prints.
struct Backend {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
    grpc: u16,
    http: u16,
}

impl Backend {
    fn start() -> Result<Backend> {
        let (grpc, http) = (free_port()?, free_port()?);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/calls/backend.py");
        let mut child = Command::new(installed("python/bin/python")?)
            .arg(script)
            .args([grpc.to_string(), http.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let said = BufReader::new(child.stdout.take().context("a pipe")?).lines();
        let mut backend = Backend { child, said, grpc, http };
        ensure!(backend.says()? == json!({"ready": true}), "the backend does not start");
        Ok(backend)
    }

    fn says(&mut self) -> Result<Value> {
        let line = self.said.next().context("the backend has ended")??;
        Ok(serde_json::from_str(&line)?)
    }

    /// The routes to it, and limits on calls.
    fn config(&self, calls: &str) -> String {
        let (grpc, http) = (self.grpc, self.http);
        format!(
            r#"
[auth]
anonymous = true
[[upstreams]]
name = "lines"
addresses = ["127.0.0.1:{grpc}"]
protocol = "http2"
[[upstreams]]
name = "web"
addresses = ["127.0.0.1:{http}"]
[calls]
{calls}
[[calls.routes]]
method = "test.Lines/*"
upstream = "lines"
protocol = "grpc"
[[calls.routes]]
method = "web/*"
upstream = "web"
path = "/rpc"
"#
        )
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A device that answers calls.
fn answering(server: &Server, id: &str) -> Result<Device> {
    let mut device = Device::connect(server.tcp)?;
    let hello = v1::Hello { device_id: id.to_owned(), calls: true, ..v1::Hello::default() };
    device.send(client_message::Kind::Hello(hello))?;
    match device.hear()? {
        Some(server_message::Kind::Welcome(_)) => Ok(device),
        other => bail!("expected Welcome, got {other:?}"),
    }
}

fn call(device: &mut Device, id: u32, method: &str, data: &[u8]) -> Result<()> {
    let payload = Some(call::Payload::Data(data.to_vec()));
    let (method, deadline_ms) = (method.to_owned(), 5_000);
    let call = v1::Call { id, method, payload, deadline_ms, ..v1::Call::default() };
    device.send(client_message::Kind::Call(call))
}

fn answered(device: &mut Device) -> Result<v1::Answer> {
    match device.hear()? {
        Some(server_message::Kind::Answer(answer)) => Ok(answer),
        other => bail!("expected Answer, got {other:?}"),
    }
}

fn called(device: &mut Device) -> Result<v1::Call> {
    match device.hear()? {
        Some(server_message::Kind::Call(call)) => Ok(call),
        other => bail!("expected Call, got {other:?}"),
    }
}

fn cancelled(device: &mut Device) -> Result<u32> {
    match device.hear()? {
        Some(server_message::Kind::Cancel(cancel)) => Ok(cancel.id),
        other => bail!("expected Cancel, got {other:?}"),
    }
}

fn done(id: u32, text: &str) -> client_message::Kind {
    let payload = Some(answer::Payload::Text(text.to_owned()));
    client_message::Kind::Answer(v1::Answer { id, payload, ..v1::Answer::default() })
}

/// curl as a caller of a device.
fn curl(server: &Server, device: &str, body: &Value) -> Result<Child> {
    let url = format!("http://{}/v1/devices/{device}/call", server.admin);
    let mut command = Command::new("curl");
    command.args(["-s", "-w", " %{http_code}", "-X", "POST", "-H"]);
    command.args(["Content-Type: application/json", "-d", &body.to_string(), &url]);
    Ok(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?)
}

/// What it has printed: the body, and the status.
fn told(curl: Child) -> Result<(String, String)> {
    let said = String::from_utf8(curl.wait_with_output()?.stdout)?;
    let (body, status) = said.rsplit_once(' ').context("a status")?;
    Ok((body.to_owned(), status.to_owned()))
}

fn await_quiet(server: &Server) -> Result<()> {
    server.await_metrics("the end of all calls", |metrics| {
        metrics.sum("weir_calls_in_flight", "") == 0.0
            && metrics.sum("weir_call_payloads_bytes", "") == 0.0
    })?;
    Ok(())
}

#[test]
fn a_backend_with_grpc_answers_devices() -> Result<()> {
    let mut backend = Backend::start()?;
    let server = Server::start(&backend.config(""))?;
    let mut device = Device::greet(server.tcp, "van-7", &[])?;
    call(&mut device, 1, "test.Lines/Upper", b"hello")?;
    let answer = answered(&mut device)?;
    assert_eq!((answer.id, &*answer.code, answer.status), (1, "", 0), "{answer:?}");
    assert_eq!(answer.payload, Some(answer::Payload::Data(b"HELLO".to_vec())));
    assert_eq!(backend.says()?, json!({"method": "Upper", "device": "van-7", "left": true}));
    for (id, method, status, message) in [
        (2, "test.Lines/Refuse", 5, "no such line: größe"),
        (3, "test.Lines/Unknown", 12, "Method not found!"),
    ] {
        call(&mut device, id, method, b"")?;
        let answer = answered(&mut device)?;
        assert_eq!((answer.id, &*answer.code, answer.status), (id, "failed", status));
        assert_eq!(answer.message, message);
    }
    // What the device gives up ends at the backend, and so does what its end leaves.
    for id in [4, 5] {
        call(&mut device, id, "test.Lines/Wait", b"")?;
        assert_eq!(backend.says()?, json!({"waiting": true}));
        match id {
            4 => device.send(client_message::Kind::Cancel(v1::Cancel { id }))?,
            _ => device.stream().shutdown(std::net::Shutdown::Both)?,
        }
        assert_eq!(backend.says()?, json!({"ended": true}));
    }
    await_quiet(&server)?;
    ensure!(!server.log().contains("panicked"), "{}", server.log());
    Ok(())
}

/// Devices that wait for a slow answer hold up neither others nor themselves.
#[test]
fn slow_answers_hold_up_nobody_else() -> Result<()> {
    let backend = Backend::start()?;
    let server = Server::start(&backend.config("calls_per_connection_max = 40"))?;
    let mut slow = Device::greet(server.tcp, "slow", &[])?;
    let mut quick = Device::greet(server.tcp, "quick", &[])?;
    for id in 1..=40 {
        call(&mut slow, id, "web/sleep", b"60")?;
    }
    for id in 1..=20 {
        call(&mut quick, id, "web/who", b"")?;
        let answer = answered(&mut quick)?;
        let text = Some(answer::Payload::Text("quick web/who".to_owned()));
        assert_eq!((answer.id, &*answer.code, answer.payload), (id, "", text));
    }
    call(&mut slow, 41, "web/who", b"")?;
    assert_eq!(answered(&mut slow)?.code, "busy");
    for _ in 1..=40 {
        assert_eq!(answered(&mut slow)?.code, "deadline_exceeded");
    }
    await_quiet(&server)
}

#[test]
fn curl_calls_a_device_and_hangs_up() -> Result<()> {
    let server = Server::start("[auth]\nanonymous = true\n")?;
    let mut device = answering(&server, "lock")?;
    let body = json!({"method": "lock/open", "text": "front", "deadline_ms": 20_000});
    let asking = curl(&server, "lock", &body)?;
    let heard = called(&mut device)?;
    device.send(done(heard.id, "open"))?;
    assert_eq!(told(asking)?, (r#"{"text":"open"}"#.to_owned(), "200".to_owned()));
    let mut asking = curl(&server, "lock", &body)?;
    let heard = called(&mut device)?;
    asking.kill()?;
    asking.wait()?;
    assert_eq!(cancelled(&mut device)?, heard.id);
    device.send(done(heard.id, "too late"))?;
    server.await_metrics("the late answer", |metrics| {
        metrics.sum("weir_call_answers_late_total", "") == 1.0
    })?;
    let asking = curl(&server, "lock", &body)?;
    called(&mut device)?;
    drop(device);
    let (body, status) = told(asking)?;
    ensure!(status == "502" && body.contains("device-gone"), "{status} {body}");
    let _plain = Device::greet(server.tcp, "plain", &[])?;
    for (device, expected) in [("plain", "409"), ("lock", "404")] {
        let (body, status) = told(curl(&server, device, &json!({"method": "m"}))?)?;
        assert_eq!(status, expected, "{body}");
    }
    await_quiet(&server)
}

/// A tenth is silent: each caller hears of its own device, and the silent ones of the deadline.
#[test]
fn silent_devices_cost_the_others_nothing() -> Result<()> {
    const DEVICES: usize = 100;
    let server = Server::start("[auth]\nanonymous = true\n")?;
    let mut devices: Vec<Device> = (0..DEVICES)
        .map(|number| answering(&server, &format!("d{number}")))
        .collect::<Result<_>>()?;
    let callers: Vec<_> = (0..DEVICES)
        .map(|number| {
            let (admin, path) = (server.admin, format!("/v1/devices/d{number}/call"));
            let body = json!({"method": "m", "deadline_ms": 3_000}).to_string();
            std::thread::spawn(move || Answer::post(admin, &path, &body))
        })
        .collect();
    for (number, device) in devices.iter_mut().enumerate() {
        let heard = called(device)?;
        if number % 10 > 0 {
            device.send(done(heard.id, &format!("from d{number}")))?;
        }
    }
    for (number, caller) in callers.into_iter().enumerate() {
        let answer = caller.join().expect("no caller panics")?;
        match number % 10 {
            0 => assert_eq!(answer.status, 504, "{answer:?}"),
            _ => {
                let expected = format!(r#"{{"text":"from d{number}"}}"#);
                assert_eq!((answer.status, &*answer.body), (200, &*expected));
            }
        }
    }
    for (number, device) in devices.iter_mut().enumerate().step_by(10) {
        assert_eq!(cancelled(device)?, 1, "d{number}");
    }
    await_quiet(&server)
}

fn node(redis: &Redis, name: &str) -> Result<Server> {
    let url = redis.url();
    Server::start(&format!(
        "[auth]\nanonymous = true\n[cluster]\nredis = \"{url}\"\nnode = \"{name}\"\n"
    ))
}

#[test]
fn a_device_at_another_node_is_called_there() -> Result<()> {
    let redis = Redis::start()?;
    let (a, b) = (node(&redis, "a")?, node(&redis, "b")?);
    let deadline = now() + PATIENCE;
    for node in [&a, &b] {
        while !Answer::get(node.admin, "/v1/nodes")?.body.contains("\"name\":\"b\"") {
            ensure!(now() < deadline, "the nodes do not see each other");
            rest();
        }
    }
    let mut device = answering(&b, "lock")?;
    let body = json!({"method": "lock/open", "data": "aGk=", "deadline_ms": 20_000});
    for at in [&a, &b] {
        let asking = curl(at, "lock", &body)?;
        let heard = called(&mut device)?;
        assert_eq!(heard.payload, Some(call::Payload::Data(b"hi".to_vec())));
        ensure!((1..=20_000).contains(&heard.deadline_ms), "{heard:?}");
        device.send(done(heard.id, "open"))?;
        assert_eq!(told(asking)?, (r#"{"text":"open"}"#.to_owned(), "200".to_owned()));
    }
    // A caller hangs up at the other node.
    let mut asking = curl(&a, "lock", &body)?;
    let heard = called(&mut device)?;
    asking.kill()?;
    asking.wait()?;
    assert_eq!(cancelled(&mut device)?, heard.id);
    // An error of the device, and its end.
    let asking = curl(&a, "lock", &body)?;
    let (id, code) = (called(&mut device)?.id, "jammed".to_owned());
    let failed = v1::Answer { id, code, ..v1::Answer::default() };
    device.send(client_message::Kind::Answer(failed))?;
    let (said, status) = told(asking)?;
    ensure!(status == "502" && said.contains(r#""device_code":"jammed""#), "{status} {said}");
    let asking = curl(&a, "lock", &body)?;
    called(&mut device)?;
    drop(device);
    let (said, status) = told(asking)?;
    ensure!(status == "502" && said.contains("device-gone"), "{status} {said}");
    let _plain = Device::greet(b.tcp, "plain", &[])?;
    for (device, expected) in [("plain", "409"), ("nobody", "404")] {
        let (said, status) = told(curl(&a, device, &json!({"method": "m"}))?)?;
        assert_eq!(status, expected, "{said}");
    }
    for node in [&a, &b] {
        await_quiet(node)?;
    }
    Ok(())
}
