//! Tests of issuers against a real server.

mod site;

use std::time::Duration;

use jsonwebtoken::Algorithm;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::*;
use crate::auth::jwt::{Jwt, fetch_keys};
use crate::auth::{Authenticator, NoBearer, TokenOrigin, Verifier};
use crate::backends::Backends;
use crate::base::config::{Config, UpstreamConfig};
use crate::observe::counters::Counters;
use site::{Answer, IssuerKey, Site, set};

/// A gateway's authenticator, whose issuer has a site.
struct Stage {
    auth: Arc<Authenticator>,
    backends: Arc<Backends>,
    troubles: watch::Receiver<Option<Vec<String>>>,
    task: AbortHandle,
}

const ISSUER: &str = "https://login.example";

fn config(site: &Site, change: impl FnOnce(&mut JwtIssuerConfig)) -> Config {
    let upstream = UpstreamConfig {
        name: "login".to_owned(),
        addresses: vec![site.addr.to_string()],
        ..UpstreamConfig::default()
    };
    let mut config = Config { upstreams: vec![upstream], ..Config::default() };
    let mut issuer = JwtIssuerConfig {
        issuer: ISSUER.to_owned(),
        upstream: "login".to_owned(),
        path: "/keys?of=weir".to_owned(),
        ..JwtIssuerConfig::default()
    };
    change(&mut issuer);
    config.auth.jwt.issuers = vec![issuer];
    config
}

impl Stage {
    fn start(config: &Config) -> Stage {
        let backends = Arc::new(Backends::new(config).unwrap());
        let jwt = Jwt::new(config).unwrap();
        let counters = Arc::<Counters>::default();
        let verifier = Verifier::new(1);
        let auth = Authenticator::new(config, None, Arc::clone(&jwt), verifier, counters);
        let (told, mut troubles) = watch::channel(None);
        troubles.mark_unchanged();
        let troubled = move |troubles| {
            told.send_replace(troubles);
        };
        let fetching = fetch_keys(jwt, Arc::clone(&backends), troubled);
        let task = tokio::spawn(fetching).abort_handle();
        Stage { auth: Arc::new(auth), backends, troubles, task }
    }

    /// The device that a token is of.
    async fn ask(&self, token: &str) -> Result<(), NoBearer> {
        let found = self.auth.find(token, TokenOrigin::Settled, 0);
        timeout(PATIENCE, found).await.expect("it ends").map(|_| ())
    }

    /// Waits until the issuer's trouble contains this text, or until there is none.
    async fn troubled(&mut self, text: Option<&str>) {
        let is_so = |troubles: &Option<Vec<String>>| match (troubles.as_deref(), text) {
            (Some([trouble]), Some(text)) => trouble.contains(text),
            (Some([]), None) => true,
            _ => false,
        };
        let waited = timeout(PATIENCE, self.troubles.wait_for(is_so)).await;
        waited.unwrap_or_else(|_| panic!("no {text:?}")).unwrap();
    }

    fn issuer(&self) -> Arc<Issuer> {
        Arc::clone(&self.auth.jwt().issuers().list()[0])
    }

    /// The fetches that have ended so.
    fn fetches(&self, outcome: FetchOutcome) -> u64 {
        self.issuer().status().fetches[outcome as usize].1
    }

    fn reload(&self, config: &Config) {
        self.backends.replace(self.backends.prepare(config).unwrap());
        let next = self.auth.prepare(config).unwrap();
        self.auth.replace(next, config);
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
async fn keys_of_each_algorithm_verify_their_issuers_tokens() {
    let keys = [("e", Algorithm::ES256), ("o", Algorithm::EdDSA), ("r", Algorithm::RS256)]
        .map(|(kid, algorithm)| IssuerKey::new(kid, algorithm));
    let [ec, ed, rsa] = &keys;
    let site = Site::start(Answer::keys(&[ec, ed, rsa])).await;
    let stage = Stage::start(&config(&site, |_| {}));
    for key in &keys {
        // The first token waits for the first fetch.
        assert_eq!(stage.ask(&key.token(ISSUER)).await, Ok(()));
        assert_eq!(stage.ask(&key.token_with(None, ISSUER)).await, Ok(()));
    }
    let unknown = Err(NoBearer::Unknown);
    let other = IssuerKey::new("e", Algorithm::ES256);
    assert_eq!(stage.ask(&other.token_with(Some("e"), ISSUER)).await, unknown);
    assert_eq!(stage.ask(&other.token_with(None, ISSUER)).await, unknown);
    for iss in ["https://other.example", "", "https://login.example/"] {
        assert_eq!(stage.ask(&ec.token(iss)).await, unknown, "{iss}");
    }
    // A secret that everybody knows.
    let header = jsonwebtoken::Header::new(Algorithm::HS256);
    let claims = json!({ "sub": "d", "exp": 4_102_444_800_u64, "iss": ISSUER });
    let public = jsonwebtoken::EncodingKey::from_secret(ec.public().to_string().as_bytes());
    let confused = jsonwebtoken::encode(&header, &claims, &public).unwrap();
    assert_eq!(stage.ask(&confused).await, unknown);
    let status = stage.issuer().status();
    assert_eq!((status.keys, status.unknown_keys, site.asked()), (3, 0, 1));
    assert!(status.age.is_some());
}

#[tokio::test]
async fn a_new_key_is_fetched_for_its_first_token_and_an_old_one_ends() {
    let (old, new) = (IssuerKey::new("1", Algorithm::ES256), IssuerKey::new("2", Algorithm::ES256));
    let site = Site::start(Answer::keys(&[&old])).await;
    let stage = Stage::start(&config(&site, |issuer| issuer.fetch_interval = Duration::ZERO));
    let (of_old, of_new) = (old.token(ISSUER), new.token(ISSUER));
    assert_eq!(stage.ask(&of_old).await, Ok(()));
    assert_eq!(stage.ask(&of_new).await, Err(NoBearer::Unknown));
    assert_eq!(site.asked(), 2);
    site.say(Answer::keys(&[&old, &new]));
    assert_eq!(stage.ask(&of_new).await, Ok(()));
    assert_eq!(stage.ask(&of_old).await, Ok(()));
    assert_eq!(site.asked(), 3);
    // Its own tokens are forgotten too, although they were verified.
    site.say(Answer::keys(&[&new]));
    assert_eq!(stage.ask(&new.token_with(Some("3"), ISSUER)).await, Err(NoBearer::Unknown));
    assert_eq!(stage.ask(&of_old).await, Err(NoBearer::Unknown));
    assert_eq!(stage.ask(&of_new).await, Ok(()));
}

#[tokio::test]
async fn a_flood_of_unknown_keys_causes_one_fetch() {
    let key = IssuerKey::new("1", Algorithm::EdDSA);
    let site = Site::start(Answer::keys(&[&key])).await;
    let stage = Stage::start(&config(&site, |issuer| {
        issuer.fetch_interval = Duration::from_secs(600);
    }));
    assert_eq!(stage.ask(&key.token(ISSUER)).await, Ok(()));
    let forged: Vec<String> =
        (0..100).map(|kid| key.token_with(Some(&format!("no-{kid}")), ISSUER)).collect();
    let asked = forged.iter().map(|token| stage.ask(token));
    let mut outcomes = Vec::new();
    for asked in asked {
        outcomes.push(asked.await);
    }
    let refused = outcomes.iter().filter(|outcome| **outcome == Err(NoBearer::Unknown)).count();
    let limited = |outcome: &&Result<(), NoBearer>| matches!(outcome, Err(NoBearer::Limited(after)) if *after <= Duration::from_secs(600));
    let limited = outcomes.iter().filter(limited).count();
    assert_eq!((refused, limited, site.asked()), (1, 99, 2), "{outcomes:?}");
    assert_eq!(stage.issuer().status().unknown_keys, 100);
    assert_eq!(stage.ask(&key.token_with(None, ISSUER)).await, Ok(()));
}

#[test]
fn tokens_that_come_together_share_a_fetch() {
    let (mut state, second) = (State::default(), Duration::from_secs(1));
    let at = |seconds: u64| Nanos(seconds * 1_000_000_000);
    (state.begun, state.ended) = (1, 1);
    assert_eq!(state.want(at(5), second), Ok(2));
    assert_eq!(state.want(at(5), second), Ok(2), "it has not begun");
    (state.begun, state.is_wanted) = (2, false);
    assert_eq!(state.want(at(5), second), Ok(2), "it is under way");
    state.ended = 2;
    assert_eq!(state.want(at(5), second), Err(second));
    assert_eq!(state.want(at(6), second), Ok(3));
}

#[tokio::test]
async fn an_issuer_that_is_down_is_told_and_asked_again() {
    let key = IssuerKey::new("1", Algorithm::ES256);
    let site = Site::start(Answer::End).await;
    let addr = site.addr;
    let mut stage = Stage::start(&config(&site, |_| {}));
    assert_eq!(stage.ask(&key.token(ISSUER)).await, Err(NoBearer::Unavailable));
    stage.troubled(Some("; no keys")).await;
    drop(site);
    stage.troubled(Some("cannot connect")).await;
    assert_eq!(stage.ask(&key.token(ISSUER)).await, Err(NoBearer::Unavailable));
    let _site = Site::start_at(addr, Answer::keys(&[&key])).await;
    stage.troubled(None).await;
    assert_eq!(stage.ask(&key.token(ISSUER)).await, Ok(()));
    assert!(stage.fetches(FetchOutcome::Unreachable) >= 2);
}

#[tokio::test]
async fn an_answer_that_is_no_key_set_leaves_the_keys_as_they_are() {
    let key = IssuerKey::new("1", Algorithm::ES256);
    let site = Site::start(Answer::keys(&[&key])).await;
    let mut stage = Stage::start(&config(&site, |issuer| {
        issuer.fetch_interval = Duration::ZERO;
        issuer.fetch_timeout = Duration::from_millis(200);
    }));
    let (token, unknown) = (key.token(ISSUER), key.token_with(Some("2"), ISSUER));
    assert_eq!(stage.ask(&token).await, Ok(()));
    let (long, whole) = ("x".repeat(fetch::BYTES_MAX + 1), set(&[&key]));
    let half = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{whole}", whole.len() + 1);
    let many = json!({ "keys": vec![key.public(); 17] }).to_string();
    let elsewhere = Answer::with("302 Found", "location: /other\r\n", "");
    for (answer, text, outcome) in [
        (Answer::body("<html>"), "is no JSON Web Key Set", FetchOutcome::Invalid),
        (Answer::body(&whole[..40]), "is no JSON Web Key Set", FetchOutcome::Invalid),
        (Answer::with("500 Oh", "", &whole), "the status is 500", FetchOutcome::Status),
        (elsewhere, "the status is 302", FetchOutcome::Status),
        (Answer::body(&long), "more than 262144 bytes", FetchOutcome::TooLarge),
        (Answer::body(&many), "17 keys", FetchOutcome::TooLarge),
        (Answer::Text(half), "breaks off", FetchOutcome::Unreachable),
        (Answer::Silence, "no whole answer after 200ms", FetchOutcome::TimedOut),
        (Answer::End, "upstream login: ", FetchOutcome::Unreachable),
    ] {
        let before = stage.fetches(outcome);
        site.say(answer);
        assert_eq!(stage.ask(&unknown).await, Err(NoBearer::Unavailable), "{text}");
        stage.troubled(Some(text)).await;
        stage.troubled(Some("older keys are in use")).await;
        assert_eq!(stage.ask(&token).await, Ok(()), "{text}");
        assert_eq!(stage.ask(&key.token_with(None, ISSUER)).await, Ok(()), "{text}");
        assert!(stage.fetches(outcome) > before, "{text}");
    }
    site.say(Answer::keys(&[]));
    assert_eq!(stage.ask(&unknown).await, Err(NoBearer::Unknown));
    assert_eq!(stage.ask(&token).await, Err(NoBearer::Unknown), "it was withdrawn");
}

#[tokio::test]
async fn keys_of_an_issuer_that_is_down_end_after_their_time() {
    let key = IssuerKey::new("1", Algorithm::ES256);
    let site = Site::start(Answer::keys(&[&key])).await;
    let mut stage = Stage::start(&config(&site, |issuer| {
        issuer.refresh = Duration::from_millis(100);
        issuer.fetch_interval = Duration::ZERO;
        issuer.keys_kept = Duration::from_millis(100);
    }));
    let token = key.token(ISSUER);
    assert_eq!(stage.ask(&token).await, Ok(()));
    site.say(Answer::End);
    stage.troubled(Some("; no keys")).await;
    assert_eq!(stage.ask(&token).await, Err(NoBearer::Unavailable), "also one that was verified");
    assert_eq!(stage.issuer().status().keys, 0);
    site.say(Answer::keys(&[&key]));
    stage.troubled(None).await;
    assert_eq!(stage.ask(&token).await, Ok(()));
}

#[tokio::test]
async fn an_answer_may_say_how_long_it_is_fresh() {
    let key = IssuerKey::new("1", Algorithm::EdDSA);
    let answer = Answer::with("200 OK", "cache-control: max-age=0\r\n", &set(&[&key]));
    let mut site = Site::start(answer).await;
    let _stage = Stage::start(&config(&site, |issuer| {
        issuer.fetch_interval = Duration::from_millis(5);
    }));
    timeout(PATIENCE, site.asked.wait_for(|asked| *asked >= 3)).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_reload_adds_changes_and_removes_issuers() {
    let key = IssuerKey::new("1", Algorithm::ES256);
    let site = Site::start(Answer::keys(&[&key])).await;
    let with = config(&site, |_| {});
    let mut without = with.clone();
    without.auth.jwt.issuers.clear();
    let mut stage = Stage::start(&without);
    let token = key.token(ISSUER);
    assert_eq!(stage.ask(&token).await, Err(NoBearer::Unknown));
    stage.reload(&with);
    assert_eq!(stage.ask(&token).await, Ok(()));
    assert!(stage.auth.verifier.handle().is_some(), "its threads have started");
    // One that does not change keeps its keys.
    let mut more = with.clone();
    let second =
        JwtIssuerConfig { issuer: "second".to_owned(), ..with.auth.jwt.issuers[0].clone() };
    more.auth.jwt.issuers.insert(0, second);
    let first = stage.issuer();
    stage.reload(&more);
    assert!(Arc::ptr_eq(&first, &stage.auth.jwt().issuers().list()[1]));
    assert_eq!(stage.ask(&key.token("second")).await, Ok(()));
    assert_eq!((first.fetches[0].load(Ordering::Relaxed), site.asked()), (1, 2));
    // For another audience, each token is verified anew.
    let mut changed = with.clone();
    changed.auth.jwt.issuers[0].audience = "others".to_owned();
    stage.reload(&changed);
    assert_eq!(stage.ask(&token).await, Err(NoBearer::Unknown));
    stage.reload(&without);
    assert_eq!(stage.ask(&token).await, Err(NoBearer::Unknown));
    timeout(PATIENCE, stage.troubles.wait_for(Option::is_none)).await.unwrap().unwrap();
}

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);
