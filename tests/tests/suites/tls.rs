//! Conversations that hold the TLS of a listener against RFC 5246, 8446 and their extensions.
//!
//! They are of tlsfuzzer's kind: well-formed handshakes, and such in which one thing is wrong, each with the alert that
//! the RFC names. tlsfuzzer itself is in no registry; `clients/tls/conversations.py` has them made by tlslite-ng, which
//! is what tlsfuzzer is built on.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use weir_tests::{Authority, Server, installed};

use crate::{Exception, Results};

const CASES: usize = 426;

const EXCEPTIONS: &[Exception] = &[
    ("1.2 Finished, 1 bytes too short", NO_LENGTH),
    ("1.2 Finished, 1 bytes too long", NO_LENGTH),
    ("1.2 Finished, 4 bytes too short", NO_LENGTH),
    ("1.2 Finished, 4 bytes too long", NO_LENGTH),
    ("1.2 Finished, 12 bytes too short", NO_LENGTH),
    ("1.2 Finished, 12 bytes too long", NO_LENGTH),
    ("1.3 Finished, 1 bytes too short", NO_LENGTH),
    ("1.3 Finished, 1 bytes too long", NO_LENGTH),
    ("1.3 Finished, 4 bytes too short", NO_LENGTH),
    ("1.3 Finished, 4 bytes too long", NO_LENGTH),
    ("1.3 Finished, 12 bytes too short", NO_LENGTH),
    ("1.3 Finished, 12 bytes too long", NO_LENGTH),
];

const NO_LENGTH: &str = "rustls compares a Finished of any length with the right one, and says decrypt_error of \
                         either difference; decode_error would be right for the length";

#[test]
fn tls_is_as_it_is_specified() -> Result<()> {
    let authority = Authority::new()?;
    let certificate = authority.files("server", "localhost", true)?;
    let server = Server::start_with_https(&certificate)?;
    let https = server.https.context("it speaks HTTP over TLS")?;
    let output = Command::new(installed("python/bin/python")?)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/tls/conversations.py"))
        .arg(https.to_string())
        .output()?;
    let said = String::from_utf8(output.stdout)?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{said}{complaint}");
    let mut results = Results::default();
    for line in said.lines() {
        let mut fields = line.split('\t');
        let (Some(verdict), Some(case)) = (fields.next(), fields.next()) else {
            bail!("no result: {line}")
        };
        let failure = match verdict {
            "PASS" => None,
            "FAIL" => Some(fields.next().unwrap_or_default().to_owned()),
            _ => bail!("no result: {line}"),
        };
        results.add(case.to_owned(), failure)?;
    }
    let metrics = server.metrics()?;
    assert_eq!(metrics.sum("weir_tls_not_moved_total", ""), 0.0, "{}", metrics.text());
    ensure!(!server.log().contains("panicked"), "{}", server.log());
    results.check("TLS", CASES, EXCEPTIONS)
}
