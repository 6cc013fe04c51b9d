//! `weir top` against a scripted gateway: documents for programs, figures for people, and a
//! terminal that is as before.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

fn document(time_ms: u64, delivered: u64) -> String {
    format!(
        r#"{{"time_ms":{time_ms},"version":"9.9","node":{{"number":0,"name":"scripted"}},"uptime_ms":9000,"ready":true,"messages":{{"delivered":{delivered}}}}}"#
    )
}

/// A gateway that sends two documents to one reader. It ends the stream then, or holds it open
/// until the reader has gone.
fn gateway(holds: bool) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let gateway = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let asked = head(&mut socket);
        assert!(asked.starts_with("GET /v1/stats/stream HTTP/1.1\r\n"), "{asked}");
        let documents = [document(1_000, 0), document(2_000, 789)];
        let events = documents.map(|document| format!("data: {document}\n\n")).concat();
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n{events}"
        );
        socket.write_all(answer.as_bytes()).unwrap();
        // The reader sends nothing more, so this waits for its end.
        let _ = holds.then(|| socket.read(&mut [0]));
    });
    (addr, gateway)
}

fn head(socket: &mut TcpStream) -> String {
    let mut head = String::new();
    let mut lines = BufReader::new(socket);
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(lines.read_line(&mut head).unwrap(), 0, "{head}");
    }
    head
}

fn top(args: &[&str]) -> Output {
    let (addr, gateway) = gateway(false);
    let mut command = Command::new(WEIR);
    command.args(["top", "--admin", &addr]).args(args).env_clear().stdin(Stdio::null());
    let output = command.output().unwrap();
    gateway.join().unwrap();
    output
}

#[test]
fn programs_get_the_documents() {
    let one = top(&["--json", "--once"]);
    assert_eq!(one.status.code(), Some(0), "{one:?}");
    assert_eq!(String::from_utf8(one.stdout).unwrap(), document(1_000, 0) + "\n");
    let all = top(&["--json"]);
    assert_eq!(all.status.code(), Some(1), "{all:?}");
    let both = [document(1_000, 0), document(2_000, 789)].map(|document| document + "\n").concat();
    assert_eq!(String::from_utf8(all.stdout).unwrap(), both);
    let stderr = String::from_utf8(all.stderr).unwrap();
    assert!(stderr.contains("the gateway has ended the stream"), "{stderr}");
}

#[test]
fn people_get_the_figures_of_a_second() {
    let output = top(&["--once"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("weir 9.9  scripted  up 9.0 s  ready\n"), "{text}");
    let delivered = text.lines().find(|line| line.starts_with("delivered")).unwrap();
    assert!(delivered.ends_with(" 789 /s"), "{text}");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn without_a_terminal_it_says_what_to_use() {
    let output = Command::new(WEIR).args(["top", "--admin", "127.0.0.1:1"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("use --once for one look, or --json"), "{stderr}");
    assert_eq!(output.status.code(), Some(1));
}

/// `script` gives it a terminal. A machine without these programs has the other tests.
#[test]
fn a_key_ends_it_and_the_terminal_is_as_before() {
    if Command::new("script").arg("--version").output().is_err() {
        return;
    }
    let (addr, gateway) = gateway(true);
    let line = format!("stty rows 24 cols 80; {WEIR} top --admin {addr}; echo ended $?");
    let mut command = Command::new("timeout");
    command.args(["20", "script", "-qec", &line, "/dev/null"]).env("TERM", "xterm");
    let mut script = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut screen, mut bytes) = (String::new(), [0; 4096]);
    let mut stdout = script.stdout.take().unwrap();
    let mut stdin = script.stdin.take().unwrap();
    let mut has_quit = false;
    loop {
        let count = stdout.read(&mut bytes).unwrap();
        screen.push_str(&String::from_utf8_lossy(&bytes[..count]));
        if count == 0 {
            break;
        }
        // The screen gets only what has changed, so no digit may be the 0 of before.
        if screen.contains("789") && !has_quit {
            stdin.write_all(b"q").unwrap();
            has_quit = true;
        }
    }
    gateway.join().unwrap();
    script.wait().unwrap();
    let (entered, left) = (screen.find("\u{1b}[?1049h"), screen.rfind("\u{1b}[?1049l"));
    assert!(entered.is_some() && left > entered, "{screen:?}");
    assert!(screen.trim_end().ends_with("ended 0"), "{screen:?}");
}
