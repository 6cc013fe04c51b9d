//! What a key's value can be, and how each kind is read, from TOML and from a variable, and shown.

use std::net::SocketAddr;
use std::time::Duration;

use toml::de::DeValue;
use weir::TokenConfig;

use super::{LogFormat, Settings};

/// A value of [`Settings`], whatever its type.
pub(super) trait Field: Sync {
    /// What the value is, as a phrase that follows "allowed is".
    fn kind(&self) -> &'static str;
    /// Whether a variable can hold it.
    fn in_variables(&self) -> bool;
    /// The members of each of its tables, if it is a list of tables: all are texts, the first is needed and secret.
    fn members(&self) -> Option<&'static [&'static str]>;
    /// The value as TOML; `None` if it is absent.
    fn show(&self, settings: &Settings) -> Option<String>;
    /// Sets it; false if the value is not of its kind.
    fn set_from_toml(&self, settings: &mut Settings, value: &DeValue<'_>) -> bool;
    /// Sets it; false if the text is not of its kind.
    fn set_from_text(&self, settings: &mut Settings, text: &str) -> bool;
}

/// Where a value of type `T` stands.
pub(super) struct At<T> {
    pub(super) get: fn(&Settings) -> &T,
    pub(super) get_mut: fn(&mut Settings) -> &mut T,
}

impl<T: Value> Field for At<T> {
    fn kind(&self) -> &'static str {
        T::KIND
    }

    fn in_variables(&self) -> bool {
        T::IN_VARIABLES
    }

    fn members(&self) -> Option<&'static [&'static str]> {
        T::MEMBERS
    }

    fn show(&self, settings: &Settings) -> Option<String> {
        (self.get)(settings).show()
    }

    fn set_from_toml(&self, settings: &mut Settings, value: &DeValue<'_>) -> bool {
        self.set(settings, T::from_toml(value))
    }

    fn set_from_text(&self, settings: &mut Settings, text: &str) -> bool {
        self.set(settings, T::from_text(text))
    }
}

impl<T> At<T> {
    fn set(&self, settings: &mut Settings, value: Option<T>) -> bool {
        let is_right = value.is_some();
        if let Some(value) = value {
            *(self.get_mut)(settings) = value;
        }
        is_right
    }
}

/// A type that a key's value may have.
pub(super) trait Value: Sized {
    const KIND: &'static str;
    const IN_VARIABLES: bool = true;
    const MEMBERS: Option<&'static [&'static str]> = None;
    fn from_toml(value: &DeValue<'_>) -> Option<Self>;
    fn from_text(text: &str) -> Option<Self>;
    fn show(&self) -> Option<String>;
}

impl Value for usize {
    const KIND: &'static str = "a whole number";

    fn from_toml(value: &DeValue<'_>) -> Option<usize> {
        let number = value.as_integer()?;
        usize::from_str_radix(number.as_str(), number.radix()).ok()
    }

    fn from_text(text: &str) -> Option<usize> {
        text.parse().ok()
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Value for u32 {
    const KIND: &'static str = usize::KIND;

    fn from_toml(value: &DeValue<'_>) -> Option<u32> {
        usize::from_toml(value)?.try_into().ok()
    }

    fn from_text(text: &str) -> Option<u32> {
        text.parse().ok()
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Value for bool {
    const KIND: &'static str = "true or false";

    fn from_toml(value: &DeValue<'_>) -> Option<bool> {
        value.as_bool()
    }

    fn from_text(text: &str) -> Option<bool> {
        text.parse().ok()
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Value for Option<bool> {
    const KIND: &'static str = "true, false or absent";

    fn from_toml(value: &DeValue<'_>) -> Option<Option<bool>> {
        value.as_bool().map(Some)
    }

    fn from_text(text: &str) -> Option<Option<bool>> {
        text.parse().ok().map(Some)
    }

    fn show(&self) -> Option<String> {
        self.map(|value| value.to_string())
    }
}

impl Value for Duration {
    const KIND: &'static str = "a duration such as \"500ms\", \"10s\", \"15m\" or \"1h\"";

    fn from_toml(value: &DeValue<'_>) -> Option<Duration> {
        Duration::from_text(value.as_str()?)
    }

    fn from_text(text: &str) -> Option<Duration> {
        weir::parse_duration(text).ok()
    }

    fn show(&self) -> Option<String> {
        let ms = self.as_millis();
        let (number, unit) = [(3_600_000, "h"), (60_000, "m"), (1_000, "s")]
            .into_iter()
            .find(|(unit_ms, _)| ms > *unit_ms && ms.is_multiple_of(*unit_ms))
            .map_or((ms, "ms"), |(unit_ms, unit)| (ms / unit_ms, unit));
        Some(format!("\"{number}{unit}\""))
    }
}

impl Value for String {
    const KIND: &'static str = "a text";

    fn from_toml(value: &DeValue<'_>) -> Option<String> {
        value.as_str().map(str::to_owned)
    }

    fn from_text(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self))
    }
}

impl Value for LogFormat {
    const KIND: &'static str = "\"text\" or \"json\"";

    fn from_toml(value: &DeValue<'_>) -> Option<LogFormat> {
        LogFormat::from_text(value.as_str()?)
    }

    fn from_text(text: &str) -> Option<LogFormat> {
        match text {
            "text" => Some(LogFormat::Text),
            "json" => Some(LogFormat::Json),
            _ => None,
        }
    }

    fn show(&self) -> Option<String> {
        let name = match self {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        };
        Some(quoted(name))
    }
}

impl Value for Option<SocketAddr> {
    const KIND: &'static str = "an address such as \"127.0.0.1:7090\" or \"[::1]:7090\"";

    fn from_toml(value: &DeValue<'_>) -> Option<Option<SocketAddr>> {
        Self::from_text(value.as_str()?)
    }

    fn from_text(text: &str) -> Option<Option<SocketAddr>> {
        if text.is_empty() { Some(None) } else { text.parse().ok().map(Some) }
    }

    fn show(&self) -> Option<String> {
        Some(self.map_or_else(|| quoted(""), |addr| quoted(&addr.to_string())))
    }
}

impl Value for Vec<SocketAddr> {
    const KIND: &'static str = "a list of addresses such as [\"0.0.0.0:7070\", \"[::1]:7070\"]";

    fn from_toml(value: &DeValue<'_>) -> Option<Vec<SocketAddr>> {
        value.as_array()?.iter().map(|item| item.get_ref().as_str()?.parse().ok()).collect()
    }

    fn from_text(text: &str) -> Option<Vec<SocketAddr>> {
        parts(text).map(|part| part.parse().ok()).collect()
    }

    fn show(&self) -> Option<String> {
        Some(list(self.iter().map(SocketAddr::to_string)))
    }
}

impl Value for Vec<String> {
    const KIND: &'static str = "a list of texts";

    fn from_toml(value: &DeValue<'_>) -> Option<Vec<String>> {
        value.as_array()?.iter().map(|item| item.get_ref().as_str().map(str::to_owned)).collect()
    }

    fn from_text(text: &str) -> Option<Vec<String>> {
        Some(parts(text).map(str::to_owned).collect())
    }

    fn show(&self) -> Option<String> {
        Some(list(self.iter().cloned()))
    }
}

impl Value for Vec<TokenConfig> {
    const KIND: &'static str = "tables [[auth.tokens]], each with token and, if wanted, device";
    const IN_VARIABLES: bool = false;
    const MEMBERS: Option<&'static [&'static str]> = Some(&["token", "device"]);

    fn from_toml(value: &DeValue<'_>) -> Option<Vec<TokenConfig>> {
        value.as_array()?.iter().map(|item| token(item.get_ref())).collect()
    }

    fn from_text(_: &str) -> Option<Vec<TokenConfig>> {
        None
    }

    fn show(&self) -> Option<String> {
        self.is_empty().then(|| "[]".to_owned())
    }
}

fn token(value: &DeValue<'_>) -> Option<TokenConfig> {
    let table = value.as_table()?;
    let text = |name: &str| table.get(name).map(|value| value.get_ref().as_str());
    let device = match text("device") {
        Some(device) => Some(device?.to_owned()),
        None => None,
    };
    Some(TokenConfig { token: text("token")??.to_owned(), device, ..TokenConfig::default() })
}

fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

fn list(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.map(|item| quoted(&item)).collect();
    format!("[{}]", items.join(", "))
}
