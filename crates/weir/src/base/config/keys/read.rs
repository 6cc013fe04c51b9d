//! Reads a table from any format that serde reads.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::{Key, Raw, Table, Value};

/// Reads a table from a self-describing format, such as TOML or JSON. Absent keys have their
/// defaults.
///
/// Errors: a key that does not exist or is set twice; a value of the wrong kind; a needed key that
/// is absent.
pub fn deserialize<'de, T, D>(input: D) -> Result<T, D::Error>
where
    T: Table + Default,
    D: Deserializer<'de>,
{
    let mut table = T::default();
    Keys(&mut table).deserialize(input)?;
    Ok(table)
}

/// Reads the keys of a table.
struct Keys<'a>(&'a mut dyn Table);

/// Reads the name of a key, and finds the key in the table.
struct Name<'a>(&'a dyn Table);

/// Reads the value of a key.
struct OfKey<'a>(&'static Key, &'a mut dyn Value);

/// Reads the entries of a list of tables.
struct Rows<'a>(&'a mut dyn Value);

/// Reads the next entry.
struct Row<'a>(&'a mut dyn Value);

impl<'de> DeserializeSeed<'de> for Keys<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        input.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Keys<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut input: A) -> Result<(), A::Error> {
        let mut read = Vec::new();
        while let Some(at) = input.next_key_seed(Name(&*self.0))? {
            let (key, value) = self.0.entries_mut().swap_remove(at);
            if read.contains(&key.name) {
                return Err(A::Error::duplicate_field(key.name));
            }
            input.next_value_seed(OfKey(key, value))?;
            read.push(key.name);
        }
        let mut keys = self.0.entries().into_iter().map(|(key, _)| key);
        match keys.find(|key| key.rules.needed && !read.contains(&key.name)) {
            Some(key) => Err(A::Error::missing_field(key.name)),
            None => Ok(()),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<usize, D::Error> {
        let name = String::deserialize(input)?;
        let names: Vec<_> = self.0.entries().into_iter().map(|(key, _)| key.name).collect();
        names.iter().position(|known| *known == name).ok_or_else(|| {
            let names = names.join("`, `");
            D::Error::custom(format_args!("unknown field `{name}`, expected one of `{names}`"))
        })
    }
}

impl<'de> DeserializeSeed<'de> for OfKey<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        let OfKey(key, value) = self;
        if value.row().is_some() {
            return input.deserialize_seq(Rows(value));
        }
        if let Some(table) = value.as_table_mut() {
            return Keys(table).deserialize(input);
        }
        let raw = Raw::deserialize(input)?;
        if value.read(&raw) {
            return Ok(());
        }
        let shown = if key.rules.secret { "(hidden)".to_owned() } else { raw.to_string() };
        let allowed = key.allowed(value);
        Err(D::Error::custom(format_args!("{} = {shown}: allowed is {allowed}", key.name)))
    }
}

impl<'de> Visitor<'de> for Rows<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.kind())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut input: A) -> Result<(), A::Error> {
        while input.next_element_seed(Row(&mut *self.0))?.is_some() {}
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Row<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        match self.0.push() {
            Some(table) => Keys(table).deserialize(input),
            None => Err(D::Error::custom("no list of tables")),
        }
    }
}
