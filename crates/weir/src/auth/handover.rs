//! Credentials in a process that takes over from another. Its configuration may be another one: then
//! the rules of a reload apply.
//!
//! Not moved: signed tokens that were verified, keys that were fetched, and ids that the store has
//! confirmed. These are memories that spare time. What a connection needs of its own token stands in
//! its term.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use weir_engine::handover::NotUnderstood;
use weir_wire::handover::v1;

use super::credentials::{Credentials, CredentialsChange};
use super::{Authenticator, Grant};
use crate::base::config::Config;
use crate::base::handover::refused;

impl Authenticator {
    /// The configured tokens with their numbers, and the failed attempts. The caller sees to it that
    /// no other configuration is applied meanwhile.
    pub(crate) fn export(&self) -> v1::Auth {
        let [failures, datagram_failures, all_datagram_failures] = self.attempts.export();
        v1::Auth {
            credentials: Some(self.credentials.load().export()),
            failures,
            datagram_failures,
            all_datagram_failures,
        }
    }

    /// Goes on with the numbers of another process. No connection was admitted here so far. Returns
    /// what the configuration of this process changes for the connections that move.
    ///
    /// Errors: with the tokens of this configuration there are not enough numbers, too.
    pub(crate) fn import(
        &self,
        auth: v1::Auth,
        config: &Config,
    ) -> Result<CredentialsChange, NotUnderstood> {
        let v1::Auth { credentials, failures, datagram_failures, all_datagram_failures } = auth;
        let credentials = credentials.ok_or_else(|| refused("auth.credentials", 0_u32))?;
        let before = Credentials::restore(credentials, &self.credentials.load())?;
        let next = Credentials::new(config, Some(&before));
        let next = next.map_err(|_| refused("auth.tokens", config.auth.tokens.len() as u64))?;
        let change = next.change_from(&before);
        let version = next.version;
        self.credentials.store(Arc::new(next));
        self.version.store(version, Ordering::Release);
        self.attempts.import([failures, datagram_failures, all_datagram_failures])?;
        Ok(change)
    }

    /// The stored grant that equals this one; if there is none, this one.
    pub(crate) fn share(&self, grant: Grant) -> Arc<Grant> {
        self.labels().share(grant)
    }
}

#[cfg(test)]
mod tests {
    use weir_engine::Nanos;
    use weir_wire::ProstMessage;

    use super::*;
    use crate::auth::jwt::Jwt;
    use crate::auth::{GrantRef, TokenOrigin, Verifier};
    use crate::base::config::{Right, ServiceConfig, TokenConfig};

    fn config(tokens: &[(&str, Option<&str>, &[&str])], services: &[(&str, &str)]) -> Config {
        let mut config = Config::default();
        config.auth.failures_per_source_per_second = 1;
        config.auth.failures_per_source_burst = 3;
        let tokens = tokens.iter().map(|(token, device, labels)| TokenConfig {
            token: (*token).to_owned(),
            device: device.map(str::to_owned),
            labels: labels.iter().map(ToString::to_string).collect(),
            ..TokenConfig::default()
        });
        config.auth.tokens = tokens.collect();
        let services = services.iter().map(|(token, name)| ServiceConfig {
            token: (*token).to_owned(),
            name: (*name).to_owned(),
            may: vec![Right::Subscribe, Right::Call],
        });
        config.auth.services = services.collect();
        config
    }

    fn start(config: &Config) -> Authenticator {
        let jwt = Jwt::new(config).unwrap();
        Authenticator::new(config, None, jwt, Verifier::none(), Arc::default())
    }

    fn moved(auth: &Authenticator, config: &Config) -> (Authenticator, CredentialsChange) {
        let bytes = auth.export().encode_to_vec();
        let other = start(config);
        let change = other.import(v1::Auth::decode(&*bytes).unwrap(), config).unwrap();
        (other, change)
    }

    fn number(auth: &Authenticator, token: &str) -> Option<u16> {
        auth.credentials.load().number(token)
    }

    #[test]
    fn tokens_keep_their_numbers_and_rights_under_the_same_configuration() {
        let first = config(&[("a", None, &[]), ("b", Some("van"), &["vip"])], &[("s", "game")]);
        let auth = start(&first);
        // After a reload, numbers are not those of a start.
        let second = config(
            &[("new", None, &["eu"]), ("b", Some("van"), &["vip"])],
            &[("s", "game"), ("t", "chat")],
        );
        let prepared = auth.prepare(&second).unwrap();
        auth.replace(prepared, &second);
        let (other, change) = moved(&auth, &second);
        assert_eq!(change, CredentialsChange { admits_less: false, grants: false });
        assert_eq!(other.version(), auth.version() + 1);
        for token in ["a", "new", "b", "s", "t"] {
            assert_eq!(number(&auth, token), number(&other, token), "{token}");
        }
        assert_ne!(number(&other, "new"), number(&start(&second), "new"));
        for place in 0..20 {
            assert_eq!(*auth.numbered(place), *other.numbered(place), "{place}");
            for device in ["van", "x", "game/1", "chat"] {
                let admits = |auth: &Authenticator, version| {
                    auth.admits(&GrantRef::Numbered(place), version, device)
                };
                for version in [1, 2] {
                    assert_eq!(admits(&auth, version), admits(&other, version), "{place} {device}");
                }
            }
        }
    }

    #[test]
    fn another_configuration_counts_like_a_reload() {
        let before = config(&[("a", None, &[]), ("b", Some("van"), &["vip"])], &[("s", "game")]);
        let auth = start(&before);
        let fewer = config(&[("a", None, &["eu"])], &[("s", "game"), ("t", "chat")]);
        let (other, change) = moved(&auth, &fewer);
        assert_eq!(change, CredentialsChange { admits_less: true, grants: true });
        let [a, b] = ["a", "b"].map(|token| number(&auth, token).unwrap());
        assert_eq!((number(&other, "a"), number(&other, "b")), (Some(a), None));
        assert!(!other.admits(&GrantRef::Numbered(b), u64::MAX, "van"));
        assert_ne!(number(&other, "t"), Some(b), "connections still carry the removed one");
        assert!(!other.numbered(b).covers(|_| true), "it has no rights");
    }

    #[test]
    fn a_source_that_failed_too_often_stays_refused() {
        let config = config(&[("a", None, &[])], &[]);
        let auth = start(&config);
        let origin = TokenOrigin::Connection(Some([192, 0, 2, 1].into()));
        for _ in 0..3 {
            let _failed = auth.attempts.begin(origin, false).ok();
        }
        let (other, _) = moved(&auth, &config);
        assert!(auth.attempts.begin(origin, false).is_err());
        assert!(other.attempts.begin(origin, false).is_err());
        let free = TokenOrigin::Connection(Some([192, 0, 2, 2].into()));
        assert!(other.attempts.begin(free, false).is_ok());
    }

    #[test]
    fn damaged_credentials_are_refused() {
        let config = config(&[("a", None, &["vip"]), ("b", Some("van"), &[])], &[("s", "game")]);
        let exported = start(&config).export();
        fn token(auth: &mut v1::Auth) -> &mut v1::ConfiguredToken {
            &mut auth.credentials.as_mut().unwrap().tokens[0]
        }
        let damages: &[fn(&mut v1::Auth)] = &[
            |auth| auth.credentials = None,
            |auth| auth.credentials.as_mut().unwrap().version = u64::MAX,
            |auth| token(auth).number = 1,
            |auth| token(auth).number = u32::from(OWN),
            |auth| token(auth).number = 1 << 16,
            |auth| token(auth).who = 3,
            |auth| token(auth).priority = 99,
            |auth| token(auth).grant = 99,
            |auth| {
                let tokens = &mut auth.credentials.as_mut().unwrap().tokens;
                tokens[0].number = tokens[1].number;
            },
            |auth| {
                let tokens = &mut auth.credentials.as_mut().unwrap().tokens;
                tokens[0].secret = tokens[1].secret.clone();
            },
            |auth| {
                let mut failures = auth.failures.clone().unwrap();
                failures.stripes.pop();
                auth.failures = Some(failures);
            },
        ];
        const OWN: u16 = crate::auth::OWN_GRANT;
        assert!(start(&config).import(exported.clone(), &config).is_ok());
        for (nth, damage) in damages.iter().enumerate() {
            let mut auth = exported.clone();
            damage(&mut auth);
            assert!(start(&config).import(auth, &config).is_err(), "damage {nth}");
        }
    }

    /// Measures the way of 10,000 tokens: run it with `--release -- --ignored --nocapture`.
    #[test]
    #[ignore = "it measures"]
    fn the_way_of_many_tokens() {
        let names: Vec<String> = (0..10_000).map(|number| format!("secret-{number:020}")).collect();
        let tokens: Vec<_> = names.iter().map(|name| (name.as_str(), None, &[][..])).collect();
        let config = config(&tokens, &[]);
        let auth = start(&config);
        for _ in 0..3 {
            let begin = Nanos::now();
            let bytes = auth.export().encode_to_vec();
            let auth = v1::Auth::decode(&*bytes).unwrap();
            let there = Nanos::now().since(begin);
            let other = start(&config);
            let begin = Nanos::now();
            other.import(auth, &config).unwrap();
            println!(
                "10,000 tokens: there and decoded {there:?}, import {:?}",
                Nanos::now().since(begin)
            );
        }
    }
}
