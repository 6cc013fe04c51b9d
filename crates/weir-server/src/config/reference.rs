//! The keys for people: as text, as Markdown, and as an example file.

use std::fmt::Write as _;

use super::keys::{self, Key, SECTIONS};

/// For a terminal.
pub(crate) fn text() -> String {
    let mut out = String::new();
    for (section, subject) in SECTIONS {
        line(&mut out, format_args!("[{section}]  {subject}\n"));
        for key in of_section(section) {
            line(&mut out, format_args!("{}", key.path()));
            line(&mut out, format_args!("    default   {}", default(key)));
            line(&mut out, format_args!("    allowed   {}", key.allowed_in_full()));
            if let Some(variable) = key.variable() {
                line(&mut out, format_args!("    variable  {variable}"));
            }
            for part in wrapped(key.meaning, TEXT_COLUMNS) {
                line(&mut out, format_args!("    {part}"));
            }
            out.push('\n');
        }
    }
    out
}

/// `docs/configuration.md`.
pub(crate) fn markdown() -> String {
    let mut out = PREFACE.to_owned();
    for (section, subject) in SECTIONS {
        line(&mut out, format_args!("\n## [{section}]\n{subject}\n"));
        line(&mut out, format_args!("| key | default | allowed | meaning |"));
        line(&mut out, format_args!("|---|---|---|---|"));
        for key in of_section(section) {
            line(
                &mut out,
                format_args!(
                    "| `{}` | {} | {} | {} |",
                    key.name,
                    default_in_markdown(key),
                    key.allowed_in_full(),
                    key.meaning
                ),
            );
        }
    }
    out
}

/// `weir.toml`: every key at its default, commented out.
pub(crate) fn example() -> String {
    let mut out = EXAMPLE_PREFACE.to_owned();
    for (section, subject) in SECTIONS {
        line(&mut out, format_args!("\n# {subject}\n[{section}]"));
        for key in of_section(section) {
            out.push('\n');
            for part in wrapped(key.meaning, TEXT_COLUMNS) {
                line(&mut out, format_args!("# {part}"));
            }
            line(&mut out, format_args!("# Allowed: {}.", key.allowed_in_full()));
            match (key.field.in_variables(), key.default()) {
                (true, Some(value)) => line(&mut out, format_args!("#{} = {value}", key.name)),
                (true, None) => line(&mut out, format_args!("#{} = true", key.name)),
                (false, _) => out.push_str(EXAMPLE_TOKENS),
            }
        }
    }
    out
}

fn of_section(section: &str) -> impl Iterator<Item = &'static Key> {
    keys::all().filter(move |key| key.section == section)
}

fn default(key: &Key) -> String {
    key.default().unwrap_or_else(|| "absent".to_owned())
}

fn default_in_markdown(key: &Key) -> String {
    key.default().map_or_else(|| "absent".to_owned(), |value| format!("`{value}`"))
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
the variable `WEIR_CONFIG`; no other place is searched. Every key can also be set by a variable,
`WEIR_<SECTION>_<KEY>` in upper case, which goes over the file: `WEIR_LISTEN_TCP=0.0.0.0:7070,[::1]:7070`,
`WEIR_CONNECTION_HEARTBEAT=30s`. Lists are separated by commas; `auth.tokens` stands in the file only.

Durations are a whole number and a unit (`ms`, `s`, `m`, `h`); sizes are bytes. An unknown key, a wrong type or a value
that is not allowed is refused at the start with the key, the value, its line or variable, and what is allowed; the exit
code is then 2. `weir config check FILE` does only that, and `weir.toml` in this repository is an example with every key.
";

const EXAMPLE_PREFACE: &str = "\
# Weir's configuration: every key with its default, commented out.
# Written by `weir config reference --toml`. Use it with `weir --config weir.toml`.
";

const EXAMPLE_TOKENS: &str = "\
#[[auth.tokens]]
#token = \"a long random text\"
#device = \"thermometer-7\"
";

/// Fits a terminal of 100 columns.
const TEXT_COLUMNS: usize = 92;
