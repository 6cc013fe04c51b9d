//! `weir connections`: the connections of a node.

use std::path::PathBuf;

use anyhow::Result;
use serde::Deserialize;

use super::args::ConnectionsArgs;
use super::pages;
use super::table::{Table, number, text};
use crate::http::Api;
use crate::output::{age_of, say};

/// The shown parts of a connection.
#[derive(Debug, Deserialize)]
pub(super) struct Connection {
    id: String,
    device: String,
    client: Option<String>,
    peer: Option<String>,
    source: Option<String>,
    transport: String,
    protocol: String,
    age_ms: u64,
    idle_ms: u64,
    queued_bytes: u64,
    topics: Vec<String>,
}

pub(crate) async fn run(args: ConnectionsArgs, file: Option<PathBuf>) -> Result<()> {
    let ConnectionsArgs { device, topic, node, list } = args;
    let api = Api::find(list.api, file)?;
    let parameters =
        [("device", device), ("topic", topic), ("node", node.map(|node| node.to_string()))];
    let place = ("/v1/connections", "connections");
    let listed = pages::list(&api, place, &parameters, list.limit).await?;
    if list.json {
        return listed.say_lines();
    }
    say(table(listed.rows()?).trim_end())?;
    listed.tell_more();
    Ok(())
}

pub(super) fn table(connections: Vec<Connection>) -> String {
    let mut table = Table::new([
        text("CONNECTION"),
        text("DEVICE"),
        text("CLIENT"),
        text("FROM"),
        text("PROTOCOL"),
        number("AGE"),
        number("IDLE"),
        number("QUEUED"),
        text("TOPICS"),
    ]);
    for connection in connections {
        let Connection { id, device, client, peer, source, transport, protocol, .. } = connection;
        let Connection { age_ms, idle_ms, queued_bytes, topics, .. } = connection;
        table.add([
            id,
            device,
            client.unwrap_or_default(),
            from(peer, source),
            spoken(&protocol, &transport),
            age_of(age_ms),
            age_of(idle_ms),
            queued_bytes.to_string(),
            some_of(&topics),
        ]);
    }
    table.text()
}

/// Where a connection comes from. Behind a proxy, the peer is the proxy.
pub(super) fn from(peer: Option<String>, source: Option<String>) -> String {
    match (peer, source) {
        (Some(peer), Some(source)) if !is_part_of(&peer, &source) => format!("{source} by {peer}"),
        (Some(peer), _) => peer,
        (None, source) => source.unwrap_or_default(),
    }
}

/// Whether the peer's address is its source, so that the source tells nothing more.
fn is_part_of(peer: &str, source: &str) -> bool {
    source.ends_with("/64") || peer.contains(source)
}

/// What is spoken, and whether over TLS.
pub(super) fn spoken(protocol: &str, transport: &str) -> String {
    match (protocol, transport) {
        ("tcp", transport) => transport.to_owned(),
        (protocol, "tls") => format!("{protocol} tls"),
        (protocol, _) => protocol.to_owned(),
    }
}

fn some_of(topics: &[String]) -> String {
    let shown = topics.iter().take(TOPICS_SHOWN).cloned().collect::<Vec<_>>().join(" ");
    match topics.len().saturating_sub(TOPICS_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

const TOPICS_SHOWN: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_a_row() {
        let connection = r#"{"id":"0000000000000001","device":"d1","client":"c/1","peer":"10.0.0.1:99",
            "source":"192.0.2.7","transport":"tls","protocol":"sse","age_ms":61000,"idle_ms":900,
            "heartbeat_ms":60000,"queued_bytes":12,"topics":["a","b","c","d","e"]}"#;
        let text = table(vec![serde_json::from_str(connection).unwrap()]);
        let cells: Vec<&str> = text.lines().nth(1).unwrap().split("  ").collect();
        let cells: Vec<&str> =
            cells.into_iter().map(str::trim).filter(|cell| !cell.is_empty()).collect();
        let expected = [
            "0000000000000001",
            "d1",
            "c/1",
            "192.0.2.7 by 10.0.0.1:99",
            "sse tls",
            "61 s",
            "0.9 s",
            "12",
            "a b c and 2 more",
        ];
        assert_eq!(cells, expected);
    }

    #[test]
    fn an_address_is_told_once() {
        let told = |peer: Option<&str>, source: Option<&str>| {
            from(peer.map(str::to_owned), source.map(str::to_owned))
        };
        assert_eq!(told(Some("10.0.0.1:9"), Some("10.0.0.1")), "10.0.0.1:9");
        assert_eq!(told(Some("[2001:db8::1]:9"), Some("2001:db8::/64")), "[2001:db8::1]:9");
        assert_eq!(told(None, Some("10.0.0.1")), "10.0.0.1");
        assert_eq!(told(None, None), "");
    }
}
