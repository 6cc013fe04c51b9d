//! Tests of the devices that configured tokens admit.

use super::*;
use crate::base::config::{Right, ServiceConfig, TokenConfig};

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
    let same =
        TokenConfig { labels: vec!["eu".to_owned(), "vip".to_owned()], ..token_of("same", None) };
    config.auth.tokens = vec![token_of("any", None), token_of("one", Some("d1")), vip, same];
    config.auth.services = vec![ServiceConfig {
        token: "back".to_owned(),
        name: "backend".to_owned(),
        may: vec![Right::Subscribe],
    }];
    let jwt = Jwt::new(&config).unwrap();
    Authenticator::new(&config, None, jwt, Verifier::none(), Arc::default())
}

impl Authenticator {
    fn authenticate(
        &self,
        named: Option<&str>,
        device: &str,
        token: &str,
    ) -> Result<Admission, CloseReason> {
        let bearer = self.look(token, 0).expect("nobody is there to be asked")?;
        let claim = self.admit(named, device, &bearer)?;
        Ok(claim.settled(self).expect("nobody is there to be asked"))
    }
}

/// The result, which must come without a wait.
pub(super) fn ready<T>(future: impl Future<Output = T>) -> T {
    use std::task::{Context, Poll, Waker};
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("somebody is asked"),
    }
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
        // The id has a token of its own, and a certificate counts as much.
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
    assert_eq!((unlabelled.grant, unlabelled.is_service), (GrantRef::Numbered(CERTIFICATE), false));
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
        let auth = &authenticator(anonymous);
        let bearer = auth.look(token, 0).expect("nobody is there to be asked").ok();
        let identify = |bearer| async move { auth.identify(named, &bearer).await.ok() };
        let requester = bearer.and_then(|bearer| ready(identify(bearer)));
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
    let credentials = auth.credentials.load();
    let grant = |admission: &Admission| match admission.grant {
        GrantRef::Numbered(number) => credentials.grant(number),
        GrantRef::Own(_) => panic!("tokens of the configuration have numbers"),
    };
    assert_ne!(vip.grant, same.grant, "each token has its own number");
    assert!(Arc::ptr_eq(grant(&vip), grant(&same)));
    assert!(Arc::ptr_eq(grant(&admitted("a", "any")), grant(&admitted("a", ""))));
    let service = admitted("", "back");
    assert_eq!((service.is_service, vip.is_service), (true, false));
    assert_eq!(*auth.grant(&service.grant), Grant::of_service(&[Right::Subscribe]));
}
