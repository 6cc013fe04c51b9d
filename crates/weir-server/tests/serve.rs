//! The built program as a server: it starts, serves, and ends by a signal.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// `weir` with these variables and no others of this process, and without a store.
fn weir(args: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(args).env_clear().env("WEIR_STORE_KIND", "none").envs(variables.iter().copied());
    command
}

/// A child process that ends with the test.
struct Program {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Program {
    fn start(mut command: Command) -> Program {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Program { child, stdout }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn stderr(&mut self) -> BufReader<ChildStderr> {
        BufReader::new(self.child.stderr.take().unwrap())
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    fn exit_code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A gateway on free ports, and what it printed about them.
struct Server {
    program: Program,
    tcp: String,
    admin: String,
    printed: String,
}

impl Server {
    fn start(variables: &[(&str, &str)]) -> Server {
        let mut command = weir(&["serve"], variables);
        for key in ["WEIR_LISTEN_TCP", "WEIR_LISTEN_HTTP", "WEIR_LISTEN_UDP", "WEIR_LISTEN_ADMIN"] {
            command.env(key, "127.0.0.1:0");
        }
        let mut program = Program::start(command);
        let mut printed = String::new();
        while !printed.ends_with("/v1/connections\n") {
            let line = program.line();
            assert!(!(line.is_empty() && printed.ends_with("\n\n")), "no commands in {printed}");
            printed += &line;
            printed.push('\n');
        }
        let row = |name: &str| {
            let line = printed.lines().find_map(|line| line.trim_start().strip_prefix(name));
            line.unwrap_or_else(|| panic!("no {name} in {printed}")).trim().to_owned()
        };
        let (tcp, admin) = (row("devices (TCP)"), row("admin API"));
        Server { program, tcp, admin, printed }
    }

    fn subscribe(&self, args: &[&str]) -> Subscriber {
        let mut command = weir(&["subscribe", "--addr", &self.tcp], &[]);
        command.args(args);
        let mut program = Program::start(command);
        let stderr = program.stderr();
        let mut subscriber = Subscriber { program, stderr };
        assert!(subscriber.told().contains(&format!("connected to {}", self.tcp)));
        subscriber
    }

    fn publish(&self, args: &[&str]) -> Output {
        weir(&["publish", "--admin", &self.admin], &[]).args(args).output().unwrap()
    }

    fn get(&self, path: &str) -> String {
        self.request("GET", path)
    }

    /// One request to the admin API, and its whole answer.
    fn request(&self, method: &str, path: &str) -> String {
        let mut stream = TcpStream::connect(self.admin.as_str()).unwrap();
        let host = &self.admin;
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

struct Subscriber {
    program: Program,
    stderr: BufReader<ChildStderr>,
}

impl Subscriber {
    /// The next line about the connection.
    fn told(&mut self) -> String {
        let mut line = String::new();
        self.stderr.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

fn succeeded(output: &Output) -> &str {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    std::str::from_utf8(&output.stdout).unwrap()
}

#[test]
fn it_prints_what_it_found_and_what_to_try() {
    let server = Server::start(&[("WEIR_MEMORY_BUDGET_BYTES", "8388608")]);

    let (tcp, admin) = (&server.tcp, &server.admin);
    assert_ne!(tcp.parse::<SocketAddr>().unwrap().port(), 0);
    for expected in [
        "shards ".to_owned(),
        "front threads ".to_owned(),
        "byte budget     8 MiB of ".to_owned(),
        " soft, ".to_owned(),
        "B to send, ".to_owned(),
        format!("\n  weir subscribe news --addr {tcp}\n"),
        format!("\n  weir publish --topic news --text hello --admin {admin}\n"),
        format!("\n  curl http://{admin}/v1/connections\n"),
    ] {
        assert!(server.printed.contains(&expected), "no {expected:?} in {}", server.printed);
    }
    assert!(server.get("/readyz").starts_with("HTTP/1.1 200 "));
}

/// The commands that a gateway proposes work in a shell, with any kind of listener.
#[test]
fn what_is_proposed_works() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().to_str().unwrap();
    let free = "127.0.0.1:0";
    for (key, proposed) in [
        ("WEIR_LISTEN_TCP", "weir subscribe news --addr 127.0.0.1:"),
        ("WEIR_LISTEN_TLS", "weir subscribe news --addr 127.0.0.1:"),
        ("WEIR_LISTEN_HTTP", "curl -NG "),
        ("WEIR_LISTEN_HTTPS", "curl -NG --cacert "),
    ] {
        let mut variables = vec![("WEIR_TLS_DEVELOPMENT_DIRECTORY", state)];
        variables.extend([("WEIR_LISTEN_TCP", ""), ("WEIR_LISTEN_HTTP", "")]);
        variables.extend([("WEIR_LISTEN_UDP", ""), ("WEIR_LISTEN_ADMIN", free), (key, free)]);
        let mut gateway = Program::start(weir(&["serve"], &variables));
        while gateway.line() != "Try next:" {}
        let (subscribe, publish) = (gateway.line(), gateway.line());
        assert!(subscribe.trim().starts_with(proposed), "{subscribe}");

        let shell = |line: &str| {
            let weir = Path::new(env!("CARGO_BIN_EXE_weir")).parent().unwrap().display();
            let path = format!("{weir}:{}", std::env::var("PATH").unwrap_or_default());
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("exec {}", line.trim())]).env_clear().env("PATH", path);
            shell.env("WEIR_STORE_KIND", "none");
            shell
        };
        let mut subscriber = Program::start(shell(&subscribe));
        // Somebody is in the topic when it is told so.
        let heard = loop {
            let output = shell(&format!("{publish} --json")).output().unwrap();
            let answer: serde_json::Value = serde_json::from_str(succeeded(&output)).unwrap();
            if answer["connections"] == 1 {
                break (0..40).map(|_| subscriber.line()).find(|line| line.contains("hello"));
            }
        };
        assert!(heard.is_some(), "{subscribe}");
    }
}

#[test]
fn what_is_published_is_printed_by_who_subscribes() {
    let server = Server::start(&[]);
    let mut news = server.subscribe(&["news", "--count", "3"]);
    assert_eq!(news.told(), "weir: subscribed to \"news\"");
    let mut json = server.subscribe(&["--json", "--device", "d-1", "--count", "2"]);

    let output = server.publish(&["--topic", "news", "--text", "one\ntwo"]);
    let answer = succeeded(&output);
    assert!(answer.starts_with("queued for 1 connection: id "), "{answer}");
    assert!(answer.ends_with(", offset 1\n"), "{answer}");
    succeeded(&server.publish(&["--topic", "news", "--data", "AP8="]));
    succeeded(&server.publish(&["--device", "d-1", "--text", "mine", "--key", "k"]));
    let output = server.publish(&["--all", "--text", "to all", "--json"]);
    let answer: serde_json::Value = serde_json::from_str(succeeded(&output)).unwrap();
    assert_eq!(answer["connections"], 2);

    assert_eq!(news.program.line(), "news 1 one\\ntwo");
    assert_eq!(news.program.line(), "news 2 base64:AP8=");
    assert_eq!(news.program.line(), "- 0 to all");
    assert_eq!(news.program.exit_code(), Some(0));
    let line: serde_json::Value = serde_json::from_str(&json.program.line()).unwrap();
    assert_eq!((&line["text"], &line["key"]), (&"mine".into(), &"k".into()));
    let line: serde_json::Value = serde_json::from_str(&json.program.line()).unwrap();
    assert_eq!((&line["text"], &line["id"]), (&"to all".into(), &answer["id"]));
    assert_eq!(json.program.exit_code(), Some(0));
}

#[test]
fn a_subscriber_comes_back_when_the_server_says_so() {
    let server = Server::start(&[]);
    let mut command = weir(&["subscribe", "news", "--addr", &server.tcp, "--count", "2"], &[]);
    command.args(["--device", "d"]);
    let mut program = Program::start(command);
    let stderr = program.stderr();
    let mut subscriber = Subscriber { program, stderr };
    let connected = subscriber.told();
    assert_eq!(subscriber.told(), "weir: subscribed to \"news\"");
    succeeded(&server.publish(&["--topic", "news", "--text", "before"]));
    assert_eq!(subscriber.program.line(), "news 1 before");

    let id = connected.rsplit(' ').next().unwrap();
    assert!(server.request("DELETE", &format!("/v1/connections/{id}")).contains(" 204 "));

    let goodbye = subscriber.told();
    assert!(goodbye.contains("4006 closed_by_operator; connecting again in "), "{goodbye}");
    assert!(subscriber.told().starts_with("weir: connected to "));
    // The topic may have ended in between, without subscribers; then it has begun anew.
    let told = subscriber.told();
    assert!(told.starts_with("weir: subscribed to \"news\" again: "), "{told}");
    succeeded(&server.publish(&["--topic", "news", "--text", "after"]));
    assert!(subscriber.program.line().ends_with(" after"));
    assert_eq!(subscriber.program.exit_code(), Some(0));
}

/// The listeners of the configuration, and the token that they require.
#[test]
fn the_commands_find_the_gateway_by_its_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.toml");
    let write = |tcp: &str, admin: &str| {
        let text = format!(
            "[listen]\ntcp = [{tcp}]\nudp = []\nhttp = [\"127.0.0.1:0\"]\nadmin = \"{admin}\"\n\
             [admin]\ntoken = \"a0\"\n"
        );
        std::fs::write(&path, text).unwrap();
    };
    // Another program may have taken the port; then try another one.
    let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let config = path.to_str().unwrap();
    let mut gateway = loop {
        write(&format!("\"{}\"", free()), &free());
        let mut gateway = Program::start(weir(&["--config", config, "serve"], &[]));
        if gateway.line().ends_with(" is listening") {
            break gateway;
        }
    };
    let mut program =
        Program::start(weir(&["--config", config, "subscribe", "news", "--count", "1"], &[]));
    let stderr = program.stderr();
    let mut subscriber = Subscriber { program, stderr };
    assert!(subscriber.told().contains("connected to "));
    assert_eq!(subscriber.told(), "weir: subscribed to \"news\"");
    let variable = [("WEIR_CONFIG", config)];
    let output =
        weir(&["publish", "--topic", "news", "--text", "one"], &variable).output().unwrap();
    succeeded(&output);
    assert_eq!(subscriber.program.line(), "news 1 one");
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.exit_code(), Some(0));

    for (tcp, args, expected) in [
        ("", &["subscribe"][..], "weir: listen.tcp is empty: name an address with --addr\n"),
        ("\"127.0.0.1:0\"", &["subscribe"], "weir: listen.tcp = 127.0.0.1:0 means any free port"),
        ("", &["publish", "--all", "--text", "t"], "weir: listen.admin = 127.0.0.1:0 means "),
    ] {
        write(tcp, "127.0.0.1:0");
        let output = weir(args, &variable).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.starts_with(expected) && output.status.code() == Some(1), "{stderr}");
    }
}

#[test]
fn a_refused_publish_says_why() {
    let server = Server::start(&[]);
    let output = server.publish(&["--topic", "a#", "--text", "x"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("weir: refused with 400 Bad Request: "), "{stderr}");
    assert!(stderr.contains("wildcard"), "{stderr}");
}

#[test]
fn the_room_of_the_repository_runs() {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "..", "weir.toml"].iter().collect();
    // The file's value may exceed the limit of a test machine.
    let backlog = ("WEIR_LISTEN_ACCEPT_BACKLOG", "128");

    let mut server = Server::start(&[("WEIR_CONFIG", path.to_str().unwrap()), backlog]);

    assert!(server.printed.contains("  topic classes   6\n"), "{}", server.printed);
    let token = "REPLACE-van-7-000000000000000000";
    let _van = server.subscribe(&["--token", token, "fleet/van-7/orders"]);
    server.program.signal(Signal::TERM);
    assert_eq!(server.program.exit_code(), Some(0));
}

#[test]
fn tokens_of_the_file_admit_and_are_needed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.toml");
    let text = "[auth]\nanonymous = false\n[[auth.tokens]]\ntoken = \"t0\"\ndevice = \"d\"\n\
                [[auth.tokens]]\ntoken = \"any\"\n[admin]\ntoken = \"a0\"\n";
    std::fs::write(&path, text).unwrap();
    let server = Server::start(&[("WEIR_CONFIG", path.to_str().unwrap())]);
    assert!(server.printed.contains("--token TOKEN\n"), "{}", server.printed);

    let anonymous = weir(&["subscribe", "--addr", &server.tcp], &[]).output().unwrap();
    assert_eq!(anonymous.status.code(), Some(1));
    let stderr = String::from_utf8(anonymous.stderr).unwrap();
    assert!(stderr.contains("refused by the server: 4200 unauthorized"), "{stderr}");

    let mut unnamed = weir(&["subscribe", "--addr", &server.tcp, "--token", "any"], &[]);
    let unnamed = unnamed.output().unwrap();
    assert_eq!(unnamed.status.code(), Some(1));
    let stderr = String::from_utf8(unnamed.stderr).unwrap();
    assert!(stderr.contains("malformed") && stderr.contains("add --device ID"), "{stderr}");
    let mut named = server.subscribe(&["--token", "t0", "--count", "1"]);
    succeeded(&server.publish(&["--device", "d", "--text", "x", "--token", "a0"]));
    assert_eq!(named.program.line(), "- 0 x");
    assert_eq!(named.program.exit_code(), Some(0));

    let mut admitted = server.subscribe(&["--token", "t0", "--device", "d", "--count", "1"]);
    let refused = server.publish(&["--all", "--text", "x"]);
    assert_eq!(refused.status.code(), Some(1));
    succeeded(&server.publish(&["--all", "--text", "x", "--token", "a0"]));
    assert_eq!(admitted.program.line(), "- 0 x");
}

#[test]
fn a_port_in_use_is_named_with_its_key() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    for (variable, key) in [
        ("WEIR_LISTEN_TCP", "listen.tcp"),
        ("WEIR_LISTEN_HTTP", "listen.http"),
        ("WEIR_LISTEN_ADMIN", "listen.admin"),
    ] {
        let variables = [
            ("WEIR_LISTEN_TCP", "127.0.0.1:0"),
            ("WEIR_LISTEN_HTTP", "127.0.0.1:0"),
            ("WEIR_LISTEN_UDP", "127.0.0.1:0"),
            ("WEIR_LISTEN_ADMIN", "127.0.0.1:0"),
            (variable, addr.as_str()),
        ];
        let output = weir(&[], &variables).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let stderr = String::from_utf8(output.stderr).unwrap();
        let expected = format!("weir: {key}: cannot listen on {addr}: Address already in use");
        assert!(stderr.contains(&expected), "{stderr}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_signal_says_goodbye_to_all_and_ends_with_0() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut server = Server::start(&[("WEIR_CONNECTION_DRAIN_TIMEOUT", "200ms")]);
        let mut subscriber = server.subscribe(&[]);

        server.program.signal(signal);

        let goodbye = subscriber.told();
        let expected = "weir: the server said goodbye: 4100 draining, come back in ";
        assert!(goodbye.starts_with(expected), "{goodbye}");
        assert_eq!(server.program.exit_code(), Some(0));
        let mut log = String::new();
        server.program.stderr().read_to_string(&mut log).unwrap();
        assert!(log.trim_end().ends_with("stopped"), "the last line is missing: {log}");
    }
}

#[test]
fn a_hangup_opens_the_access_log_anew() {
    let directory = tempfile::tempdir().unwrap();
    let (path, renamed) = (directory.path().join("access.log"), directory.path().join("old"));
    let variables = [("WEIR_ACCESS_LOG_PATH", path.to_str().unwrap())];
    let mut server = Server::start(&variables);
    let mut log = server.program.stderr();
    std::fs::rename(&path, &renamed).unwrap();

    server.program.signal(Signal::HUP);

    let mut line = String::new();
    while !line.contains("access log opened anew") {
        line.clear();
        assert_ne!(log.read_line(&mut line).unwrap(), 0, "nothing is said about it");
    }
    assert!(path.exists() && renamed.exists());
    let metrics = server.get("/metrics");
    for name in ["lines", "dropped", "errors"] {
        let expected = format!("\nweir_access_log_{name}_total 0\n");
        assert!(metrics.contains(&expected), "no {name} in {metrics}");
    }
    server.program.signal(Signal::TERM);
    assert_eq!(server.program.exit_code(), Some(0));
}

#[test]
fn an_access_log_that_cannot_be_written_is_named_with_its_key() {
    let variables = [
        ("WEIR_ACCESS_LOG_PATH", "/nowhere/access.log"),
        ("WEIR_LISTEN_TCP", "127.0.0.1:0"),
        ("WEIR_LISTEN_ADMIN", "127.0.0.1:0"),
    ];
    let refused = weir(&["serve"], &variables).output().unwrap();
    let error = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{error}");
    let expected = "access_log.path: cannot open /nowhere/access.log: No such file";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_second_signal_ends_at_once() {
    // Goodbyes would be spread over an hour.
    let mut server = Server::start(&[("WEIR_CONNECTION_DRAIN_TIMEOUT", "1h")]);
    let _held: Vec<Subscriber> = (0..4).map(|_| server.subscribe(&[])).collect();
    let mut log = server.program.stderr();

    server.program.signal(Signal::TERM);
    let mut line = String::new();
    while !line.contains("draining") {
        line.clear();
        assert_ne!(log.read_line(&mut line).unwrap(), 0, "it ended by the first signal");
    }
    server.program.signal(Signal::INT);

    assert_eq!(server.program.exit_code(), Some(1));
    let mut rest = String::new();
    log.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("ended at once"), "{rest}");
}

#[test]
fn log_lines_can_be_json() {
    let mut server = Server::start(&[("WEIR_LOG_FORMAT", "json"), ("WEIR_LOG_LEVEL", "debug")]);
    server.get("/healthz");
    server.program.signal(Signal::TERM);
    assert_eq!(server.program.exit_code(), Some(0));

    let mut log = String::new();
    server.program.stderr().read_to_string(&mut log).unwrap();
    let messages: Vec<String> = log
        .lines()
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            line["message"].as_str().unwrap().to_owned()
        })
        .collect();
    assert!(messages.iter().any(|message| message == "listening"), "{messages:?}");
    assert!(messages.iter().any(|message| message == "admin request"), "{messages:?}");
}

/// The gateway serves although nobody reads its standard error, and counts the dropped lines.
#[test]
fn a_log_that_nobody_reads_holds_up_nothing_and_its_drops_are_counted() {
    let server = Server::start(&[
        ("WEIR_LOG_LEVEL", "debug"),
        ("WEIR_LOG_QUEUE_LINES", "128"),
        ("WEIR_LOG_LINES_PER_SECOND", "0"),
    ]);
    // A line each: far more than the pipe and the queue hold.
    const REQUESTS: usize = 3_000;

    let mut stream = TcpStream::connect(server.admin.as_str()).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut answers = BufReader::new(stream.try_clone().unwrap());
    let request = format!("HEAD /healthz HTTP/1.1\r\nHost: {}\r\n\r\n", server.admin);
    let mut line = String::new();
    for _request in 0..REQUESTS {
        stream.write_all(request.as_bytes()).unwrap();
        line.clear();
        while line != "\r\n" {
            line.clear();
            assert_ne!(answers.read_line(&mut line).unwrap(), 0, "the connection was closed");
        }
    }

    let dropped = || {
        let metrics = server.get("/metrics");
        let line =
            metrics.lines().find_map(|line| line.strip_prefix("weir_log_lines_dropped_total "));
        line.unwrap().parse::<u64>().unwrap()
    };
    // The gateway copies the count into the metrics every few seconds; after a minute without it
    // the test fails.
    let seen = (0..600).any(|_| {
        let seen = dropped() > 0;
        if !seen {
            std::thread::park_timeout(Duration::from_millis(100));
        }
        seen
    });
    assert!(seen, "no dropped line was counted");
}
