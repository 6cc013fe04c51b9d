//! Reads the TOML file key by key, so that every complaint has its line.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::field::Value as _;
use super::keys::{self, Key};
use super::{Place, Problem, Settings};

/// Where each key got its value, if not by default; parts of a list are keys too, such as `auth.tokens[1].token`.
#[derive(Debug, Default)]
pub(super) struct Places {
    by_key: HashMap<String, Set>,
}

/// What set a key.
#[derive(Debug)]
struct Set {
    place: Place,
    /// The value as it was written; `None` if it is not to be shown, or not as it was written.
    written: Option<String>,
}

impl Places {
    pub(super) fn set(&mut self, path: String, place: Place, written: Option<String>) {
        self.by_key.insert(path, Set { place, written });
    }

    /// What an error says, at the place of its key; if nothing has set that, of a key that it depends on.
    pub(super) fn problem(&self, error: weir::ConfigError) -> Problem {
        let weir::ConfigError { key, value, allowed, depends_on } = error;
        let set = self.by_key.get(&key);
        let shown = set.and_then(|set| set.written.clone()).unwrap_or(value);
        let cause = || depends_on.iter().find_map(|path| self.by_key.get(*path));
        let place = set.or_else(cause).map_or(Place::Default, |set| set.place.clone());
        Problem::not_allowed(place, &key, shown, allowed)
    }
}

/// One file as it is read.
struct Reader<'a> {
    text: &'a str,
    path: &'a Path,
    settings: &'a mut Settings,
    places: &'a mut Places,
    problems: &'a mut Vec<Problem>,
}

/// Sets what the file sets; what it must not contain is added to `problems`.
pub(super) fn apply(
    text: &str,
    path: &Path,
    settings: &mut Settings,
    places: &mut Places,
    problems: &mut Vec<Problem>,
) {
    let mut reader = Reader { text, path, settings, places, problems };
    match DeTable::parse(text) {
        Ok(table) => reader.handle_file(table.get_ref()),
        Err(error) => {
            let place = reader.place(error.span().unwrap_or_default());
            let what = format!("not TOML: {}", error.message().trim_end());
            reader.problems.push(Problem::new(place, what));
        }
    }
}

impl Reader<'_> {
    fn handle_file(&mut self, file: &DeTable<'_>) {
        for (name, value) in in_order(file) {
            let section = name.get_ref().as_ref();
            let table = value.get_ref().as_table();
            let what = match (keys::is_section(section), table) {
                (true, Some(table)) => {
                    self.handle_section(section, table);
                    continue;
                }
                (false, Some(_)) => {
                    format!("[{section}]: no such section{}", meant(section, keys::sections()))
                }
                (true, None) => {
                    let shown = self.source(section, value);
                    format!("{section} = {shown}: it is a section: write [{section}]")
                }
                (false, None) => {
                    let shown = self.source(section, value);
                    let hint = meant(section, keys::names());
                    format!("{section} = {shown}: no such key outside a section{hint}")
                }
            };
            self.refuse(name.span(), what);
        }
    }

    fn handle_section(&mut self, section: &str, table: &DeTable<'_>) {
        for (name, value) in in_order(table) {
            let path = format!("{section}.{}", name.get_ref());
            if let Some(key) = keys::find(&path) {
                self.handle_value(key, name.span(), value);
                continue;
            }
            let (shown, hint) = (self.source(&path, value), meant(&path, keys::paths()));
            self.refuse(name.span(), format!("{path} = {shown}: no such key{hint}"));
        }
    }

    fn handle_value(&mut self, key: &Key, name: Range<usize>, value: &Spanned<DeValue<'_>>) {
        // The span of a list of tables is that of its first table, or nothing: the name's is always there.
        let place = if value.get_ref().is_array() { name } else { value.span() };
        let place = self.place(place);
        let path = key.path();
        if let Some(members) = key.field.members()
            && !self.handle_tables(&path, members, value.get_ref())
        {
            return;
        }
        let shown = self.source(&path, value);
        if key.field.set_from_toml(self.settings, value.get_ref()) {
            let written = value.get_ref().is_str().then_some(shown);
            self.places.set(path, place, written.filter(|shown| shown != HIDDEN));
            return;
        }
        let problem = Problem::not_allowed(place, &path, shown, key.allowed_in_full());
        self.problems.push(problem);
    }

    /// Checks the members of a list's tables (see [`Field::members`](super::field::Field::members)) and notes their
    /// places; false if one was refused. What is no list of tables is left to others.
    fn handle_tables(&mut self, path: &str, members: &[&str], value: &DeValue<'_>) -> bool {
        let problems_before = self.problems.len();
        let items = value.as_array().into_iter().flat_map(|items| items.iter());
        for (index, item) in items.enumerate() {
            let Some(table) = item.get_ref().as_table() else { continue };
            let path = format!("{path}[{index}]");
            let count = self.problems.len();
            for (name, value) in in_order(table) {
                self.handle_member(&path, members, name, value);
            }
            // A typing error in its name has been said already.
            if let Some(first) = members.first()
                && self.problems.len() == count
                && !table.contains_key(*first)
            {
                let (place, path) = (self.place(item.span()), format!("{path}.{first}"));
                self.problems.push(Problem::not_allowed(place, &path, "(absent)", TEXT));
            }
        }
        self.problems.len() == problems_before
    }

    fn handle_member(
        &mut self,
        path: &str,
        members: &[&str],
        name: &Spanned<DeString<'_>>,
        value: &Spanned<DeValue<'_>>,
    ) {
        let (path, member) = (format!("{path}.{}", name.get_ref()), name.get_ref().as_ref());
        if !members.contains(&member) {
            let hint = meant(member, members.iter().map(|member| (*member).to_owned()));
            self.refuse(name.span(), format!("{path} = {HIDDEN}: no such key{hint}"));
        } else if value.get_ref().is_str() {
            let place = self.place(value.span());
            self.places.set(path, place, None);
        } else {
            let is_secret = members.first() == Some(&member);
            let shown = if is_secret { HIDDEN.to_owned() } else { self.written(value) };
            let place = self.place(value.span());
            self.problems.push(Problem::not_allowed(place, &path, shown, TEXT));
        }
    }

    fn refuse(&mut self, span: Range<usize>, what: String) {
        let place = self.place(span);
        self.problems.push(Problem::new(place, what));
    }

    fn place(&self, span: Range<usize>) -> Place {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Place::File { path: self.path.to_owned(), line, column }
    }

    /// The value at `path` as it is written, unless that may be a secret.
    fn source(&self, path: &str, value: &Spanned<DeValue<'_>>) -> String {
        if keys::may_be_secret(path) && !value.get_ref().is_bool() {
            return HIDDEN.to_owned();
        }
        self.written(value)
    }

    /// The value as it is written, cut at `SHOWN_CHARS_MAX`.
    fn written(&self, value: &Spanned<DeValue<'_>>) -> String {
        let source = self.text.get(value.span()).unwrap_or_default();
        let line = source.lines().next().unwrap_or_default();
        let shown: String = line.chars().take(SHOWN_CHARS_MAX).collect();
        if shown.len() < source.len() { format!("{shown}…") } else { shown }
    }
}

/// The entries of a table in the order of the file.
fn in_order<'a, 'i>(
    table: &'a DeTable<'i>,
) -> Vec<(&'a Spanned<DeString<'i>>, &'a Spanned<DeValue<'i>>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start);
    entries
}

/// "; did you mean …?" if one of the names is close to what was written.
pub(super) fn meant(written: &str, names: impl Iterator<Item = String>) -> String {
    let close = names
        .map(|name| (distance(written, &name), name))
        .filter(|(edits, name)| *edits <= name.len() / 3)
        .min();
    match close {
        Some((_, name)) => format!("; did you mean {name}?"),
        None => "; `weir config reference` lists all".to_owned(),
    }
}

/// Edits of one byte that turn `from` into `to` (Levenshtein).
fn distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (index, from_byte) in from.bytes().enumerate() {
        let mut diagonal = index;
        let mut left = index + 1;
        for (above, to_byte) in row.iter_mut().skip(1).zip(to.bytes()) {
            let replaced = diagonal + usize::from(from_byte != to_byte);
            diagonal = *above;
            left = replaced.min(diagonal + 1).min(left + 1);
            *above = left;
        }
        row[0] = index + 1;
    }
    row.last().copied().unwrap_or_default()
}

/// What a member of a list's table can be.
const TEXT: &str = String::KIND;

/// Stands for the value of a secret key.
pub(super) const HIDDEN: &str = "(hidden)";

/// Enough to recognise a value; a message is to stay on one line.
const SHOWN_CHARS_MAX: usize = 60;
