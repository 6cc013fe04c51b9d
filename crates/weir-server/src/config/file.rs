//! Reads the TOML file key by key, so that every complaint has its line.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue, ValueDeserializer};
use weir::keys::{Deserialize as _, Key, Raw, Table, Value};

use super::names::{self, Names};
use super::{Place, Problem, Settings};

/// Where each key got its value, if not by default; parts of a list are keys too, such as
/// `auth.tokens[1].token`.
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

    /// What an error says, at the place of its key; if nothing has set that, of a key that it
    /// depends on, or of the table that it is a member of.
    pub(super) fn problem(&self, error: weir::ConfigError) -> Problem {
        let weir::ConfigError { key, value, allowed, depends_on } = error;
        let set = self.by_key.get(&key);
        let shown = set.and_then(|set| set.written.clone()).unwrap_or(value);
        // An element of a list that was written in one line has no place of its own, but the list
        // has.
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
    let mut reader = Reader { text, path, places, problems };
    match DeTable::parse(text) {
        Ok(table) => {
            reader.handle_table("", settings, table.get_ref());
        }
        Err(error) => {
            let place = reader.place(error.span().unwrap_or_default());
            let what = format!("not TOML: {}", error.message().trim_end());
            reader.problems.push(Problem::new(place, what));
        }
    }
}

impl Reader<'_> {
    /// Sets what a table sets, the whole file first of all; false if it has a key that there is
    /// not.
    fn handle_table(&mut self, path: &str, table: &mut dyn Table, input: &DeTable<'_>) -> bool {
        let mut all_known = true;
        for (name, value) in in_order(input) {
            let mut entries = table.entries_mut();
            match entries.iter().position(|(key, _)| key.name == name.get_ref()) {
                Some(at) => {
                    let (key, target) = entries.swap_remove(at);
                    self.handle_value(&key.path(path), key, target, name.span(), value);
                }
                None => {
                    let names = entries.iter().map(|(key, _)| key.name.to_owned()).collect();
                    self.handle_unknown(path, names, name, value);
                    all_known = false;
                }
            }
        }
        all_known
    }

    fn handle_value(
        &mut self,
        path: &str,
        key: &Key,
        target: &mut dyn Value,
        name: Range<usize>,
        input: &Spanned<DeValue<'_>>,
    ) {
        let value = input.get_ref();
        if let Some(section) = target.as_table_mut() {
            let Some(table) = value.as_table() else {
                let shown = self.source(path, input);
                let what = format!("{path} = {shown}: it is a section: write [{path}]");
                return self.refuse(name, what);
            };
            self.handle_table(path, section, table);
            return;
        }
        // The span of a list of tables is that of its first table, or nothing: the name's is always
        // there.
        let place = self.place(if value.is_array() { name } else { input.span() });
        let is_list = names::is_list_of_tables(target);
        let mut written = None;
        if is_list && value.is_table() {
            let what = format!("[{path}]: it is a list of tables: write [[{path}]]");
            return self.problems.push(Problem::new(place, what));
        } else if let Some(tables) = tables(value).filter(|_| is_list) {
            self.handle_rows(path, target, tables);
        } else {
            let is_secret = key.rules.secret;
            let shown = if is_secret { self.source(path, input) } else { self.written(input) };
            if !target.read(&raw(input)) {
                let hint = word_meant(value, &target.words());
                let allowed = format!("{}{hint}", key.allowed(target));
                let problem = Problem::not_allowed(place, path, shown, allowed);
                return self.problems.push(problem);
            }
            written = (value.is_str() && shown != HIDDEN).then_some(shown);
        }
        self.places.set(path.to_owned(), place, written);
    }

    /// Adds the tables of a list, and notes their places.
    fn handle_rows(
        &mut self,
        path: &str,
        list: &mut dyn Value,
        tables: Vec<(Range<usize>, &DeTable<'_>)>,
    ) {
        for (index, (span, table)) in tables.into_iter().enumerate() {
            let Some(row) = list.push() else { return };
            let path = format!("{path}[{index}]");
            let place = self.place(span);
            self.places.set(path.clone(), place.clone(), None);
            // What is absent may be what an unknown one was meant to be.
            if !self.handle_table(&path, row, table) {
                continue;
            }
            for (key, value) in row.entries() {
                if key.rules.needed && !table.contains_key(key.name) {
                    let (path, allowed) = (key.path(&path), key.allowed(value));
                    let what = format!("{path} = (absent): it is needed; allowed is {allowed}");
                    self.problems.push(Problem::new(place.clone(), what));
                }
            }
        }
    }

    /// Refuses what stands under a name that the table at `path` does not have; its own are
    /// `names`.
    fn handle_unknown(
        &mut self,
        path: &str,
        names: Vec<String>,
        name: &Spanned<DeString<'_>>,
        input: &Spanned<DeValue<'_>>,
    ) {
        let (all, value, written) = (Names::all(), input.get_ref(), name.get_ref().as_ref());
        let what = if path.ends_with(']') {
            let (path, hint) = (format!("{path}.{written}"), meant(written, names.into_iter()));
            format!("{path} = {}: no such key{hint}", self.source(&path, input))
        } else if !path.is_empty() {
            let path = format!("{path}.{written}");
            let hint = meant(&path, all.keys.into_iter());
            format!("{path} = {}: no such key{hint}", self.source(&path, input))
        } else if value.is_table() {
            let outside = all.keys.into_iter().filter(|key| !key.contains('.'));
            let hint = meant(written, all.sections.into_iter().chain(outside));
            format!("[{written}]: no such section{hint}")
        } else if has_table(value) {
            let hint = meant(written, all.lists.into_iter());
            format!("[[{written}]]: no such list of tables{hint}")
        } else {
            let last = |key: String| key.rsplit('.').next().map(str::to_owned);
            let hint = meant(written, all.keys.into_iter().filter_map(last));
            let shown = self.source(written, input);
            format!("{written} = {shown}: no such key outside a section{hint}")
        };
        self.refuse(name.span(), what);
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
        if names::may_be_secret(path) && !value.get_ref().is_bool() {
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

/// A value of the file as keys read it; nothing that they take if it is a date.
fn raw(input: &Spanned<DeValue<'_>>) -> Raw {
    Raw::deserialize(ValueDeserializer::from(input.clone())).unwrap_or_default()
}

fn has_table(value: &DeValue<'_>) -> bool {
    value.as_array().is_some_and(|items| items.iter().any(|item| item.get_ref().is_table()))
}

/// The tables of a list of nothing but tables, each with its place.
fn tables<'a, 'i>(value: &'a DeValue<'i>) -> Option<Vec<(Range<usize>, &'a DeTable<'i>)>> {
    let items = value.as_array()?.iter();
    items.map(|item| Some((item.span(), item.get_ref().as_table()?))).collect()
}

/// "; did you mean …?" if one of the names is close to what was written.
pub(super) fn meant(written: &str, names: impl Iterator<Item = String>) -> String {
    closest(written, names).unwrap_or_else(|| "; `weir config reference` lists all".to_owned())
}

/// The same for a value that is to be one of the words, or a list of them; nothing if none is
/// close.
fn word_meant(value: &DeValue<'_>, words: &[&str]) -> String {
    let written = match value.as_str() {
        Some(word) => vec![word],
        None => value
            .as_array()
            .into_iter()
            .flat_map(|items| items.iter())
            .map(|item| item.get_ref().as_str())
            .collect::<Option<_>>()
            .unwrap_or_default(),
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
