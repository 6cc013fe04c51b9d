//! Sessions that another process began: resumed where the secret is shared and the key not too old.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use weir_tests::{Authority, SClient, Server};

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

/// Begins a session and writes it to `file`.
fn begin(server: &Server, version: &str, file: &Path) -> Result<()> {
    let mut client = visit(server, &format!("{version} -sess_out {}", file.display()))?;
    ensure!(client.said().contains("New, TLSv"), "{}", client.said());
    client.ping("the session is written by now")
}

/// Whether a session is resumed, as the client and the server see it.
fn is_resumed(server: &Server, version: (&str, &str), file: &Path) -> Result<bool> {
    let labels = [("version", version.1), ("kind", "ticket")];
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
