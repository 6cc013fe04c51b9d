//! What the configuration says of callers: its tokens, and the rule for callers without one. A
//! reload replaces all of it at once.

mod handover;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use weir_engine::Priority;

use super::grants::{Grant, SharedGrants};
use super::{NamedLabels, OWN_GRANT, Secrets, is_named};
use crate::base::config::{Config, ConfigError, TokenConfig};
use crate::base::model::AuthKind;

/// The tokens of a configuration, and what else it says of callers.
///
/// Shape: numbers by secret, and rows by number. A connection carries the number of the token that
/// admitted it, in the 16 bits that a shard keeps for the front. A token keeps its number as long as
/// it is configured, whatever else is said of it. Equal grants are stored once.
/// Limits: [`TOKENS_MAX`](crate::base::config::TOKENS_MAX). A reload gives no new token the number of a removed one, because
/// connections still carry it; the next reload may.
pub(crate) struct Credentials {
    /// Each reload has a greater one.
    pub(super) version: u64,
    numbers: Secrets<u16>,
    /// By number. [`ANONYMOUS`] and [`CERTIFICATE`] have none.
    rows: Vec<Option<Row>>,
    in_use: usize,
    /// Device ids with a token of their own.
    bound: HashSet<Box<str>>,
    /// Names of services, which no device may use.
    services: HashSet<Box<str>>,
    pub(super) anonymous: bool,
    pub(super) device_id_bytes_max: usize,
    /// The time limit of `Hello`, which is also the longest wait for a token.
    pub(super) deadline: Duration,
    pub(super) labels: Arc<NamedLabels>,
    /// Kinds of credentials whose ids are not looked up in the store.
    pub(super) unchecked_ids: Vec<AuthKind>,
    /// The grant of callers without a token.
    without_token: Arc<Grant>,
    /// No rights at all.
    nobody: Arc<Grant>,
}

/// The properties of a configured token.
pub(super) struct Row {
    pub(super) who: Who,
    pub(super) priority: Priority,
    pub(super) grant: Arc<Grant>,
    /// The version in which the token got this number.
    since: u64,
}

#[derive(PartialEq, Eq)]
pub(super) enum Who {
    AnyDevice,
    Device(Arc<str>),
    Service(Arc<str>),
}

/// What a reload changes for connections that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CredentialsChange {
    /// Whether credentials that were valid may admit a connection no more.
    pub(crate) admits_less: bool,
    /// Whether a token that stays has other rights.
    pub(crate) grants: bool,
}

impl Credentials {
    /// `before`: those that are in use.
    ///
    /// Errors: there are not enough numbers for the new tokens beside those in use.
    pub(super) fn new(config: &Config, before: Option<&Credentials>) -> Result<Self, ConfigError> {
        let version = before.map_or(1, |before| before.version + 1);
        let without_token = Arc::new(Grant::anonymous());
        let mut credentials = Credentials {
            version,
            numbers: Secrets::new(),
            rows: Vec::new(),
            in_use: 0,
            bound: config
                .auth
                .tokens
                .iter()
                .filter_map(|token| Some(token.device.as_deref()?.into()))
                .collect(),
            services: config
                .auth
                .services
                .iter()
                .map(|service| service.name.as_str().into())
                .collect(),
            anonymous: config.admits_anonymous(),
            device_id_bytes_max: config.limits.device_id_bytes_max,
            deadline: config.connection.hello_timeout,
            labels: Arc::new(NamedLabels::of(
                config,
                before.map(|before| Arc::clone(&before.labels.shared)),
            )),
            unchecked_ids: config.auth.unchecked_ids.clone(),
            nobody: Arc::new(Grant::anonymous().within(Vec::new())),
            without_token,
        };
        credentials.enter_all(config, before)?;
        Ok(credentials)
    }

    fn enter_all(
        &mut self,
        config: &Config,
        before: Option<&Credentials>,
    ) -> Result<(), ConfigError> {
        let mut known = HashMap::from([(Grant::anonymous(), Arc::clone(&self.without_token))]);
        let mut shared = |grant: Grant| {
            let known = known.entry(grant);
            Arc::clone(known.or_insert_with_key(|grant| Arc::new(grant.clone())))
        };
        let tokens = config.auth.tokens.iter().map(|token| {
            let grant = shared(Grant::of_device(&token.labels));
            (token.token.as_str(), Who::of(token), token.priority, grant)
        });
        let tokens: Vec<_> = tokens.collect();
        let services = config.auth.services.iter().map(|service| {
            let who = Who::Service(service.name.as_str().into());
            (service.token.as_str(), who, Priority::Normal, shared(Grant::of_service(&service.may)))
        });
        let all: Vec<_> = tokens.into_iter().chain(services).collect();
        let kept = |secret: &str| before.and_then(|before| before.number(secret));
        let added = all.iter().filter(|(secret, ..)| kept(secret).is_none()).count();
        let taken = before.map_or(0, |before| before.in_use);
        let room = usize::from(OWN_GRANT) - usize::from(FIRST) - taken;
        if added > room {
            return Err(ConfigError {
                key: "auth.tokens".to_owned(),
                value: format!("({added} new tokens and services)"),
                allowed: format!(
                    "at most {room} new ones in one reload, beside the {taken} that are in use: \
                     remove old ones in a reload before"
                ),
                depends_on: &[],
            });
        }
        let is_free = |number: &u16| before.is_none_or(|before| before.row(*number).is_none());
        let mut free = (FIRST..OWN_GRANT).filter(is_free);
        for (secret, who, priority, grant) in all {
            let kept = kept(secret).and_then(|number| Some((number, before?.row(number)?.since)));
            let next = || Some((free.next()?, self.version));
            let (number, since) = kept.or_else(next).expect("the numbers were counted");
            if usize::from(number) >= self.rows.len() {
                self.rows.resize_with(usize::from(number) + 1, || None);
            }
            self.rows[usize::from(number)] = Some(Row { who, priority, grant, since });
            self.numbers.insert(secret.as_bytes(), number);
            self.in_use += 1;
        }
        Ok(())
    }

    /// The number of a token.
    pub(super) fn number(&self, token: &str) -> Option<u16> {
        self.numbers.find(token.as_bytes()).copied()
    }

    /// The token with this number.
    fn row(&self, number: u16) -> Option<&Row> {
        self.rows.get(usize::from(number))?.as_ref()
    }

    /// The token that had this number in that version; `None` if it was removed since.
    pub(super) fn row_of(&self, number: u16, version: u64) -> Option<&Row> {
        self.row(number).filter(|row| row.since <= version)
    }

    /// The grant with the number that a connection carries.
    pub(super) fn grant(&self, number: u16) -> &Arc<Grant> {
        match number {
            ANONYMOUS | CERTIFICATE => &self.without_token,
            number => self.row(number).map_or(&self.nobody, |row| &row.grant),
        }
    }

    /// Whether the credentials with this number, found in that version, still admit the device.
    pub(super) fn admits(&self, number: u16, version: u64, device: &str) -> bool {
        match number {
            ANONYMOUS => self.anonymous && self.is_free(device),
            CERTIFICATE => !self.is_of_service(device),
            number => self.row_of(number, version).is_some_and(|row| match &row.who {
                Who::AnyDevice => self.is_free(device),
                Who::Device(bound) => **bound == *device,
                Who::Service(name) => is_named(device, name),
            }),
        }
    }

    /// Whether any caller may claim the id: it is neither bound to a token nor a service's.
    pub(super) fn is_free(&self, device: &str) -> bool {
        !self.bound.contains(device) && !self.is_of_service(device)
    }

    /// Whether the id is a service's name, or begins with one and a slash.
    pub(super) fn is_of_service(&self, device: &str) -> bool {
        let mut ends = device.match_indices('/').map(|(end, _)| end).chain([device.len()]);
        !self.services.is_empty() && ends.any(|end| self.services.contains(&device[..end]))
    }

    /// What changes for connections that are there.
    pub(super) fn change_from(&self, before: &Credentials) -> CredentialsChange {
        let rows = || {
            let numbered = (0..u16::MAX).zip(&before.rows);
            numbered.filter_map(|(number, row)| Some((row.as_ref()?, self.row(number))))
        };
        let is_less = |(old, new): (&Row, Option<&Row>)| new.is_none_or(|new| new.who != old.who);
        let admits_less = rows().any(is_less)
            || before.anonymous && !self.anonymous
            || !self.bound.is_subset(&before.bound)
            || !self.services.is_subset(&before.services);
        let grants = rows().any(|(old, new)| new.is_some_and(|new| new.grant != old.grant));
        CredentialsChange { admits_less, grants }
    }
}

impl Who {
    fn of(token: &TokenConfig) -> Who {
        token.device.as_deref().map_or(Who::AnyDevice, |device| Who::Device(device.into()))
    }
}

impl NamedLabels {
    /// `shared`: the grants that came at run time so far.
    pub(super) fn of(config: &Config, shared: Option<Arc<SharedGrants>>) -> NamedLabels {
        let actors =
            config.topic_classes.iter().flat_map(|class| [&class.publish, &class.subscribe]);
        let named = actors.flatten().filter_map(|actor| actor.label().map(Box::from));
        NamedLabels { named: named.collect(), shared: shared.unwrap_or_default() }
    }
}

/// The number of callers without credentials.
pub(super) const ANONYMOUS: u16 = 0;
/// The number of devices that their certificates name, without a token.
pub(super) const CERTIFICATE: u16 = 1;
/// The first number of a token.
const FIRST: u16 = 2;
const _: () = assert!(crate::base::config::TOKENS_MAX == (OWN_GRANT - FIRST) as usize);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::config::{Right, ServiceConfig};

    fn config(tokens: &[(&str, Option<&str>)], services: &[(&str, &str)]) -> Config {
        let mut config = Config::default();
        config.auth.tokens = tokens
            .iter()
            .map(|(token, device)| TokenConfig {
                token: (*token).to_owned(),
                device: device.map(str::to_owned),
                ..TokenConfig::default()
            })
            .collect();
        config.auth.services = services
            .iter()
            .map(|(token, name)| ServiceConfig {
                token: (*token).to_owned(),
                name: (*name).to_owned(),
                may: vec![Right::Subscribe],
            })
            .collect();
        config
    }

    #[test]
    fn a_number_stays_with_its_token_and_rests_for_a_reload() {
        let first = Credentials::new(&config(&[("a", None), ("b", None)], &[]), None).unwrap();
        let [a, b] = ["a", "b"].map(|token| first.number(token).unwrap());
        let next = Credentials::new(&config(&[("b", None), ("c", None)], &[]), Some(&first));
        let next = next.unwrap();
        assert_eq!((next.number("a"), next.number("b")), (None, Some(b)));
        let c = next.number("c").unwrap();
        assert!(c != a && c != b);
        assert!(next.row_of(a, 1).is_none() && !next.admits(a, 1, "x"));
        let last =
            Credentials::new(&config(&[("b", None), ("d", None)], &[]), Some(&next)).unwrap();
        assert_eq!(last.number("d"), Some(a), "the numbers do not run out");
        assert!(last.row_of(a, 2).is_none(), "what was found before the reload is not this token");
        assert!(last.row_of(a, 3).is_some() && last.row_of(b, 1).is_some());
    }

    #[test]
    fn who_is_admitted_after_a_change() {
        let before = config(&[("any", None), ("van", Some("van"))], &[("s", "game")]);
        let before = Credentials::new(&before, None).unwrap();
        let [any, van, game] = ["any", "van", "s"].map(|token| before.number(token).unwrap());
        let check = |after: &Config, expected: [bool; 6], admits_less| {
            let after = Credentials::new(after, Some(&before)).unwrap();
            let asked = [
                (ANONYMOUS, "x"),
                (CERTIFICATE, "x"),
                (any, "x"),
                (any, "y"),
                (van, "van"),
                (game, "game/1"),
            ];
            assert_eq!(asked.map(|(number, device)| after.admits(number, 1, device)), expected);
            let change = CredentialsChange { admits_less, grants: false };
            assert_eq!(after.change_from(&before), change);
        };
        let both = [("any", None), ("van", Some("van"))];
        check(&config(&both, &[("s", "game")]), [true; 6], false);
        let bound = [both[0], both[1], ("new", Some("x"))];
        check(&config(&bound, &[("s", "game")]), [false, true, false, true, true, true], true);
        let other = [both[0], ("van", Some("car"))];
        check(&config(&other, &[("s", "game")]), [true, true, true, true, false, true], true);
        check(&config(&both, &[("s", "y")]), [true, true, true, false, true, false], true);
        check(&config(&both[1..], &[("s", "game")]), [true, true, false, false, true, true], true);
        let mut closed = config(&both, &[("s", "game")]);
        closed.auth.anonymous = Some(false);
        check(&closed, [false, true, true, true, true, true], true);
    }

    #[test]
    fn more_new_tokens_than_numbers_are_refused_as_a_whole() {
        let names: Vec<String> = (0..TOKENS).map(|number| number.to_string()).collect();
        let tokens: Vec<(&str, Option<&str>)> = names.iter().map(|name| (&**name, None)).collect();
        const TOKENS: usize = 40_000;
        let full = Credentials::new(&config(&tokens, &[]), None).unwrap();
        let others: Vec<String> = names.iter().map(|name| format!("new-{name}")).collect();
        let others: Vec<(&str, Option<&str>)> = others.iter().map(|name| (&**name, None)).collect();
        let error = Credentials::new(&config(&others, &[]), Some(&full)).err().unwrap();
        assert_eq!(error.key, "auth.tokens");
        assert!(error.to_string().contains("at most 25533 new ones"), "{error}");
        assert!(Credentials::new(&config(&others[..25_533], &[]), Some(&full)).is_ok());
    }
}
