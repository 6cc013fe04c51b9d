//! h2spec: the public HTTP listeners against RFC 7540 and 7541, strict cases included, in the clear and over TLS.
//!
//! The admin address has no part in it, for it speaks HTTP/1.1 alone.
//!
//! h2spec writes each frame by itself. In some cases the first one is a request that is answered at once, and the second
//! one breaks a rule: where the answer comes between the two, h2spec takes it for the answer to the second. A gatherer
//! brings both frames to the server together. A case that fails is repeated, and gathered for longer each time, for on a
//! busy machine the client may pause between its frames.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_tests::{Authority, Gatherer, Server, installed};

use crate::{Exception, Results};

/// Cases of this version of the suite.
const CASES: usize = 146;

const IN_THE_CLEAR: &[Exception] = &[(
    "http2/3.5/2",
    "a wrong preface in the clear may be HTTP/1.1, which the listener speaks too: it is answered by a 400 of that, and \
     then closed. h2spec wants nothing but the close",
)];

const OVER_TLS: &[Exception] = &[];

#[test]
fn http_2_is_as_it_is_specified() -> Result<()> {
    let authority = Authority::new()?;
    let certificate = authority.files("server", "localhost", false)?;
    let server = Server::start_with_https(&certificate)?;
    let http = server.http.context("it speaks HTTP")?;
    let https = server.https.context("it speaks HTTP over TLS")?;
    let (clear, tls) = thread::scope(|scope| {
        let clear = scope.spawn(|| results(http, &[]));
        let tls = results(https, &["--tls", "--insecure"]);
        (clear.join().expect("no panic"), tls)
    });
    let (clear, tls) = (clear?, tls?);
    ensure!(!server.log().contains("panicked"), "{}", server.log());
    clear.check("h2spec in the clear", CASES, IN_THE_CLEAR)?;
    tls.check("h2spec over TLS", CASES, OVER_TLS)
}

/// What comes of all cases, and of those that fail when they are repeated.
fn results(addr: SocketAddr, options: &[&str]) -> Result<Results> {
    let [first, repeated @ ..] = QUIETS;
    let mut results = run(addr, first, options, None)?;
    for quiet in repeated {
        let failed: Vec<String> = results.failed().map(str::to_owned).collect();
        for case in failed {
            // The report has it alone, as the first of its section.
            let again = run(addr, quiet, options, Some(&case))?;
            let failure = again.0.into_values().next().flatten();
            results.0.insert(case, failure);
        }
    }
    Ok(results)
}

impl Results {
    fn failed(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|(_, failure)| failure.is_some()).map(|(case, _)| case.as_str())
    }
}

/// Runs one case, or all.
fn run(addr: SocketAddr, quiet: Duration, options: &[&str], case: Option<&str>) -> Result<Results> {
    let directory = tempfile::tempdir()?;
    let report = directory.path().join("report.xml");
    let gatherer = Gatherer::start(addr, quiet)?;
    let output = Command::new(installed("h2spec/h2spec")?)
        .args(case)
        .args(["--strict", "--timeout", "3", "--host", "127.0.0.1", "--port"])
        .arg(gatherer.addr.port().to_string())
        .args(options)
        .arg("--junit-report")
        .arg(&report)
        .output()?;
    let said = || String::from_utf8_lossy(&output.stdout).into_owned();
    let results = read(&report).with_context(said)?;
    ensure!(!results.0.is_empty(), "no case was run: {}", said());
    Ok(results)
}

/// Reads the report of a run, which names the section of each case and has those of a section in order.
fn read(report: &Path) -> Result<Results> {
    let report = std::fs::read_to_string(report).context("no report")?;
    let mut results = Results::default();
    for section in report.split("<testsuite ").skip(1) {
        let id = section.split_once("package=\"").and_then(|(_, rest)| rest.split_once('"'));
        let (id, _) = id.context("a section has a name")?;
        for (index, case) in section.split("<testcase ").skip(1).enumerate() {
            let (title, _) = case
                .split_once("classname=\"")
                .and_then(|(_, rest)| rest.split_once('"'))
                .context("a case has a title")?;
            let failure = ["<failure>", "<error>"].iter().find_map(|tag| case.split_once(tag));
            let is_skipped = case.contains("<skipped");
            let failure = match failure {
                Some((_, text)) => {
                    Some(format!("{title}: {}", text.split('<').next().unwrap_or_default()))
                }
                None => is_skipped.then(|| format!("{title}: skipped")),
            };
            results.add(format!("{id}/{}", index + 1), failure)?;
        }
    }
    Ok(results)
}

/// How long a client has to be quiet before what it has said is passed on.
const QUIETS: [Duration; 4] = [
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_millis(800),
];
