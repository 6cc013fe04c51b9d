//! `weir memory`: where the memory of a running gateway is, and what keeps it, through the admin
//! API.

use std::fmt::Write as _;
use std::path::PathBuf;

use ::http::Method;
use anyhow::{Context, Result};
use serde::Deserialize;

use crate::cli::MemoryArgs;
use crate::http::{Api, NO_GATEWAY};
use crate::output::{age_of, say};

/// The shown parts of `GET /v1/debug/memory`.
#[derive(Debug, Deserialize)]
struct Memory {
    rss_anon: u64,
    parts: Vec<Part>,
    allocator: Option<Allocator>,
    explained: Option<Explained>,
}

#[derive(Debug, Deserialize)]
struct Part {
    name: String,
    of: Option<String>,
    count: u64,
    bytes: u64,
    heap: bool,
}

#[derive(Debug, Deserialize)]
struct Allocator {
    allocated: u64,
    active: u64,
    resident: u64,
    retained: u64,
    metadata: u64,
    cached: u64,
}

#[derive(Debug, Deserialize)]
struct Explained {
    allocated: i64,
    parts: i64,
    share: Option<f64>,
}

/// The answer of `GET /v1/debug/retention`.
#[derive(Debug, Deserialize)]
struct Retention {
    retainers: Vec<Retainer>,
}

#[derive(Debug, Deserialize)]
struct Retainer {
    kind: String,
    topic: Option<String>,
    device: Option<String>,
    connection: Option<String>,
    bytes: u64,
    age_ms: u64,
}

pub(crate) async fn run(args: MemoryArgs, file: Option<PathBuf>) -> Result<()> {
    let api = Api::find(args.api, file)?;
    let path = match args.oldest {
        true => format!("{RETENTION_PATH}?limit={}", args.limit),
        false => MEMORY_PATH.to_owned(),
    };
    let answer = api.ask(Method::GET, &path, None).await?;
    if args.json {
        return say(String::from_utf8_lossy(&answer).trim_end());
    }
    let text = match args.oldest {
        true => serde_json::from_slice::<Retention>(&answer).context(NO_GATEWAY)?.text(),
        false => serde_json::from_slice::<Memory>(&answer).context(NO_GATEWAY)?.text(),
    };
    say(text.trim_end())
}

impl Memory {
    /// A table of the parts, the largest first, and the sums. Writing to a `String` cannot fail.
    fn text(mut self) -> String {
        self.parts.retain(|part| part.bytes > 0);
        self.parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
        let mut text = String::new();
        for (title, heap) in [("allocated", true), ("beside the heap", false)] {
            let _ = writeln!(text, "{:>12}  {:>10}  {title}", "bytes", "count");
            for Part { name, of, count, bytes, .. } in
                self.parts.iter().filter(|part| part.heap == heap)
            {
                let of = of.as_ref().map(|of| format!(" ({of})")).unwrap_or_default();
                let _ = writeln!(text, "{bytes:>12}  {count:>10}  {name}{of}");
            }
            text.push('\n');
        }
        let _ = writeln!(text, "{:>12}  resident anonymous memory (RssAnon)", self.rss_anon);
        if let Some(allocator) = &self.allocator {
            let Allocator { allocated, active, resident, retained, metadata, cached } = allocator;
            let _ = writeln!(
                text,
                "jemalloc: allocated {allocated}, active {active}, resident {resident}, retained \
                 {retained}, metadata {metadata}, cached {cached}"
            );
        }
        if let Some(Explained { allocated, parts, share }) = self.explained {
            let share = share.map(|share| format!(": {:.1} %", share * 100.0)).unwrap_or_default();
            let _ = writeln!(
                text,
                "since the start: allocated {allocated:+}, explained by parts {parts:+}{share}"
            );
        }
        text
    }
}

impl Retention {
    fn text(self) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "{:>10}  {:>12}  kept by", "age", "bytes");
        for Retainer { kind, topic, device, connection, bytes, age_ms } in self.retainers {
            let _ = write!(text, "{:>10}  {bytes:>12}  {kind}", age_of(age_ms));
            for (name, value) in [("topic", topic), ("device", device), ("connection", connection)]
            {
                if let Some(value) = value {
                    let _ = write!(text, ", {name} {value:?}");
                }
            }
            text.push('\n');
        }
        text
    }
}

const MEMORY_PATH: &str = "/v1/debug/memory";
const RETENTION_PATH: &str = "/v1/debug/retention";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_parts_come_first() {
        let answer = r#"{"rss_anon":900,"parts":[
            {"name":"small","count":1,"bytes":10,"heap":true},
            {"name":"outboxes","of":"news/*","count":2,"bytes":500,"heap":true},
            {"name":"empty","count":0,"bytes":0,"heap":true},
            {"name":"thread_stacks","count":3,"bytes":300,"heap":false}],
            "allocator":null,"explained":{"allocated":600,"parts":510,"share":0.85}}"#;
        let text = serde_json::from_str::<Memory>(answer).unwrap().text();
        let places: Vec<Option<usize>> = ["outboxes (news/*)", "small", "thread_stacks", "85.0 %"]
            .map(|part| text.find(part))
            .into();
        assert!(places.is_sorted() && places[0].is_some(), "{text}");
        assert!(!text.contains("empty"));
    }
}
