//! The files for containers: they are well-formed, and their haproxy and their configuration make three
//! nodes one gateway. Containers themselves are not started here.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use weir_tests::{Answer, Device, PATIENCE, Redis, free_addr, installed, now, program, rest};
use weir_wire::v1::{self, client_message, push, server_message};

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../packaging/docker").join(name)
}

fn succeeds(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    let said = [output.stdout, output.stderr].concat();
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&said));
    Ok(())
}

#[test]
fn the_linters_find_nothing() -> Result<()> {
    succeeds(Command::new(installed("python/bin/hadolint")?).arg(file("Dockerfile")))?;
    let mut schema = Command::new(installed("python/bin/check-jsonschema")?);
    schema.args(["--builtin-schema", "vendor.compose-spec"]);
    succeeds(schema.arg(file("compose.yaml")))
}

/// The files name these addresses, and these words stand for secrets.
const DEVICES: &str = "REPLACE-devices-0000000000000000";
const BACKEND: &str = "REPLACE-backend-0000000000000000";
const TOKEN: &str = "9f86d081884c7d659a2feaa0c55ad015";
const ADMIN_TOKEN: &str = "2c26b46b68ffc68ff99b453c1d304134";

/// A process; killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A node with the configuration of the containers.
struct Node {
    process: Running,
    tcp: SocketAddr,
    http: SocketAddr,
    admin: SocketAddr,
}

/// Three nodes, their Redis, and haproxy in front of them.
struct Scene {
    nodes: Vec<Node>,
    tcp: SocketAddr,
    http: SocketAddr,
    _haproxy: Running,
    _redis: Redis,
    _directory: TempDir,
}

/// Replaces what the file must contain.
fn replace(text: &mut String, from: &str, to: &str) -> Result<()> {
    ensure!(text.contains(from), "{from} is not in the file");
    *text = text.replace(from, to);
    Ok(())
}

/// Waits until it is so. An error means: not yet.
fn wait(mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = now() + PATIENCE;
    loop {
        match is_so() {
            Ok(true) => return Ok(()),
            Ok(false) if now() > deadline => bail!("in vain"),
            Err(error) if now() > deadline => return Err(error),
            Ok(false) | Err(_) => rest(),
        }
    }
}

impl Node {
    fn start(name: &str, redis: &Redis, directory: &TempDir) -> Result<Node> {
        let (tcp, http, admin) = (free_addr()?, free_addr()?, free_addr()?);
        let mut text = fs::read_to_string(file("weir.toml"))?;
        replace(&mut text, "0.0.0.0:7070", &tcp.to_string())?;
        replace(&mut text, "0.0.0.0:8080", &http.to_string())?;
        replace(&mut text, "0.0.0.0:7090", &admin.to_string())?;
        replace(&mut text, "172.28.70.0/24", "127.0.0.1/32")?;
        replace(&mut text, "redis://redis:6379", &redis.url())?;
        replace(&mut text, DEVICES, TOKEN)?;
        let path = directory.path().join(name).with_extension("toml");
        fs::write(&path, text)?;
        let mut weir = Command::new(program("weir")?);
        weir.arg("--config").arg(&path).env("WEIR_CLUSTER_NODE", name);
        weir.env("STATE_DIRECTORY", directory.path());
        weir.env("WEIR_ADMIN_TOKEN", ADMIN_TOKEN).env("WEIR_CONNECTION_DRAIN_TIMEOUT", "1s");
        weir.stdout(Stdio::null()).stderr(fs::File::create(path.with_extension("log"))?);
        let mut process = Running(weir.spawn()?);
        let log = || fs::read_to_string(path.with_extension("log")).unwrap_or_default();
        let is_ready = || anyhow::Ok(Answer::get(admin, "/readyz")?.status == 200);
        wait(|| Ok(process.0.try_wait()?.is_some() || is_ready()?)).with_context(log)?;
        ensure!(process.0.try_wait()?.is_none(), "{name} has ended: {}", log());
        Ok(Node { process, tcp, http, admin })
    }

    fn connections(&self) -> Result<Vec<Value>> {
        let request = format!(
            "GET /v1/connections HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {ADMIN_TOKEN}\r\n\
             Connection: close\r\n\r\n",
            self.admin
        );
        let answer = Answer::ask(self.admin, &request)?;
        let page: Value = serde_json::from_str(&answer.body)?;
        Ok(page["connections"].as_array().with_context(|| format!("{answer:?}"))?.clone())
    }
}

impl Scene {
    fn start() -> Result<Scene> {
        let directory = tempfile::tempdir()?;
        let redis = Redis::start()?;
        let (tcp, http) = (free_addr()?, free_addr()?);
        let mut text = fs::read_to_string(file("haproxy.cfg"))?;
        replace(&mut text, "bind :7070", &format!("bind {tcp}"))?;
        replace(&mut text, "bind :8080", &format!("bind {http}"))?;
        let mut nodes = Vec::new();
        for name in ["node1", "node2", "node3"] {
            let node = Node::start(name, &redis, &directory)?;
            let probed = node.admin.port();
            for (port, addr) in [(7070, node.tcp), (8080, node.http)] {
                let with = format!("{name} {addr} port {probed}");
                replace(&mut text, &format!("{name} {name}:{port}"), &with)?;
            }
            nodes.push(node);
        }
        let path = directory.path().join("haproxy.cfg");
        fs::write(&path, text)?;
        succeeds(Command::new("haproxy").arg("-c").arg("-f").arg(&path))?;
        let mut haproxy = Command::new("haproxy");
        haproxy.arg("-db").arg("-f").arg(&path).stdout(Stdio::null());
        let haproxy = Running(haproxy.spawn()?);
        wait(|| Ok(TcpStream::connect(http).is_ok()))?;
        Ok(Scene { nodes, tcp, http, _haproxy: haproxy, _redis: redis, _directory: directory })
    }

    /// A device that comes from this address and subscribes to `news`.
    fn device(&self, from: Ipv4Addr, id: &str) -> Result<Device> {
        let mut device = Device::connect_from(from, self.tcp)?;
        let news = v1::Subscribe { topic: "news".into(), position: None, presence: false };
        let hello = v1::Hello {
            device_id: id.into(),
            token: TOKEN.into(),
            topics: vec![news],
            ..v1::Hello::default()
        };
        device.send(client_message::Kind::Hello(hello))?;
        let answers = [device.hear()?, device.hear()?];
        let expected = matches!(
            &answers,
            [Some(server_message::Kind::Welcome(_)), Some(server_message::Kind::Subscribed(_))]
        );
        ensure!(expected, "{answers:?}");
        Ok(device)
    }

    fn publish(&self, text: &str) -> Result<Value> {
        let body = json!({"topic": "news", "text": text}).to_string();
        let request = format!(
            "POST /v1/publish HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {BACKEND}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.http,
            body.len()
        );
        let answer = Answer::ask(self.http, &request)?;
        ensure!(answer.status == 200, "{answer:?}");
        Ok(serde_json::from_str(&answer.body)?)
    }
}

fn hears(device: &mut Device, expected: &str) -> Result<()> {
    let push = device.push()?;
    ensure!(push.payload == Some(push::Payload::Text(expected.into())), "{push:?}");
    Ok(())
}

#[test]
fn three_nodes_behind_haproxy_are_one_gateway() -> Result<()> {
    let mut scene = Scene::start()?;
    let from = |number| Ipv4Addr::new(127, 0, 7, number);
    let mut devices = Vec::new();
    for number in 1..=6 {
        devices.push((number, scene.device(from(number), &format!("d{number}"))?));
    }
    // Each node knows where its devices come from: not from haproxy.
    let mut at_nodes = Vec::new();
    for node in &scene.nodes {
        let mut here = Vec::new();
        for connection in node.connections()? {
            let device = connection["device"].as_str().context("a device")?;
            let number: u8 = device[1..].parse()?;
            ensure!(connection["source"] == from(number).to_string(), "{connection}");
            here.push(number);
        }
        at_nodes.push(here);
    }
    ensure!(at_nodes.iter().flatten().count() == devices.len(), "{at_nodes:?}");
    let used = at_nodes.iter().filter(|here| !here.is_empty()).count();
    let answer = scene.publish("hello")?;
    ensure!(answer["nodes"] == used, "{answer}, {at_nodes:?}");
    for (_, device) in &mut devices {
        hears(device, "hello")?;
    }

    // The busiest node ends in good order, and the others take its devices.
    let busiest = (0..at_nodes.len()).max_by_key(|at| at_nodes[*at].len()).context("a node")?;
    let mut ended = scene.nodes.remove(busiest).process;
    let pid = Pid::from_raw(i32::try_from(ended.0.id())?).context("a process has a pid")?;
    kill_process(pid, Signal::TERM)?;
    for (number, device) in &mut devices {
        if at_nodes[busiest].contains(number) {
            let goodbye = device.goodbye()?;
            ensure!(goodbye.reason == "draining", "{goodbye:?}");
            // haproxy may not know it yet.
            wait(|| {
                *device = scene.device(from(*number), &format!("d{number}"))?;
                Ok(true)
            })?;
        }
    }
    ensure!(ended.0.wait()?.success());
    scene.publish("again")?;
    for (_, device) in &mut devices {
        hears(device, "again")?;
    }
    Ok(())
}
