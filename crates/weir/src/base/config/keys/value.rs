//! The types that a key's value may have.

use std::any::Any;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use super::Table;
use super::duration::parse_duration;

/// A value as in a file, before it is converted to the type of its key.
pub type Raw = serde_json::Value;

/// Compares and copies a value whose type the caller does not know.
pub trait Replaceable: Any {
    /// The value itself.
    fn as_any(&self) -> &dyn Any;
    /// Whether the other value is of the same type, and equal.
    fn is_like(&self, other: &dyn Any) -> bool;
    /// Becomes a copy of the other value, if that is of the same type.
    fn replace_by(&mut self, other: &dyn Any);
}

impl<T: Any + Clone + PartialEq> Replaceable for T {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn is_like(&self, other: &dyn Any) -> bool {
        other.downcast_ref::<T>() == Some(self)
    }

    fn replace_by(&mut self, other: &dyn Any) {
        if let Some(other) = other.downcast_ref::<T>() {
            self.clone_from(other);
        }
    }
}

/// The value of a key.
pub trait Value: Debug + Replaceable {
    /// The kind of value, as a phrase that follows "allowed is".
    fn kind(&self) -> String;

    /// Sets the value; false if `raw` is not of this kind.
    fn read(&mut self, raw: &Raw) -> bool;

    /// Sets the value from a variable's text; false if the text is not of this kind.
    fn read_text(&mut self, text: &str) -> bool {
        self.read(&Raw::from(text))
    }

    /// The value in TOML; `None` if it is absent.
    fn show(&self) -> Option<String>;

    /// The unit, if the value is a number or a time; `unit` is the unit of its key.
    fn unit(&self, unit: &'static str) -> Option<&'static str> {
        let _ = unit;
        None
    }

    /// The allowed words, if the value is a word or a list of words.
    fn words(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// The range, as the reference shows it.
    fn range(&self, range: &RangeInclusive<u64>) -> String {
        format!("at most {}", range.end())
    }

    /// If the value is outside the range: the value as text, and the allowed values.
    fn outside(&self, range: &RangeInclusive<u64>, unit: &str) -> Option<(String, String)> {
        let _ = (range, unit);
        None
    }

    /// The value as a table, if it is one.
    fn as_table(&self) -> Option<&dyn Table> {
        None
    }

    /// The same, as a mutable reference.
    fn as_table_mut(&mut self) -> Option<&mut dyn Table> {
        None
    }

    /// An entry with the defaults, if the value is a list of tables.
    fn row(&self) -> Option<Box<dyn Table>> {
        None
    }

    /// The entries, if the value is a list of tables.
    fn tables(&self) -> Vec<&dyn Table> {
        Vec::new()
    }

    /// Adds an entry with the defaults, if the value is a list of tables.
    fn push(&mut self) -> Option<&mut dyn Table> {
        None
    }
}

/// An entry of a list.
pub trait Item: Debug + Clone + PartialEq + Sized + 'static {
    /// The kind of list, as a phrase that follows "allowed is".
    fn list() -> String;
    /// Reads an entry; `None` if the text is not one.
    fn parse(text: &str) -> Option<Self>;
    /// The text that [`Item::parse`] reads.
    fn text(&self) -> String;
    /// The allowed words, if the entry is a word.
    fn words() -> Vec<&'static str> {
        Vec::new()
    }
    /// The entry as a table, if it is one.
    fn as_table(&self) -> Option<&dyn Table> {
        None
    }
    /// An entry with the defaults, if it is a table.
    fn row() -> Option<Box<dyn Table>> {
        None
    }
    /// Adds an entry with the defaults to a list, if it is a table.
    fn push(list: &mut Vec<Self>) -> Option<&mut dyn Table> {
        let _ = list;
        None
    }
}

/// A value that is one of a few words. [`config_words!`](crate::config_words) implements it for a
/// named enum.
pub trait Word: Copy + Debug + PartialEq + 'static {
    /// All values.
    fn all() -> Vec<Self>;
    /// The word in the configuration.
    fn word(self) -> &'static str;
}

/// Implements [`Word`] for enums that [`named_enum!`](crate::keys::named_enum) has defined.
#[macro_export]
macro_rules! config_words {
    ($($enum:ty),+ $(,)?) => {$(
        impl $crate::keys::Word for $enum {
            fn all() -> Vec<Self> {
                <$enum>::ALL.to_vec()
            }

            fn word(self) -> &'static str {
                self.name()
            }
        }
    )+};
}

fn set<T>(place: &mut T, value: Option<T>) -> bool {
    let is_right = value.is_some();
    if let Some(value) = value {
        *place = value;
    }
    is_right
}

macro_rules! numbers {
    ($($type:ty),+) => {$(
        impl Value for $type {
            fn kind(&self) -> String {
                "a whole number".to_owned()
            }

            fn read(&mut self, raw: &Raw) -> bool {
                set(self, raw.as_u64().and_then(|number| number.try_into().ok()))
            }

            fn read_text(&mut self, text: &str) -> bool {
                set(self, text.parse().ok())
            }

            fn show(&self) -> Option<String> {
                Some(self.to_string())
            }

            fn unit(&self, unit: &'static str) -> Option<&'static str> {
                Some(unit)
            }

            fn range(&self, range: &RangeInclusive<u64>) -> String {
                format!("{} to {}", range.start(), range.end())
            }

            fn outside(&self, range: &RangeInclusive<u64>, _: &str) -> Option<(String, String)> {
                let is_within = range.contains(&(*self as u64));
                (!is_within).then(|| (self.to_string(), self.range(range)))
            }
        }
    )+};
}

numbers!(usize, u32);

impl Value for Duration {
    fn kind(&self) -> String {
        "a duration such as \"500ms\", \"10s\", \"15m\" or \"1h\"".to_owned()
    }

    fn read(&mut self, raw: &Raw) -> bool {
        set(self, raw.as_str().and_then(|text| parse_duration(text).ok()))
    }

    fn show(&self) -> Option<String> {
        // A minute and an hour are shown as 60s and 60m.
        Some(quoted(&in_units(self.as_millis(), |ms, unit_ms| ms > unit_ms)))
    }

    fn unit(&self, _: &'static str) -> Option<&'static str> {
        Some("time")
    }

    fn range(&self, range: &RangeInclusive<u64>) -> String {
        format!("{} to {}", time(*range.start()), time(*range.end()))
    }

    fn outside(&self, range: &RangeInclusive<u64>, _: &str) -> Option<(String, String)> {
        let [min, max] = [range.start(), range.end()].map(|ms| Duration::from_millis(*ms));
        let is_within = (min..=max).contains(self);
        (!is_within).then(|| (format!("{self:?}"), format!("{min:?} to {max:?}")))
    }
}

/// A time in milliseconds as a file can have it, in the largest unit that needs no fraction.
pub fn time(ms: u64) -> String {
    in_units(ms.into(), |ms, unit_ms| ms >= unit_ms)
}

fn in_units(ms: u128, fits: fn(u128, u128) -> bool) -> String {
    let (number, unit) = [(3_600_000, "h"), (60_000, "m"), (1_000, "s")]
        .into_iter()
        .find(|(unit_ms, _)| fits(ms, *unit_ms) && ms.is_multiple_of(*unit_ms))
        .map_or((ms, "ms"), |(unit_ms, unit)| (ms / unit_ms, unit));
    format!("{number}{unit}")
}

impl Value for bool {
    fn kind(&self) -> String {
        "true or false".to_owned()
    }

    fn read(&mut self, raw: &Raw) -> bool {
        set(self, raw.as_bool())
    }

    fn read_text(&mut self, text: &str) -> bool {
        set(self, text.parse().ok())
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Value for Option<bool> {
    fn kind(&self) -> String {
        "true, false or absent".to_owned()
    }

    fn read(&mut self, raw: &Raw) -> bool {
        set(self, raw.as_bool().map(Some))
    }

    fn read_text(&mut self, text: &str) -> bool {
        set(self, text.parse().ok().map(Some))
    }

    fn show(&self) -> Option<String> {
        self.map(|value| value.to_string())
    }
}

impl Value for String {
    fn kind(&self) -> String {
        "a text".to_owned()
    }

    fn read(&mut self, raw: &Raw) -> bool {
        set(self, raw.as_str().map(str::to_owned))
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self))
    }
}

impl Value for Option<String> {
    fn kind(&self) -> String {
        "a text".to_owned()
    }

    fn read(&mut self, raw: &Raw) -> bool {
        set(self, raw.as_str().map(|text| Some(text.to_owned())))
    }

    fn show(&self) -> Option<String> {
        self.as_deref().map(quoted)
    }
}

impl Value for PathBuf {
    fn kind(&self) -> String {
        "a path".to_owned()
    }

    fn read(&mut self, raw: &Raw) -> bool {
        set(self, raw.as_str().map(PathBuf::from))
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.display().to_string()))
    }
}

impl Value for Option<SocketAddr> {
    fn kind(&self) -> String {
        "an address such as \"127.0.0.1:7090\" or \"[::1]:7090\"".to_owned()
    }

    fn read(&mut self, raw: &Raw) -> bool {
        let address = |text: &str| match text {
            "" => Some(None),
            text => text.parse().ok().map(Some),
        };
        set(self, raw.as_str().and_then(address))
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.map_or_else(String::new, |address| address.to_string())))
    }
}

impl<T: Word> Value for T {
    fn kind(&self) -> String {
        joined(&words::<T>(), " or ")
    }

    fn read(&mut self, raw: &Raw) -> bool {
        set(self, raw.as_str().and_then(find))
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self.word()))
    }

    fn words(&self) -> Vec<&'static str> {
        words::<T>()
    }
}

impl<T: Word> Value for Option<T> {
    fn kind(&self) -> String {
        format!("{} or absent", joined(&words::<T>(), ", "))
    }

    fn read(&mut self, raw: &Raw) -> bool {
        set(self, raw.as_str().and_then(find).map(Some))
    }

    fn show(&self) -> Option<String> {
        self.map(|word| quoted(word.word()))
    }

    fn words(&self) -> Vec<&'static str> {
        words::<T>()
    }
}

impl<T: Item> Value for Vec<T> {
    fn kind(&self) -> String {
        T::list()
    }

    fn read(&mut self, raw: &Raw) -> bool {
        let items = raw.as_array().map(|items| items.iter().map(|item| T::parse(item.as_str()?)));
        set(self, items.and_then(Iterator::collect))
    }

    fn read_text(&mut self, text: &str) -> bool {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        set(self, parts.map(T::parse).collect())
    }

    fn show(&self) -> Option<String> {
        let items: Vec<String> = self.iter().map(|item| quoted(&item.text())).collect();
        Some(format!("[{}]", items.join(", ")))
    }

    fn words(&self) -> Vec<&'static str> {
        T::words()
    }

    fn outside(&self, range: &RangeInclusive<u64>, unit: &str) -> Option<(String, String)> {
        let is_within = range.contains(&(self.len() as u64));
        (!is_within).then(|| (format!("({} {unit})", self.len()), self.range(range)))
    }

    fn row(&self) -> Option<Box<dyn Table>> {
        T::row()
    }

    fn tables(&self) -> Vec<&dyn Table> {
        self.iter().filter_map(Item::as_table).collect()
    }

    fn push(&mut self) -> Option<&mut dyn Table> {
        T::push(self)
    }
}

impl<T: Word> Item for T {
    fn list() -> String {
        format!("a list of {}", joined(&words::<T>(), " and "))
    }

    fn parse(text: &str) -> Option<T> {
        find(text)
    }

    fn text(&self) -> String {
        self.word().to_owned()
    }

    fn words() -> Vec<&'static str> {
        words::<T>()
    }
}

macro_rules! texts {
    ($($type:ty: $list:literal),+ $(,)?) => {$(
        impl Item for $type {
            fn list() -> String {
                $list.to_owned()
            }

            fn parse(text: &str) -> Option<$type> {
                text.parse().ok()
            }

            fn text(&self) -> String {
                self.to_string()
            }
        }
    )+};
}

texts! {
    String: "a list of texts",
    SocketAddr: "a list of addresses such as [\"0.0.0.0:7070\", \"[::1]:7070\"]",
    IpNet: "a list of networks such as [\"10.0.0.0/8\", \"fd00::/8\"]",
}

fn words<T: Word>() -> Vec<&'static str> {
    T::all().into_iter().map(T::word).collect()
}

fn find<T: Word>(text: &str) -> Option<T> {
    T::all().into_iter().find(|value| value.word() == text)
}

/// Words in quotation marks, with `last` before the last one.
fn joined(words: &[&str], last: &str) -> String {
    let quoted: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    match quoted.split_last() {
        Some((end, [])) => end.clone(),
        Some((end, start)) => format!("{}{last}{end}", start.join(", ")),
        None => String::new(),
    }
}

/// A text as TOML writes it.
fn quoted(text: &str) -> String {
    Raw::from(text).to_string()
}
