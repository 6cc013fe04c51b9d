//! Prints the reference of all keys: as text, as Markdown, and as an example file.

use std::fmt::Write as _;

use weir::keys::{self, Entry, Key, Value};

use super::Settings;
use super::names::{is_list_of_tables, variable};

/// A section with its keys. An empty path stands for the keys outside the sections.
struct Section<'a> {
    path: String,
    heading: String,
    subject: String,
    keys: Vec<Entry<'a>>,
}

/// The reference for a terminal.
pub(crate) fn text() -> String {
    let mut out = String::new();
    for section in sections(&Settings::default()) {
        line(&mut out, format_args!("{}  {}\n", section.heading, section.subject));
        for Entry { path, key, value } in &section.keys {
            let variable = (!is_list_of_tables(*value)).then(|| variable(path));
            let is_reloaded = key.rules.reload;
            write_text(&mut out, path, key, (*value, is_reloaded), variable);
            let row = value.row();
            for (member, value) in row.iter().flat_map(|row| row.entries()) {
                let path = format!("{path}[].{}", member.name);
                write_text(&mut out, &path, member, (value, is_reloaded), None);
            }
        }
    }
    out
}

fn write_text(
    out: &mut String,
    path: &str,
    key: &Key,
    (value, is_reloaded): (&dyn Value, bool),
    variable: Option<String>,
) {
    line(out, format_args!("{path}"));
    if let Some(unit) = value.unit(key.rules.unit) {
        line(out, format_args!("    unit      {unit}"));
    }
    line(out, format_args!("    default   {}", default(key, value).unwrap_or_else(str::to_owned)));
    line(out, format_args!("    allowed   {}", key.allowed(value)));
    line(out, format_args!("    reload    {}", reload(is_reloaded)));
    if let Some(variable) = variable {
        line(out, format_args!("    variable  {variable}"));
    }
    for part in wrapped(&meaning(key), TEXT_COLUMNS) {
        line(out, format_args!("    {part}"));
    }
    out.push('\n');
}

/// `docs/configuration.md`.
pub(crate) fn markdown() -> String {
    let mut out = PREFACE.to_owned();
    for Section { path, heading, subject, keys } in sections(&Settings::default()) {
        line(&mut out, format_args!("\n## {heading}\n{subject}\n"));
        let (lists, keys): (Vec<_>, Vec<_>) =
            keys.into_iter().partition(|entry| is_list_of_tables(entry.value));
        let keys = keys.iter().map(|entry| (entry.key, entry.value, entry.key.rules.reload));
        table(&mut out, keys.collect());
        for list in lists {
            // A list outside the sections already has its heading.
            if !path.is_empty() {
                line(&mut out, format_args!("\n### [[{}]]", list.path));
            }
            line(&mut out, format_args!("{}\n", meaning(list.key)));
            let row = list.value.row();
            let entries = row.iter().flat_map(|row| row.entries());
            let is_reloaded = list.key.rules.reload;
            table(&mut out, entries.map(|(key, value)| (key, value, is_reloaded)).collect());
        }
        if let Some((_, guide)) = GUIDES.iter().find(|(of, _)| *of == path) {
            line(&mut out, format_args!("\n{}", guide.trim_end()));
        }
    }
    out
}

/// When a new value of a key counts.
fn reload(is_reloaded: bool) -> &'static str {
    if is_reloaded { "yes" } else { "restart" }
}

fn table(out: &mut String, entries: Vec<(&Key, &dyn Value, bool)>) {
    if entries.is_empty() {
        return;
    }
    line(out, format_args!("| key | unit | default | allowed | reload | meaning |"));
    line(out, format_args!("|---|---|---|---|---|---|"));
    for (key, value, is_reloaded) in entries {
        let (name, allowed, meaning) = (key.name, key.allowed(value), meaning(key));
        let unit = value.unit(key.rules.unit).unwrap_or("–");
        let default = match default(key, value) {
            Ok(value) => format!("`{value}`"),
            Err(why_none) => why_none.to_owned(),
        };
        line(
            out,
            format_args!(
                "| `{name}` | {unit} | {default} | {allowed} | {} | {meaning} |",
                reload(is_reloaded)
            ),
        );
    }
}

/// Every key at its default, commented out.
pub(crate) fn example() -> String {
    let mut out = EXAMPLE_PREFACE.to_owned();
    for section in sections(&Settings::default()) {
        line(&mut out, format_args!("\n# {}", section.subject));
        if !section.path.is_empty() {
            line(&mut out, format_args!("{}", section.heading));
        }
        for Entry { path, key, value } in section.keys {
            out.push('\n');
            comment(&mut out, &meaning(key));
            if is_list_of_tables(value) {
                line(&mut out, format_args!("#[[{path}]]"));
                let row = value.row();
                for (member, value) in row.iter().flat_map(|row| row.entries()) {
                    comment(&mut out, &meaning(member));
                    comment(&mut out, &format!("Allowed: {}.", member.allowed(value)));
                    let shown = match member.rules.example {
                        "" => value.show().unwrap_or_default(),
                        example => example.to_owned(),
                    };
                    line(&mut out, format_args!("#{} = {shown}", member.name));
                }
                continue;
            }
            line(&mut out, format_args!("# Allowed: {}.", key.allowed(value)));
            let shown = match key.rules.example {
                "" => value.show().unwrap_or_else(|| "true".to_owned()),
                example => example.to_owned(),
            };
            line(&mut out, format_args!("#{} = {shown}", key.name));
        }
    }
    out
}

fn comment(out: &mut String, text: &str) {
    for part in wrapped(text, TEXT_COLUMNS) {
        line(out, format_args!("# {part}"));
    }
}

fn sections(settings: &Settings) -> Vec<Section<'_>> {
    let mut sections: Vec<Section<'_>> = Vec::new();
    for entry in keys::all("", settings) {
        let path = entry.path.clone();
        let subject = entry.key.paragraphs().swap_remove(0);
        if entry.value.as_table().is_some() {
            sections.push(Section {
                heading: format!("[{path}]"),
                path,
                subject,
                keys: Vec::new(),
            });
        } else if entry.section().is_empty() {
            let (heading, path) = (format!("[[{path}]]"), String::new());
            sections.push(Section { path, heading, subject, keys: vec![entry] });
        } else if let Some(section) = sections.last_mut() {
            section.keys.push(entry);
        }
    }
    sections
}

fn meaning(key: &Key) -> String {
    key.paragraphs().pop().unwrap_or_default()
}

/// The default as TOML; if there is none, the reason.
fn default(key: &Key, value: &dyn Value) -> Result<String, &'static str> {
    match key.rules.needed {
        true => Err("needed"),
        false => value.show().ok_or("absent"),
    }
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

`weir` runs without any configuration; then it listens on loopback only. Name a TOML file with `--config FILE` or in the
variable `WEIR_CONFIG`; no other place is searched. An environment variable can set any key except a list of tables, and
overrides the file. Its name is `WEIR_<SECTION>_<KEY>` in upper case: `WEIR_LISTEN_TCP=0.0.0.0:7070,[::1]:7070`,
`WEIR_CONNECTION_HEARTBEAT=30s`. Commas separate the entries of a list. Only the file can set `[[auth.tokens]]`,
`[[auth.services]]`, `[[auth.jwt.keys]]`, `[[auth.jwt.issuers]]`, `[[admin.tokens]]`, `[[tls.certificates]]`,
`[[topic_classes]]`, `[[upstreams]]`, `[[http.routes]]` and `[[calls.routes]]`.

A duration is a whole number and a unit (`ms`, `s`, `m`, `h`). Sizes are in bytes. The start refuses an unknown key, a
wrong type and a value that is not allowed. The message names the key, the value, its line or variable, and the allowed
values; the exit code is 2. `weir config check FILE` makes these checks alone. It also reads the key files of
`[auth.jwt]`, and the files of `[tls]` if a listener uses TLS. It shows the topic classes.

`weir reload`, SIGHUP and `POST /v1/reload` apply new values while the gateway runs: see
[docs/admin-api.md](admin-api.md#reload). The column `reload` says of each key whether they do
(`yes`), or whether its new value counts after a restart (`restart`).

`weir.toml` in this repository is a file for a production room: a game, a live page and a fleet in one. `weir config
reference --toml` writes a file with every key at its default.
";

const EXAMPLE_PREFACE: &str = "\
# Weir's configuration: every key with its default, commented out.
# Written by `weir config reference --toml`. Use it with `weir --config FILE`.
";

/// What follows the tables of a section in the Markdown.
const GUIDES: [(&str, &str); 11] = [
    ("listen", include_str!("guide/listen.md")),
    ("auth", include_str!("guide/auth.md")),
    ("auth.jwt", include_str!("guide/jwt.md")),
    ("limits", include_str!("guide/limits.md")),
    ("tls", include_str!("guide/tls.md")),
    ("http", include_str!("guide/http.md")),
    ("udp", include_str!("guide/udp.md")),
    ("access_log", include_str!("guide/access_log.md")),
    ("cluster", include_str!("guide/cluster.md")),
    ("store", include_str!("guide/store.md")),
    ("", include_str!("guide/topic_classes.md")),
];

/// Fits a terminal of 100 columns.
const TEXT_COLUMNS: usize = 92;
