//! Tokens that a store keeps.

use weir_store::{Answer, Holder, State};

use super::{ExpiringCredential, NamedLabels};
use crate::base::model::AuthKind;

/// Knows which tokens of activated devices are valid: a store, with the layers before it.
///
/// Limits: callers wait for an answer at most as long as `Hello` may take.
pub trait TokenSource: Send + Sync + 'static {
    /// The current holder of this token; `None` if it is not valid.
    fn check<'a>(&'a self, token: &'a str) -> Answer<'a, Option<Holder>>;

    /// The state of the device with this id; `None` if the device is unknown. A known id may be
    /// claimed only with a valid token of the store, or with credentials that
    /// [`crate::AuthConfig::unchecked_ids`] lists.
    ///
    /// By default no id is known.
    fn state<'a>(&'a self, device: &'a str) -> Answer<'a, Option<State>> {
        let _ = device;
        Box::pin(std::future::ready(Ok(None)))
    }
}

impl<S: TokenSource + ?Sized> TokenSource for std::sync::Arc<S> {
    fn check<'a>(&'a self, token: &'a str) -> Answer<'a, Option<Holder>> {
        (**self).check(token)
    }

    fn state<'a>(&'a self, device: &'a str) -> Answer<'a, Option<State>> {
        (**self).state(device)
    }
}

/// Whether the text has the form of a token. The store is not asked for other texts.
pub(super) fn is_token(token: &str) -> bool {
    let is_base64url = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    token.len() == TOKEN_CHARS && token.bytes().all(is_base64url)
}

/// The credential of a token's holder.
pub(super) fn expiring(holder: Holder, labels: &NamedLabels) -> ExpiringCredential {
    let words = holder.labels.iter().map(|(name, value)| format!("{name}={value}"));
    ExpiringCredential {
        kind: AuthKind::Device,
        device: holder.serial.as_str().into(),
        priority: weir_engine::Priority::Normal,
        grant: labels.share(labels.grant(words)),
        ends: holder.expires,
    }
}

/// 128 random bits in base64url.
const TOKEN_CHARS: usize = 22;
