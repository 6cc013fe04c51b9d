//! Reads the TOML file key by key, so that every error names its line.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue, ValueDeserializer};
use weir::keys::{Deserialize as _, Key, Raw, Table, Value};

use super::names::{self, Names};
use super::{Place, Problem, Settings};

/// The place where each key got its value, unless that is the default. Parts of a list are keys
/// too, such as `auth.tokens[1].token`.
#[derive(Debug, Default)]
pub(super) struct Places {
    by_key: HashMap<String, Set>,
}

/// The place that set a key, and the value there.
#[derive(Debug)]
struct Set {
    place: Place,
    /// The value as written; `None` if it is secret, or shown in another form.
    written: Option<String>,
}

impl Places {
    pub(super) fn set(&mut self, path: String, place: Place, written: Option<String>) {
        self.by_key.insert(path, Set { place, written });
    }

    /// The place where the file sets a key, if it does.
    pub(super) fn in_file(&self, path: &str) -> Option<String> {
        match &self.by_key.get(path)?.place {
            place @ Place::File { .. } => Some(place.to_string()),
            Place::Variable(_) | Place::Default => None,
        }
    }

    /// Adds the place to an error. If nothing has set the key, the place is that of a key on which
    /// it depends, or of its table.
    pub(super) fn problem(&self, error: weir::ConfigError) -> Problem {
        let weir::ConfigError { key, value, allowed, depends_on } = error;
        let set = self.by_key.get(&key);
        let shown = set.and_then(|set| set.written.clone()).unwrap_or(value);
        // An element of a list on one line has no place of its own, but the list has.
        let list = || self.by_key.get(key.strip_suffix(']')?.rsplit_once('[')?.0);
        let cause = || depends_on.iter().find_map(|path| self.by_key.get(*path));
        let table = || self.by_key.get(key.rsplit_once('.')?.0);
        let set = set.or_else(list).or_else(cause).or_else(table);
        let place = set.map_or(Place::Default, |set| set.place.clone());
        Problem::not_allowed(place, &key, shown, allowed)
    }
}

/// A file that is being read.
struct Reader<'a> {
    text: &'a str,
    path: &'a Path,
    places: &'a mut Places,
    problems: &'a mut Vec<Problem>,
}

/// Applies the file to the settings. Errors are added to `problems`.
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
    /// Applies a table, first the whole file. Returns false if it has an unknown key.
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
                let what = format!("{path} = {shown}: this is a section: write [{path}]");
                return self.refuse(name, what);
            };
            self.handle_table(path, section, table);
            return;
        }
        // The span of a list of tables is the span of its first table, or empty; the name always
        // has a span.
        let place = self.place(if value.is_array() { name } else { input.span() });
        let is_list = names::is_list_of_tables(target);
        let mut written = None;
        if is_list && value.is_table() {
            let what = format!("[{path}]: this is a list of tables: write [[{path}]]");
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
            // An unknown key may be a misspelt required one, so do not report that as absent too.
            if !self.handle_table(&path, row, table) {
                continue;
            }
            for (key, value) in row.entries() {
                if key.rules.needed && !table.contains_key(key.name) {
                    let (path, allowed) = (key.path(&path), key.allowed(value));
                    let what =
                        format!("{path} = (absent): this key is required; allowed is {allowed}");
                    self.problems.push(Problem::new(place.clone(), what));
                }
            }
        }
    }

    /// Refuses a name that the table at `path` does not have; the known names are `names`.
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

    /// The value at `path` as written, unless it may be a secret.
    fn source(&self, path: &str, value: &Spanned<DeValue<'_>>) -> String {
        if names::may_be_secret(path) && !value.get_ref().is_bool() {
            return HIDDEN.to_owned();
        }
        self.written(value)
    }

    /// The value as written, cut at `SHOWN_CHARS_MAX`.
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

/// A value of the file as keys read it. A date becomes a value that no key accepts.
fn raw(input: &Spanned<DeValue<'_>>) -> Raw {
    Raw::deserialize(ValueDeserializer::from(input.clone())).unwrap_or_default()
}

fn has_table(value: &DeValue<'_>) -> bool {
    value.as_array().is_some_and(|items| items.iter().any(|item| item.get_ref().is_table()))
}

/// The tables of a list that holds only tables, each with its place.
fn tables<'a, 'i>(value: &'a DeValue<'i>) -> Option<Vec<(Range<usize>, &'a DeTable<'i>)>> {
    let items = value.as_array()?.iter();
    items.map(|item| Some((item.span(), item.get_ref().as_table()?))).collect()
}

/// "; did you mean …?" if one of the names is close to the written one; else where to find all.
pub(super) fn meant(written: &str, names: impl Iterator<Item = String>) -> String {
    closest(written, names).unwrap_or_else(|| "; `weir config reference` lists all".to_owned())
}

/// The same for a value that must be one of the words, or a list of them. Empty if none is close.
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

/// Enough to recognise a value, and short enough for one line.
const SHOWN_CHARS_MAX: usize = 60;
