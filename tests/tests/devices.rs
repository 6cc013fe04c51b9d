//! Devices by the program's own commands: imported, activated over HTTP, listed, and shut out.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use weir_tests::{Answer, Authority, Datagrams, Device, PATIENCE, Server, Socket, program};
use weir_wire::CloseReason;
use weir_wire::v1::client_message::Kind;
use weir_wire::v1::{Hello, server_message};

/// A gateway that keeps devices in its own directory, and speaks HTTP.
fn start(activation: &str) -> Result<Server> {
    Server::start_with_http(&format!(
        "[store]\npath = \"devices.db\"\n[activation]\ngateways = [\"gate.example:7070\"]\n{activation}"
    ))
}

fn http(server: &Server) -> Result<SocketAddr> {
    server.http.context("it speaks HTTP")
}

/// `weir devices …` where the server has its files.
fn devices(server: &Server, args: &[&str]) -> Result<Output> {
    run(server.directory(), &["--config", "weir.toml"], args)
}

fn run(directory: &Path, options: &[&str], args: &[&str]) -> Result<Output> {
    let mut command = Command::new(program("weir")?);
    command.arg("devices").args(options).args(args).current_dir(directory);
    command.env_remove("WEIR_CONFIG").env_remove("WEIR_ADMIN_TOKEN").stdin(Stdio::null());
    Ok(command.output()?)
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn import(server: &Server, text: &str) -> Result<Output> {
    std::fs::write(server.directory().join("devices.csv"), text)?;
    let output = devices(server, &["import", "devices.csv"])?;
    ensure!(output.status.success(), "{}", stderr(&output));
    Ok(output)
}

fn activate(addr: SocketAddr, serial: &str, key: &str) -> Result<(u16, Value)> {
    let body = json!({"devSn": serial, "devKey": key}).to_string();
    let answer = Answer::post(addr, "/v1/devices/activate", &body)?;
    Ok((answer.status, serde_json::from_str(&answer.body)?))
}

/// What curl is answered, and the status.
fn curl(args: &[&str]) -> Result<(String, String)> {
    let mut curl = Command::new("curl");
    curl.args([
        "--silent",
        "--show-error",
        "--noproxy",
        "*",
        "-w",
        "\n%{http_version} %{http_code}",
    ]);
    let output = curl.args(args).output()?;
    ensure!(output.status.success(), "{args:?}: {}", stderr(&output));
    let text = stdout(&output);
    let (body, status) = text.rsplit_once('\n').context("a status")?;
    Ok((body.to_owned(), status.to_owned()))
}

#[test]
fn the_row_add_abc_activates_by_the_request_of_the_article() -> Result<()> {
    let server = start("")?;
    let imported = import(&server, "devSn,devKey\nadd,abc\n")?;
    assert!(stdout(&imported).starts_with("1 rows: 1 added,"), "{}", stdout(&imported));
    assert!(stderr(&imported).contains("1 keys have less than 16 characters"), "{imported:?}");
    assert!(stderr(&imported).contains("using the admin API"), "{imported:?}");
    let url = format!("http://{}/auth/gw/active", http(&server)?);
    let body = r#"{"devSn":"add","devKey":"abc"}"#;
    let mut tokens = Vec::new();
    for (version, says) in [("--http1.1", "1.1 200"), ("--http2-prior-knowledge", "2 200")] {
        let (answer, status) = curl(&[version, "-d", body, &url])?;
        assert_eq!(status, says, "{answer}");
        let answer: Value = serde_json::from_str(&answer)?;
        let token = answer["pt"].as_str().context("a token")?.to_owned();
        assert_eq!(token.len(), 22, "{token}");
        assert!(answer["expiresAt"].as_u64().is_some_and(|at| at > 1_700_000_000_000), "{answer}");
        assert_eq!(answer["gateways"], json!(["gate.example:7070"]));
        tokens.push(token);
    }
    assert_ne!(tokens[0], tokens[1]);
    let refresh = format!("http://{}/v1/devices/token/refresh", http(&server)?);
    let bearer = format!("Authorization: Bearer {}", tokens[1]);
    let (answer, status) = curl(&["-X", "POST", "-H", &bearer, &refresh])?;
    assert_eq!(status, "1.1 200", "{answer}");
    let (answer, status) = curl(&["-X", "POST", "-H", "Authorization: Bearer x", &refresh])?;
    assert_eq!(status, "1.1 401", "{answer}");
    let metrics = server.metrics()?;
    for line in [
        "weir_activations_total{outcome=\"first\"} 1",
        "weir_activations_total{outcome=\"again\"} 1",
        "weir_activations_total{outcome=\"refreshed\"} 1",
        "weir_activations_total{outcome=\"invalid_token\"} 1",
    ] {
        assert!(metrics.text().contains(line), "{line} in {}", metrics.text());
    }
    Ok(())
}

#[test]
fn what_is_wrong_is_one_answer_until_it_is_too_often() -> Result<()> {
    let limits = "failures_per_source_per_minute = 1\nfailures_per_source_burst = 4\n";
    let server = start(limits)?;
    import(&server, "devSn,devKey\nadd,abc\ngone,abc\n")?;
    ensure!(devices(&server, &["revoke", "gone"])?.status.success());
    let addr = http(&server)?;
    let unknown = activate(addr, "nobody", "abc")?;
    assert_eq!(unknown.0, 401);
    for (serial, key) in [("add", "wrong"), ("gone", "abc"), ("gone", "wrong")] {
        assert_eq!(activate(addr, serial, key)?, unknown, "{serial}/{key}");
    }
    let (status, problem) = activate(addr, "add", "abc")?;
    assert_eq!(status, 429, "{problem}");
    assert_eq!(problem["type"], "urn:problem-type:weir:too-many-failures");
    assert!(problem["retry_after_ms"].as_u64().is_some_and(|ms| ms > 0), "{problem}");
    let text = server.metrics()?.text().to_owned();
    for (outcome, count) in
        [("unknown_device", 1), ("wrong_key", 1), ("revoked", 2), ("limited", 1)]
    {
        let line = format!("weir_activations_total{{outcome=\"{outcome}\"}} {count}\n");
        assert!(text.contains(&line), "{line} in {text}");
    }
    Ok(())
}

#[test]
fn ten_thousand_guesses_are_held_up_and_counted() -> Result<()> {
    let server = start("")?;
    import(&server, "devSn,devKey\nadd,abc\n")?;
    let addr = http(&server)?;
    let body = r#"{"devSn":"add","devKey":"guess"}"#;
    let request = format!(
        "POST /v1/devices/activate HTTP/1.1\r\nHost: {addr}\r\nContent-Length: {}\r\n",
        body.len()
    );
    let mut guesses = format!("{request}\r\n{body}").repeat(9_999);
    guesses.push_str(&format!("{request}Connection: close\r\n\r\n{body}"));
    let answered = converse(addr, &guesses)?;
    let count = |status: &str| answered.matches(&format!("HTTP/1.1 {status} ")).count();
    let (refused, limited) = (count("401"), count("429"));
    assert_eq!(refused + limited, 10_000);
    // The burst, and what a minute or two on a slow machine forgives.
    assert!((20..200).contains(&refused), "{refused} were tried");
    server.await_metrics("the guesses", |metrics| {
        metrics
            .text()
            .contains(&format!("weir_activations_total{{outcome=\"limited\"}} {limited}\n"))
    })?;
    Ok(())
}

/// Writes while it reads, so that neither side waits for the other.
fn converse(addr: SocketAddr, requests: &str) -> Result<String> {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(addr)?;
    let mut writing = stream.try_clone()?;
    let requests = requests.to_owned();
    let writer = std::thread::spawn(move || writing.write_all(requests.as_bytes()));
    let mut answers = String::new();
    stream.read_to_string(&mut answers)?;
    writer.join().ok().context("the writer ends")??;
    Ok(answers)
}

#[test]
fn hostile_bodies_are_refused_by_the_field_at_fault() -> Result<()> {
    let server = start("")?;
    let addr = http(&server)?;
    let long = "s".repeat(129);
    let deep = format!(
        "{{\"devSn\":\"a\",\"devKey\":\"k\",\"x\":{}{}}}",
        "[".repeat(5000),
        "]".repeat(5000)
    );
    for (body, status, field, says) in [
        ("", 400, "", "EOF"),
        ("{", 400, "", "EOF"),
        ("[]", 400, "", "a JSON object"),
        ("{\"devSn\":\"a\"}", 400, "devKey", "devKey is missing"),
        ("{\"devSn\":5,\"devKey\":\"k\"}", 400, "devSn", "invalid type: integer `5`"),
        ("{\"devSn\":{\"a\":1},\"devKey\":\"k\"}", 400, "devSn", "invalid type: map"),
        ("{\"devSn\":\"a\",\"devSn\":\"b\",\"devKey\":\"k\"}", 400, "", "duplicate field `devSn`"),
        ("{\"devSn\":\"\",\"devKey\":\"k\"}", 400, "devSn", "devSn is empty"),
        ("{\"devSn\":\"a\\u0000b\",\"devKey\":\"k\"}", 400, "devSn", "control character '\\0'"),
        (
            &format!("{{\"devSn\":\"{long}\",\"devKey\":\"k\"}}"),
            400,
            "devSn",
            "devSn has 129 bytes; at most 128 are allowed",
        ),
        (&deep, 401, "", ""),
        (&format!("{{\"x\":\"{}\"}}", "x".repeat(1_000_000)), 413, "", "limit of 16384 bytes"),
    ] {
        let answer = Answer::post(addr, "/auth/gw/active", body)?;
        let shown = &body[..body.len().min(60)];
        assert_eq!(answer.status, status, "{shown}: {}", answer.body);
        let problem: Value = serde_json::from_str(&answer.body)?;
        if !field.is_empty() {
            assert_eq!(problem["field"], field, "{shown}");
        }
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(detail.contains(says), "{shown}: {detail}");
    }
    // Members that are not known say nothing.
    import(&server, "devSn,devKey\nadd,abc\n")?;
    let body = r#"{"model":[1,{"a":null}],"devKey":"abc","devSn":"add"}"#;
    assert_eq!(Answer::post(addr, "/auth/gw/active", body)?.status, 200);
    Ok(())
}

#[test]
fn devices_are_listed_shown_exported_and_shut_out_with_their_connections() -> Result<()> {
    let server = start("")?;
    import(&server, "devSn,devKey,site\nd1,0123456789abcdef,north\nd2,0123456789abcdef,\n,k,\n")?;
    let listed = stdout(&devices(&server, &["list"])?);
    assert_eq!(listed, "d1\tnew\tsite=north\nd2\tnew\n");
    assert_eq!(stdout(&devices(&server, &["list", "--after", "d1"])?), "d2\tnew\n");
    let exported = stdout(&devices(&server, &["export"])?);
    assert_eq!(exported.lines().count(), 2, "{exported}");
    assert!(!exported.contains("0123456789abcdef") && !exported.contains("key"), "{exported}");
    let streamed = Answer::get(server.admin, "/v1/devices/export")?;
    assert!(streamed.head.contains("application/x-ndjson"), "{}", streamed.head);
    assert_eq!(lines(&streamed.body)?, lines(&exported)?);

    assert_eq!(server.stored("d1")?["state"], "new");
    let (_, answer) = activate(http(&server)?, "d1", "0123456789abcdef")?;
    let token = answer["pt"].as_str().context("a token")?.to_owned();
    let mut device = Device::connect(server.tcp)?;
    device.send(Kind::Hello(Hello { token, ..Hello::default() }))?;
    server.await_answer("/v1/devices/d1", |shown| {
        shown["connections"].as_array().is_some_and(|connections| connections.len() == 1)
            && shown["stored"]["state"] == "active"
    })?;
    ensure!(matches!(device.hear()?, Some(server_message::Kind::Welcome(_))));
    let revoked = devices(&server, &["revoke", "d1", "nobody"])?;
    assert_eq!((revoked.status.code(), stdout(&revoked).as_str()), (Some(1), "revoked d1\n"));
    assert!(stderr(&revoked).contains("there is no device \"nobody\""), "{revoked:?}");
    assert_eq!(device.goodbye()?.code, u32::from(CloseReason::Revoked.code()));
    let shown: Value = serde_json::from_str(&stdout(&devices(&server, &["show", "d1"])?))?;
    assert_eq!(shown["stored"]["state"], "revoked", "{shown}");
    assert_eq!(activate(http(&server)?, "d1", "0123456789abcdef")?.0, 401);
    let (status, answer) = activate(http(&server)?, "d2", "0123456789abcdef")?;
    assert_eq!(status, 200, "{answer}");
    let mut device = Device::connect(server.tcp)?;
    let token = answer["pt"].as_str().context("a token")?.to_owned();
    device.send(Kind::Hello(Hello { token, ..Hello::default() }))?;
    server.await_answer("/v1/devices/d2", |shown| {
        shown["connections"].as_array().is_some_and(|connections| connections.len() == 1)
            && shown["stored"]["seen_ms"].is_u64()
    })?;
    Ok(())
}

fn lines(text: &str) -> Result<Vec<Value>> {
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

#[test]
fn without_a_gateway_the_commands_open_the_store_themselves() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let at = directory.path();
    std::fs::write(at.join("weir.toml"), "[store]\npath = \"devices.db\"\n")?;
    let options = ["--config", "weir.toml"];
    let rows: String =
        (0..5_000).map(|number| format!("d{number:04},key-of-16-chars-{number}\n")).collect();
    std::fs::write(at.join("many.csv"), format!("devSn,devKey\n{rows}bad\n"))?;
    let output = run(at, &options, &["import", "many.csv"])?;
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("5001 rows: 5000 added, 0 unchanged,"), "{output:?}");
    assert!(
        stderr(&output).contains("line 5002: 1 fields; the header has 2: skipped"),
        "{output:?}"
    );
    assert!(!stderr(&output).contains("16 characters"), "{output:?}");
    // Without a limit it is a hundred, and it is said that there are more.
    for (args, shown, more) in [
        (&["list"][..], 100, true),
        (&["list", "--limit", "5000"], 5_000, false),
        (&["list", "--after", "d4899"], 100, false),
        (&["list", "--after", "d4898"], 100, true),
    ] {
        let output = run(at, &options, args)?;
        assert_eq!(stdout(&output).lines().count(), shown, "{args:?}");
        let said = stderr(&output);
        assert_eq!(said.contains(&format!("{shown} devices shown, more follow")), more, "{said}");
    }
    let again = run(at, &options, &["import", "many.csv", "--from-line", "4002"])?;
    assert!(stdout(&again).starts_with("1001 rows: 0 added, 1000 unchanged,"), "{again:?}");
    let listed = stdout(&run(at, &options, &["list", "--limit", "1001"])?);
    assert_eq!(listed.lines().count(), 1001);
    let exported = stdout(&run(at, &options, &["export"])?);
    assert_eq!(exported.lines().count(), 5_000);
    let shown = run(at, &options, &["show", "nobody"])?;
    assert_eq!(shown.status.code(), Some(1));
    let lines = "{\"devSn\":\"j1\",\"devKey\":\"k\",\"site\":\"n\"}\nx\n";
    std::fs::write(at.join("some.jsonl"), lines)?;
    let output = run(at, &options, &["import", "some.jsonl"])?;
    assert!(stderr(&output).contains("line 2: "), "{output:?}");
    assert!(stdout(&output).starts_with("2 rows: 1 added,"), "{output:?}");
    let nothing = run(at, &[], &["import", "devices.txt"])?;
    assert!(stderr(&nothing).contains("add --format csv"), "{nothing:?}");
    Ok(())
}

/// HS256 by `SECRET`, for one `sub` until the year 2100.
const SECRET: &str = "0123456789abcdef0123456789abcdef";
const HEAD: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9";
const OF_LOCK: &str =
    "eyJzdWIiOiJsb2NrLTEiLCJleHAiOjQxMDI0NDQ4MDB9.6I_k9vnyKIK2bleK3rKOcuKK0R6UPBUtF85CndQQpO8";
const OF_GONE: &str =
    "eyJzdWIiOiJnb25lLTEiLCJleHAiOjQxMDI0NDQ4MDB9.oCGZ052xPhzOgufetCL4-w3tx7jPBzka7WeFx08uO4I";
const OF_USER: &str =
    "eyJzdWIiOiJ1c2VyLTciLCJleHAiOjQxMDI0NDQ4MDB9.ppbPv3VnDgRRWiPwfpHe-08yAbZLB1Hw6SPC7fEQ6IU";

/// What becomes of whoever says that he is this device, by each way: "welcome", or what he is told instead.
struct Claims<'a> {
    server: &'a Server,
    device: &'a str,
    token: &'a str,
}

/// `welcome`, or the reason of a goodbye; anything else as it is.
fn welcome_or_reason(answer: server_message::Kind) -> String {
    if let server_message::Kind::Goodbye(goodbye) = answer {
        return goodbye.reason;
    }
    if matches!(answer, server_message::Kind::Welcome(_)) {
        return "welcome".to_owned();
    }
    format!("{answer:?}")
}

impl Claims<'_> {
    fn by_frames(&self) -> Result<String> {
        let mut peer = Device::connect(self.server.tcp)?;
        let (device_id, token) = (self.device.to_owned(), self.token.to_owned());
        peer.send(Kind::Hello(Hello { device_id, token, ..Hello::default() }))?;
        Ok(welcome_or_reason(peer.hear()?.context("an answer")?))
    }

    fn by_websocket(&self) -> Result<String> {
        let mut socket = Socket::open(http(self.server)?)?;
        socket.say(&json!({"hello": {"deviceId": self.device, "token": self.token}}))?;
        let (_, said) = socket.hear()?.context("an answer")?;
        let said: Value = serde_json::from_slice(&said)?;
        Ok(if said["welcome"].is_object() { "welcome" } else { "unauthorized" }.to_owned())
    }

    /// `GET` or `POST` with the token.
    fn by_request(&self, line: &str, body: &str) -> Result<String> {
        let addr = http(self.server)?;
        let bearer = match self.token {
            "" => String::new(),
            token => format!("Authorization: Bearer {token}\r\n"),
        };
        let mut stream = std::net::TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        std::io::Write::write_all(
            &mut stream,
            format!(
                "{line} HTTP/1.1\r\nHost: {addr}\r\nContent-Type: application/json\r\n{bearer}\
                 Content-Length: {}\r\n\r\n{body}",
                body.len()
            )
            .as_bytes(),
        )?;
        let mut status = [0; 12];
        std::io::Read::read_exact(&mut stream, &mut status)?;
        Ok(match &status[9..] {
            b"200" => "welcome".to_owned(),
            b"401" => "unauthorized".to_owned(),
            other => String::from_utf8_lossy(other).into_owned(),
        })
    }

    fn by_events(&self) -> Result<String> {
        self.by_request(&format!("GET /v1/sse?topic=news&device={}", self.device), "")
    }

    fn by_publish(&self) -> Result<String> {
        let topic = format!("state/{}", self.device);
        self.by_request("POST /v1/publish", &json!({"topic": topic, "text": "x"}).to_string())
    }

    fn by_datagram(&self) -> Result<String> {
        let client = Datagrams::new(self.server.udp_addr()?)?;
        let topic = format!("state/{}", self.device);
        let publish = json!({"topic": topic, "text": "x"});
        let answer = client.ask(
            &json!({"pt": self.token, "publish": publish, "room": "for what is told"}).to_string(),
        )?;
        Ok(answer["error"].as_str().unwrap_or("welcome").to_owned())
    }

    /// By all of them.
    fn all(&self) -> Result<[String; 3]> {
        Ok([self.by_frames()?, self.by_websocket()?, self.by_events()?])
    }
}

fn start_with_claims(unchecked: &str) -> Result<(Server, TempDir)> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("jwt.key");
    std::fs::write(&file, SECRET)?;
    let server = Server::start_with_datagrams(&format!(
        "[store]\npath = \"devices.db\"\n[auth]\nanonymous = true\n{unchecked}\
         [[auth.jwt.keys]]\nalgorithm = \"HS256\"\nfile = {file:?}\n\
         [[auth.tokens]]\ntoken = \"fleet\"\n[[auth.tokens]]\ntoken = \"bound\"\ndevice = \"bound-1\"\n\
         [[topic_classes]]\npattern = \"state/{{device}}\"\npublish = [\"devices\"]\nsubscribe = [\"devices\"]\n"
    ))?;
    server.import("lock-1,key of it\nnew-1,key of it\ngone-1,key of it\nbound-1,key of it\n")?;
    let revoked = Answer::post(server.admin, "/v1/devices/gone-1/revoke", "")?;
    ensure!(revoked.status == 204, "{revoked:?}");
    Ok((server, directory))
}

/// An id that the store knows is its device's alone, whichever way somebody else claims it, and whatever he shows.
#[test]
fn an_id_of_the_store_needs_its_own_credentials() -> Result<()> {
    let (server, _directory) = start_with_claims("")?;
    let token = server.token("lock-1", "key of it")?;
    let mut lock = Device::connect(server.tcp)?;
    lock.send(Kind::Hello(Hello { token: token.clone(), ..Hello::default() }))?;
    ensure!(matches!(lock.hear()?, Some(server_message::Kind::Welcome(_))));
    let jwt = |rest: &str| format!("{HEAD}.{rest}");
    let mut admitted = Vec::new();
    for (device, signed) in [("lock-1", OF_LOCK), ("gone-1", OF_GONE), ("new-1", "")] {
        for token in ["", "fleet", &jwt(signed)] {
            if token == jwt("") {
                continue;
            }
            let claims = Claims { server: &server, device, token };
            let mut outcomes = claims.all()?.to_vec();
            if token.starts_with(HEAD) {
                outcomes.extend([claims.by_publish()?, claims.by_datagram()?]);
            }
            if outcomes.iter().any(|outcome| outcome != "unauthorized") {
                admitted.push(format!("{device} by {token:?}: {outcomes:?}"));
            }
        }
    }
    assert!(admitted.is_empty(), "{admitted:#?}");
    // It was not replaced, and what is its own admits it still.
    assert!(lock.is_silent(std::time::Duration::from_millis(50))?);
    let own = Claims { server: &server, device: "lock-1", token: &token };
    assert_eq!((&*own.by_publish()?, &*own.by_datagram()?), ("welcome", "welcome"));
    assert_eq!(own.all()?, ["welcome"; 3]);
    // What nobody keeps is free as ever, and what a token of the configuration is bound to is its own.
    let user = jwt(OF_USER);
    for (device, token) in
        [("user-7", &*user), ("user-8", "fleet"), ("user-9", ""), ("bound-1", "bound")]
    {
        let claims = Claims { server: &server, device, token };
        assert_eq!(claims.all()?, ["welcome"; 3], "{device} by {token:?}");
    }
    let claims = Claims { server: &server, device: "user-7", token: &user };
    assert_eq!((&*claims.by_publish()?, &*claims.by_datagram()?), ("welcome", "welcome"));
    let refused = |kind| {
        Ok::<_, anyhow::Error>(
            server
                .metrics()?
                .sum_of("weir_authentications_total", &[("kind", kind), ("outcome", "stored")]),
        )
    };
    assert_eq!((refused("anonymous")?, refused("token")?, refused("jwt")?), (9.0, 9.0, 10.0));
    Ok(())
}

/// Where the operator says so, credentials of a kind are taken at their word.
#[test]
fn ids_may_be_left_unchecked() -> Result<()> {
    let (server, _directory) = start_with_claims("unchecked_ids = [\"token\", \"jwt\"]\n")?;
    let jwt = format!("{HEAD}.{OF_LOCK}");
    for (token, expected) in [("fleet", "welcome"), (&jwt, "welcome"), ("", "unauthorized")] {
        let claims = Claims { server: &server, device: "lock-1", token };
        assert_eq!(claims.all()?, [expected; 3], "{token:?}");
    }
    Ok(())
}

/// A certificate that names a device is its own, until the device is shut out.
#[test]
fn a_certificate_does_not_admit_a_device_that_is_shut_out() -> Result<()> {
    let authority = Authority::new()?;
    let names = authority.files("server", "localhost", false)?;
    let server = Server::start_with_tls(&format!(
        "[store]\npath = \"devices.db\"\n[tls]\nclient_auth = \"required\"\nclient_ca = {:?}\nclient_identity = \"common_name\"\n{names}",
        authority.path("ca.pem")
    ))?;
    server.import("lock-1,key of it\ngone-1,key of it\n")?;
    let revoked = Answer::post(server.admin, "/v1/devices/gone-1/revoke", "")?;
    ensure!(revoked.status == 204, "{revoked:?}");
    let tls = server.tls.context("it listens with TLS")?;
    for (name, expected) in
        [("lock-1", "welcome"), ("user-7", "welcome"), ("gone-1", "unauthorized")]
    {
        let leaf = authority.sign(name, false)?;
        let mut peer = Device::connect_tls(tls, &authority.client_as(Some(&leaf))?)?;
        peer.send(Kind::Hello(Hello::default()))?;
        let outcome = welcome_or_reason(peer.hear()?.context("an answer")?);
        assert_eq!(outcome, expected, "{name}");
    }
    Ok(())
}
