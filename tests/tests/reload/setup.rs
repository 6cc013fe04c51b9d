//! Configurations: a seeded walk from one to the next, and what differs between two of them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

/// What the test changes of a configuration.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Setup {
    /// Keys with their values; a null stands for a key that is not set.
    pub(crate) keys: BTreeMap<&'static str, Value>,
    pub(crate) tokens: Vec<Token>,
    pub(crate) services: Vec<Service>,
    pub(crate) classes: Vec<Class>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Token {
    pub(crate) secret: String,
    pub(crate) device: Option<String>,
    pub(crate) labels: Vec<&'static str>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Service {
    pub(crate) secret: String,
    pub(crate) name: String,
    pub(crate) may: Vec<&'static str>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Class {
    pub(crate) pattern: &'static str,
    pub(crate) subscribe: Vec<&'static str>,
    pub(crate) tick: &'static str,
    pub(crate) retention: u32,
}

/// A key as an answer names it: its path, the value before and the value after.
pub(crate) type Change = (String, Value, Value);

/// Draws that a seed repeats (SplitMix64).
pub(crate) struct Dice(pub u64);

impl Dice {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % end as u64).expect("it is below a usize")
    }

    pub(crate) fn one_of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

/// Keys that a reload applies, with the values that they take in turn.
const LIVE: [(&str, [&str; 3]); 19] = [
    ("limits.connections_max", ["1000000", "900000", "50000"]),
    ("limits.unsettled_connections_max", ["16384", "20000", "10000"]),
    ("limits.topics_max", ["1000000", "5000", "100000"]),
    ("limits.topics_per_connection_max", ["64", "32", "16"]),
    ("limits.presence_members_max", ["262144", "1000", "10"]),
    ("limits.topic_bytes_max", ["255", "128", "64"]),
    ("limits.connections_per_source_max", ["0", "100000", "200000"]),
    ("limits.connects_per_source_per_second", ["0", "500000", "100000"]),
    ("limits.connects_per_source_burst", ["256", "50000", "100000"]),
    ("limits.publishes_per_second", ["100", "0", "50"]),
    ("limits.publish_burst", ["200", "100", "300"]),
    ("limits.frames_per_second", ["100", "0", "200"]),
    ("limits.idempotency_keys_max", ["65536", "100", "1000"]),
    ("connection.stall_timeout", ["\"10s\"", "\"20s\"", "\"30s\""]),
    ("connection.heartbeat", ["\"60s\"", "\"50s\"", "\"70s\""]),
    ("connection.high_watermark_bytes", ["131072", "200000", "300000"]),
    ("auth.failures_per_source_per_second", ["1000", "0", "5"]),
    ("log.level", ["\"info\"", "\"warn\"", "\"info,weir=debug\""]),
    ("log.lines_per_second", ["10", "100", "5"]),
];

/// Keys that need a restart.
const FIXED: [(&str, [&str; 3]); 3] = [
    ("tcp.user_timeout", ["\"70s\"", "\"80s\"", "\"90s\""]),
    ("http.idle_timeout", ["\"60s\"", "\"30s\"", "\"50s\""]),
    ("store.batch_max", ["512", "256", "128"]),
];

const TOKENS_OF_ADMIN: [&str; 3] = ["\"\"", "\"admin-one\"", "\"admin-two\""];
const LABELS: [&[&str]; 4] = [&[], &["vip"], &["staff"], &["staff", "vip"]];
const MAY: [&[&str]; 3] = [&["subscribe"], &["publish", "subscribe"], &["publish"]];
const SUBSCRIBE: [&[&str]; 5] = [
    &["devices", "services"],
    &["devices"],
    &["label:vip", "services"],
    &["label:vip", "label:staff"],
    &[],
];
/// Patterns that come and go, except the last one. A later one never hides an earlier one.
const PATTERNS: [&str; 6] = ["room/1*", "room/*", "vip/2", "vip/*", "news/*", "*"];
/// The topics that clients are in.
pub(crate) const TOPICS: [&str; 10] = [
    "room/1", "room/2", "room/11", "room/3", "vip/1", "vip/2", "vip/3", "news/1", "news/2", "other",
];

impl Setup {
    pub(crate) fn first() -> Setup {
        let value = |text: &str| serde_json::from_str(text).expect("the lists hold JSON");
        let all = LIVE.iter().chain(&FIXED);
        let mut keys: BTreeMap<_, _> = all.map(|(key, values)| (*key, value(values[0]))).collect();
        keys.insert("admin.token", json!(""));
        keys.insert("auth.anonymous", json!(false));
        let tokens = (0..12).map(|number| Token {
            secret: format!("token-{number}"),
            device: None,
            labels: LABELS[number % LABELS.len()].to_vec(),
        });
        let services = (0..2).map(|number| Service {
            secret: format!("service-{number}"),
            name: format!("svc{number}"),
            may: MAY[0].to_vec(),
        });
        let class = |pattern| Class {
            pattern,
            subscribe: SUBSCRIBE[0].to_vec(),
            tick: "0ms",
            retention: 0,
        };
        let classes = ["room/*", "vip/*", "*"].map(class).to_vec();
        Setup { keys, tokens: tokens.collect(), services: services.collect(), classes }
    }

    /// The file, below the addresses.
    pub(crate) fn toml(&self) -> String {
        let mut sections: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (key, value) in &self.keys {
            let (section, name) = key.split_once('.').expect("a key of a section");
            sections.entry(section).or_default().push(format!("{name} = {value}"));
        }
        // So that no other store is shared.
        sections.entry("store").or_default().push("kind = \"none\"".to_owned());
        let mut out = String::new();
        for (section, lines) in sections {
            let _ = writeln!(out, "[{section}]\n{}", lines.join("\n"));
        }
        for Token { secret, device, labels } in &self.tokens {
            let _ = writeln!(out, "[[auth.tokens]]\ntoken = {secret:?}\nlabels = {labels:?}");
            if let Some(device) = device {
                let _ = writeln!(out, "device = {device:?}");
            }
        }
        for Service { secret, name, may } in &self.services {
            let table = "[[auth.services]]";
            let _ = writeln!(out, "{table}\ntoken = {secret:?}\nname = {name:?}\nmay = {may:?}");
        }
        for Class { pattern, subscribe, tick, retention } in &self.classes {
            let table = "[[topic_classes]]";
            let _ = writeln!(
                out,
                "{table}\npattern = {pattern:?}\nsubscribe = {subscribe:?}\ntick = {tick:?}\n\
                 retention_messages = {retention}"
            );
        }
        out
    }

    /// Another configuration, some steps away. `devices_of`: devices that are connected with a token.
    pub(crate) fn next(
        &self,
        dice: &mut Dice,
        number: usize,
        devices_of: &dyn Fn(&str) -> Vec<String>,
    ) -> Setup {
        let mut next = self.clone();
        for part in 0..=dice.below(3) {
            let unique = format!("{number}-{part}");
            match dice.below(12) {
                0..=3 => {
                    let (key, values) = dice.one_of(&LIVE);
                    let value = *dice.one_of(values);
                    next.set(key, value);
                }
                4 => {
                    let (key, values) = dice.one_of(&FIXED);
                    let value = *dice.one_of(values);
                    next.set(key, value);
                }
                5 => {
                    let value = *dice.one_of(&TOKENS_OF_ADMIN);
                    next.set("admin.token", value);
                }
                6 => next.change_tokens(dice, &unique, devices_of),
                7 => next.change_services(dice, &unique),
                _ => next.change_classes(dice),
            }
        }
        next
    }

    fn set(&mut self, key: &'static str, value: &str) {
        self.keys.insert(key, serde_json::from_str(value).expect("the lists hold JSON"));
    }

    fn change_tokens(
        &mut self,
        dice: &mut Dice,
        unique: &str,
        devices_of: &dyn Fn(&str) -> Vec<String>,
    ) {
        let at = dice.below(self.tokens.len());
        match dice.below(4) {
            0 if self.tokens.len() > 6 => drop(self.tokens.remove(at)),
            0 | 1 => {
                let labels = dice.one_of(&LABELS).to_vec();
                let secret = format!("token-{unique}");
                self.tokens.insert(at, Token { secret, device: None, labels });
            }
            2 => self.tokens[at].labels = dice.one_of(&LABELS).to_vec(),
            _ => {
                let token = &mut self.tokens[at];
                let devices = devices_of(&token.secret);
                token.device = match token.device {
                    Some(_) => None,
                    None if devices.is_empty() => None,
                    None => Some(dice.one_of(&devices).clone()),
                };
            }
        }
    }

    fn change_services(&mut self, dice: &mut Dice, unique: &str) {
        let at = dice.below(self.services.len());
        match dice.below(4) {
            0 if self.services.len() > 1 => drop(self.services.remove(at)),
            0 | 1 => self.services.push(Service {
                secret: format!("service-{unique}"),
                name: format!("svc-{unique}"),
                may: dice.one_of(&MAY).to_vec(),
            }),
            2 => self.services[at].may = dice.one_of(&MAY).to_vec(),
            _ => self.services[at].secret = format!("service-{unique}"),
        }
    }

    fn change_classes(&mut self, dice: &mut Dice) {
        let at = dice.below(self.classes.len());
        match dice.below(6) {
            0 if at + 1 < self.classes.len() => drop(self.classes.remove(at)),
            0 | 1 => {
                let pattern = dice.one_of(&PATTERNS);
                if self.classes.iter().all(|class| class.pattern != *pattern) {
                    let subscribe = dice.one_of(&SUBSCRIBE).to_vec();
                    let class = Class { pattern, subscribe, tick: "0ms", retention: 0 };
                    let rank = |pattern: &str| PATTERNS.iter().position(|known| *known == pattern);
                    let is_before = |other: &Class| rank(other.pattern) < rank(pattern);
                    let at = self.classes.partition_point(is_before);
                    self.classes.insert(at, class);
                }
            }
            2 => {
                let tick = *dice.one_of(&["0ms", "20ms", "50ms"]);
                self.classes[at].tick = tick;
            }
            3 => self.classes[at].retention = *dice.one_of(&[0, 5, 100]),
            _ => self.classes[at].subscribe = dice.one_of(&SUBSCRIBE).to_vec(),
        }
    }

    /// A configuration that must be refused: its text, and the key that the answer names.
    pub(crate) fn spoilt(&self, dice: &mut Dice) -> (String, &'static str) {
        let toml = self.toml();
        match dice.below(7) {
            0 => (toml.replace("[limits]\n", "[limits]\ntopics_mux = 5\n"), "topics_mux"),
            1 => (toml.replace("[limits]\n", "[limits]\nframe_burst = 0\n"), "limits.frame_burst"),
            2 => (toml.replace("[limits]\n", "[limits\n"), "weir.toml"),
            3 => {
                let secret = &self.tokens[0].secret;
                (format!("{toml}[[auth.tokens]]\ntoken = {secret:?}\n"), "auth.tokens")
            }
            4 => (format!("{toml}[[topic_classes]]\npattern = \"*\"\n"), "topic_classes"),
            5 => {
                let low = "[connection]\nlow_watermark_bytes = 400000\n";
                (toml.replace("[connection]\n", low), "connection.high_watermark_bytes")
            }
            _ => (toml.replace("[log]\n", "[log]\nformat = \"prose\"\n"), "log.format"),
        }
    }

    /// What differs between two configurations: what a reload applies, and what needs a restart.
    pub(crate) fn difference(&self, new: &Setup) -> (Vec<Change>, Vec<Change>) {
        let (mut changed, mut restart) = (Vec::new(), Vec::new());
        for (key, value) in &new.keys {
            let before = &self.keys[key];
            if before == value {
                continue;
            }
            let is_fixed = FIXED.iter().any(|(fixed, _)| fixed == key);
            let change = match *key {
                "admin.token" => ((*key).to_owned(), Value::Null, json!("changed")),
                _ => ((*key).to_owned(), before.clone(), value.clone()),
            };
            if is_fixed { restart.push(change) } else { changed.push(change) }
        }
        let rows = |setup: &Setup| -> Vec<Row> { setup.tokens.iter().map(Row::from).collect() };
        compare("auth.tokens", &rows(self), &rows(new), &mut changed);
        let rows = |setup: &Setup| -> Vec<Row> { setup.services.iter().map(Row::from).collect() };
        compare("auth.services", &rows(self), &rows(new), &mut changed);
        let rows = |setup: &Setup| -> Vec<Row> { setup.classes.iter().map(Row::from).collect() };
        compare("topic_classes", &rows(self), &rows(new), &mut changed);
        (changed, restart)
    }

    /// The configuration in use after a reload to `new`.
    pub(crate) fn applied(&self, new: &Setup) -> Setup {
        let mut applied = new.clone();
        for (key, _) in FIXED {
            applied.keys.insert(key, self.keys[key].clone());
        }
        applied
    }

    /// Whether the holder of this token may be in the topic, with that device id.
    pub(crate) fn permits(&self, secret: &str, topic: &str) -> bool {
        let matches = |class: &&Class| match class.pattern.strip_suffix('*') {
            Some(start) => topic.starts_with(start),
            None => class.pattern == topic,
        };
        let Some(class) = self.classes.iter().find(matches) else { return false };
        let is_named = |actor: &str| class.subscribe.contains(&actor);
        if let Some(service) = self.services.iter().find(|service| service.secret == secret) {
            return is_named("services") && service.may.contains(&"subscribe");
        }
        let Some(token) = self.tokens.iter().find(|token| token.secret == secret) else {
            return false;
        };
        is_named("devices") || token.labels.iter().any(|label| is_named(&format!("label:{label}")))
    }

    /// Whether the token admits the device.
    pub(crate) fn admits(&self, secret: &str, device: &str) -> bool {
        let token = self.tokens.iter().find(|token| token.secret == secret);
        let service = self.services.iter().any(|service| service.secret == secret);
        service
            || token.is_some_and(|token| token.device.as_deref().is_none_or(|own| own == device))
    }
}

/// A table of a list: its name, whether that is a secret, its keys, and which of them have defaults.
struct Row {
    name: String,
    label: Option<String>,
    keys: Vec<(&'static str, Value, Value)>,
    secret: Option<String>,
}

impl From<&Token> for Row {
    fn from(Token { secret, device, labels }: &Token) -> Row {
        let keys =
            vec![("device", json!(device), Value::Null), ("labels", json!(labels), json!([]))];
        Row { name: secret.clone(), label: None, keys, secret: None }
    }
}

impl From<&Service> for Row {
    fn from(Service { secret, name, may }: &Service) -> Row {
        let keys = vec![("name", json!(name), json!("")), ("may", json!(may), json!([]))];
        Row { name: name.clone(), label: Some(name.clone()), keys, secret: Some(secret.clone()) }
    }
}

impl From<&Class> for Row {
    fn from(Class { pattern, subscribe, tick, retention }: &Class) -> Row {
        let keys = vec![
            ("pattern", json!(pattern), json!("")),
            ("subscribe", json!(subscribe), json!(["devices", "services"])),
            ("tick", json!(tick), json!("0ms")),
            ("retention_messages", json!(retention), json!(0)),
        ];
        let name = (*pattern).to_owned();
        Row { label: Some(name.clone()), name, keys, secret: None }
    }
}

fn compare(path: &str, old: &[Row], new: &[Row], changed: &mut Vec<Change>) {
    let at = |index: usize, row: &Row| match &row.label {
        Some(label) => format!("{path}[{label:?}]"),
        None => format!("{path}[{index}]"),
    };
    let shown = |row: &Row| -> Value {
        let set = row.keys.iter().filter(|(_, value, default)| value != default);
        Value::Object(set.map(|(key, value, _)| ((*key).to_owned(), value.clone())).collect())
    };
    for (index, row) in old.iter().enumerate() {
        if new.iter().all(|new| new.name != row.name) {
            changed.push((at(index, row), shown(row), Value::Null));
        }
    }
    for (index, row) in new.iter().enumerate() {
        let Some(before) = old.iter().find(|old| old.name == row.name) else {
            changed.push((at(index, row), Value::Null, shown(row)));
            continue;
        };
        if before.secret != row.secret {
            changed.push((format!("{}.token", at(index, row)), Value::Null, json!("changed")));
        }
        for ((key, before, _), (_, after, _)) in before.keys.iter().zip(&row.keys) {
            if before != after {
                let key = format!("{}.{key}", at(index, row));
                changed.push((key, before.clone(), after.clone()));
            }
        }
    }
    let names = |rows: &[Row]| -> Vec<String> { rows.iter().map(|row| row.name.clone()).collect() };
    let (old_names, new_names) = (names(old), names(new));
    let kept = old_names.iter().filter(|name| new_names.contains(name));
    let added = new_names.iter().filter(|name| !old_names.contains(name));
    if new.iter().all(|row| row.label.is_some()) && !kept.chain(added).eq(&new_names) {
        changed.push((path.to_owned(), json!(old_names), json!(new_names)));
    }
}
