//! An answer, from JSON. What is not exactly an answer to the question counts as none.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use weir_engine::Priority;
use weir_store::Millis;

use crate::base::config::is_pattern;
use crate::observe::counters::hooks::Hook;

/// An answer of a hook. Copies share everything.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// No. The sentence for the device; it may be empty.
    Refused(Arc<str>),
    /// Yes, to a subscription or a message.
    Allowed,
    /// Yes, but with this message.
    Changed(Arc<Replacement>),
    /// The owner of the token.
    Identity(Arc<Identity>),
}

/// The owner of a token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// `None`: the device that was in the question.
    pub(crate) device: Option<String>,
    pub(crate) labels: Vec<String>,
    /// Patterns of the only topics that it may use; `None`: all that the classes permit.
    pub(crate) topics: Option<Vec<String>>,
    pub(crate) priority: Priority,
    /// When the credentials end.
    pub(crate) ends: Millis,
}

/// The parts of a message that an answer replaces.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Replacement {
    pub(crate) payload: Option<Content>,
    pub(crate) content_type: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) ttl: Option<Duration>,
}

/// The content of a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Text(String),
    Data(Vec<u8>),
}

/// An answer, with the time for which it is kept.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) answer: Answer,
    pub(super) cache: Duration,
}

/// The rules for answers that the configuration sets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// How long credentials are valid if the answer does not say.
    pub(super) lifetime: Duration,
    pub(super) device_id_bytes_max: usize,
    pub(super) topic_bytes_max: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    allow: bool,
    reason: Option<String>,
    cache_ms: Option<u64>,
    device: Option<String>,
    labels: Option<Vec<String>>,
    topics: Option<Vec<String>>,
    priority: Option<String>,
    expires_in_ms: Option<u64>,
    message: Option<Message>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    text: Option<String>,
    data: Option<String>,
    content_type: Option<String>,
    key: Option<String>,
    ttl_ms: Option<u64>,
}

impl Answer {
    /// The bytes that it occupies, about.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Answer::Allowed => 0,
            Answer::Refused(reason) => reason.len(),
            Answer::Changed(replacement) => replacement.bytes(),
            Answer::Identity(identity) => identity.bytes(),
        }
    }
}

impl Replacement {
    fn bytes(&self) -> usize {
        let payload = self.payload.as_ref().map_or(0, |payload| match payload {
            Content::Text(text) => text.capacity(),
            Content::Data(data) => data.capacity(),
        });
        let texts = [&self.content_type, &self.key].into_iter().flatten();
        size_of::<Replacement>() + payload + texts.map(String::capacity).sum::<usize>()
    }
}

impl Identity {
    fn bytes(&self) -> usize {
        let texts = self.labels.iter().chain(self.topics.iter().flatten()).chain(&self.device);
        let each = |text: &String| size_of::<String>() + text.capacity();
        size_of::<Identity>() + texts.map(each).sum::<usize>()
    }
}

/// Reads the answer to a question of this hook, at this time.
///
/// Errors: the sentence for the log.
pub(super) fn parse(hook: Hook, body: &[u8], now: Millis, rules: &Rules) -> Result<Parsed, String> {
    // Serde takes an array for a struct, too.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err("the answer is no JSON object".to_owned());
    }
    let body: Body = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    body.check_members(hook)?;
    let cache = Duration::from_millis(within("cache_ms", body.cache_ms, 0, CACHE_MS_MAX)?);
    if !body.allow {
        let reason = body.reason.unwrap_or_default();
        check_text("reason", &reason, REASON_BYTES_MAX)?;
        return Ok(Parsed { answer: Answer::Refused(reason.into()), cache });
    }
    match hook {
        Hook::Connect | Hook::Refresh => {
            let identity = body.identity(hook, now, rules)?;
            let left = Duration::from_millis(identity.ends.saturating_sub(now));
            Ok(Parsed { answer: Answer::Identity(Arc::new(identity)), cache: cache.min(left) })
        }
        Hook::Subscribe => Ok(Parsed { answer: Answer::Allowed, cache }),
        Hook::Publish => {
            let answer = match body.message {
                Some(message) => Answer::Changed(Arc::new(message.replacement()?)),
                None => Answer::Allowed,
            };
            Ok(Parsed { answer, cache })
        }
    }
}

impl Body {
    /// Checks that there are only members that fit the hook and the decision.
    fn check_members(&self, hook: Hook) -> Result<(), String> {
        let has_identity = self.device.is_some()
            || self.labels.is_some()
            || self.topics.is_some()
            || self.priority.is_some()
            || self.expires_in_ms.is_some();
        let may_have_identity = self.allow && matches!(hook, Hook::Connect | Hook::Refresh);
        let may_have_message = self.allow && hook == Hook::Publish;
        for (has, may, what) in [
            (has_identity, may_have_identity, "device, labels, topics, priority or expires_in_ms"),
            (self.message.is_some(), may_have_message, "a message"),
            (self.reason.is_some(), !self.allow, "a reason"),
        ] {
            if has && !may {
                let decision = if self.allow { "allows" } else { "refuses" };
                return Err(format!("an answer to {} that {decision} has {what}", hook.name()));
            }
        }
        Ok(())
    }

    fn identity(self, hook: Hook, now: Millis, rules: &Rules) -> Result<Identity, String> {
        if self.device.is_none() && hook == Hook::Connect {
            return Err("device is absent".to_owned());
        }
        if let Some(device) = &self.device {
            check_word("device", device, rules.device_id_bytes_max)?;
        }
        let labels = self.labels.unwrap_or_default();
        check_count("labels", labels.len())?;
        labels.iter().try_for_each(|label| check_word("a label", label, LABEL_BYTES_MAX))?;
        if let Some(topics) = &self.topics {
            check_count("topics", topics.len())?;
            if let Some(topic) = topics.iter().find(|one| !is_pattern(one, rules.topic_bytes_max)) {
                return Err(format!("topics contains {topic:?}, which is no pattern"));
            }
        }
        let priority = match self.priority.as_deref() {
            None => Priority::Normal,
            Some(name) => Priority::ALL
                .into_iter()
                .find(|priority| priority.name() == name)
                .ok_or_else(|| format!("priority is {name:?}"))?,
        };
        let lifetime = u64::try_from(rules.lifetime.as_millis()).unwrap_or(u64::MAX);
        let lifetime = match self.expires_in_ms {
            None => lifetime,
            some => within("expires_in_ms", some, 1, EXPIRES_MS_MAX)?,
        };
        let ends = now.saturating_add(lifetime);
        Ok(Identity { device: self.device, labels, topics: self.topics, priority, ends })
    }
}

impl Message {
    fn replacement(self) -> Result<Replacement, String> {
        let payload = match (self.text, self.data) {
            (Some(_), Some(_)) => return Err("the message has both text and data".to_owned()),
            (Some(text), None) => Some(Content::Text(text)),
            (None, Some(data)) => {
                let data = STANDARD.decode(data);
                Some(Content::Data(data.map_err(|error| format!("data is not base64: {error}"))?))
            }
            (None, None) => None,
        };
        if let Some(content_type) = &self.content_type {
            let is_right = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
            if content_type.len() > FIELD_BYTES_MAX || !content_type.bytes().all(is_right) {
                let allowed = "at most 255 printable ASCII characters are allowed";
                return Err(format!("content_type is {content_type:?}; {allowed}"));
            }
        }
        if let Some(key) = self.key.as_ref().filter(|key| key.len() > FIELD_BYTES_MAX) {
            return Err(format!("key has {} bytes; at most 255 are allowed", key.len()));
        }
        let ttl = match self.ttl_ms {
            None => None,
            some => Some(Duration::from_millis(within("ttl_ms", some, 1, TTL_MS_MAX)?)),
        };
        let (content_type, key) = (self.content_type, self.key);
        Ok(Replacement { payload, content_type, key, ttl })
    }
}

fn within(name: &str, value: Option<u64>, min: u64, max: u64) -> Result<u64, String> {
    let value = value.unwrap_or(min);
    match (min..=max).contains(&value) {
        true => Ok(value),
        false => Err(format!("{name} is {value}; {min} to {max} are allowed")),
    }
}

fn check_text(name: &str, text: &str, bytes_max: usize) -> Result<(), String> {
    match text.len() > bytes_max || text.contains(char::is_control) {
        true => Err(format!("{name} is longer than {bytes_max} bytes, or has control characters")),
        false => Ok(()),
    }
}

fn check_word(name: &str, text: &str, bytes_max: usize) -> Result<(), String> {
    match text.is_empty() {
        true => Err(format!("{name} is empty")),
        false => check_text(name, text, bytes_max),
    }
}

fn check_count(name: &str, count: usize) -> Result<(), String> {
    match count > LIST_MAX {
        true => Err(format!("{name} has {count} entries; at most {LIST_MAX} are allowed")),
        false => Ok(()),
    }
}

/// A day. Longer memory would outlive every change of rights.
const CACHE_MS_MAX: u64 = 24 * 60 * 60 * 1_000;
/// Ten years.
const EXPIRES_MS_MAX: u64 = 10 * 365 * CACHE_MS_MAX;
/// As for published messages.
const TTL_MS_MAX: u64 = CACHE_MS_MAX;
const FIELD_BYTES_MAX: usize = 255;
/// One sentence.
const REASON_BYTES_MAX: usize = 255;
/// As for signed tokens.
const LIST_MAX: usize = 16;
const LABEL_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = 1_000_000;
    const RULES: Rules =
        Rules { lifetime: Duration::from_secs(60), device_id_bytes_max: 8, topic_bytes_max: 16 };

    fn read(hook: Hook, body: &str) -> Result<Parsed, String> {
        parse(hook, body.as_bytes(), NOW, &RULES)
    }

    fn identity(hook: Hook, body: &str) -> Identity {
        match read(hook, body).unwrap().answer {
            Answer::Identity(identity) => Arc::into_inner(identity).unwrap(),
            other @ (Answer::Refused(_) | Answer::Allowed | Answer::Changed(_)) => {
                panic!("{other:?}")
            }
        }
    }

    fn replacement(body: &str) -> Replacement {
        match read(Hook::Publish, body).unwrap().answer {
            Answer::Changed(replacement) => Arc::into_inner(replacement).unwrap(),
            other @ (Answer::Refused(_) | Answer::Allowed | Answer::Identity(_)) => {
                panic!("{other:?}")
            }
        }
    }

    #[test]
    fn who_has_a_token() {
        let device = Some("van-7".to_owned());
        let plain = Identity {
            device: device.clone(),
            labels: Vec::new(),
            topics: None,
            priority: Priority::Normal,
            ends: NOW + 60_000,
        };
        assert_eq!(identity(Hook::Connect, r#"{"allow":true,"device":"van-7"}"#), plain);
        let full = r#" {"allow":true,"device":"van-7","labels":["vip"],"topics":["a/*"],"priority":"high","expires_in_ms":5,"cache_ms":9}"#;
        let expected = Identity {
            device,
            labels: vec!["vip".to_owned()],
            topics: Some(vec!["a/*".to_owned()]),
            priority: Priority::High,
            ends: NOW + 5,
        };
        assert_eq!(identity(Hook::Connect, full), expected);
        let cache = read(Hook::Connect, full).unwrap().cache;
        assert_eq!(cache, Duration::from_millis(5), "no longer than the credentials are valid");
        assert_eq!(identity(Hook::Refresh, r#"{"allow":true}"#).device, None);
    }

    #[test]
    fn what_a_message_becomes() {
        let kept = replacement(r#"{"allow":true,"message":{}}"#);
        assert_eq!(kept, Replacement::default());
        let text = r#"{"allow":true,"message":{"text":"ho","content_type":"a/b","key":"k","ttl_ms":1000}}"#;
        let expected = Replacement {
            payload: Some(Content::Text("ho".to_owned())),
            content_type: Some("a/b".to_owned()),
            key: Some("k".to_owned()),
            ttl: Some(Duration::from_secs(1)),
        };
        assert_eq!(replacement(text), expected);
        let data = replacement(r#"{"allow":true,"message":{"data":"AP8="}}"#);
        assert_eq!(data.payload, Some(Content::Data(vec![0, 255])));
        for hook in [Hook::Publish, Hook::Subscribe] {
            let allowed = read(hook, r#"{"allow":true,"cache_ms":7}"#).unwrap();
            assert!(matches!(allowed.answer, Answer::Allowed));
            assert_eq!(allowed.cache, Duration::from_millis(7));
        }
    }

    #[test]
    fn a_refusal_may_have_a_reason() {
        for hook in Hook::ALL {
            for (body, expected) in
                [(r#"{"allow":false}"#, ""), (r#"{"allow":false,"reason":"no"}"#, "no")]
            {
                match read(hook, body).unwrap().answer {
                    Answer::Refused(reason) => assert_eq!(&*reason, expected),
                    other @ (Answer::Allowed | Answer::Changed(_) | Answer::Identity(_)) => {
                        panic!("{other:?}")
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_exactly_an_answer_is_none() {
        let long = format!(r#"{{"allow":false,"reason":"{}"}}"#, "x".repeat(256));
        let many =
            format!(r#"{{"allow":true,"device":"d","labels":[{}"a"]}}"#, "\"a\",".repeat(16));
        for (hook, body, says) in [
            (Hook::Subscribe, "", "no JSON object"),
            (Hook::Subscribe, "yes", "no JSON object"),
            (Hook::Subscribe, "[true]", "no JSON object"),
            (Hook::Subscribe, "{}", "missing field `allow`"),
            (Hook::Subscribe, r#"{"allow":1}"#, "invalid type"),
            (Hook::Subscribe, r#"{"allow":true} x"#, "trailing"),
            (Hook::Subscribe, r#"{"allow":true,"alow":true}"#, "unknown field `alow`"),
            (Hook::Subscribe, r#"{"allow":true,"device":"d"}"#, "has device, labels"),
            (Hook::Subscribe, r#"{"allow":true,"message":{}}"#, "has a message"),
            (Hook::Subscribe, r#"{"allow":true,"reason":"x"}"#, "has a reason"),
            (Hook::Subscribe, r#"{"allow":true,"cache_ms":86400001}"#, "cache_ms is 86400001"),
            (Hook::Subscribe, &long, "longer than 255"),
            (Hook::Publish, r#"{"allow":false,"message":{}}"#, "has a message"),
            (Hook::Publish, r#"{"allow":true,"message":{"text":"","data":""}}"#, "both"),
            (Hook::Publish, r#"{"allow":true,"message":{"data":"?"}}"#, "not base64"),
            (Hook::Publish, r#"{"allow":true,"message":{"content_type":"\n"}}"#, "content_type"),
            (Hook::Publish, r#"{"allow":true,"message":{"ttl_ms":0}}"#, "ttl_ms is 0"),
            (Hook::Connect, r#"{"allow":true}"#, "device is absent"),
            (Hook::Connect, r#"{"allow":true,"device":""}"#, "device is empty"),
            (Hook::Connect, r#"{"allow":true,"device":"123456789"}"#, "longer than 8"),
            (Hook::Connect, r#"{"allow":true,"device":"d","expires_in_ms":0}"#, "is 0"),
            (Hook::Connect, r#"{"allow":true,"device":"d","priority":"top"}"#, "priority"),
            (Hook::Connect, r#"{"allow":true,"device":"d","topics":["a+"]}"#, "no pattern"),
            (Hook::Connect, r#"{"allow":true,"device":"d","labels":[""]}"#, "a label is empty"),
            (Hook::Connect, &many, "has 17 entries"),
            (Hook::Refresh, r#"{"allow":false,"device":"d"}"#, "that refuses has device"),
        ] {
            let error = read(hook, body).unwrap_err();
            assert!(error.contains(says), "{body}: {error}");
        }
    }
}
