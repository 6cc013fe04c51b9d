//! Who may connect, and as which device: static tokens, or nobody's word on loopback.

use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};
use weir_wire::CloseReason;

use crate::config::Config;

/// Static tokens and the rule for those who have none.
///
/// Cost: a comparison with each token, every time: which one was right, and how much of a wrong one, does not show in
/// the time it takes. The length of a token does.
pub(crate) struct Authenticator {
    tokens: Vec<Token>,
    anonymous: bool,
    device_id_bytes_max: usize,
}

struct Token {
    secret: Box<[u8]>,
    device: Option<Box<str>>,
}

impl Authenticator {
    pub(crate) fn new(config: &Config) -> Self {
        let tokens = config.auth.tokens.iter().map(|token| Token {
            secret: token.token.as_bytes().into(),
            device: token.device.as_deref().map(Box::from),
        });
        Self {
            tokens: tokens.collect(),
            anonymous: config.auth.admits_anonymous(&config.listen.tcp),
            device_id_bytes_max: config.limits.device_id_bytes_max,
        }
    }

    /// The device that may connect with this claim.
    ///
    /// A token that is bound to a device admits only that one, and names it for a device that does not say its id.
    /// Without a token any id may be claimed where anonymous mode is on, but for those that a token is bound to; and
    /// one has to be said. A wrong token is refused even there.
    pub(crate) fn authenticate(&self, device: &str, token: &str) -> Result<String, CloseReason> {
        if device.len() > self.device_id_bytes_max || device.contains(char::is_control) {
            return Err(CloseReason::Malformed);
        }
        let bound = if token.is_empty() {
            let is_bound = |token: &Token| token.device.as_deref() == Some(device);
            if !self.anonymous || self.tokens.iter().any(is_bound) {
                return Err(CloseReason::Unauthorized);
            }
            None
        } else {
            let token = self.token(token).ok_or(CloseReason::Unauthorized)?;
            token.device.as_deref()
        };
        match bound {
            Some(bound) if device.is_empty() || device == bound => Ok(bound.to_owned()),
            Some(_) => Err(CloseReason::Unauthorized),
            None if device.is_empty() => Err(CloseReason::Malformed),
            None => Ok(device.to_owned()),
        }
    }

    /// Looks at every token, whichever is right.
    fn token(&self, secret: &str) -> Option<&Token> {
        let mut found = u64::MAX;
        for (index, token) in (0u64..).zip(&self.tokens) {
            let is_equal: Choice = token.secret.ct_eq(secret.as_bytes());
            found.conditional_assign(&index, is_equal);
        }
        self.tokens.get(usize::try_from(found).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TokenConfig;

    fn check(anonymous: bool, device: &str, token: &str, expected: Result<&str, CloseReason>) {
        let token_of = |token: &str, device: Option<&str>| TokenConfig {
            token: token.to_owned(),
            device: device.map(str::to_owned),
            ..TokenConfig::default()
        };
        let mut config = Config::default();
        config.auth.anonymous = Some(anonymous);
        config.auth.tokens = vec![token_of("any", None), token_of("one", Some("d1"))];
        let answer = Authenticator::new(&config).authenticate(device, token);
        assert_eq!(answer.as_deref(), expected.as_ref().map(|id| *id), "{device:?} with {token:?}");
    }

    #[test]
    fn a_token_admits_what_it_permits() {
        use CloseReason::{Malformed, Unauthorized};
        for anonymous in [false, true] {
            check(anonymous, "d1", "one", Ok("d1"));
            check(anonymous, "", "one", Ok("d1"));
            check(anonymous, "d2", "one", Err(Unauthorized));
            check(anonymous, "d2", "any", Ok("d2"));
            check(anonymous, "", "any", Err(Malformed));
            check(anonymous, "d2", "wrong", Err(Unauthorized));
            check(anonymous, "d2", "an", Err(Unauthorized));
            check(anonymous, "d2", "anyy", Err(Unauthorized));
            check(anonymous, &"d".repeat(129), "any", Err(Malformed));
            check(anonymous, "d\n", "any", Err(Malformed));
        }
    }

    #[test]
    fn without_a_token_anonymous_mode_decides() {
        check(false, "d2", "", Err(CloseReason::Unauthorized));
        check(true, "d2", "", Ok("d2"));
        check(true, "", "", Err(CloseReason::Malformed));
        check(true, "d1", "", Err(CloseReason::Unauthorized));
    }
}
