//! The text that a gateway prints after its start: listeners, resources, and commands to try. Also
//! the output of `weir config check`.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};

use weir::{Actor, Config, DatagramBuffers, Development, OpenFiles, Started, TopicClass};

use crate::addresses::reachable;
use crate::config::FromVariable;

pub(crate) fn text(started: &Started, config: &Config, front_threads: usize) -> String {
    let admin = started.admin.map_or_else(|| "none".to_owned(), |addr| addr.to_string());
    let buffers = started.buffers;
    let mut rows = vec![("devices (TCP)", list(&started.tcp))];
    rows.extend(tls(started));
    rows.extend(http(started));
    rows.extend(udp(started));
    rows.extend(certificate(started));
    rows.extend([
        ("admin API", admin),
        ("shards", shards(&started.shards)),
        ("front threads", front_threads.to_string()),
        ("topic classes", classes(&config.topic_classes)),
        (
            "byte budget",
            format!(
                "{} of {}: {}",
                size(started.budget_bytes),
                size(started.resources.memory_bytes),
                started.resources.memory_limit
            ),
        ),
        ("open files", open_files(started, config.limits.connections_max)),
        (
            "socket buffers",
            format!(
                "{} B to send, {} B to receive, as granted",
                buffers.send_bytes, buffers.recv_bytes
            ),
        ),
    ]);
    let mut out = format!("weir {} is listening\n", env!("CARGO_PKG_VERSION"));
    let columns = rows.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    for (name, value) in rows {
        line(&mut out, format_args!("  {name:<columns$} {value}"));
    }
    out.push_str("\nTry next:");
    for command in commands(started, config) {
        out.push_str("\n  ");
        out.push_str(&command);
    }
    out
}

/// The row of TLS listeners.
fn tls(started: &Started) -> Option<(&'static str, String)> {
    (!started.tls.is_empty()).then(|| ("devices (TLS)", list(&started.tls)))
}

/// The rows of HTTP and HTTPS listeners.
fn http(started: &Started) -> Vec<(&'static str, String)> {
    let rows = [("HTTP", &started.http), ("HTTPS", &started.https)];
    let there = rows.into_iter().filter(|(_, addrs)| !addrs.is_empty());
    there.map(|(name, addrs)| (name, list(addrs))).collect()
}

/// The row of UDP listeners, with the socket buffers that the kernel granted.
fn udp(started: &Started) -> Option<(&'static str, String)> {
    let DatagramBuffers { recv_bytes, send_bytes } = started.udp_buffers?;
    let addrs = list(&started.udp);
    Some((
        "datagrams (UDP)",
        format!("{addrs}; {send_bytes} B to send, {recv_bytes} B to receive, as granted"),
    ))
}

fn list(addrs: &[SocketAddr]) -> String {
    addrs.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(", ")
}

/// The rows of the development certificate, if the gateway shows one.
fn certificate(started: &Started) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    if let Some(Development { path, fingerprint }) = &started.development {
        rows.push(("certificate", format!("for development only: {}", path.display())));
        rows.push(("SHA-256", fingerprint.clone()));
    }
    rows
}

/// The result of a successful check: the keys that variables set, and the topic classes in the
/// order in which they are tried, one per line.
pub(crate) fn checked(config: &Config, from_variables: &[FromVariable]) -> String {
    let mut out = "configuration is valid".to_owned();
    if !from_variables.is_empty() {
        out.push_str("\nenvironment variables override the file:");
        from_variables.iter().for_each(|set| out.push_str(&format!("\n  {set}")));
    }
    let classes = &config.topic_classes;
    let columns = classes.iter().map(|class| class.pattern.chars().count()).max();
    if let Some(columns) = columns {
        out.push_str("\ntopic classes (the first one whose pattern matches counts):");
        for class in classes {
            let (pattern, columns) = (&class.pattern, columns.min(PATTERN_COLUMNS_MAX));
            out.push_str(&format!("\n  {pattern:<columns$}  {}", rules(class)));
        }
    }
    out
}

/// The rules of a class that differ from the defaults, and its rights.
fn rules(class: &TopicClass) -> String {
    let mut rules = Vec::new();
    if !class.tick.is_zero() {
        rules.push(format!("tick {:?}", class.tick));
    }
    if class.conflation {
        rules.push("conflation".to_owned());
    }
    rules.push(format!("priority {}", class.priority.name()));
    rules.push(format!("slow {}", class.slow.name()));
    if class.retention_messages > 0 {
        let (messages, ttl) = (class.retention_messages, class.retention_ttl);
        rules.push(format!("keeps {messages} messages for {ttl:?}"));
    }
    if class.publishes_per_second > 0 {
        rules.push(format!("{} messages a second", class.publishes_per_second));
    }
    let (publish, subscribe) = (actors(&class.publish), actors(&class.subscribe));
    format!("{}; publish: {publish}; subscribe: {subscribe}", rules.join(", "))
}

fn actors(actors: &[Actor]) -> String {
    if actors.is_empty() {
        return "nobody".to_owned();
    }
    actors.iter().map(Actor::to_string).collect::<Vec<_>>().join(", ")
}

fn classes(classes: &[TopicClass]) -> String {
    match classes.len() {
        0 => "none: every topic has the defaults".to_owned(),
        count => count.to_string(),
    }
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("writing to a String does not fail");
}

fn shards(pins: &[Option<usize>]) -> String {
    let count = pins.len();
    let pins: Option<Vec<String>> = pins.iter().map(|pin| pin.map(|cpu| cpu.to_string())).collect();
    match pins {
        Some(pins) if pins.len() <= PINS_SHOWN_MAX => {
            format!("{count}, pinned to processors {}", pins.join(", "))
        }
        Some(_) => format!("{count}, each pinned to a processor"),
        None => format!("{count}, not pinned"),
    }
}

fn open_files(started: &Started, configured: usize) -> String {
    let number = |limit| match limit {
        u64::MAX => "unlimited".to_owned(),
        limit => limit.to_string(),
    };
    let OpenFiles { soft, hard } = started.open_files;
    let shown = format!("{} soft, {} hard", number(soft), number(hard));
    let max = started.connections_max;
    if max < configured {
        return format!(
            "{shown}: room for {max} connections, fewer than limits.connections_max = {configured}"
        );
    }
    shown
}

fn size(bytes: usize) -> String {
    format!("{} MiB", bytes >> 20)
}

/// Commands that work with this gateway from the same machine.
fn commands(started: &Started, config: &Config) -> Vec<String> {
    let topic = topic(config).map(|topic| quoted(&topic));
    let mut commands: Vec<String> =
        subscribe(started, config, topic.as_deref()).into_iter().collect();
    let Some(admin) = started.admin.map(reachable) else {
        commands.extend(["weir config reference".to_owned(), "weir publish --help".to_owned()]);
        return commands;
    };
    let to = topic.map_or_else(|| "--all".to_owned(), |topic| format!("--topic {topic}"));
    let mut publish = format!("weir publish {to} --text hello");
    let mut curl = "curl".to_owned();
    if admin != default_addr(ADMIN_PORT) {
        publish += &format!(" --admin {admin}");
    }
    if config.admin.needs_token() {
        publish += " --token ADMIN-TOKEN";
        curl += " -H 'Authorization: Bearer ADMIN-TOKEN'";
    }
    commands.extend([publish, format!("{curl} http://{admin}/v1/connections")]);
    commands
}

/// A command that receives messages, over the first kind of listener that is configured. Without a
/// topic it receives messages to all connections.
fn subscribe(started: &Started, config: &Config, topic: Option<&str>) -> Option<String> {
    let topic = topic.map(|topic| format!(" {topic}")).unwrap_or_default();
    let needs_token = !config.admits_anonymous();
    let token = if needs_token { " --token TOKEN" } else { "" };
    if let Some(addr) = started.tcp.first().map(|addr| reachable(*addr)) {
        let addr = if addr == default_addr(DEVICES_PORT) {
            String::new()
        } else {
            format!(" --addr {addr}")
        };
        return Some(format!("weir subscribe{topic}{addr}{token}"));
    }
    let development = started.development.as_ref();
    let ca = development.map_or_else(
        || "CA-FILE".to_owned(),
        |certificate| quoted(&certificate.path.to_string_lossy()),
    );
    if let Some(addr) = started.tls.first().map(|addr| reachable(*addr)) {
        // The development certificate is made for this name.
        let name = if development.is_some() { " --server-name localhost" } else { "" };
        return Some(format!("weir subscribe{topic} --addr {addr} --tls --ca {ca}{name}{token}"));
    }
    let topic = if topic.is_empty() { "" } else { " --data-urlencode topic=" }.to_owned()
        + topic.trim_start();
    let shown = if needs_token {
        " -H 'Authorization: Bearer TOKEN'"
    } else {
        " --data-urlencode device=me"
    };
    if let Some(addr) = started.http.first().map(|addr| reachable(*addr)) {
        return Some(format!("curl -NG{shown}{topic} http://{addr}/v1/sse"));
    }
    let addr = started.https.first().map(|addr| reachable(*addr))?;
    let host = if development.is_some() { "localhost".to_owned() } else { addr.ip().to_string() };
    Some(format!("curl -NG --cacert {ca}{shown}{topic} https://{host}:{}/v1/sse", addr.port()))
}

/// A topic that every device may subscribe to; `None` if no such name can be guessed.
fn topic(config: &Config) -> Option<String> {
    let patterns = config.topic_classes.iter().map(|class| class.pattern.as_str());
    let names = patterns.filter(|pattern| !pattern.contains("{device}")).map(named_like);
    names.chain(["news".to_owned()]).find(|name| {
        let class = config.class_of(name);
        class.is_none_or(|class| {
            class.subscribe.contains(&Actor::Devices) && !class.pattern.contains("{device}")
        })
    })
}

/// A name that matches a pattern. A star alone between slashes becomes a word; any other star
/// becomes nothing.
fn named_like(pattern: &str) -> String {
    let part = |part: &str| match part.replace('*', "") {
        rest if rest.is_empty() => "news".to_owned(),
        rest => rest,
    };
    pattern.split('/').map(part).collect::<Vec<_>>().join("/")
}

/// The word, quoted for a shell if necessary.
fn quoted(word: &str) -> String {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "-_./:@%+=,".contains(char);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// The default addresses of `weir subscribe` and `weir publish`.
fn default_addr(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

const DEVICES_PORT: u16 = 7070;
const ADMIN_PORT: u16 = 7090;

/// Longer patterns break the column.
const PATTERN_COLUMNS_MAX: usize = 40;

/// More processors do not fit on a line.
const PINS_SHOWN_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir::{Buffers, MemoryLimit, Resources, SlowPolicy};

    use super::*;

    fn started(tcp: &str, admin: Option<&str>) -> Started {
        Started {
            tcp: vec![tcp.parse().unwrap()],
            tls: vec![],
            http: vec![],
            https: vec![],
            udp: vec![],
            udp_buffers: None,
            development: None,
            admin: admin.map(|addr| addr.parse().unwrap()),
            resources: Resources {
                processors: vec![0, 1],
                cpu_quota: None,
                memory_bytes: 8 << 30,
                memory_limit: MemoryLimit::Machine,
            },
            shards: vec![Some(0), Some(1)],
            budget_bytes: 2 << 30,
            open_files: OpenFiles { soft: 4_096, hard: u64::MAX },
            connections_max: 3_736,
            buffers: Buffers { send_bytes: 131_072, recv_bytes: 131_072 },
        }
    }

    #[test]
    fn everything_that_was_found_and_taken_is_printed() {
        let text = text(&started("127.0.0.1:7070", Some("127.0.0.1:7090")), &Config::default(), 1);
        let expected = format!(
            "\
weir {} is listening
  devices (TCP)  127.0.0.1:7070
  admin API      127.0.0.1:7090
  shards         2, pinned to processors 0, 1
  front threads  1
  topic classes  none: every topic has the defaults
  byte budget    2048 MiB of 8192 MiB: the memory of the machine
  open files     4096 soft, unlimited hard: room for 3736 connections, fewer than limits.connections_max = 1000000
  socket buffers 131072 B to send, 131072 B to receive, as granted

Try next:
  weir subscribe news
  weir publish --topic news --text hello
  curl http://127.0.0.1:7090/v1/connections",
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn a_certificate_that_nobody_has_signed_is_named() {
        let mut started = started("127.0.0.1:7070", None);
        started.tls = vec!["127.0.0.1:7443".parse().unwrap()];
        assert_eq!(tls(&started), Some(("devices (TLS)", "127.0.0.1:7443".to_owned())));
        started.http = vec!["127.0.0.1:8080".parse().unwrap(), "[::1]:8080".parse().unwrap()];
        let (path, fingerprint) = ("/s/development.pem".into(), "AB:CD".to_owned());
        started.development = Some(Development { path, fingerprint });
        let shown = text(&started, &Config::default(), 1);
        let expected = "  devices (TLS)  127.0.0.1:7443\n  HTTP           127.0.0.1:8080, [::1]:8080\n  certificate    for development only: /s/development.pem\n  \
                        SHA-256        AB:CD\n";
        assert!(shown.contains(expected), "{shown}");
    }

    #[test]
    fn a_check_shows_the_classes() {
        let mut config = Config::default();
        assert_eq!(checked(&config, &[]), "configuration is valid");
        let live = TopicClass {
            pattern: "live/*".to_owned(),
            tick: Duration::from_millis(200),
            conflation: true,
            slow: SlowPolicy::Conflate,
            retention_messages: 5,
            publishes_per_second: 7,
            publish: vec![],
            ..TopicClass::default()
        };
        let other = TopicClass { pattern: "*".to_owned(), ..TopicClass::default() };
        config.topic_classes = vec![live, other];
        let expected = "\
configuration is valid
topic classes (the first one whose pattern matches counts):
  live/*  tick 200ms, conflation, priority normal, slow conflate, keeps 5 messages for 300s, 7 messages a second; \
                publish: nobody; subscribe: devices, services
  *       priority normal, slow close; publish: services; subscribe: devices, services";
        assert_eq!(checked(&config, &[]), expected);
        assert_eq!(classes(&config.topic_classes), "2");
    }

    fn closed_to_all() -> TopicClass {
        TopicClass { pattern: "*".to_owned(), subscribe: vec![], ..TopicClass::default() }
    }

    #[test]
    fn a_topic_fits_the_class_that_it_is_taken_from() {
        let class =
            |pattern: &&str| TopicClass { pattern: (*pattern).to_owned(), ..TopicClass::default() };
        let closed = |pattern: &str| TopicClass { subscribe: vec![], ..class(&pattern) };
        for (patterns, expected) in [
            (&[][..], "news"),
            (&["*keep/*"], "keep/news"),
            (&["room/*"], "room/news"),
            (&["own/{device}/*"], "news"),
            (&["a*b/*c*/*"], "ab/c/news"),
            (&["*"], "news"),
        ] {
            let topic_classes = patterns.iter().map(class).collect();
            let config = Config { topic_classes, ..Config::default() };
            assert_eq!(topic(&config).as_deref(), Some(expected), "{patterns:?}");
        }
        // The name belongs to an earlier class, to which devices may not subscribe.
        let topic_classes = vec![closed("*/news"), class(&"room/*"), class(&"open")];
        let config = Config { topic_classes, ..Config::default() };
        assert_eq!(topic(&config).as_deref(), Some("open"));
        assert_eq!(quoted("it's"), "'it'\\''s'");
    }

    #[test]
    fn what_is_proposed_is_spoken_where_it_goes() {
        let config = Config::default();
        let mut started = started("127.0.0.1:7070", None);
        started.tcp = vec![];
        started.https = vec!["127.0.0.1:8443".parse().unwrap()];
        let first = |started: &Started| commands(started, &config).remove(0);
        let data = "--data-urlencode device=me --data-urlencode topic=news";
        let expected = format!("curl -NG --cacert CA-FILE {data} https://127.0.0.1:8443/v1/sse");
        assert_eq!(first(&started), expected);
        started.http = vec!["0.0.0.0:8080".parse().unwrap()];
        assert_eq!(first(&started), format!("curl -NG {data} http://127.0.0.1:8080/v1/sse"));
        started.tls = vec!["127.0.0.1:7443".parse().unwrap()];
        let expected = "weir subscribe news --addr 127.0.0.1:7443 --tls --ca CA-FILE";
        assert_eq!(first(&started), expected);
        let (path, fingerprint) = ("/a b/development.pem".into(), String::new());
        started.development = Some(Development { path, fingerprint });
        let expected = "weir subscribe news --addr 127.0.0.1:7443 --tls --ca '/a b/development.pem' \
                        --server-name localhost";
        assert_eq!(first(&started), expected);
        (started.http, started.https, started.tls) = (vec![], vec![], vec![]);
        assert_eq!(first(&started), "weir config reference", "nobody can subscribe");
    }

    #[test]
    fn the_longest_name_is_apart_from_what_it_names() {
        let mut started = started("127.0.0.1:7070", None);
        started.udp = vec!["127.0.0.1:7070".parse().unwrap()];
        started.udp_buffers = Some(DatagramBuffers { recv_bytes: 1, send_bytes: 2 });
        let shown = text(&started, &Config::default(), 1);
        assert!(shown.contains("\n  datagrams (UDP) 127.0.0.1:7070; "), "{shown}");
        assert!(shown.contains("\n  shards          2, "), "{shown}");
    }

    #[test]
    fn the_commands_fit_the_addresses_and_the_tokens() {
        let mut config = Config::default();
        config.listen.tcp = vec!["0.0.0.0:0".parse().unwrap()];
        config.admin.token = "secret".to_owned();
        let expected = [
            "weir subscribe news --addr 127.0.0.1:5000 --token TOKEN",
            "weir publish --topic news --text hello --admin [::1]:5001 --token ADMIN-TOKEN",
            "curl -H 'Authorization: Bearer ADMIN-TOKEN' http://[::1]:5001/v1/connections",
        ];
        assert_eq!(commands(&started("0.0.0.0:5000", Some("[::]:5001")), &config), expected);
        let closed = closed_to_all();
        let own = TopicClass { pattern: "own/{device}/*".to_owned(), ..TopicClass::default() };
        let room = TopicClass { pattern: "room/*".to_owned(), ..TopicClass::default() };
        let with_classes = Config { topic_classes: vec![own, room, closed], ..Config::default() };
        let shown = commands(&started("127.0.0.1:7070", None), &with_classes);
        assert_eq!(shown[0], "weir subscribe room/news");
        let only_closed = Config { topic_classes: vec![closed_to_all()], ..Config::default() };
        let shown = commands(&started("127.0.0.1:7070", Some("127.0.0.1:7090")), &only_closed);
        assert_eq!(shown[..2], ["weir subscribe", "weir publish --all --text hello"]);
        let without_admin = commands(&started("127.0.0.1:7070", None), &Config::default());
        assert_eq!(without_admin[1], "weir config reference");
    }
}
