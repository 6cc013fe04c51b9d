//! Clients that others wrote, each on one connection through upgrades: openssl, Python's `ssl`, Go's `crypto/tls`, and
//! Chromium, with both versions of TLS.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use weir_tests::{Authority, Newest, SClient, Server, upgrade};
use weir_wire::v1::{self, client_message};

/// A gateway with TLS, and the numbers that are published.
struct House {
    authority: Authority,
    server: Server,
    newest: Option<Newest>,
    next: u32,
    /// How a number is written.
    written: fn(u32) -> String,
}

impl House {
    fn new(written: fn(u32) -> String) -> Result<House> {
        let authority = Authority::new()?;
        let certificates = authority.files("ecdsa", "localhost", false)?;
        let server = Server::start_with_all_doors(&format!(
            "[http]\ncors_origins = [\"*\"]\n[[topic_classes]]\npattern = \"open/*\"\n\
             publish = [\"devices\"]\n[tls]\n{certificates}"
        ))?;
        Ok(House { authority, server, newest: None, next: 0, written })
    }

    fn ca(&self) -> PathBuf {
        self.authority.path("ca.pem")
    }

    /// Publishes the next number.
    fn publish(&mut self) -> Result<()> {
        let text = (self.written)(self.next);
        self.server.publish(&json!({"topic": "news", "text": text}))?;
        self.next += 1;
        Ok(())
    }

    /// Some numbers, an upgrade, and some numbers more. Returns how many.
    fn upgrade(&mut self) -> Result<u32> {
        let before = self.next;
        (0..NUMBERS).try_for_each(|_| self.publish())?;
        let (process, _) = upgrade(&self.server)?;
        // The one before has ended by itself.
        drop(self.newest.replace(process));
        (0..NUMBERS).try_for_each(|_| self.publish())?;
        Ok(self.next - before)
    }

    /// Handshakes of a version.
    fn handshakes(&self, version: &str) -> Result<f64> {
        let labels = [("version", version)];
        Ok(self.server.metrics()?.sum_of("weir_tls_handshakes_total", &labels))
    }
}

/// A program of another language that does a step at each line, and writes the line back.
struct Foreign {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl Foreign {
    /// Starts it, and waits until it is ready.
    fn start(mut command: Command) -> Result<Foreign> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("running {command:?}"))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("a pipe")?).lines();
        let mut foreign = Foreign { child, input, output };
        foreign.expect("ready")?;
        Ok(foreign)
    }

    /// Has it hear so many numbers, and send.
    fn step(&mut self, count: u32) -> Result<()> {
        writeln!(self.input.as_mut().context("a pipe")?, "{count}")?;
        self.expect(&count.to_string())
    }

    fn expect(&mut self, line: &str) -> Result<()> {
        match self.output.next().transpose()? {
            Some(said) if said == line => Ok(()),
            said => {
                self.input = None;
                let mut complaint = String::new();
                if let Some(mut stderr) = self.child.stderr.take() {
                    std::io::Read::read_to_string(&mut stderr, &mut complaint)?;
                }
                anyhow::bail!("{line:?} was to come, not {said:?}: {complaint}")
            }
        }
    }

    /// Lets it end.
    fn end(mut self) -> Result<()> {
        self.input = None;
        let status = self.child.wait()?;
        ensure!(status.success(), "it ended with {status}");
        Ok(())
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Takes a client of each version through two upgrades.
fn through_upgrades(command: impl Fn(&House, &str) -> Result<Command>) -> Result<()> {
    for version in ["1.3", "1.2"] {
        let mut house = House::new(|number| number.to_string())?;
        let mut client = Foreign::start(command(&house, version)?)?;
        ensure!(house.handshakes(version)? == 1.0, "TLS {version} is not spoken");
        for _ in 0..2 {
            let count = house.upgrade().with_context(|| format!("TLS {version}"))?;
            client.step(count).with_context(|| format!("TLS {version}: {}", house.server.log()))?;
        }
        client.end()?;
        let metrics = house.server.metrics()?;
        ensure!(metrics.closed("tls_record") == 0.0, "{}", metrics.text());
    }
    Ok(())
}

/// A client of `clients/tls`, in steps.
fn device(mut command: Command, house: &House, version: &str) -> Result<Command> {
    let tls = house.server.tls.context("it listens with TLS")?;
    command.args([tls.to_string(), house.server.admin.to_string()]);
    command.arg(house.ca()).args([version, "steps"]);
    Ok(command)
}

fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}

#[test]
fn python_goes_on_through_upgrades() -> Result<()> {
    through_upgrades(|house, version| {
        let mut python = Command::new("python3");
        python.arg(clients().join("tls/device.py"));
        device(python, house, version)
    })
}

#[test]
fn go_goes_on_through_upgrades() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let program = directory.path().join("device");
    let output = Command::new("go")
        .args(["build", "-o"])
        .args([&program, &clients().join("tls/device.go")])
        .env("GOTOOLCHAIN", "local")
        .env("GO111MODULE", "off")
        .output()
        .context("running go, which `cargo xtask test` installs")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    through_upgrades(|house, version| device(Command::new(&program), house, version))
}

#[test]
fn a_page_in_a_browser_does_not_reconnect() -> Result<()> {
    through_upgrades(|house, version| {
        let https = house.server.https.context("it listens for HTTPS")?;
        let mut node = Command::new("node");
        node.arg(clients().join("pages/upgrade.mjs"));
        node.args([&format!("wss://{https}/v1/connect"), version]);
        Ok(node)
    })
}

#[test]
fn openssl_updates_its_keys_before_and_after_upgrades() -> Result<()> {
    let mut house = House::new(|number| format!("number {number};"))?;
    let tls = house.server.tls.context("it listens with TLS")?;
    let ca = house.ca().display().to_string();
    let mut clients = Vec::new();
    for version in ["-tls1_3", "-tls1_2"] {
        let options = format!("-CAfile {ca} -verify_return_error -servername localhost {version}");
        let mut client = SClient::greet(tls, &options, version)?;
        let news = v1::Subscribe { topic: "news".to_owned(), ..v1::Subscribe::default() };
        client.send(client_message::Kind::Subscribe(news))?;
        client.ping("subscribed")?;
        clients.push(client);
    }
    for round in 0..3 {
        // Its own keys, and those of both sides. TLS 1.2 has no such thing.
        for letter in ["k", "K"] {
            clients[0].command(letter)?;
            clients[0].await_words("KEYUPDATE", 2 * round + usize::from(letter == "K") + 1)?;
            clients[0].ping(&format!("before {round}{letter}"))?;
        }
        let last = house.next + house.upgrade()? - 1;
        for client in &mut clients {
            client.await_word(&format!("number {last};"))?;
            client.ping(&format!("after {round}"))?;
        }
    }
    for client in &clients {
        let said = client.said();
        let heard: Vec<u32> = said
            .split("number ")
            .skip(1)
            .filter_map(|rest| rest.split(';').next()?.parse().ok())
            .collect();
        ensure!(heard == (0..house.next).collect::<Vec<_>>(), "{heard:?}");
    }
    Ok(())
}

/// Numbers that are published before an upgrade, and after it.
const NUMBERS: u32 = 20;
