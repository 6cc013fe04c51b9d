//! The header `Idempotency-Key`: a message that is sent again is not published again.

use std::net::IpAddr;

use aws_lc_rs::digest::{SHA256, digest};
use http::{HeaderMap, HeaderName};

use super::problem::Problem;
use crate::IdempotencyKey;
use crate::limits::sources::Source;

/// The key of a request, and whose it is.
#[derive(Debug)]
pub(crate) struct RequestKey {
    caller: String,
    /// The key of the first of many messages ends with its index, after a space.
    key: String,
}

/// Whose keys those of a request are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum KeyOwner<'a> {
    Admin,
    /// One of `[[admin.tokens]]`.
    Token(&'a str),
    Service(&'a str),
    Device(&'a str),
    Source(Option<IpAddr>),
}

impl RequestKey {
    pub(crate) fn new(owner: KeyOwner<'_>, key: &str) -> RequestKey {
        let owner = match owner {
            KeyOwner::Admin => "admin".to_owned(),
            KeyOwner::Token(name) => format!("token {name}"),
            KeyOwner::Service(name) => format!("service {name}"),
            KeyOwner::Device(id) => format!("device {id}"),
            KeyOwner::Source(peer) => format!("source {:?}", peer.map(Source::of)),
        };
        // The same at every node of a cluster, and no longer than this.
        let digest = digest(&SHA256, owner.as_bytes());
        let caller = digest.as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        RequestKey { caller, key: key.to_owned() }
    }

    /// The key of the only message.
    pub(crate) fn of_one(&self) -> IdempotencyKey<'_> {
        IdempotencyKey { caller: &self.caller, key: &self.key }
    }

    /// The key of one message of many.
    pub(crate) fn of_many(&self, index: usize) -> RequestKey {
        RequestKey { caller: self.caller.clone(), key: format!("{} {index}", self.key) }
    }
}

/// Reads the key of a request.
///
/// Errors: it is empty, too long, or holds something else than visible ASCII.
pub(crate) fn key_of(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let refuse = |detail: String| Problem::field("Idempotency-Key", detail);
    let mut keys = headers.get_all(IDEMPOTENCY_KEY).iter();
    let (Some(key), None) = (keys.next(), keys.next()) else {
        return match headers.contains_key(IDEMPOTENCY_KEY) {
            true => Err(refuse("send one Idempotency-Key".to_owned())),
            false => Ok(None),
        };
    };
    let bytes = key.as_bytes().len();
    if bytes == 0 {
        return Err(refuse("Idempotency-Key is empty".to_owned()));
    }
    if bytes > KEY_BYTES_MAX {
        let detail =
            format!("Idempotency-Key of {bytes} bytes is over the limit of {KEY_BYTES_MAX}");
        return Err(refuse(detail));
    }
    let visible = key.to_str().ok().filter(|key| key.bytes().all(|byte| byte.is_ascii_graphic()));
    let detail = "Idempotency-Key contains a character that is not visible ASCII";
    visible.map(Some).ok_or_else(|| refuse(detail.to_owned()))
}

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const KEY_BYTES_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn a_key_is_one_word_of_visible_ascii() {
        let read = |values: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(IDEMPOTENCY_KEY, HeaderValue::from_bytes(value).unwrap());
            }
            key_of(&headers).map(|key| key.map(str::to_owned)).map_err(|problem| {
                let document = serde_json::to_value(problem.document()).unwrap();
                assert_eq!(document["field"], "Idempotency-Key");
                document["detail"].as_str().unwrap().to_owned()
            })
        };
        assert_eq!(read(&[]), Ok(None));
        let longest = "~".repeat(KEY_BYTES_MAX);
        for key in ["8e03978e-40d5-43dd-bc93-6894a57f9324", "\"quoted\"", "!", &longest] {
            assert_eq!(read(&[key.as_bytes()]), Ok(Some(key.to_owned())));
        }
        let long = "k".repeat(256);
        for (values, says) in [
            (&[b"".as_slice()] as &[&[u8]], "is empty"),
            (&[b"two words"], "not visible ASCII"),
            (&[b"k\xc3\xa9"], "not visible ASCII"),
            (&[long.as_bytes()], "256 bytes is over the limit of 255"),
            (&[b"a", b"b"], "send one"),
        ] {
            let detail = read(values).unwrap_err();
            assert!(detail.contains(says), "{detail}");
        }
    }

    #[test]
    fn the_keys_of_two_callers_do_not_meet() {
        let peer = Some(IpAddr::from([192, 0, 2, 1]));
        let owners = [
            KeyOwner::Admin,
            KeyOwner::Token("a"),
            KeyOwner::Service("a"),
            KeyOwner::Device("a"),
            KeyOwner::Device("b"),
            KeyOwner::Source(peer),
            KeyOwner::Source(None),
        ];
        let callers: std::collections::BTreeSet<String> =
            owners.iter().map(|owner| RequestKey::new(*owner, "k").caller).collect();
        assert_eq!(callers.len(), owners.len());
        assert!(callers.iter().all(|caller| caller.len() == 32));
    }
}
