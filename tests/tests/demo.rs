//! `weir demo`: what it prints, what is to be seen, and that it leaves nothing behind.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use weir_tests::{Answer, Metrics, PATIENCE, now, program, rest};

/// A running demo in an empty home.
struct Demo {
    child: Child,
    home: TempDir,
    output: BufReader<ChildStdout>,
    /// The lines up to the address of the dashboard.
    lines: Vec<String>,
    dashboard: SocketAddr,
}

impl Demo {
    fn start(args: &[&str]) -> Result<Demo> {
        let home = tempfile::tempdir()?;
        let mut child = Self::command(&home)?
            .args(args)
            .stdout(Stdio::piped())
            .stderr(fs::File::create(home.path().join("stderr"))?)
            .spawn()?;
        let mut output = BufReader::new(child.stdout.take().context("a pipe")?);
        let mut lines: Vec<String> = Vec::new();
        loop {
            let mut line = String::new();
            ensure!(output.read_line(&mut line)? > 0, "it ends early: {}", lines.concat());
            let addr = line.strip_prefix("http://").and_then(|line| line.strip_suffix("/\n"));
            if let Some(dashboard) = addr.and_then(|addr| addr.parse().ok()) {
                lines.push(line);
                return Ok(Demo { child, home, output, lines, dashboard });
            }
            lines.push(line);
        }
    }

    fn command(home: &TempDir) -> Result<Command> {
        let temporary = home.path().join("tmp");
        fs::create_dir_all(&temporary)?;
        fs::create_dir_all(home.path().join("home"))?;
        let mut command = Command::new(program("weir")?);
        command
            .arg("demo")
            .current_dir(home.path().join("home"))
            .env("HOME", home.path().join("home"))
            .env("TMPDIR", temporary)
            .env_remove("XDG_STATE_HOME")
            .env_remove("STATE_DIRECTORY")
            .env_remove("WEIR_CONFIG")
            .stdin(Stdio::null());
        Ok(command)
    }

    fn await_metrics(&self, what: &str, condition: impl Fn(&Metrics) -> bool) -> Result<()> {
        let deadline = now() + PATIENCE;
        loop {
            let metrics = Metrics::read(self.dashboard)?;
            if condition(&metrics) {
                return Ok(());
            }
            if now() > deadline {
                bail!("waited in vain for {what}; metrics:\n{}", metrics.text());
            }
            rest();
        }
    }

    /// The address behind a word of what it printed.
    fn told(&self, word: &str) -> Result<String> {
        let line = self.lines.iter().find(|line| line.trim_start().starts_with(word));
        let told = line.and_then(|line| line.split_whitespace().last());
        told.map(str::to_owned).with_context(|| format!("no {word} in {}", self.lines.concat()))
    }

    /// Ends it as Ctrl-C does, and checks that nothing is left of it.
    fn interrupt(mut self) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.child.id())?).context("a pid")?;
        kill_process(pid, Signal::INT)?;
        let status = self.child.wait()?;
        let mut rest = String::new();
        self.output.read_to_string(&mut rest)?;
        let complaint = fs::read_to_string(self.home.path().join("stderr"))?;
        ensure!(status.success(), "{status}: {complaint}");
        ensure!(rest.is_empty(), "it prints more after its last line: {rest}");
        ensure!(complaint.is_empty(), "it complains: {complaint}");
        for directory in ["home", "tmp"] {
            let left = fs::read_dir(self.home.path().join(directory))?.count();
            ensure!(left == 0, "{left} files are left in {directory}");
        }
        Ok(())
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether everybody has come, and everything happens.
fn is_worth_looking_at(metrics: &Metrics) -> bool {
    let seen = |name: &str| metrics.sum(name, "");
    metrics.sum("weir_connections", r#"transport="tls""#) >= 6.0
        && metrics.sum("weir_connections", r#"transport="tcp""#) >= 40.0
        && metrics.sum("weir_udp_done_total", r#"kind="publish""#) >= 20.0
        && metrics.sum("weir_udp_done_total", r#"kind="call""#) >= 20.0
        && seen("weir_topics") >= 30.0
        && metrics.sum("weir_tls_handshakes_total", r#"kind="ticket""#) >= 1.0
}

#[test]
fn a_world_is_there_and_leaves_nothing_behind() -> Result<()> {
    let demo = Demo::start(&["--connections", "12"])?;
    let begun = now();
    demo.await_metrics("the world", is_worth_looking_at)?;
    let page = Answer::get(demo.dashboard, "/demo")?;
    ensure!(page.status == 200 && page.head.contains("default-src 'none'"), "{}", page.head);
    ensure!(page.body.contains("ws://127.0.0.1:"), "{}", page.body);
    let log = demo.told("log")?;
    ensure!(fs::read_to_string(&log)?.contains("listening"), "{log}");
    // No sign-in is asked for.
    let topics: Value = serde_json::from_str(&Answer::get(demo.dashboard, "/v1/topics")?.body)?;
    ensure!(topics["topics"].is_array(), "{topics}");
    let took = begun.elapsed();
    demo.interrupt()?;
    ensure!(took < PATIENCE, "{took:?}");
    Ok(())
}

#[test]
fn a_client_of_the_reader_s_own_takes_part() -> Result<()> {
    let demo = Demo::start(&["--connections", "0"])?;
    let pem = demo.home.path().join("ca.pem");
    fs::write(&pem, Answer::get(demo.dashboard, "/demo/ca.pem")?.body)?;
    let mut phone = Command::new(program("weir")?);
    phone.args(["subscribe", "--tls", "--count", "1", "--device", "my-phone", "--ca"]).arg(&pem);
    phone.args(["--addr", &demo.told("TLS")?, "phone/my-phone"]);
    let phone = phone.env_remove("WEIR_CONFIG").stdout(Stdio::piped()).spawn()?;
    demo.await_metrics("the phone", |metrics| {
        metrics.sum("weir_connections", r#"transport="tls""#) == 1.0
    })?;
    let deadline = now() + PATIENCE;
    let publish = r#"{"topic":"phone/my-phone","text":"hello"}"#;
    while !Answer::post(demo.dashboard, "/v1/publish", publish)?.body.contains(r#""connections":1"#)
    {
        ensure!(now() < deadline, "nobody subscribes");
        rest();
    }
    let output = phone.wait_with_output()?;
    ensure!(String::from_utf8_lossy(&output.stdout).contains("hello"), "{output:?}");
    demo.interrupt()
}

#[test]
fn two_demos_do_not_disturb_each_other() -> Result<()> {
    let (first, second) = (Demo::start(&[])?, Demo::start(&[])?);
    ensure!(first.dashboard != second.dashboard, "both at {}", first.dashboard);
    first.interrupt()?;
    ensure!(Answer::get(second.dashboard, "/healthz")?.status == 200, "the second one has gone");
    second.interrupt()
}

#[test]
fn two_browsers_see_each_other() -> Result<()> {
    let demo = Demo::start(&[])?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/pages/demo.mjs");
    let weir = program("weir")?;
    let output = Command::new("node")
        .arg(script)
        .arg(format!("http://{}/", demo.dashboard))
        .env("WEIR_SCREENSHOTS", weir.with_file_name("demo-pages"))
        .output()?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{complaint}");
    demo.interrupt()
}

#[test]
fn what_it_cannot_do_is_refused() -> Result<()> {
    let home = tempfile::tempdir()?;
    for (args, says) in [
        (&["--connections", "2001"][..], "0 to 2000"),
        (&["--connections", "many"], "0 to 2000"),
        (&["--config", "weir.toml"], "own configuration"),
    ] {
        let output = Demo::command(&home)?.args(args).output()?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success() && complaint.contains(says), "{args:?}: {complaint}");
        ensure!(output.stdout.is_empty(), "{args:?} prints");
    }
    Ok(())
}
