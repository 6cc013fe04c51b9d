//! Tokens that somebody else keeps.

use weir_store::{Answer, Holder, State};

use super::{ExpiringCredential, NamedLabels};
use crate::base::model::AuthKind;

/// Knows which tokens of activated devices are valid: a store, with what stands before it.
///
/// Limits: what it answers late is not waited for, beyond the time that `Hello` has.
pub trait TokenSource: Send + Sync + 'static {
    /// Who holds this token now; `None`: nobody.
    fn check<'a>(&'a self, token: &'a str) -> Answer<'a, Option<Holder>>;

    /// The state of the device with this id; `None`: there is none. An id that is known here may be claimed with a token
    /// that is valid here, and with nothing else but what [`crate::AuthConfig::unchecked_ids`] lists: see there.
    ///
    /// Without an implementation no id is known.
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

/// Whether it could be a token: whatever is not nobody is asked for.
pub(super) fn is_token(token: &str) -> bool {
    let is_base64url = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    token.len() == TOKEN_CHARS && token.bytes().all(is_base64url)
}

/// What a holder's token says.
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
