//! The difference between two configurations: what a reload changes, and what needs a restart.

use super::{Key, Raw, Table, Value};

/// The keys whose values differ between two tables.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Difference {
    /// Keys whose new value a reload applies.
    pub changed: Vec<Change>,
    /// Keys whose new value counts after a restart.
    pub restart: Vec<Change>,
}

/// A key with two different values.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The path of the key, such as `limits.topics_max`. In a list of tables it names the table:
    /// `topic_classes["room/*"].tick`. A table whose name is a secret has its index:
    /// `auth.tokens[0]`, counted from 0 in the new list, and in the old one if it is removed.
    pub key: String,
    /// The old value; null: the key or the table was absent, or its value is a secret.
    pub from: Raw,
    /// The new value; null: the key or the table is absent. A secret only shows that it has
    /// changed.
    pub to: Raw,
}

/// Compares the tables at `path`, key by key.
///
/// Lists of tables are compared table by table: each table is known by its first needed key that is
/// no secret, or else by its first needed key.
pub fn difference(path: &str, old: &dyn Table, new: &dyn Table) -> Difference {
    let mut difference = Difference::default();
    compare(path, (old, new), &mut difference);
    difference
}

/// Gives the table the values of `new` in all keys that a reload applies.
pub fn adopt(table: &mut dyn Table, new: &dyn Table) {
    for ((key, value), (_, new)) in table.entries_mut().into_iter().zip(new.entries()) {
        if let (Some(table), Some(new)) = (value.as_table_mut(), new.as_table()) {
            adopt(table, new);
        } else if key.rules.reload {
            value.replace_by(new.as_any());
        }
    }
}

fn compare(path: &str, (old, new): (&dyn Table, &dyn Table), into: &mut Difference) {
    for ((key, old), (_, new)) in old.entries().into_iter().zip(new.entries()) {
        let path = key.path(path);
        if let (Some(old), Some(new)) = (old.as_table(), new.as_table()) {
            compare(&path, (old, new), into);
            continue;
        }
        if old.is_like(new.as_any()) {
            continue;
        }
        let list = if key.rules.reload { &mut into.changed } else { &mut into.restart };
        match old.row() {
            Some(row) => compare_lists(&path, (old.tables(), new.tables()), &*row, list),
            None => list.push(Change::of(path, key, old, new)),
        }
    }
}

fn compare_lists(
    path: &str,
    (old, new): (Vec<&dyn Table>, Vec<&dyn Table>),
    row: &dyn Table,
    list: &mut Vec<Change>,
) {
    let begun = list.len();
    let names = |tables: &[&dyn Table]| tables.iter().map(|table| name(*table)).collect::<Vec<_>>();
    let (old_names, new_names) = (names(&old), names(&new));
    let path_of = |index: usize, (name, is_secret): &(String, bool)| match is_secret {
        true => format!("{path}[{index}]"),
        false => format!("{path}[{name}]"),
    };
    for (index, (table, name)) in old.iter().zip(&old_names).enumerate() {
        if !new_names.contains(name) {
            let (key, from) = (path_of(index, name), shown(*table, row));
            list.push(Change { key, from, to: Raw::Null });
        }
    }
    for (index, (table, name)) in new.iter().zip(&new_names).enumerate() {
        let key = path_of(index, name);
        match old_names.iter().position(|old| old == name) {
            None => list.push(Change { key, from: Raw::Null, to: shown(*table, row) }),
            Some(at) => {
                let pairs = old[at].entries().into_iter().zip(table.entries());
                for ((member, old), (_, new)) in pairs {
                    if !old.is_like(new.as_any()) {
                        list.push(Change::of(member.path(&key), member, old, new));
                    }
                }
            }
        }
    }
    // The order counts too. Tables that were added at the end do not change it.
    let is_named = |(_, is_secret): &(String, bool)| !is_secret;
    let kept = old_names.iter().filter(|name| new_names.contains(name));
    let added = new_names.iter().filter(|name| !old_names.contains(name));
    let is_reordered = !kept.chain(added).eq(new_names.iter()) && new_names.iter().all(is_named);
    if is_reordered || list.len() == begun {
        let order = |names: &[(String, bool)]| match names.iter().all(is_named) {
            true => names.iter().map(|(name, _)| raw(name)).collect(),
            false => Raw::Null,
        };
        let (from, to) = (order(&old_names), order(&new_names));
        list.push(Change { key: path.to_owned(), from, to });
    }
}

impl Change {
    fn of(path: String, key: &Key, old: &dyn Value, new: &dyn Value) -> Change {
        if key.rules.secret {
            return Change { key: path, from: Raw::Null, to: Raw::from("changed") };
        }
        Change { key: path, from: value_of(old), to: value_of(new) }
    }
}

/// The text of the key that names a table in its list, and whether it is a secret.
fn name(table: &dyn Table) -> (String, bool) {
    let entries = table.entries();
    let needed = || entries.iter().filter(|(key, _)| key.rules.needed);
    let named = needed().find(|(key, _)| !key.rules.secret).or_else(|| needed().next());
    let Some((key, value)) = named.or(entries.first()) else { return Default::default() };
    (value.show().unwrap_or_default(), key.rules.secret)
}

/// The keys of a table of a list that are neither secret nor at their defaults.
fn shown(table: &dyn Table, row: &dyn Table) -> Raw {
    let pairs = table.entries().into_iter().zip(row.entries());
    let differ = pairs.filter(|((_, value), (_, default))| !value.is_like(default.as_any()));
    let shown = differ.map(|(entry, _)| entry).filter(|(key, _)| !key.rules.secret);
    Raw::Object(shown.map(|(key, value)| (key.name.to_owned(), value_of(value))).collect())
}

/// A value as JSON. The forms of TOML that values use are JSON too.
fn value_of(value: &dyn Value) -> Raw {
    value.show().map_or(Raw::Null, |text| raw(&text))
}

fn raw(text: &str) -> Raw {
    serde_json::from_str(text).unwrap_or_else(|_| Raw::from(text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::base::config::{Config, ServiceConfig, TokenConfig, TopicClass};

    fn change(key: &str, from: Raw, to: Raw) -> Change {
        Change { key: key.to_owned(), from, to }
    }

    fn token(token: &str, device: Option<&str>) -> TokenConfig {
        let device = device.map(str::to_owned);
        TokenConfig { token: token.to_owned(), device, ..TokenConfig::default() }
    }

    #[test]
    fn each_key_is_told_once_and_no_secret_is_shown() {
        let class = |pattern: &str| TopicClass { pattern: pattern.into(), ..TopicClass::default() };
        let service = |token: &str| ServiceConfig {
            token: token.to_owned(),
            name: "game".to_owned(),
            ..ServiceConfig::default()
        };
        let mut old = Config::default();
        old.auth.tokens = vec![token("one", None), token("two", Some("van"))];
        old.auth.services = vec![service("old-secret")];
        old.topic_classes = vec![class("a"), class("b")];
        let mut new = old.clone();
        new.limits.topics_max = 7;
        new.connection.heartbeat = std::time::Duration::from_millis(61_500);
        new.tcp.send_buffer_bytes = 5_000;
        new.admin.token = "new-secret".to_owned();
        new.auth.tokens = vec![token("two", Some("car")), token("three", None)];
        new.auth.services = vec![service("new-secret")];
        new.topic_classes = vec![class("c"), class("a")];
        new.topic_classes[1].history = true;
        let Difference { changed, restart } = difference("", &old, &new);
        assert_eq!(restart, [change("tcp.send_buffer_bytes", json!(65_536), json!(5_000))]);
        let mut expected = [
            change("auth.tokens[0]", json!({}), Raw::Null),
            change("auth.tokens[0].device", json!("van"), json!("car")),
            change("auth.tokens[1]", Raw::Null, json!({})),
            change("auth.services[\"game\"].token", Raw::Null, json!("changed")),
            change("admin.token", Raw::Null, json!("changed")),
            change("limits.topics_max", json!(1_000_000), json!(7)),
            change("connection.heartbeat", json!("60s"), json!("61500ms")),
            change("topic_classes[\"b\"]", json!({ "pattern": "b" }), Raw::Null),
            change("topic_classes[\"c\"]", Raw::Null, json!({ "pattern": "c" })),
            change("topic_classes[\"a\"].history", json!(false), json!(true)),
            change("topic_classes", json!(["a", "b"]), json!(["c", "a"])),
        ];
        let mut changed = changed;
        changed.sort_by(|a, b| a.key.cmp(&b.key));
        expected.sort_by(|a, b| a.key.cmp(&b.key));
        assert_eq!(changed, expected);
    }

    #[test]
    fn what_a_reload_applies_is_adopted_and_the_rest_stays_to_be_told() {
        let old = Config::default();
        let mut new = old.clone();
        new.limits.topics_max = 7;
        new.threads.shards = 3;
        new.auth.tokens = vec![token("one", None)];
        let mut adopted = old.clone();
        adopt(&mut adopted, &new);
        let threads = old.threads.clone();
        assert_eq!(adopted, Config { threads, ..new.clone() });
        let left = difference("", &adopted, &new);
        assert_eq!(left.changed, []);
        assert_eq!(left.restart, [change("threads.shards", json!(0), json!(3))]);
    }
}
