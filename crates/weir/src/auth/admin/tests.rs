//! Tests of callers and sessions.

use super::sessions::{AGE_MAX, IDLE_MAX, SESSIONS_MAX};
use super::*;
use crate::base::config::AdminTokenConfig;
use crate::base::token_hash::token_hash;

fn token(name: &str, secret: &str, may: &[AdminScope]) -> AdminTokenConfig {
    AdminTokenConfig { name: name.to_owned(), hash: token_hash(secret), may: may.to_vec() }
}

fn config(token: &str, tokens: &[AdminTokenConfig]) -> AdminConfig {
    AdminConfig { token: token.to_owned(), tokens: tokens.to_vec(), ..AdminConfig::default() }
}

fn caller(access: &AdminAccess, token: &str) -> Arc<Caller> {
    access.caller(token).expect("the token is known")
}

/// Signs in, and returns the id of the session.
fn open(access: &AdminAccess, token: &str) -> String {
    match access.sign_in(token).unwrap() {
        SignIn::Session { id, .. } => id,
        SignIn::Needless | SignIn::Service(_) | SignIn::WrongToken => panic!("no session"),
    }
}

#[test]
fn a_token_opens_its_scopes_and_its_hash_opens_nothing() {
    use AdminScope::{Operate, Read};
    let service = ServiceConfig {
        token: "mouth".to_owned(),
        name: "chat".to_owned(),
        may: vec![Right::Publish],
    };
    let tokens = [token("ci", "seldom", &[Read, Operate])];
    let access = AdminAccess::new(&config("all", &tokens), &[service]);
    assert_eq!(caller(&access, "all").scopes(), AdminScope::ALL);
    assert!(caller(&access, "all").is_admin());
    let ci = caller(&access, "seldom");
    assert_eq!((ci.name(), ci.scopes(), ci.is_service()), ("ci", &[Read, Operate][..], false));
    let chat = caller(&access, "mouth");
    assert_eq!((chat.name(), chat.scopes(), chat.is_service()), ("chat", &[][..], true));
    assert!(chat.has_right(Right::Publish) && !chat.has_right(Right::Events));
    for wrong in ["", "al", "alll", &token_hash("seldom"), &token_hash("seldom")[7..]] {
        assert!(access.caller(wrong).is_none(), "{wrong}");
        assert!(matches!(access.sign_in(wrong).unwrap(), SignIn::WrongToken), "{wrong}");
    }
    assert!(matches!(access.sign_in("mouth").unwrap(), SignIn::Service(_)));
}

#[test]
fn named_tokens_alone_are_enough_and_without_any_all_is_open() {
    let tokens = [token("ci", "seldom", &[AdminScope::Read])];
    assert!(AdminAccess::new(&config("", &tokens), &[]).needs_token());
    let open = AdminAccess::new(&config("", &[]), &[]);
    assert!(!open.needs_token());
    assert!(matches!(open.sign_in("").unwrap(), SignIn::Needless));
}

#[test]
fn a_session_is_known_by_its_id_alone_and_ends_when_told() {
    let access = AdminAccess::new(&config("all", &[]), &[]);
    let (one, other) = (open(&access, "all"), open(&access, "all"));
    assert_ne!(one, other);
    let session = access.session(&one).expect("it is open");
    assert!(access.session(&digest_of(&one).map(char::from).iter().collect::<String>()).is_none());
    assert!(access.session("all").is_none() && access.session("").is_none());
    access.sign_out(&session);
    assert!(access.session(&one).is_none() && access.session(&other).is_some());
    assert_eq!(access.session_count(), 1);
}

#[tokio::test]
async fn a_removed_or_changed_token_ends_its_sessions_and_streams_alone() {
    use AdminScope::{Publish, Read};
    let [kept, changed] = [token("kept", "k", &[Read]), token("changed", "c", &[Read])];
    let gone = token("gone", "g", &[Read]);
    let access = AdminAccess::new(&config("all", &[kept.clone(), changed, gone]), &[]);
    let ids = ["all", "k", "c", "g"].map(|token| open(&access, token));
    let (of_gone, of_kept) = (caller(&access, "g"), caller(&access, "k"));
    let streams = [of_gone.lease(), access.session(&ids[3]).unwrap().lease()];
    let (kept_streams, changed) = (
        [of_kept.lease(), access.session(&ids[1]).unwrap().lease()],
        token("changed", "c", &[Read, Publish]),
    );
    assert_eq!(access.replace(&config("all", &[changed, kept]), &[]), 2);
    let known = ids.each_ref().map(|id| access.session(id).is_some());
    assert_eq!(known, [true, true, false, false]);
    assert!(access.caller("g").is_none() && access.caller("c").is_some());
    for stream in streams {
        stream.end().await;
    }
    for stream in kept_streams {
        let over = tokio::time::timeout(Duration::from_millis(20), stream.end()).await;
        assert!(over.is_err(), "it goes on");
    }
    // A request that had begun signs nobody in.
    assert!(access.sessions.open("late", &of_gone, now()).is_none());
    assert_eq!(access.replace(&config("", &[]), &[]), 2);
    assert!(!access.needs_token() && access.session(&ids[0]).is_none());
    let of_anyone = access.lease_of_anyone();
    access.replace(&config("all", &[]), &[]);
    of_anyone.end().await;
}

#[test]
fn sessions_end_with_their_time() {
    let access = AdminAccess::new(&config("all", &[]), &[]);
    let (sessions, admin, at) = (&access.sessions, caller(&access, "all"), Duration::from_secs);
    let hour = IDLE_MAX.as_secs();
    let start = now().as_secs() + 1;
    sessions.open("idle", &admin, at(start)).unwrap();
    sessions.open("used", &admin, at(start)).unwrap();
    let watching = sessions.open("watched", &admin, at(start)).unwrap().lease();
    for hours in 1..=12 {
        assert!(sessions.find("used", at(start + hours * (hour - 1))).is_some(), "{hours}");
    }
    assert!(sessions.find("idle", at(start + hour)).is_none());
    assert!(sessions.find("watched", at(start + 11 * hour)).is_some());
    let end = at(start) + AGE_MAX;
    let second = Duration::from_secs(1);
    let found = |now| ["used", "watched"].map(|id| sessions.find(id, now).is_some());
    assert_eq!((found(end - second), found(end)), ([true; 2], [false; 2]));
    drop(watching);
    assert_eq!(sessions.count(end), 0);
}

#[test]
fn one_session_too_many_ends_one_of_the_token_with_the_most() {
    let tokens = [token("ci", "c", &[AdminScope::Read])];
    let access = AdminAccess::new(&config("all", &tokens), &[]);
    let (sessions, admin, ci) = (&access.sessions, caller(&access, "all"), caller(&access, "c"));
    let at = |ms| now() + Duration::from_millis(ms);
    sessions.open("admin", &admin, at(0)).unwrap();
    for number in 0..SESSIONS_MAX as u64 + 10 {
        sessions.open(&format!("ci-{number}"), &ci, at(number)).unwrap();
    }
    assert_eq!(sessions.count(at(0)), SESSIONS_MAX);
    assert!(sessions.find("admin", at(100)).is_some(), "the operator stays signed in");
    assert!(sessions.find("ci-0", at(100)).is_none() && sessions.find("ci-73", at(100)).is_some());
}

#[test]
fn failures_are_limited_by_source() {
    let access = AdminAccess::new(&config("all", &[]), &[]);
    let [one, other] = [IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2])];
    for _ in 0..1_000 {
        access.begin_attempt(one).expect("none has failed");
        access.give_back_attempt(one);
    }
    let failed = (0..100).take_while(|_| access.begin_attempt(one).is_ok()).count();
    assert_eq!(failed, FAILURES_AT_ONCE as usize);
    let wait = access.begin_attempt(one).unwrap_err();
    assert!(wait <= Duration::from_secs(60 / u64::from(FAILURES_PER_MINUTE)), "{wait:?}");
    assert!(access.begin_attempt(other).is_ok());
    access.sweep();
    assert!(access.begin_attempt(one).is_err(), "a sweep forgives nothing");
}
