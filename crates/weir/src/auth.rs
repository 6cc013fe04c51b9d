//! Who may connect, as which device, and with which rights: static tokens, or nobody's word on loopback.

mod grants;
mod secrets;

use std::collections::HashSet;

use weir_engine::Priority;
use weir_wire::CloseReason;

use crate::config::{Config, TokenConfig};
pub(crate) use grants::{Act, Grant};
pub(crate) use secrets::Secrets;

/// Static tokens and the rule for those who have none.
///
/// Shape: tokens by their secret; what they permit stands once in a table, however many tokens permit the same.
/// Limits: 65,536 different grants, which the number of tokens that can be configured keeps within.
/// Cost: one look-up, whatever the number of tokens, and none of its time tells what a wrong token has in common with
/// a right one.
pub(crate) struct Authenticator {
    holders: Secrets<Holder>,
    /// By number; the first one is that of devices without a token.
    grants: Vec<Grant>,
    /// Device ids that a token is bound to.
    bound: HashSet<Box<str>>,
    /// Names of services, which no device may take.
    services: HashSet<Box<str>>,
    anonymous: bool,
    device_id_bytes_max: usize,
}

/// What a token says of who shows it.
struct Holder {
    who: Who,
    priority: Priority,
    grant: u16,
}

enum Who {
    AnyDevice,
    Device(Box<str>),
    Service(Box<str>),
}

/// A connection that is admitted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Admission {
    /// Its device id.
    pub(crate) device: String,
    /// Number of its grant.
    pub(crate) grant: u16,
    pub(crate) priority: Priority,
    /// A backend's: limits that are meant for devices do not hold for it.
    pub(crate) is_service: bool,
}

/// Whom a request is from: it claims no device id.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Requester {
    /// The one device that its token or certificate stands for, or the service's name.
    pub(crate) device: Option<String>,
    /// Number of its grant.
    pub(crate) grant: u16,
    pub(crate) is_service: bool,
}

impl Authenticator {
    pub(crate) fn new(config: &Config) -> Self {
        let mut grants = vec![Grant::anonymous()];
        let mut known = std::collections::HashMap::from([(Grant::anonymous(), 0)]);
        let mut number = |grant: Grant| {
            *known.entry(grant).or_insert_with_key(|grant| {
                grants.push(grant.clone());
                u16::try_from(grants.len() - 1).expect("fewer tokens can be configured")
            })
        };
        let mut holders = Secrets::new();
        let (tokens, services) = (&config.auth.tokens, &config.auth.services);
        for token in tokens {
            let grant = number(Grant::of_device(&token.labels));
            let holder = Holder { who: Who::of(token), priority: token.priority, grant };
            holders.insert(token.token.as_bytes(), holder);
        }
        for service in services {
            let grant = number(Grant::of_service(&service.may));
            let who = Who::Service(service.name.as_str().into());
            let holder = Holder { who, priority: Priority::Normal, grant };
            holders.insert(service.token.as_bytes(), holder);
        }
        Self {
            holders,
            grants,
            bound: tokens
                .iter()
                .filter_map(|token| token.device.as_deref().map(Box::from))
                .collect(),
            services: services.iter().map(|service| service.name.as_str().into()).collect(),
            anonymous: config.admits_anonymous(),
            device_id_bytes_max: config.limits.device_id_bytes_max,
        }
    }

    /// The device that may connect with this claim, and what it may do.
    ///
    /// A token that is bound to a device admits only that one, and names it for a device that does not say its id. With
    /// any other token, or without one where anonymous mode is on, every id may be claimed but those that a token is
    /// bound to; and one has to be said. A wrong token is refused even there. A service goes by its name, or by its
    /// name, a slash and what it likes; nobody else may.
    ///
    /// `named`: the device that the connection's certificate names. No other may be claimed, and no token is needed;
    /// with one the token says what the device may do, and has to admit it.
    pub(crate) fn authenticate(
        &self,
        named: Option<&str>,
        device: &str,
        token: &str,
    ) -> Result<Admission, CloseReason> {
        let device = match named {
            Some(named) if device.is_empty() || device == named => named,
            Some(_) => return Err(CloseReason::Unauthorized),
            None => device,
        };
        if device.len() > self.device_id_bytes_max || device.contains(char::is_control) {
            return Err(CloseReason::Malformed);
        }
        if token.is_empty() {
            let device = match named {
                Some(named) if !self.is_of_service(named) => named.to_owned(),
                None if self.anonymous => self.claimed(device)?,
                Some(_) | None => return Err(CloseReason::Unauthorized),
            };
            let priority = Priority::Normal;
            return Ok(Admission { device, grant: 0, priority, is_service: false });
        }
        let holder = self.holders.find(token.as_bytes()).ok_or(CloseReason::Unauthorized)?;
        let (device, is_service) = match &holder.who {
            Who::AnyDevice => (self.claimed(device)?, false),
            Who::Device(bound) if device.is_empty() || *device == **bound => {
                (bound.as_ref().to_owned(), false)
            }
            Who::Service(name) if device.is_empty() => (name.as_ref().to_owned(), true),
            Who::Service(name) if is_named(device, name) => (device.to_owned(), true),
            Who::Device(_) | Who::Service(_) => return Err(CloseReason::Unauthorized),
        };
        Ok(Admission { device, grant: holder.grant, priority: holder.priority, is_service })
    }

    /// Whom a request is from, by the rules of [`Authenticator::authenticate`]; `None`: it may not be.
    ///
    /// A token for any device names none, and neither does anonymous mode.
    pub(crate) fn identify(&self, named: Option<&str>, token: &str) -> Option<Requester> {
        if named.is_none() {
            let nobody = |grant| Requester { device: None, grant, is_service: false };
            if token.is_empty() {
                return self.anonymous.then(|| nobody(0));
            }
            let holder = self.holders.find(token.as_bytes())?;
            if matches!(holder.who, Who::AnyDevice) {
                return Some(nobody(holder.grant));
            }
        }
        let Admission { device, grant, is_service, .. } =
            self.authenticate(named, "", token).ok()?;
        Some(Requester { device: Some(device), grant, is_service })
    }

    /// Whether somebody has this token.
    pub(crate) fn knows(&self, token: &str) -> bool {
        self.holders.find(token.as_bytes()).is_some()
    }

    /// What a connection may do, by the number that it carries.
    pub(crate) fn grant(&self, number: u16) -> &Grant {
        // Numbers come from here.
        self.grants.get(usize::from(number)).unwrap_or(&self.grants[0])
    }

    /// An id that is free to be claimed.
    fn claimed(&self, device: &str) -> Result<String, CloseReason> {
        if device.is_empty() {
            return Err(CloseReason::Malformed);
        }
        if self.bound.contains(device) {
            return Err(CloseReason::Unauthorized);
        }
        if self.is_of_service(device) {
            return Err(CloseReason::Unauthorized);
        }
        Ok(device.to_owned())
    }

    /// Whether it is a service's name, or begins with one and a slash.
    fn is_of_service(&self, device: &str) -> bool {
        let mut ends = device.match_indices('/').map(|(end, _)| end).chain([device.len()]);
        !self.services.is_empty() && ends.any(|end| self.services.contains(&device[..end]))
    }
}

impl Who {
    fn of(token: &TokenConfig) -> Who {
        token.device.as_deref().map_or(Who::AnyDevice, |device| Who::Device(device.into()))
    }
}

/// Whether an id is a service's name, or that and a slash and more.
fn is_named(id: &str, name: &str) -> bool {
    id.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Right, ServiceConfig};

    fn authenticator(anonymous: bool) -> Authenticator {
        let token_of = |token: &str, device: Option<&str>| TokenConfig {
            token: token.to_owned(),
            device: device.map(str::to_owned),
            ..TokenConfig::default()
        };
        let mut config = Config::default();
        config.auth.anonymous = Some(anonymous);
        let vip = TokenConfig {
            priority: Priority::High,
            labels: vec!["vip".to_owned(), "eu".to_owned()],
            ..token_of("vip", None)
        };
        let same = TokenConfig {
            labels: vec!["eu".to_owned(), "vip".to_owned()],
            ..token_of("same", None)
        };
        config.auth.tokens = vec![token_of("any", None), token_of("one", Some("d1")), vip, same];
        config.auth.services = vec![ServiceConfig {
            token: "back".to_owned(),
            name: "backend".to_owned(),
            may: vec![Right::Subscribe],
        }];
        Authenticator::new(&config)
    }

    fn check(anonymous: bool, device: &str, token: &str, expected: Result<&str, CloseReason>) {
        let answer = authenticator(anonymous).authenticate(None, device, token);
        let answer = answer.map(|admission| admission.device);
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
            check(anonymous, "d1", "any", Err(Unauthorized));
            check(anonymous, "d1", "vip", Err(Unauthorized));
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

    #[test]
    fn a_service_goes_by_its_name_and_nobody_else_does() {
        use CloseReason::Unauthorized;
        check(false, "", "back", Ok("backend"));
        check(false, "backend", "back", Ok("backend"));
        check(false, "backend/2", "back", Ok("backend/2"));
        for other in ["backend2", "back", "d1"] {
            check(true, other, "back", Err(Unauthorized));
        }
        for taken in ["backend", "backend/2", "backend/2/3"] {
            check(true, taken, "", Err(Unauthorized));
            check(true, taken, "any", Err(Unauthorized));
        }
        for free in ["backend2", "a/backend"] {
            check(true, free, "", Ok(free));
            check(true, free, "any", Ok(free));
        }
    }

    #[test]
    fn a_certificate_names_the_device_and_a_token_has_to_agree() {
        const REFUSED: Result<&str, CloseReason> = Err(CloseReason::Unauthorized);
        for (named, device, token, expected) in [
            ("d2", "", "", Ok("d2")),
            ("d2", "d2", "", Ok("d2")),
            ("d2", "d3", "", REFUSED),
            // A token is bound to it, and a certificate is as good.
            ("d1", "", "", Ok("d1")),
            ("d1", "", "one", Ok("d1")),
            ("d2", "", "one", REFUSED),
            ("d2", "d1", "one", REFUSED),
            ("d1", "", "any", REFUSED),
            ("d2", "", "any", Ok("d2")),
            ("d2", "", "wrong", REFUSED),
            ("backend", "", "", REFUSED),
            ("backend/2", "", "any", REFUSED),
            ("backend", "", "back", Ok("backend")),
            ("d2", "", "back", REFUSED),
        ] {
            for anonymous in [false, true] {
                let answer = authenticator(anonymous).authenticate(Some(named), device, token);
                let answer = answer.map(|admission| admission.device);
                assert_eq!(
                    answer.as_deref(),
                    expected.as_ref().map(|id| *id),
                    "{named:?} claims {device:?} with {token:?}"
                );
            }
        }
        let auth = authenticator(false);
        let labelled = auth.authenticate(Some("d2"), "", "vip").unwrap();
        assert_eq!(labelled.priority, Priority::High);
        let unlabelled = auth.authenticate(Some("d2"), "", "").unwrap();
        assert_eq!((unlabelled.grant, unlabelled.is_service), (0, false));
    }

    #[test]
    fn a_request_is_from_whom_its_token_stands_for() {
        for (anonymous, named, token, expected) in [
            (false, None, "", None),
            (true, None, "", Some((None, false))),
            (true, None, "wrong", None),
            (false, None, "any", Some((None, false))),
            (false, None, "one", Some((Some("d1"), false))),
            (false, None, "back", Some((Some("backend"), true))),
            (false, Some("d2"), "", Some((Some("d2"), false))),
            (false, Some("d2"), "any", Some((Some("d2"), false))),
            (false, Some("d2"), "one", None),
            (true, Some("d2"), "wrong", None),
        ] {
            let requester = authenticator(anonymous).identify(named, token);
            let given = requester.as_ref().map(|who| (who.device.as_deref(), who.is_service));
            assert_eq!(given, expected, "{named:?} with {token:?}");
        }
    }

    #[test]
    fn what_is_permitted_stands_once() {
        let auth = authenticator(true);
        let admitted = |device: &str, token: &str| auth.authenticate(None, device, token).unwrap();
        let (vip, same) = (admitted("a", "vip"), admitted("b", "same"));
        assert_eq!((vip.priority, same.priority), (Priority::High, Priority::Normal));
        assert_eq!(vip.grant, same.grant);
        assert_eq!(admitted("a", "any").grant, admitted("a", "").grant);
        let service = admitted("", "back");
        assert_eq!((service.is_service, vip.is_service), (true, false));
        assert_eq!(auth.grants.len(), 3);
        assert_eq!(*auth.grant(service.grant), Grant::of_service(&[Right::Subscribe]));
    }
}
