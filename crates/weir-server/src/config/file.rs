//! Reads the TOML file key by key, so that every complaint has its line.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::field::texts;
use super::keys::{self, Key};
use super::tables::Member;
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

    /// Where the file sets a key, if it does.
    pub(super) fn in_file(&self, path: &str) -> Option<String> {
        match &self.by_key.get(path)?.place {
            place @ Place::File { .. } => Some(place.to_string()),
            Place::Variable(_) | Place::Default => None,
        }
    }

    /// What an error says, at the place of its key; if nothing has set that, of a key that it depends on, or of the
    /// table that it is a member of.
    pub(super) fn problem(&self, error: weir::ConfigError) -> Problem {
        let weir::ConfigError { key, value, allowed, depends_on } = error;
        let set = self.by_key.get(&key);
        let shown = set.and_then(|set| set.written.clone()).unwrap_or(value);
        // An element of a list that was written in one line has no place of its own, but the list has.
        let list = || self.by_key.get(key.strip_suffix(']')?.rsplit_once('[')?.0);
        let cause = || depends_on.iter().find_map(|path| self.by_key.get(*path));
        let table = || self.by_key.get(key.rsplit_once('.')?.0);
        let set = set.or_else(list).or_else(cause).or_else(table);
        let place = set.map_or(Place::Default, |set| set.place.clone());
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
            if let Some(key) = keys::find_outside(section) {
                self.handle_value(key, name.span(), value);
                continue;
            }
            let table = value.get_ref().as_table();
            let what = match (keys::is_section(section), table) {
                (true, Some(table)) => {
                    self.handle_section(section, table);
                    continue;
                }
                (false, Some(_)) => {
                    let names = keys::sections().chain(keys::outside());
                    format!("[{section}]: no such section{}", meant(section, names))
                }
                (false, None) if is_list_of_tables(value.get_ref()) => {
                    let hint = meant(section, keys::lists());
                    format!("[[{section}]]: no such list of tables{hint}")
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
            if let (true, Some(table)) = (keys::is_section(&path), value.get_ref().as_table()) {
                self.handle_section(&path, table);
                continue;
            }
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
        if key.is_list_of_tables() {
            if value.get_ref().is_table() {
                let what = format!("[{path}]: it is a list of tables: write [[{path}]]");
                self.problems.push(Problem::new(place, what));
                return;
            }
            if !self.handle_tables(&path, &key.field.members(), value.get_ref()) {
                return;
            }
        }
        let shown = if key.is_secret { self.source(&path, value) } else { self.written(value) };
        if key.field.set_from_toml(self.settings, value.get_ref()) {
            let written = value.get_ref().is_str().then_some(shown);
            self.places.set(path, place, written.filter(|shown| shown != HIDDEN));
            return;
        }
        let hint = word_meant(value.get_ref(), key.field.words());
        let allowed = format!("{}{hint}", key.allowed_in_full());
        self.problems.push(Problem::not_allowed(place, &path, shown, allowed));
    }

    /// Checks the members of a list's tables and notes their places; false if one was refused. What is no list of
    /// tables is left to others.
    fn handle_tables(
        &mut self,
        path: &str,
        members: &[&'static dyn Member],
        value: &DeValue<'_>,
    ) -> bool {
        let problems_before = self.problems.len();
        let items = value.as_array().into_iter().flat_map(|items| items.iter());
        for (index, item) in items.enumerate() {
            let Some(table) = item.get_ref().as_table() else { continue };
            let path = format!("{path}[{index}]");
            let place = self.place(item.span());
            self.places.set(path.clone(), place.clone(), None);
            let mut all_known = true;
            for (name, value) in in_order(table) {
                all_known &= self.handle_member(&path, members, name, value);
            }
            // What is absent may be what the unknown one was meant to be.
            let needed = members.iter().filter(|member| member.is_needed() && all_known);
            for member in needed.filter(|member| !table.contains_key(member.name())) {
                let (member, allowed) = (member.name(), member.allowed_in_full());
                let what =
                    format!("{path}.{member} = (absent): it is needed; allowed is {allowed}");
                self.problems.push(Problem::new(place.clone(), what));
            }
        }
        self.problems.len() == problems_before
    }

    /// Checks one member of a table; false if there is none of that name.
    fn handle_member(
        &mut self,
        path: &str,
        members: &[&'static dyn Member],
        name: &Spanned<DeString<'_>>,
        value: &Spanned<DeValue<'_>>,
    ) -> bool {
        let path = format!("{path}.{}", name.get_ref());
        let Some(member) = members.iter().find(|member| member.name() == name.get_ref()) else {
            let names = members.iter().map(|member| member.name().to_owned());
            let (shown, hint) = (self.source(&path, value), meant(name.get_ref(), names));
            self.refuse(name.span(), format!("{path} = {shown}: no such key{hint}"));
            return false;
        };
        // As in `handle_value`.
        let span = if value.get_ref().is_array() { name.span() } else { value.span() };
        let place = self.place(span);
        let shown = if member.is_secret() { HIDDEN.to_owned() } else { self.written(value) };
        if member.accepts(value.get_ref()) {
            let is_shown = value.get_ref().is_str() && !member.is_secret();
            self.places.set(path, place, is_shown.then_some(shown));
        } else {
            let hint = word_meant(value.get_ref(), member.words());
            let allowed = format!("{}{hint}", member.allowed_in_full());
            self.problems.push(Problem::not_allowed(place, &path, shown, allowed));
        }
        true
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

fn is_list_of_tables(value: &DeValue<'_>) -> bool {
    value.as_array().is_some_and(|items| items.iter().any(|item| item.get_ref().is_table()))
}

/// "; did you mean …?" if one of the names is close to what was written.
pub(super) fn meant(written: &str, names: impl Iterator<Item = String>) -> String {
    closest(written, names).unwrap_or_else(|| "; `weir config reference` lists all".to_owned())
}

/// The same for a value that is to be one of the words, or a list of them; nothing if none is close.
fn word_meant(value: &DeValue<'_>, words: &[&str]) -> String {
    let written = match value.as_str() {
        Some(word) => vec![word],
        None => texts(value).unwrap_or_default(),
    };
    let stranger = written.into_iter().find(|word| !words.contains(word));
    let words = words.iter().map(|word| (*word).to_owned());
    stranger.and_then(|word| closest(word, words)).unwrap_or_default()
}

fn closest(written: &str, names: impl Iterator<Item = String>) -> Option<String> {
    names
        .map(|name| (distance(written, &name), name))
        .filter(|(edits, name)| *edits <= name.len() / 3)
        .min()
        .map(|(_, name)| format!("; did you mean {name}?"))
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

/// Stands for the value of a secret key.
pub(super) const HIDDEN: &str = "(hidden)";

/// Enough to recognise a value; a message is to stay on one line.
const SHOWN_CHARS_MAX: usize = 60;
