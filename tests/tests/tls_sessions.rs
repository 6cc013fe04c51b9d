//! Sessions that another process began: resumed where the secret is shared and the key not too old, by ticket or by
//! the id of a stored session.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use weir_tests::{Authority, Redis, SClient, Server};

const VERSIONS: [(&str, &str); 2] = [("-tls1_3", "1.3"), ("-tls1_2", "1.2")];
const SECRET: &str = "one secret for all of a fleet of nodes";

fn node(authority: &Authority, secret: &str, rotation: &str) -> Result<Server> {
    let certificate = authority.files("server", "localhost", false)?;
    let keys = format!("ticket_secret = \"{secret}\"\nticket_rotation = \"{rotation}\"");
    Server::start_with_tls(&format!("[tls]\nsession_cache_max = 0\n{keys}\n{certificate}"))
}

/// One connection of `s_client`.
fn visit(server: &Server, options: &str) -> Result<SClient> {
    SClient::greet(server.tls.context("it listens with TLS")?, options, "s_client")
}

/// Begins a session and writes it to `file`. What the client has said of it.
fn begin(server: &Server, version: &str, file: &Path) -> Result<String> {
    let mut client = visit(server, &format!("{version} -sess_out {}", file.display()))?;
    ensure!(client.said().contains("New, TLSv"), "{}", client.said());
    client.ping("the session is written by now")?;
    Ok(client.said())
}

/// Whether a session is resumed by its ticket, as the client and the server see it.
fn is_resumed(server: &Server, version: (&str, &str), file: &Path) -> Result<bool> {
    is_resumed_by("ticket", server, version, file)
}

fn is_resumed_by(kind: &str, server: &Server, version: (&str, &str), file: &Path) -> Result<bool> {
    let labels = [("version", version.1), ("kind", kind)];
    let count =
        || -> Result<f64> { Ok(server.metrics()?.sum_of("weir_tls_handshakes_total", &labels)) };
    let before = count()?;
    let client = visit(server, &format!("{} -sess_in {}", version.0, file.display()))?;
    let is_reused = client.said().contains(&format!("Reused, TLSv{}", version.1));
    ensure!(is_reused || client.said().contains("New, TLSv"), "{}", client.said());
    let expected = before + if is_reused { 1.0 } else { 0.0 };
    ensure!(count()? == expected, "client and server differ: {}", client.said());
    Ok(is_reused)
}

#[test]
fn a_session_is_resumed_at_another_process_that_shares_the_secret() -> Result<()> {
    let authority = Authority::new()?;
    let one = node(&authority, SECRET, "6h")?;
    let other = node(&authority, SECRET, "6h")?;
    let foreign = node(&authority, "a secret that no other node has been told", "6h")?;
    for version in VERSIONS {
        let session = authority.path("session.pem");
        begin(&one, version.0, &session)?;
        ensure!(is_resumed(&other, version, &session)?, "{version:?}: not resumed");
        begin(&one, version.0, &session)?;
        ensure!(
            !is_resumed(&foreign, version, &session)?,
            "{version:?}: resumed without the secret"
        );
    }
    Ok(())
}

const ROTATION_SECS: u64 = 2;

#[expect(clippy::disallowed_methods, reason = "the test waits for the clock of other processes")]
fn period() -> Result<u64> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    Ok(now.as_secs() / ROTATION_SECS)
}

/// Has the client offer a session for two minutes: it would drop it when the server's promise ends.
fn prolong(session: &Path, directory: &Path) -> Result<()> {
    let convert = |from: &Path, form: [&str; 2], to: &Path| -> Result<()> {
        let output = Command::new("openssl")
            .args(["sess_id", "-inform", form[0], "-outform", form[1]])
            .arg("-in")
            .arg(from)
            .arg("-out")
            .arg(to)
            .output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    };
    let path = directory.join("session.der");
    convert(session, ["PEM", "DER"], &path)?;
    let mut der = std::fs::read(&path)?;
    // Field 9 of openssl's form, the seconds promised, before field 10, the ticket.
    let promise = [0xa9, 3, 2, 1, u8::try_from(ROTATION_SECS)?, 0xaa];
    let at = der.windows(promise.len()).position(|window| window == promise);
    der[at.context("the promise in the session")? + 4] = 120;
    std::fs::write(&path, der)?;
    convert(&path, ["DER", "PEM"], session)
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test waits for the clock of other processes")]
fn a_session_is_refused_when_rotation_has_passed_it_by() -> Result<()> {
    let authority = Authority::new()?;
    let rotation = format!("{ROTATION_SECS}s");
    let (one, other) = (node(&authority, SECRET, &rotation)?, node(&authority, SECRET, &rotation)?);
    let session = authority.path("session.pem");
    for version in VERSIONS {
        // In time it is resumed; on a slow machine not at once.
        let mut is_in_time = false;
        for _ in 0..50 {
            begin(&one, version.0, &session)?;
            prolong(&session, authority.directory())?;
            is_in_time = is_resumed(&other, version, &session)?;
            if is_in_time {
                break;
            }
        }
        ensure!(is_in_time, "{version:?}: never resumed");

        begin(&one, version.0, &session)?;
        prolong(&session, authority.directory())?;
        let begun = period()?;
        while period()? < begun + 2 {
            std::thread::sleep(Duration::from_millis(100));
        }
        for server in [&one, &other] {
            ensure!(
                !is_resumed(server, version, &session)?,
                "{version:?}: resumed, though too old"
            );
        }
    }
    Ok(())
}

/// A client that takes no tickets, as old devices.
const BY_ID: (&str, &str) = ("-tls1_2 -no_ticket", "1.2");

/// A node of a cluster. `cache` says where sessions are stored.
fn cluster_node(authority: &Authority, redis: &Redis, cache: &str, secret: &str) -> Result<Server> {
    let certificate = authority.files("server", "localhost", false)?;
    let cluster = format!("[cluster]\nredis = \"{}\"", redis.url());
    let keys = format!("session_cache = \"{cache}\"\nticket_secret = \"{secret}\"");
    Server::start_with_tls(&format!("{cluster}\n[tls]\n{keys}\n{certificate}"))
}

/// Begins a session without a ticket, and waits until Redis keeps it; its key there.
fn begin_by_id(server: &Server, redis: &Redis, file: &Path) -> Result<String> {
    let said = begin(server, BY_ID.0, file)?;
    let id = said.split("Session-ID: ").nth(1).context("an id")?.split_whitespace().next();
    let pattern = format!("*}}e:{}", id.context("an id")?.to_lowercase());
    server.await_metrics("the session is kept", |_| {
        keys(redis, &pattern).map_or(true, |keys| !keys.is_empty())
    })?;
    keys(redis, &pattern)?.pop().context("its key")
}

fn is_resumed_by_id(server: &Server, file: &Path) -> Result<bool> {
    is_resumed_by("session_id", server, BY_ID, file)
}

/// The outcomes of a node's look-ups that are not 0.
fn lookups(server: &Server) -> Result<String> {
    let metrics = server.metrics()?;
    let mut found = Vec::new();
    for outcome in ["hit", "miss", "unreadable", "failed", "refused"] {
        let label = format!("outcome=\"{outcome}\"");
        let count = metrics.sum("weir_tls_session_lookups_total", &label);
        if count > 0.0 {
            found.push(format!("{outcome} {count}"));
        }
    }
    Ok(found.join(", "))
}

/// The keys in Redis of this form.
fn keys(redis: &Redis, pattern: &str) -> Result<Vec<String>> {
    let find = format!("return(table.concat(redis.call([[KEYS]],[[{pattern}]]),[[,]]))");
    let answer = redis.command(&format!("EVAL {find} 0"))?;
    let keys = answer.strip_prefix('$').and_then(|answer| answer.split("\r\n").nth(1));
    let keys = keys.with_context(|| format!("Redis answers {answer:?}"))?;
    Ok(keys.split(',').filter(|key| !key.is_empty()).map(str::to_owned).collect())
}

#[test]
fn a_session_is_resumed_by_its_id_at_another_node() -> Result<()> {
    let authority = Authority::new()?;
    let redis = Redis::start()?;
    let mut one = cluster_node(&authority, &redis, "cluster", SECRET)?;
    let other = cluster_node(&authority, &redis, "cluster", SECRET)?;
    let alone = cluster_node(&authority, &redis, "node", SECRET)?;
    let session = authority.path("session.pem");
    // By default nothing goes to Redis, and nothing is asked there.
    begin(&alone, BY_ID.0, &session)?;
    ensure!(is_resumed_by_id(&alone, &session)?, "not resumed where it began");
    ensure!(keys(&redis, "*}e:*")?.is_empty(), "{:?}", keys(&redis, "*}e:*")?);
    ensure!(!is_resumed_by_id(&other, &session)?, "resumed at another node");
    ensure!(lookups(&other)? == "miss 1", "{}", lookups(&other)?);

    begin_by_id(&one, &redis, &session)?;
    ensure!(is_resumed_by_id(&one, &session)?, "not resumed where it began");
    ensure!(!is_resumed_by_id(&alone, &session)?, "resumed at a node that does not ask");
    one.kill()?;
    for _ in 0..2 {
        ensure!(is_resumed_by_id(&other, &session)?, "not resumed at another node");
    }
    // The second time it was known there.
    ensure!(lookups(&other)? == "hit 1, miss 1", "{}", lookups(&other)?);
    ensure!(lookups(&alone)?.is_empty(), "{}", lookups(&alone)?);
    one.restart()?;
    ensure!(is_resumed_by_id(&one, &session)?, "not resumed after a restart");

    // A client with a ticket needs none of this.
    begin(&one, VERSIONS[1].0, &session)?;
    ensure!(is_resumed(&other, VERSIONS[1], &session)?, "not resumed by ticket");
    ensure!(lookups(&other)? == "hit 1, miss 1", "{}", lookups(&other)?);
    Ok(())
}

/// The client makes a full handshake, and hears of no error.
#[test]
fn a_session_that_was_changed_in_redis_is_not_resumed() -> Result<()> {
    let authority = Authority::new()?;
    let redis = Redis::start()?;
    let one = cluster_node(&authority, &redis, "cluster", SECRET)?;
    let foreign_secret = "a secret that no other node has been told";
    let foreign = cluster_node(&authority, &redis, "cluster", foreign_secret)?;
    let other = cluster_node(&authority, &redis, "cluster", SECRET)?;
    let (session, second) = (authority.path("session.pem"), authority.path("second.pem"));
    let key = begin_by_id(&one, &redis, &session)?;
    ensure!(!is_resumed_by_id(&foreign, &session)?, "resumed without the secret");
    ensure!(lookups(&foreign)? == "unreadable 1", "{}", lookups(&foreign)?);

    let second_key = begin_by_id(&one, &redis, &second)?;
    let byte = "string.byte(redis.call([[GETRANGE]],KEYS[1],60,60))";
    let set = format!("redis.call([[SETRANGE]],KEYS[1],60,string.char(255-{byte}))");
    for (attempt, change) in [
        format!("EVAL return({set}) 1 {key}"),
        format!("COPY {second_key} {key} REPLACE"),
        format!("SET {key} nonsense"),
        format!("SET {key} {}", "x".repeat(20_000)),
    ]
    .into_iter()
    .enumerate()
    {
        let answer = redis.command(&change)?;
        ensure!(!answer.starts_with('-'), "{change}: {answer}");
        ensure!(!is_resumed_by_id(&other, &session)?, "resumed after {change}");
        let expected = format!("unreadable {}", attempt + 1);
        ensure!(lookups(&other)? == expected, "{}", lookups(&other)?);
    }
    ensure!(redis.command(&format!("DEL {key}"))? == ":1\r\n");
    ensure!(!is_resumed_by_id(&other, &session)?, "resumed after DEL");
    ensure!(lookups(&other)? == "miss 1, unreadable 4", "{}", lookups(&other)?);
    // The second session was not touched.
    ensure!(is_resumed_by_id(&other, &second)?, "not resumed");
    Ok(())
}

#[test]
fn handshakes_go_on_while_redis_does_not_answer() -> Result<()> {
    let authority = Authority::new()?;
    let redis = Redis::start()?;
    let one = cluster_node(&authority, &redis, "cluster", SECRET)?;
    let other = cluster_node(&authority, &redis, "cluster", SECRET)?;
    let session = authority.path("session.pem");
    begin_by_id(&one, &redis, &session)?;
    redis.suspend()?;
    ensure!(!is_resumed_by_id(&other, &session)?, "resumed without Redis");
    ensure!(lookups(&other)? == "failed 1", "{}", lookups(&other)?);
    let is_reachable = |is: f64| {
        move |metrics: &weir_tests::Metrics| metrics.sum("weir_broker_reachable", "") == is
    };
    other.await_metrics("Redis is lost", is_reachable(0.0))?;
    ensure!(!is_resumed_by_id(&other, &session)?, "resumed without Redis");
    ensure!(lookups(&other)? == "failed 2", "{}", lookups(&other)?);
    // Nor does a new session wait; only this node knows it.
    let unkept = authority.path("unkept.pem");
    begin(&other, BY_ID.0, &unkept)?;
    ensure!(is_resumed_by_id(&other, &unkept)?, "not resumed where it began");
    redis.resume()?;
    other.await_metrics("Redis is back", is_reachable(1.0))?;
    ensure!(is_resumed_by_id(&other, &session)?, "not resumed although Redis is back");
    Ok(())
}
