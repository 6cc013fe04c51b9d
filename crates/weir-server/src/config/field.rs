//! What a key's value can be, and how each kind is read, from TOML and from a variable, and shown.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use toml::de::DeValue;
use weir::{
    AccessLogFormat, Actor, AuthKind, ClientAuth, ClientIdentity, IpNet, JwtAlgorithm, Priority,
    Right, SlowPolicy, TlsVersion,
};

use super::LogFormat;
use super::store::StoreKind;
use super::tables::Member;

/// A value of an `Owner`, whatever its type: of the settings, or of a table in a list.
pub(super) trait Field<Owner>: Sync {
    /// What the value is, as a phrase that follows "allowed is".
    fn kind(&self) -> &'static str;
    /// Whether a variable can hold it.
    fn in_variables(&self) -> bool;
    /// The words that it chooses from, if it is one of them or a list of them.
    fn words(&self) -> &'static [&'static str];
    /// The members of each of its tables; none, if it is no list of tables.
    fn members(&self) -> Vec<&'static dyn Member>;
    /// The value as TOML; `None` if it is absent.
    fn show(&self, owner: &Owner) -> Option<String>;
    /// Sets it; false if the value is not of its kind.
    fn set_from_toml(&self, owner: &mut Owner, value: &DeValue<'_>) -> bool;
    /// Sets it; false if the text is not of its kind.
    fn set_from_text(&self, owner: &mut Owner, text: &str) -> bool;
}

/// Where a value of type `T` stands in an `Owner`.
pub(super) struct At<Owner, T> {
    pub(super) get: fn(&Owner) -> &T,
    pub(super) get_mut: fn(&mut Owner) -> &mut T,
}

impl<Owner, T: Value> Field<Owner> for At<Owner, T> {
    fn kind(&self) -> &'static str {
        T::KIND
    }

    fn in_variables(&self) -> bool {
        T::IN_VARIABLES
    }

    fn words(&self) -> &'static [&'static str] {
        T::WORDS
    }

    fn members(&self) -> Vec<&'static dyn Member> {
        T::members()
    }

    fn show(&self, owner: &Owner) -> Option<String> {
        (self.get)(owner).show()
    }

    fn set_from_toml(&self, owner: &mut Owner, value: &DeValue<'_>) -> bool {
        self.set(owner, T::from_toml(value))
    }

    fn set_from_text(&self, owner: &mut Owner, text: &str) -> bool {
        self.set(owner, T::from_text(text))
    }
}

impl<Owner, T> At<Owner, T> {
    fn set(&self, owner: &mut Owner, value: Option<T>) -> bool {
        let is_right = value.is_some();
        if let Some(value) = value {
            *(self.get_mut)(owner) = value;
        }
        is_right
    }
}

/// A type that a key's value may have.
pub(super) trait Value: Sized {
    const KIND: &'static str;
    const IN_VARIABLES: bool = true;
    const WORDS: &'static [&'static str] = &[];
    fn members() -> Vec<&'static dyn Member> {
        Vec::new()
    }
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

impl Value for PathBuf {
    const KIND: &'static str = "a path";

    fn from_toml(value: &DeValue<'_>) -> Option<PathBuf> {
        value.as_str().map(PathBuf::from)
    }

    fn from_text(text: &str) -> Option<PathBuf> {
        Some(PathBuf::from(text))
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.display().to_string()))
    }
}

impl Value for Option<String> {
    const KIND: &'static str = String::KIND;

    fn from_toml(value: &DeValue<'_>) -> Option<Option<String>> {
        String::from_toml(value).map(Some)
    }

    fn from_text(text: &str) -> Option<Option<String>> {
        String::from_text(text).map(Some)
    }

    fn show(&self) -> Option<String> {
        self.as_ref().and_then(String::show)
    }
}

/// A value that is one of a few words.
trait Word: Sized {
    const KIND: &'static str;
    const WORDS: &'static [&'static str];
    fn find(word: &str) -> Option<Self>;
    fn word(&self) -> &'static str;
}

impl<T: Word> Value for T {
    const KIND: &'static str = <T as Word>::KIND;
    const WORDS: &'static [&'static str] = <T as Word>::WORDS;

    fn from_toml(value: &DeValue<'_>) -> Option<T> {
        T::find(value.as_str()?)
    }

    fn from_text(text: &str) -> Option<T> {
        T::find(text)
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self.word()))
    }
}

impl Word for LogFormat {
    const KIND: &'static str = "\"text\" or \"json\"";
    const WORDS: &'static [&'static str] = &["text", "json"];

    fn find(word: &str) -> Option<LogFormat> {
        [LogFormat::Text, LogFormat::Json].into_iter().find(|format| format.word() == word)
    }

    fn word(&self) -> &'static str {
        match self {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        }
    }
}

impl Word for AccessLogFormat {
    const KIND: &'static str = "\"json\" or \"combined\"";
    const WORDS: &'static [&'static str] = &["json", "combined"];

    fn find(word: &str) -> Option<AccessLogFormat> {
        AccessLogFormat::ALL.into_iter().find(|format| format.name() == word)
    }

    fn word(&self) -> &'static str {
        self.name()
    }
}

impl Word for StoreKind {
    const KIND: &'static str = "\"embedded\", \"mongodb\" or \"none\"";
    const WORDS: &'static [&'static str] = &["embedded", "mongodb", "none"];

    fn find(word: &str) -> Option<StoreKind> {
        StoreKind::ALL.into_iter().find(|kind| kind.name() == word)
    }

    fn word(&self) -> &'static str {
        self.name()
    }
}

impl Word for Priority {
    const KIND: &'static str = "\"high\", \"normal\" or \"low\"";
    const WORDS: &'static [&'static str] = &["high", "normal", "low"];

    fn find(word: &str) -> Option<Priority> {
        Priority::ALL.into_iter().find(|priority| priority.name() == word)
    }

    fn word(&self) -> &'static str {
        self.name()
    }
}

impl Word for SlowPolicy {
    const KIND: &'static str = "\"close\", \"drop\" or \"conflate\"";
    const WORDS: &'static [&'static str] = &["close", "drop", "conflate"];

    fn find(word: &str) -> Option<SlowPolicy> {
        SlowPolicy::ALL.into_iter().find(|policy| policy.name() == word)
    }

    fn word(&self) -> &'static str {
        self.name()
    }
}

impl Word for TlsVersion {
    const KIND: &'static str = "\"1.2\" or \"1.3\"";
    const WORDS: &'static [&'static str] = &["1.2", "1.3"];

    fn find(word: &str) -> Option<TlsVersion> {
        TlsVersion::ALL.into_iter().find(|version| version.name() == word)
    }

    fn word(&self) -> &'static str {
        self.name()
    }
}

impl Word for JwtAlgorithm {
    const KIND: &'static str = "\"HS256\", \"RS256\", \"ES256\" or \"EdDSA\"";
    const WORDS: &'static [&'static str] = &["HS256", "RS256", "ES256", "EdDSA"];

    fn find(word: &str) -> Option<JwtAlgorithm> {
        JwtAlgorithm::ALL.into_iter().find(|algorithm| algorithm.name() == word)
    }

    fn word(&self) -> &'static str {
        self.name()
    }
}

impl Word for ClientAuth {
    const KIND: &'static str = "\"off\", \"optional\" or \"required\"";
    const WORDS: &'static [&'static str] = &["off", "optional", "required"];

    fn find(word: &str) -> Option<ClientAuth> {
        ClientAuth::ALL.into_iter().find(|auth| auth.name() == word)
    }

    fn word(&self) -> &'static str {
        self.name()
    }
}

impl Word for ClientIdentity {
    const KIND: &'static str = "\"none\", \"common_name\", \"san_dns\" or \"san_uri\"";
    const WORDS: &'static [&'static str] = &["none", "common_name", "san_dns", "san_uri"];

    fn find(word: &str) -> Option<ClientIdentity> {
        ClientIdentity::ALL.into_iter().find(|part| part.name() == word)
    }

    fn word(&self) -> &'static str {
        self.name()
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
        texts(value)?.into_iter().map(|text| text.parse().ok()).collect()
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
        Some(texts(value)?.into_iter().map(str::to_owned).collect())
    }

    fn from_text(text: &str) -> Option<Vec<String>> {
        Some(parts(text).map(str::to_owned).collect())
    }

    fn show(&self) -> Option<String> {
        Some(list(self.iter().cloned()))
    }
}

impl Value for Vec<IpNet> {
    const KIND: &'static str = "a list of networks such as [\"10.0.0.0/8\", \"fd00::/8\"]";

    fn from_toml(value: &DeValue<'_>) -> Option<Vec<IpNet>> {
        texts(value)?.into_iter().map(|text| text.parse().ok()).collect()
    }

    fn from_text(text: &str) -> Option<Vec<IpNet>> {
        parts(text).map(|part| part.parse().ok()).collect()
    }

    fn show(&self) -> Option<String> {
        Some(list(self.iter().map(IpNet::to_string)))
    }
}

impl Value for Vec<Right> {
    const KIND: &'static str = "a list of \"subscribe\", \"publish\" and \"events\"";
    const WORDS: &'static [&'static str] = &["subscribe", "publish", "events"];

    fn from_toml(value: &DeValue<'_>) -> Option<Vec<Right>> {
        texts(value)?.into_iter().map(right).collect()
    }

    fn from_text(text: &str) -> Option<Vec<Right>> {
        parts(text).map(right).collect()
    }

    fn show(&self) -> Option<String> {
        Some(list(self.iter().map(|right| right.name().to_owned())))
    }
}

fn right(word: &str) -> Option<Right> {
    Right::ALL.into_iter().find(|right| right.name() == word)
}

impl Value for Vec<AuthKind> {
    const KIND: &'static str = "a list of \"anonymous\", \"certificate\", \"jwt\" and \"token\"";
    const WORDS: &'static [&'static str] = &["anonymous", "certificate", "jwt", "token"];

    fn from_toml(value: &DeValue<'_>) -> Option<Vec<AuthKind>> {
        texts(value)?.into_iter().map(credentials).collect()
    }

    fn from_text(text: &str) -> Option<Vec<AuthKind>> {
        parts(text).map(credentials).collect()
    }

    fn show(&self) -> Option<String> {
        Some(list(self.iter().map(|kind| kind.name().to_owned())))
    }
}

/// A kind of credentials whose ids need not be looked up.
fn credentials(word: &str) -> Option<AuthKind> {
    let kinds = AuthKind::ALL.into_iter().filter(|kind| *kind != AuthKind::Device);
    kinds.into_iter().find(|kind| kind.name() == word)
}

impl Value for Vec<Actor> {
    const KIND: &'static str = "a list of \"devices\", \"services\" and \"label:NAME\"";
    const WORDS: &'static [&'static str] = &["devices", "services", "label:"];

    fn from_toml(value: &DeValue<'_>) -> Option<Vec<Actor>> {
        texts(value)?.into_iter().map(Actor::parse).collect()
    }

    fn from_text(text: &str) -> Option<Vec<Actor>> {
        parts(text).map(Actor::parse).collect()
    }

    fn show(&self) -> Option<String> {
        Some(list(self.iter().map(Actor::to_string)))
    }
}

/// The texts of a list of nothing but texts.
pub(super) fn texts<'a>(value: &'a DeValue<'_>) -> Option<Vec<&'a str>> {
    value.as_array()?.iter().map(|item| item.get_ref().as_str()).collect()
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
