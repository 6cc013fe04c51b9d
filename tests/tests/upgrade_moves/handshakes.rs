//! A TLS handshake that has begun when an upgrade comes: the old process finishes it, and says that the
//! client shall come back.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use weir_tests::{Authority, Device, PATIENCE, Server, UnderWay, now, rest};
use weir_wire::CloseReason;

#[test]
fn a_handshake_that_has_begun_is_finished_by_the_old_process() -> Result<()> {
    let authority = Authority::new()?;
    let certificates = authority.files("ecdsa", "localhost", false)?;
    // Longer than the test waits for anything: nothing here ends because of it.
    let mut server = Server::start_with_all_doors(&format!(
        "[upgrade]\nlinger = \"10m\"\n[connection]\nhello_timeout = \"5m\"\n[tls]\n{certificates}"
    ))?;
    let tls = server.tls.expect("it listens with TLS");
    let client = authority.client()?;
    let mut device = Device::begin_tls(tls, &client)?;
    let mut http = Device::begin_tls(server.https.expect("it listens with HTTPS"), &client)?;
    let mut under_way = UnderWay::begin(&server, &[])?;
    under_way.await_stage("committed")?;
    ensure!(server.is_alive()?, "the old process does not wait for them");
    device.end_handshake()?;
    let goodbye = device.goodbye()?;
    ensure!(goodbye.code == u32::from(CloseReason::Draining.code()), "{goodbye:?}");
    http.end_handshake()?;
    http.send_bytes(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let answer = String::from_utf8(http.all_bytes()?)?;
    ensure!(answer.starts_with("HTTP/1.1 503") && answer.contains("Retry-After"), "{answer}");
    let mut left = Value::Null;
    while let Some(line) = under_way.line()? {
        if let Some(last) = line.get("left") {
            left = last.clone();
        }
    }
    ensure!(left == json!({"finished": 2, "closed": 0}), "{left}");
    let (_newest, moved) = under_way.finish(&server)?;
    let stayed = json!([{"kind": "http", "count": 0}, {"kind": "unsettled", "count": 2}]);
    ensure!(moved["stayed"] == stayed, "{moved}");
    let deadline = now() + PATIENCE;
    while server.is_alive()? {
        ensure!(now() < deadline, "the old process stays: {}", server.log());
        rest();
    }
    // It comes back to the new process.
    Device::connect_tls(tls, &client)?.say_hello("d", &[])
}
