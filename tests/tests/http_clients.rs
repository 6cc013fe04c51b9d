//! HTTP of other hands: curl, Python's `websockets`, wrk and h2load against the program, plain and over TLS.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use weir_tests::{Answer, Authority, Event, Events, Server, installed};

/// A server with a certificate of an authority, and what clients need to know.
struct Scene {
    server: Server,
    authority: Authority,
    http: SocketAddr,
    https: SocketAddr,
}

/// Ways to come by curl: over TLS or not, and the option that says which version.
const WAYS: [(bool, &str, &str); 4] = [
    (false, "--http1.1", "1.1"),
    (false, "--http2-prior-knowledge", "2"),
    (true, "--http1.1", "1.1"),
    (true, "--http2", "2"),
];

impl Scene {
    fn new(extra: &str) -> Result<Scene> {
        let authority = Authority::new()?;
        let certificate = authority.files("server", "localhost", false)?;
        let server = Server::start_with_https(&format!("{extra}{certificate}"))?;
        let (http, https) = server.http.zip(server.https).context("it speaks HTTP")?;
        Ok(Scene { server, authority, http, https })
    }

    /// What comes before a path.
    fn url(&self, is_tls: bool, path: &str) -> String {
        if is_tls {
            format!("https://localhost:{}{path}", self.https.port())
        } else {
            format!("http://localhost:{}{path}", self.http.port())
        }
    }

    fn curl(&self) -> Command {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--no-buffer", "--noproxy", "*", "--ipv4"]);
        curl.arg("--cacert").arg(self.authority.path("ca.pem"));
        curl
    }

    /// What curl prints of an answer, with version and status in the last line.
    fn ask(&self, is_tls: bool, path: &str, args: &[&str]) -> Result<String> {
        let mut curl = self.curl();
        curl.args(["-w", "\n%{http_version} %{http_code}"]).args(args);
        printed(curl.arg(self.url(is_tls, path)))
    }

    /// Reads events by curl.
    fn events(&self, is_tls: bool, path: &str, args: &[&str]) -> Result<Reader> {
        let mut curl = self.curl();
        curl.args(args).arg(self.url(is_tls, path)).stdout(Stdio::piped());
        let mut child = curl.spawn().context("running curl, which `cargo xtask test` installs")?;
        let events = Events::over(child.stdout.take().context("a pipe")?);
        Ok(Reader { child, events })
    }

    fn publish(&self, numbers: std::ops::Range<u32>) -> Result<()> {
        for number in numbers {
            for topic in ["keep/1", "keep/2"] {
                let text = format!("{topic} {number}");
                self.server.publish(&json!({"topic": topic, "text": text}))?;
            }
        }
        Ok(())
    }
}

/// A running curl that reads events; killed when dropped.
struct Reader {
    child: Child,
    events: Events<ChildStdout>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn printed(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {said}{complaint}");
    Ok(said)
}

const KEPT: &str = "[[topic_classes]]\npattern = \"keep/*\"\nretention_messages = 100\n\
                    publish = [\"devices\"]\n";

#[test]
fn curl_asks_and_publishes() -> Result<()> {
    let scene = Scene::new(KEPT)?;
    for (is_tls, option, version) in WAYS {
        let hello = if version == "2" { "Hello World - via HTTP/2" } else { "Hello World" };
        let said = scene.ask(is_tls, "/rest/hello", &[option])?;
        assert_eq!(said, format!("{hello}\n{version} 200"));
        let body = json!({"topic": "keep/1", "text": "by curl"}).to_string();
        let json = "Content-Type: application/json";
        let said = scene.ask(is_tls, "/v1/publish", &[option, "-H", json, "-d", &body])?;
        assert!(said.contains("\"offset\":") && said.ends_with(" 200"), "{said}");
        let said = scene.ask(is_tls, "/v1/connect", &[option])?;
        assert!(said.contains("upgrade-required") && said.ends_with(" 426"), "{said}");
        let said = scene.ask(is_tls, "/nothing", &[option])?;
        assert!(said.ends_with(&format!("{version} 404")), "{said}");
    }
    Ok(())
}

/// Each message once and in order, over two cuts.
#[test]
fn curl_reads_events_and_resumes() -> Result<()> {
    for (is_tls, option, version) in WAYS {
        let scene = Scene::new(KEPT)?;
        let path = "/v1/sse?device=curl&topic=keep/1&topic=keep/2";
        let (mut last_id, mut heard) = (String::new(), vec![]);
        for (round, came_meanwhile) in [(0_u32, 0), (1, 10), (2, 10)] {
            let from = round * 20;
            scene.publish(from..from + came_meanwhile)?;
            let id = format!("Last-Event-ID: {last_id}");
            let args = if last_id.is_empty() { vec![option] } else { vec![option, "-H", &id] };
            let mut reader = scene.events(is_tls, path, &args)?;
            for subscribed in settle(&mut reader.events, 2, &mut heard)? {
                let recovered = subscribed.data["recovered"].as_bool().unwrap_or_default();
                assert_eq!(recovered, round > 0, "{version}: {subscribed:?}");
            }
            scene.publish(from + came_meanwhile..from + 20)?;
            while heard.len() < 2 * (from as usize + 20) {
                heard.push(reader.events.expect("")?);
            }
            let last = heard.last().context("something was heard")?;
            last_id.clone_from(&last.id);
            assert_eq!(last_id.split(',').count(), 2, "it holds both positions");
            // The next one comes only when this one is gone: its kill is the cut.
            drop(reader);
        }
        for topic in ["keep/1", "keep/2"] {
            let of_topic = heard.iter().filter(|event| event.data["topic"] == topic);
            let texts: Vec<_> = of_topic.filter_map(|event| event.data["text"].as_str()).collect();
            let expected: Vec<String> = (0..60).map(|number| format!("{topic} {number}")).collect();
            assert_eq!(texts, expected, "over HTTP/{version}, TLS: {is_tls}");
        }
    }
    Ok(())
}

/// `welcome`, and one `subscribed` for each topic; messages of one may come before the answer for the other.
fn settle(
    events: &mut Events<ChildStdout>,
    topics: usize,
    heard: &mut Vec<Event>,
) -> Result<Vec<Event>> {
    events.expect("welcome")?;
    let mut answers = Vec::new();
    while answers.len() < topics {
        let event = events.hear()?.context("an answer for each topic, and not the end")?;
        match event.name.as_str() {
            "subscribed" => answers.push(event),
            "" => heard.push(event),
            _ => bail!("no answer but {event:?}"),
        }
    }
    Ok(answers)
}

/// With an id of another start nobody can say what was missed, and nothing comes twice.
#[test]
fn curl_comes_with_an_id_that_means_nothing() -> Result<()> {
    let scene = Scene::new(KEPT)?;
    let topic = Events::get(scene.http, "/v1/sse?device=other&topic=keep/1", "")?;
    scene.publish(0..10)?;
    for id in ["0123456789abcdef-4", "nonsense", "0123456789abcdef-1,0123456789abcdee-2"] {
        let header = format!("Last-Event-ID: {id}");
        let path = "/v1/sse?device=curl&topic=keep/1";
        let mut reader = scene.events(false, path, &["--http1.1", "-H", &header])?;
        let [answer] = &reader.events.settle(1)?[..] else { panic!("one topic") };
        assert!(answer.data.get("recovered").is_none(), "{answer:?}");
        // All that is kept comes: it begins before the first message.
        let position = answer.data["position"].as_object().context("a position")?;
        assert!(position.get("offset").is_none_or(|offset| offset == "0"), "{answer:?}");
    }
    drop(topic);
    Ok(())
}

/// A topic of which the id says nothing goes on from now, as for a first request.
#[test]
fn curl_adds_a_topic_to_those_that_it_resumes() -> Result<()> {
    let scene = Scene::new(KEPT)?;
    let mut before = scene.events(false, "/v1/sse?device=curl&topic=keep/1", &["--http1.1"])?;
    let id = before.events.settle(1)?.last().context("one topic")?.id.clone();
    // Without a message, the topic would end with its only reader.
    scene.publish(0..10)?;
    drop(before);
    let header = format!("Last-Event-ID: {id}");
    let path = "/v1/sse?device=curl&topic=keep/1&topic=keep/2";
    let mut reader = scene.events(false, path, &["--http1.1", "-H", &header])?;
    let mut heard = Vec::new();
    for answer in settle(&mut reader.events, 2, &mut heard)? {
        let is_new = answer.data["topic"] == "keep/2";
        assert_eq!(answer.data.get("recovered").is_none(), is_new, "{answer:?}");
        assert_eq!(answer.data["position"]["offset"] == "10", is_new, "{answer:?}");
    }
    scene.publish(10..11)?;
    while heard.len() < 11 + 1 {
        heard.push(reader.events.expect("")?);
    }
    let of_new = heard.iter().filter(|event| event.data["topic"] == "keep/2");
    let texts: Vec<_> = of_new.filter_map(|event| event.data["text"].as_str()).collect();
    assert_eq!(texts, ["keep/2 10"]);
    drop(reader);
    // With a position of no topic, the epoch of the one without may have ended: all that is kept comes.
    let header = format!("Last-Event-ID: {id},0123456789abcdef-4");
    let mut reader = scene.events(false, path, &["--http1.1", "-H", &header])?;
    for answer in settle(&mut reader.events, 2, &mut heard)? {
        let offset = &answer.data["position"]["offset"];
        assert!(offset.is_null() || offset == "0", "{answer:?}");
    }
    Ok(())
}

#[test]
fn a_page_of_another_origin_asks_first() -> Result<()> {
    let scene = Scene::new("[http]\ncors_origins = [\"https://app.example\"]\n")?;
    let (mine, foreign) = ("Origin: https://app.example", "Origin: https://evil.example");
    let preflight =
        ["-i", "-X", "OPTIONS", "-H", "Access-Control-Request-Method: GET", "--http1.1", "-H"];
    let asks = "Access-Control-Request-Headers: authorization, last-event-id";
    for path in ["/v1/sse?topic=news", "/v1/publish"] {
        let args = [&preflight[..], &[mine, "-H", asks]].concat();
        let said = scene.ask(true, path, &args)?.to_lowercase();
        assert!(said.ends_with(" 204"), "{said}");
        let method = if path == "/v1/publish" { "post" } else { "get" };
        let methods = said.lines().find(|line| line.starts_with("access-control-allow-methods:"));
        assert!(methods.is_some_and(|methods| methods.contains(method)), "{said}");
        for line in [
            "access-control-allow-origin: https://app.example\r",
            "access-control-allow-headers: authorization, content-type, idempotency-key, last-event-id",
            "access-control-max-age: 600\r",
            "vary: origin\r",
        ] {
            assert!(said.contains(line), "{line}: {said}");
        }
        let said = scene.ask(true, path, &[&preflight[..], &[foreign]].concat())?.to_lowercase();
        assert!(said.ends_with(" 403") && !said.contains("access-control-allow"), "{said}");
    }
    for (is_tls, option, version) in WAYS {
        let path = "/v1/sse?device=page&topic=news";
        // The head goes to a file: curl buffers nothing of the body, which has no end.
        let directory = tempfile::tempdir()?;
        let head = directory.path().join("head");
        let head_arg = head.to_str().context("a path of text")?;
        let mut reader = scene.events(is_tls, path, &[option, "-H", mine, "-D", head_arg])?;
        reader.events.settle(1)?;
        let head = std::fs::read_to_string(&head)?.to_lowercase();
        for line in [
            "content-type: text/event-stream\r",
            "cache-control: no-store\r",
            "x-accel-buffering: no\r",
            "access-control-allow-origin: https://app.example\r",
            "vary: origin\r",
        ] {
            assert!(head.contains(line), "{line} over HTTP/{version}: {head}");
        }
        let said = scene.ask(is_tls, path, &[option, "-H", foreign])?;
        assert!(said.contains("foreign-origin") && said.ends_with(" 403"), "{said}");
    }
    Ok(())
}

#[test]
fn python_speaks_by_websockets() -> Result<()> {
    let scene = Scene::new(
        "[auth]\nanonymous = false\n[[auth.tokens]]\ntoken = \"right\"\ndevice = \"d1\"\n\
         [http]\ncors_origins = [\"https://app.example\"]\n",
    )?;
    let python = installed("python/bin/python")?;
    for is_tls in [false, true] {
        let url = scene.url(is_tls, "/v1/connect").replacen("http", "ws", 1);
        let url = if is_tls { url } else { url.replace("localhost", "127.0.0.1") };
        let mut command = Command::new(&python);
        command.arg(client("device.py")).args([url, scene.server.admin.to_string()]);
        if is_tls {
            command.arg(scene.authority.path("ca.pem"));
        }
        let said = printed(&mut command).with_context(|| scene.server.log())?;
        assert!(said.contains("done"), "{said}");
    }
    scene.server.await_metrics("the end of all", |metrics| {
        metrics.is_empty_house() && metrics.sum("weir_connections_by_protocol", "") == 0.0
    })?;
    assert!(!scene.server.log().contains("panicked"), "{}", scene.server.log());
    Ok(())
}

/// Each event shows before the next one is published, as the documents say how to read.
#[test]
fn python_reads_events_by_requests() -> Result<()> {
    let scene = Scene::new("")?;
    let mut command = Command::new(installed("python/bin/python")?);
    command.arg(client("events.py"));
    command.args([&scene.url(false, "/v1/sse?device=python&topic=news"), "5"]);
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("a pipe")?).lines();
    assert_eq!(lines.next().context("a line")??, "welcome");
    scene
        .server
        .await_metrics("its subscription", |metrics| metrics.sum("weir_memberships", "") == 1.0)?;
    for text in ["1", "2", "3", "4", "5"] {
        scene.server.publish(&json!({"topic": "news", "text": text}))?;
        assert_eq!(lines.next().context("a line")??, text);
    }
    ensure!(child.wait()?.success(), "it fails");
    Ok(())
}

/// Refusals of a body that is still being sent: of its length, and of its path.
const REFUSED: [(&str, &str); 2] = [("/v1/publish", "413"), ("/nothing", "404")];
const LONG_BYTES: usize = 8_000_000;

/// A script of `clients/http`.
fn client(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/http").join(name)
}

/// Clients that send on hear why that is of no use, and not that the connection or the stream has ended.
#[test]
fn who_still_sends_hears_of_the_refusal() -> Result<()> {
    let scene = Scene::new("")?;
    let directory = tempfile::tempdir()?;
    let body = directory.path().join("body");
    std::fs::write(&body, vec![b' '; LONG_BYTES])?;
    let body = format!("@{}", body.display());
    for (path, status) in REFUSED {
        for (is_tls, option, version) in WAYS {
            let json = "Content-Type: application/json";
            let args =
                [option, "-H", "Expect:", "-H", json, "-o", "/dev/null", "--data-binary", &body];
            let said = scene.ask(is_tls, path, &args)?;
            assert_eq!(said, format!("\n{version} {status}"), "curl, TLS: {is_tls}");
        }
    }
    let admin = format!("http://localhost:{}/v1/publish", scene.server.admin.port());
    let mut urls = vec![(admin, "413")];
    for (path, status) in REFUSED {
        urls.extend([false, true].map(|is_tls| (scene.url(is_tls, path), status)));
    }
    let mut python = Command::new("python3");
    python.arg(client("upload.py")).arg(LONG_BYTES.to_string());
    python.arg(scene.authority.path("ca.pem")).args(urls.iter().map(|(url, _)| url));
    let said = printed(&mut python)?;
    let expected: Vec<&str> = urls.iter().map(|(_, status)| *status).collect();
    assert_eq!(said.lines().collect::<Vec<_>>(), expected, "Python, of {urls:?}");
    let mut java = Command::new("java");
    java.arg(client("Upload.java")).arg(scene.authority.path("ca.pem")).arg(LONG_BYTES.to_string());
    let mut expected = Vec::new();
    for (path, status) in REFUSED {
        for (is_tls, version) in [(false, "1.1"), (true, "1.1"), (true, "2")] {
            java.args([version, &scene.url(is_tls, path)]);
            expected.push(format!("{status} HTTP_{}", version.replace('.', "_")));
        }
    }
    let said = printed(&mut java)?;
    assert_eq!(said.lines().collect::<Vec<_>>(), expected, "Java");
    let metrics = scene.server.metrics()?;
    let cut = ["too_long", "too_late"]
        .map(|outcome| metrics.sum("weir_http_discarded_total", &format!("outcome=\"{outcome}\"")));
    assert_eq!(cut, [0.0, 0.0], "{}", metrics.text());
    Ok(())
}

/// Java's client sends no body before it has heard `100 Continue`, however long that takes.
#[test]
fn java_is_told_to_go_on() -> Result<()> {
    let scene = Scene::new("")?;
    let mut java = Command::new("java");
    java.arg(client("Upload.java")).arg(scene.authority.path("ca.pem")).arg("1000");
    for (version, is_tls) in [("1.1+", false), ("1.1+", true), ("2+", true), ("2+", true)] {
        java.args([version, &scene.url(is_tls, "/v1/publish")]);
    }
    let said = printed(&mut java)?;
    // It was read: spaces are no message.
    let expected = ["400 HTTP_1_1", "400 HTTP_1_1", "400 HTTP_2", "400 HTTP_2"];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
    Ok(())
}

/// How many answers there were, none of them wrong.
#[test]
fn wrk_and_h2load_find_no_error() -> Result<()> {
    let scene = Scene::new("")?;
    let mut asked = 0.0;
    for is_tls in [false, true] {
        let url = scene.url(is_tls, "/rest/hello");
        let said = printed(Command::new("wrk").args(["-t1", "-c8", "-d1s", &url]))?;
        assert!(!said.contains("Socket errors") && !said.contains("Non-2xx"), "{said}");
        let line = said.lines().find(|line| line.contains(" requests in ")).context("a sum")?;
        let count: f64 = line.split_whitespace().next().context("a number")?.parse()?;
        assert!(count > 0.0, "{said}");
        asked += count;
        for more in [&["--h1"][..], &[]] {
            let mut h2load = Command::new("h2load");
            h2load.args(["-n2000", "-c4", "-m16"]).args(more).arg(&url);
            let said = printed(&mut h2load)?;
            let whole = "2000 total, 2000 started, 2000 done, 2000 succeeded, 0 failed, 0 errored";
            assert!(said.contains(whole), "{said}");
            asked += 2000.0;
        }
    }
    let metrics = scene.server.await_metrics("an empty house", |metrics| {
        metrics.sum("weir_http_connections", "") == 0.0
    })?;
    let answered = metrics.sum("weir_http_requests_total", "status=\"2xx\"");
    // What wrk had under way when its time was up it does not count.
    assert!(answered >= asked && answered <= asked + 16.0, "{answered} of {asked}");
    assert_eq!(Answer::get(scene.http, "/")?.status, 200);
    Ok(())
}
