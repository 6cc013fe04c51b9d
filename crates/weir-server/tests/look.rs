//! The commands that look at a running gateway, against a real one: tables, JSON, exit codes, and
//! what to do next.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// `weir` with these variables and no others of this process.
fn weir(args: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(args).env_clear().envs(variables.iter().copied()).stdin(Stdio::null());
    command
}

/// A child process that ends with the test.
struct Program {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Program {
    fn start(mut command: Command) -> Program {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Program { child, stdout }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Ends the program, and gives what it wrote to standard error.
    fn end(mut self) -> String {
        self.child.kill().unwrap();
        let mut stderr = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        stderr
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A gateway and the file of its configuration, through which the commands find it.
struct Gateway {
    directory: tempfile::TempDir,
    program: Program,
}

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

impl Gateway {
    /// With these lines in its configuration.
    fn start(lines: &str) -> Gateway {
        let directory = tempfile::tempdir().unwrap();
        let [tcp, admin] = free_ports();
        let text = format!(
            "[listen]\ntcp = [\"127.0.0.1:{tcp}\"]\nhttp = []\nudp = []\n\
             admin = \"127.0.0.1:{admin}\"\n[store]\nkind = \"none\"\n[threads]\npin = false\n{lines}"
        );
        std::fs::write(directory.path().join("weir.toml"), text).unwrap();
        let file = directory.path().join("weir.toml");
        let mut program = Program::start(weir(&["serve"], &[("WEIR_CONFIG", text_of(&file))]));
        while !program.line().contains("admin API") {}
        Gateway { directory, program }
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn command(&self, args: &[&str]) -> Command {
        let file = self.directory.path().join("weir.toml");
        weir(args, &[("WEIR_CONFIG", text_of(&file))])
    }

    /// A device that subscribes to "news".
    fn subscribe(&self, device: &str) -> Program {
        let mut program = Program::start(self.command(&["subscribe", "--device", device, "news"]));
        let mut stderr = BufReader::new(program.child.stderr.take().unwrap());
        let mut told = String::new();
        while !told.contains("subscribed to") {
            assert_ne!(stderr.read_line(&mut told).unwrap(), 0, "{told}");
        }
        program
    }

    /// Runs a command until its output has this text.
    #[expect(clippy::disallowed_methods, reason = "a test that waits for what the gateway notes")]
    fn until(&self, args: &[&str], text: &str) -> String {
        let patience = Instant::now() + Duration::from_secs(20);
        loop {
            let output = succeeded(&self.run(args));
            if output.contains(text) {
                return output;
            }
            assert!(Instant::now() < patience, "no {text} in {output}");
        }
    }
}

fn text_of(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Bound and closed again, so most likely free.
fn free_ports() -> [u16; 2] {
    let bound = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    bound.map(|listener| listener.local_addr().unwrap().port())
}

fn succeeded(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn failed(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn objects(lines: &str) -> Vec<Value> {
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn upstreams_are_shown_by_endpoint() {
    let gateway = Gateway::start(
        "[[upstreams]]\nname = \"api\"\naddresses = [\"127.0.0.1:9\", \"127.0.0.1:10\"]\n",
    );
    let table = succeeded(&gateway.run(&["upstreams"]));
    assert!(table.starts_with("UPSTREAM  ENDPOINT"), "{table}");
    let cells: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(cells[..3], ["api", "127.0.0.1:9", "available"], "{table}");
    let lines = objects(&succeeded(&gateway.run(&["upstreams", "--json"])));
    assert_eq!((&lines[0]["name"], &lines[0]["requests"]), (&"api".into(), &0.into()));
    let top = succeeded(&gateway.run(&["top", "--once"]));
    assert!(top.contains("api 127.0.0.1:10"), "{top}");
}

#[test]
fn connections_topics_and_devices_are_listed() {
    let gateway = Gateway::start("");
    let (_first, second) = (gateway.subscribe("meter-1"), gateway.subscribe("meter-2"));

    let table = succeeded(&gateway.run(&["connections"]));
    assert!(table.starts_with("CONNECTION  "), "{table}");
    for part in ["meter-1", "meter-2", "weir-subscribe/", "127.0.0.1:", "tcp", "news"] {
        assert!(table.contains(part), "{part} in {table}");
    }
    let lines = objects(&succeeded(&gateway.run(&["connections", "--json", "--topic", "news"])));
    assert_eq!(lines.len(), 2, "{lines:?}");
    let one = gateway.run(&["connections", "--limit", "1"]);
    assert_eq!(succeeded(&one).lines().count(), 2);
    let stderr = String::from_utf8(one.stderr).unwrap();
    assert!(stderr.contains("there are more than these 1: set --limit"), "{stderr}");
    let of_one = succeeded(&gateway.run(&["connections", "--device", "meter-2", "--json"]));
    assert_eq!(objects(&of_one)[0]["device"], "meter-2");

    let topics = succeeded(&gateway.run(&["topics"]));
    assert!(topics.starts_with("TOPIC  SUBSCRIBERS"), "{topics}");
    let cells: Vec<&str> = topics.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(cells, ["news", "2", "0", "0", "*"]);
    let topics = objects(&succeeded(&gateway.run(&["topics", "--prefix", "n", "--json"])));
    assert_eq!((&topics[0]["topic"], &topics[0]["subscribers"]), (&"news".into(), &2.into()));
    assert_eq!(succeeded(&gateway.run(&["topics", "--prefix", "x", "--json"])), "");

    let device = succeeded(&gateway.run(&["device", "meter-2"]));
    assert!(device.starts_with("meter-2\nstored: no\n\nconnections\nCONNECTION"), "{device}");
    assert!(!device.contains("meter-1"), "{device}");
    drop(second);
    let device = gateway.until(&["device", "meter-2"], "last ends");
    assert!(device.contains("connections: none") && device.contains("peer_"), "{device}");
    let device = objects(&succeeded(&gateway.run(&["device", "meter-2", "--json"])));
    assert_eq!(device[0]["closes"][0]["device"], "meter-2", "{device:?}");
    let unknown = failed(&gateway.run(&["device", "meter/9"]));
    assert!(unknown.contains("\"meter/9\" is not connected, not stored"), "{unknown}");
}

#[test]
fn ends_are_listed_and_logged() {
    let gateway = Gateway::start("");
    drop(gateway.subscribe("meter-1"));
    gateway.until(&["closes", "--device", "meter-1"], "weir-subscribe/");
    let ends = objects(&succeeded(&gateway.run(&["closes", "--json", "--limit", "5"])));
    assert_eq!((ends.len(), &ends[0]["device"]), (1, &"meter-1".into()), "{ends:?}");
    let reason = ends[0]["reason"].as_str().unwrap();
    let same = succeeded(&gateway.run(&["closes", "--reason", reason]));
    assert!(same.starts_with("  AGO  DEVICE") && same.lines().count() == 2, "{same}");
    let none = gateway.run(&["closes", "--reason", "stalled"]);
    assert!(String::from_utf8_lossy(&none.stderr).contains("none of the 1 ends"), "{none:?}");
    let unknown = failed(&gateway.run(&["closes", "--reason", "bored"]));
    assert!(unknown.contains("\"bored\" is no close reason; the reasons are"), "{unknown}");
    let Gateway { program, .. } = gateway;
    let log = program.end();
    let line = log.lines().find(|line| line.contains("connection ended")).unwrap();
    for part in ["INFO ends:", "device=\"meter-1\"", "peer=127.0.0.1:", "client=\"weir-subscribe/"]
    {
        assert!(line.contains(part), "{part} in {line}");
    }
    assert!(line.contains(&format!("reason=\"{reason}\"")), "{line}");
}

#[test]
fn events_are_printed_as_they_happen() {
    let gateway = Gateway::start("");
    let args = ["events", "--type", "connected,disconnected", "--count", "2"];
    let json = [&args[..], &["--json"]].concat();
    let (text, json) =
        (Program::start(gateway.command(&args)), Program::start(gateway.command(&json)));
    let [mut text, mut json] = [text, json].map(|mut listening| {
        let mut stderr = BufReader::new(listening.child.stderr.take().unwrap());
        let mut told = String::new();
        stderr.read_line(&mut told).unwrap();
        assert!(told.starts_with("weir: listening to 127.0.0.1:"), "{told}");
        listening
    });
    drop(gateway.subscribe("meter-1"));
    let lines = [text.line(), text.line()];
    assert!(
        lines[0].contains("Z  connected     0") && lines[0].ends_with("  meter-1"),
        "{lines:?}"
    );
    assert!(lines[1].contains("  disconnected  ") && lines[1].contains("meter-1  peer_"));
    let events =
        [json.line(), json.line()].map(|line| serde_json::from_str::<Value>(&line).unwrap());
    assert_eq!(events.map(|event| event["type"].clone()), ["connected", "disconnected"]);
    for mut program in [text, json] {
        assert_eq!(program.child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn a_refusal_says_what_to_do_next() {
    let gateway = Gateway::start(&format!(
        "[admin]\ntoken = \"{TOKEN}\"\n[[auth.services]]\nname = \"backend\"\n\
         token = \"{TOKEN}-service\"\nmay = [\"publish\"]\n"
    ));
    assert_eq!(succeeded(&gateway.run(&["topics", "--json"])), "", "the configuration has it");
    let text = std::fs::read_to_string(gateway.directory.path().join("weir.toml")).unwrap();
    let admin = text.lines().find_map(|line| line.strip_prefix("admin = ")).unwrap();
    let admin = admin.trim_matches('"');
    for (token, says) in [
        (None, "401 Unauthorized"),
        (None, "no token was sent: set WEIR_ADMIN_TOKEN"),
        (Some("wrong".to_owned()), "does not know this token"),
        (Some(format!("{TOKEN}-service")), "403 Forbidden"),
        (Some(format!("{TOKEN}-service")), "set WEIR_ADMIN_TOKEN to one that may"),
    ] {
        let mut command = weir(&["topics", "--admin", admin], &[]);
        command.envs(token.map(|token| ("WEIR_ADMIN_TOKEN", token)));
        let stderr = failed(&command.output().unwrap());
        assert!(stderr.contains(says), "{says} in {stderr}");
        let mut command = weir(&["events", "--admin", admin], &[]);
        if says.starts_with("401") {
            let stderr = failed(&command.output().unwrap());
            assert!(stderr.contains(says), "{says} in {stderr}");
        }
    }
    let [free, _] = free_ports();
    let nobody = weir(&["closes", "--admin", &format!("127.0.0.1:{free}")], &[]).output().unwrap();
    let stderr = failed(&nobody);
    assert!(stderr.contains("is the gateway running? `weir serve` starts it"), "{stderr}");
    let refused = weir(&["closes", "--limit", "many"], &[]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
}

/// A device is found with its address and its token in the configuration.
#[test]
fn a_subscriber_takes_a_fitting_token_of_the_configuration() {
    let tokens = "[auth]\nanonymous = false\n[[auth.tokens]]\ntoken = \"of-meter-1-0123456789\"\n\
                  device = \"meter-1\"\n";
    let gateway = Gateway::start(tokens);
    let _subscriber = gateway.subscribe("meter-1");
    for args in [&["subscribe", "news"][..], &["subscribe", "news", "--device", "meter-2"]] {
        let stderr = failed(&gateway.run(args));
        assert!(stderr.contains("no token in auth.tokens fits: set WEIR_TOKEN"), "{stderr}");
    }
    assert!(succeeded(&gateway.run(&["connections"])).contains("meter-1"));
    drop(gateway);

    let any = "[auth]\nanonymous = false\n[[auth.tokens]]\ntoken = \"of-any-device-0123456789\"\n";
    let gateway = Gateway::start(any);
    let _subscriber = gateway.subscribe("meter-7");
    let told = gateway.command(&["subscribe", "news", "--count", "0"]).output().unwrap();
    assert_eq!(succeeded(&told), "");
}

#[test]
fn completions_and_man_pages_know_every_command() {
    let help = succeeded(&weir(&["help"], &[]).output().unwrap());
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        // A long description goes on in the next line.
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(commands.contains(&"closes") && commands.len() > 12, "{commands:?}");
    for shell in ["bash", "zsh", "fish"] {
        let script = succeeded(&weir(&["completions", shell], &[]).output().unwrap());
        for command in &commands {
            assert!(script.contains(command), "{command} for {shell}");
        }
    }
    let directory = tempfile::tempdir().unwrap();
    succeeded(&weir(&["man", text_of(directory.path())], &[]).output().unwrap());
    let document = [env!("CARGO_MANIFEST_DIR"), "..", "..", "docs", "commands.md"];
    let document =
        std::fs::read_to_string(document.iter().collect::<std::path::PathBuf>()).unwrap();
    for command in commands.iter().filter(|command| **command != "help") {
        let page = directory.path().join(format!("weir-{command}.1"));
        assert!(page.exists(), "no page for {command}");
        assert!(document.contains(&format!("`weir {command}")), "docs/commands.md: no {command}");
    }
    let first = std::fs::read_to_string(directory.path().join("weir.1")).unwrap();
    assert!(first.contains("Exit codes"), "{first}");
    let nowhere = failed(&weir(&["man", "/nowhere"], &[]).output().unwrap());
    assert!(nowhere.contains("cannot write man pages into /nowhere"), "{nowhere}");
}
