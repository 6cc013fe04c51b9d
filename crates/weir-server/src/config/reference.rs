//! The keys for people: as text, as Markdown, and as an example file.

use std::fmt::Write as _;
use std::time::Duration;

use super::field::Value as _;
use super::keys::{self, Key, SECTIONS};
use super::tables::Member;

/// For a terminal.
pub(crate) fn text() -> String {
    let mut out = String::new();
    for (section, subject) in SECTIONS {
        line(&mut out, format_args!("{}  {subject}\n", heading(section)));
        for key in of_section(section) {
            let entry = Entry::of_key(key);
            entry.write_text(&key.path(), &mut out);
            for member in key.field.members() {
                Entry::of_member(member)
                    .write_text(&format!("{}[].{}", key.path(), member.name()), &mut out);
            }
        }
    }
    out
}

/// `docs/configuration.md`.
pub(crate) fn markdown() -> String {
    let mut out = PREFACE.to_owned();
    for (section, subject) in SECTIONS {
        line(&mut out, format_args!("\n## {}\n{subject}\n", heading(section)));
        let (lists, keys): (Vec<_>, Vec<_>) =
            of_section(section).partition(|key| key.is_list_of_tables());
        table(&mut out, keys.iter().map(|key| Entry::of_key(key)));
        for list in lists {
            // A list outside the sections has the heading already.
            if section.is_empty() {
                line(&mut out, format_args!("{}\n", list.meaning));
            } else {
                line(&mut out, format_args!("\n### [[{}]]\n{}\n", list.path(), list.meaning));
            }
            table(&mut out, list.field.members().into_iter().map(Entry::of_member));
        }
        if let Some((_, guide)) = GUIDES.iter().find(|(of, _)| of == section) {
            line(&mut out, format_args!("\n{}", guide.trim_end()));
        }
    }
    out
}

fn table(out: &mut String, entries: impl Iterator<Item = Entry>) {
    let mut entries = entries.peekable();
    if entries.peek().is_none() {
        return;
    }
    line(out, format_args!("| key | unit | default | allowed | meaning |"));
    line(out, format_args!("|---|---|---|---|---|"));
    for Entry { name, unit, default, allowed, meaning, .. } in entries {
        let unit = unit.unwrap_or("–");
        let default = match default {
            Ok(value) => format!("`{value}`"),
            Err(why_none) => why_none.to_owned(),
        };
        line(out, format_args!("| `{name}` | {unit} | {default} | {allowed} | {meaning} |"));
    }
}

/// Every key at its default, commented out.
pub(crate) fn example() -> String {
    let mut out = EXAMPLE_PREFACE.to_owned();
    for (section, subject) in SECTIONS {
        line(&mut out, format_args!("\n# {subject}"));
        if !section.is_empty() {
            line(&mut out, format_args!("[{section}]"));
        }
        for key in of_section(section) {
            out.push('\n');
            comment(&mut out, key.meaning);
            if key.is_list_of_tables() {
                line(&mut out, format_args!("#[[{}]]", key.path()));
                for member in key.field.members() {
                    comment(&mut out, member.meaning());
                    comment(&mut out, &format!("Allowed: {}.", member.allowed_in_full()));
                    line(&mut out, format_args!("#{} = {}", member.name(), member.example()));
                }
                continue;
            }
            line(&mut out, format_args!("# Allowed: {}.", key.allowed_in_full()));
            let value = key.default().unwrap_or_else(|| "true".to_owned());
            line(&mut out, format_args!("#{} = {value}", key.name));
        }
    }
    out
}

fn comment(out: &mut String, text: &str) {
    for part in wrapped(text, TEXT_COLUMNS) {
        line(out, format_args!("# {part}"));
    }
}

fn heading(section: &str) -> String {
    match section {
        // There is one key outside the sections.
        "" => keys::outside().map(|path| format!("[[{path}]]")).collect(),
        section => format!("[{section}]"),
    }
}

/// A key, or a member of a list's tables.
struct Entry {
    name: &'static str,
    unit: Option<&'static str>,
    /// If there is none, why.
    default: Result<String, &'static str>,
    allowed: String,
    variable: Option<String>,
    meaning: &'static str,
}

impl Entry {
    fn of_key(key: &Key) -> Entry {
        Entry {
            name: key.name,
            unit: unit(key.name, key.field.kind()),
            default: key.default().ok_or("absent"),
            allowed: key.allowed_in_full(),
            variable: key.variable(),
            meaning: key.meaning,
        }
    }

    fn of_member(member: &dyn Member) -> Entry {
        Entry {
            name: member.name(),
            unit: unit(member.name(), member.kind()),
            default: member.default().ok_or(if member.is_needed() { "needed" } else { "absent" }),
            allowed: member.allowed_in_full(),
            variable: None,
            meaning: member.meaning(),
        }
    }

    fn write_text(self, path: &str, out: &mut String) {
        line(out, format_args!("{path}"));
        if let Some(unit) = self.unit {
            line(out, format_args!("    unit      {unit}"));
        }
        let default = self.default.unwrap_or_else(str::to_owned);
        line(out, format_args!("    default   {default}"));
        line(out, format_args!("    allowed   {}", self.allowed));
        if let Some(variable) = self.variable {
            line(out, format_args!("    variable  {variable}"));
        }
        for part in wrapped(self.meaning, TEXT_COLUMNS) {
            line(out, format_args!("    {part}"));
        }
        out.push('\n');
    }
}

/// What a number counts, or that it is a time.
pub(super) fn unit(name: &str, kind: &str) -> Option<&'static str> {
    if kind == Duration::KIND {
        return Some("time");
    }
    let is_number = kind == usize::KIND;
    let unit = UNITS.iter().find(|(part, _)| is_number && name.contains(part));
    unit.map(|(_, unit)| *unit)
}

fn of_section(section: &str) -> impl Iterator<Item = &'static Key> {
    keys::all().filter(move |key| key.section == section)
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("writing to a String does not fail");
}

/// Words in lines of at most `columns` characters.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is always a line");
        if !last.is_empty() && last.len() + 1 + word.len() > columns {
            lines.push(word.to_owned());
        } else {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    lines
}

const PREFACE: &str = "\
# Configuration

<!-- Written by `weir config reference --markdown`; a test keeps it fresh. -->

`weir` runs without any configuration: it then listens on loopback only. A TOML file is given with `--config FILE` or in
the variable `WEIR_CONFIG`; no other place is searched. Every key but the lists of tables can also be set by a variable,
`WEIR_<SECTION>_<KEY>` in upper case, which goes over the file: `WEIR_LISTEN_TCP=0.0.0.0:7070,[::1]:7070`,
`WEIR_CONNECTION_HEARTBEAT=30s`. Lists are separated by commas. `[[auth.tokens]]`, `[[auth.services]]`,
`[[tls.certificates]]` and `[[topic_classes]]` stand in the file only.

Durations are a whole number and a unit (`ms`, `s`, `m`, `h`); sizes are bytes. An unknown key, a wrong type or a value
that is not allowed is refused at the start with the key, the value, its line or variable, and what is allowed; the exit
code is then 2. `weir config check FILE` does only that, reads the files of `[tls]` if anything listens with TLS, and
shows the topic classes.

`weir.toml` in this repository is a file for a production room: a game, a live page and a fleet in one. `weir config
reference --toml` writes a file with every key at its default.
";

const EXAMPLE_PREFACE: &str = "\
# Weir's configuration: every key with its default, commented out.
# Written by `weir config reference --toml`. Use it with `weir --config FILE`.
";

/// What follows the tables of a section in the Markdown.
const GUIDES: [(&str, &str); 10] = [
    ("listen", include_str!("guide/listen.md")),
    ("auth", include_str!("guide/auth.md")),
    ("auth.jwt", include_str!("guide/jwt.md")),
    ("limits", include_str!("guide/limits.md")),
    ("tls", include_str!("guide/tls.md")),
    ("http", include_str!("guide/http.md")),
    ("udp", include_str!("guide/udp.md")),
    ("access_log", include_str!("guide/access_log.md")),
    ("store", include_str!("guide/store.md")),
    ("", include_str!("guide/topic_classes.md")),
];

/// A part of a number's name, and what it counts then; the first that fits.
const UNITS: [(&str, &str); 32] = [
    ("sample", "requests"),
    ("bytes", "bytes"),
    ("datagrams_per_source_per_second", "datagrams a second"),
    ("datagrams_per_source", "datagrams"),
    ("connects_per_source_per_second", "connects a second"),
    ("connects_per_source", "connects"),
    ("publishes_per_second", "messages a second"),
    ("publish_burst", "messages"),
    ("frames_per_second", "frames a second"),
    ("frame_burst", "frames"),
    ("retention_messages", "messages"),
    ("topics_", "topics"),
    ("requests_per_connection", "requests"),
    ("headers_", "headers"),
    ("h2_streams", "streams"),
    ("connections", "connections"),
    ("backlog", "connections"),
    ("keys", "keys"),
    ("lines", "lines"),
    ("shards", "threads"),
    ("front", "threads"),
    ("threads", "threads"),
    ("failures_per_source_per_minute", "failures a minute"),
    ("failures_per_source_per_second", "failures a second"),
    ("datagram_failures_per_second", "failures a second"),
    ("failures_per_source_burst", "failures"),
    ("batch_max", "requests"),
    ("handshake_queue", "handshakes"),
    ("session_cache", "sessions"),
    ("token_cache", "tokens"),
    ("queue_max", "requests"),
    ("duplicates", "answers"),
];

/// Fits a terminal of 100 columns.
const TEXT_COLUMNS: usize = 92;
