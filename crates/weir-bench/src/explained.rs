//! What a server says of its own memory: `GET /v1/debug/memory`.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::http::Http;
use crate::report::Report;

/// The shown parts of the answer.
#[derive(Debug, Deserialize)]
pub(crate) struct Explained {
    rss_anon: u64,
    parts: Vec<Value>,
    allocator: Option<Value>,
    explained: Option<Share>,
}

#[derive(Debug, Deserialize)]
struct Share {
    allocated: i64,
    parts: i64,
    share: Option<f64>,
}

/// Parts in a report: the rest is small.
const PARTS_SHOWN: usize = 16;
/// With less growth since the start, the share says little.
const GROWTH_BYTES_MIN: i64 = 1 << 20;
/// The share of the growth that named parts have to explain.
const SHARE_MIN: f64 = 0.95;

impl Explained {
    /// Asks a server; `None` if it does not tell.
    pub(crate) fn ask(http: &mut Http) -> Result<Option<Explained>> {
        let response = http.get("/v1/debug/memory")?;
        match response.status {
            200 => Ok(Some(serde_json::from_str(&response.body).context("of the memory")?)),
            404 => Ok(None),
            status => bail!("GET /v1/debug/memory gave {status}: {}", response.body),
        }
    }

    /// Fills in the share of the growth since the start that the parts explain, and the largest
    /// parts. The run fails if they explain too little, or more than there is.
    pub(crate) fn fill(of: Option<Explained>, report: &mut Report) {
        let Some(Explained { rss_anon, mut parts, allocator, explained }) = of else { return };
        let bytes_of = |part: &Value| part["bytes"].as_u64().unwrap_or(0);
        parts.sort_by_key(|part| std::cmp::Reverse(bytes_of(part)));
        parts.truncate(PARTS_SHOWN);
        let Some(Share { allocated, parts: named, share }) = explained else { return };
        report.figure("explained_share", share);
        report.set("allocated_since_start", allocated);
        report.set("explained_since_start", named);
        report.set("explained_at_rss_anon", rss_anon);
        report.set("allocator", json!(allocator));
        report.set("memory_parts", parts);
        let share = share.filter(|_| allocated >= GROWTH_BYTES_MIN);
        let is_enough = share.is_none_or(|share| (SHARE_MIN..=2.0 - SHARE_MIN).contains(&share));
        report.check(is_enough, || {
            format!(
                "the parts of the memory explain {share:?} of {allocated} bytes since the start"
            )
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(share: f64, allocated: i64) -> usize {
        let explained = Some(Share { allocated, parts: 0, share: Some(share) });
        let parts = vec![json!({"name": "a", "bytes": 1}), json!({"name": "b", "bytes": 2})];
        let mut report = Report::new("idle");
        let told = Explained { rss_anon: 1, parts, allocator: None, explained };
        Explained::fill(Some(told), &mut report);
        report.errors().len()
    }

    #[test]
    fn memory_without_a_name_fails_the_run() {
        assert_eq!(errors(0.96, 10 << 20), 0);
        assert_eq!(errors(0.94, 10 << 20), 1);
        assert_eq!(errors(1.06, 10 << 20), 1, "bytes that count twice");
        assert_eq!(errors(0.5, 1000), 0, "too little to tell");
    }
}
