//! Tests of the access log.

mod cost;
mod lines;
mod travel;

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::Duration;

use http::{HeaderMap, Version};

use super::ids::{Ids, Wanted};
use super::queue::now;
use super::{AccessLog, Entry};
use crate::base::config::AccessLogConfig;

/// A request for `target` that has just been answered with 200.
fn entry<'a>(target: &'a str, ids: &'a Ids) -> Entry<'a> {
    Entry {
        began: now(),
        took: Duration::from_micros(7),
        remote: Some(IpAddr::from(Ipv4Addr::LOCALHOST)),
        method: "GET",
        target,
        version: Version::HTTP_11,
        status: 200,
        bytes: 11,
        host: Some(b"gate.example"),
        user_agent: Some(b"test"),
        referer: None,
        device: None,
        ids,
    }
}

fn no_ids() -> Ids {
    Ids::of(&HeaderMap::new(), Wanted::default())
}

fn config(path: &Path) -> AccessLogConfig {
    AccessLogConfig { path: path.to_owned(), ..AccessLogConfig::default() }
}

fn record(log: &AccessLog, target: &str) {
    log.record(&entry(target, &no_ids()));
}

/// The paths in a file of JSON lines; each line must parse.
fn paths(text: &str) -> Vec<String> {
    assert!(text.is_empty() || text.ends_with('\n'), "torn: {text:?}");
    let path = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).expect(line);
        line["path"].as_str().expect("a path").to_owned()
    };
    text.lines().map(path).collect()
}

/// Waits for a condition that will become true.
fn until(mut holds: impl FnMut() -> bool) {
    let began = now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "it does not come");
        std::thread::yield_now();
    }
}
