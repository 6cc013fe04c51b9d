//! Tests of signed tokens and of their keys.

use std::fs;
use std::path::Path;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;
use tempfile::TempDir;

use super::super::GrantRef;
use super::keys;
use super::vectors::{self, DEVICE, SECRET};
use super::*;
use crate::auth::tests::ready;
use crate::auth::{Act, Authenticator, NoBearer, TokenOrigin, Verifier};
use crate::base::clock::unix_millis;
use crate::base::config::{Actor, JwtAlgorithm, JwtKeyConfig, TopicClass};

const FOREIGN: &str = "another secret that is long enough";

/// Keys of all four algorithms, and one class for a label.
fn config(directory: &TempDir) -> Config {
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let key = |kid: Option<&str>, algorithm, name, text| JwtKeyConfig {
        kid: kid.map(str::to_owned),
        algorithm,
        file: file(name, text),
    };
    let mut config = Config::default();
    config.auth.jwt.keys = vec![
        key(None, JwtAlgorithm::Rs256, "rsa.pem", vectors::RSA_KEY),
        key(None, JwtAlgorithm::Es256, "p256.pem", vectors::P256_KEY),
        key(None, JwtAlgorithm::EdDsa, "ed.pem", vectors::ED25519_KEY),
        key(Some("shared"), JwtAlgorithm::Hs256, "secret", SECRET),
    ];
    config.auth.jwt.leeway = Duration::from_secs(10);
    let actors = |word: &str| vec![Actor::parse(word).unwrap()];
    config.topic_classes = vec![TopicClass {
        pattern: "vip/*".to_owned(),
        subscribe: actors("label:vip"),
        ..TopicClass::default()
    }];
    config
}

fn authenticator(config: &Config) -> Authenticator {
    let jwt = Jwt::new(config).unwrap();
    Authenticator::new(config, None, jwt, Verifier::none(), Arc::default())
}

fn seconds_from_now(seconds: i64) -> i64 {
    i64::try_from(unix_millis() / 1000).unwrap() + seconds
}

fn token_of(header: &Value, claims: &Value, secret: &str) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let message = format!("{}.{}", part(header), part(claims));
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let signature = hmac::sign(&key, message.as_bytes());
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
}

fn header() -> Value {
    json!({"alg": "HS256", "kid": "shared"})
}

/// Signed by a backend that has the secret.
fn signed(claims: &Value) -> String {
    token_of(&header(), claims, SECRET)
}

fn admitted(auth: &Authenticator, token: &str) -> Result<crate::auth::Admission, NoBearer> {
    let bearer = ready(auth.find(token, TokenOrigin::Connection(None), 0))?;
    let claim = auth.admit(None, "", &bearer).map_err(|_| NoBearer::Unknown)?;
    Ok(claim.settled(auth).expect("nobody has to be asked"))
}

#[test]
fn tokens_of_another_implementation_hold() {
    let directory = TempDir::new().unwrap();
    let mut config = config(&directory);
    config.auth.jwt.keys[3].kid = None;
    let auth = authenticator(&config);
    for token in [vectors::RS256, vectors::ES256, vectors::EDDSA, vectors::HS256] {
        let admission = admitted(&auth, token).expect(token);
        assert_eq!(*admission.device, *DEVICE);
        assert_eq!(admission.ends, Some((4_102_444_800 + 10) * 1000));
        // One bit of the signature.
        let (message, signature) = token.rsplit_once('.').unwrap();
        let mut signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        signature[5] ^= 4;
        let forged = format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature));
        assert_eq!(admitted(&auth, &forged).err(), Some(NoBearer::Unknown));
    }
    assert!(admitted(&auth, vectors::CONFUSED).is_err());
}

#[test]
fn a_token_holds_as_its_claims_say() {
    let directory = TempDir::new().unwrap();
    let mut config = config(&directory);
    config.auth.jwt.issuer = "https://issuer.example".to_owned();
    config.auth.jwt.audience = "weir".to_owned();
    let auth = authenticator(&config);
    let with = |name: &str, value: Value| {
        let mut claims = json!({
            "sub": "d", "exp": seconds_from_now(60), "iss": "https://issuer.example", "aud": "weir"
        });
        if value.is_null() {
            claims.as_object_mut().unwrap().remove(name);
        } else {
            claims[name] = value;
        }
        claims
    };
    for (name, value, expected) in [
        ("", json!(0), true),
        ("exp", json!(seconds_from_now(-5)), true),
        ("exp", json!(seconds_from_now(-15)), false),
        ("exp", json!(0), false),
        ("exp", json!(-1), false),
        ("exp", json!("4102444800"), false),
        ("exp", json!(u64::MAX), true),
        ("exp", json!(4e9), true),
        ("exp", json!(1e300), false),
        ("exp", Value::Null, false),
        ("nbf", json!(seconds_from_now(5)), true),
        ("nbf", json!(seconds_from_now(30)), false),
        ("nbf", json!("soon"), false),
        ("iss", json!("https://other.example"), false),
        ("iss", Value::Null, false),
        ("iss", json!(7), false),
        ("aud", json!("other"), false),
        ("aud", json!(["other", "weir"]), true),
        ("aud", Value::Null, false),
        ("sub", Value::Null, false),
        ("sub", json!(""), false),
        ("sub", json!(7), false),
        ("sub", json!("d\n"), false),
        ("sub", json!("d".repeat(129)), false),
        ("priority", json!("high"), true),
        ("priority", json!("highest"), false),
        ("priority", json!(1), false),
        ("labels", json!(["vip"]), true),
        ("labels", json!("vip"), false),
        ("labels", json!([1]), false),
        ("labels", json!(vec!["vip"; 17]), false),
        ("topics", json!(["a/*", "to/{device}"]), true),
        ("topics", json!([]), true),
        ("topics", json!(["a/#"]), false),
        ("topics", json!([""]), false),
        ("topics", json!(vec!["a"; 17]), false),
    ] {
        let claims = with(name, value);
        assert_eq!(admitted(&auth, &signed(&claims)).is_ok(), expected, "{claims}");
    }
    // The same without a configured issuer and audience.
    let auth = authenticator(&self::config(&directory));
    let claims = json!({"sub": "d", "exp": seconds_from_now(60)});
    assert!(admitted(&auth, &signed(&claims)).is_ok());
    assert!(admitted(&auth, &signed(&with("", json!(0)))).is_err(), "it is for somebody else");
}

#[test]
fn nothing_but_the_configuration_says_how_a_token_is_checked() {
    let directory = TempDir::new().unwrap();
    let auth = authenticator(&config(&directory));
    let claims = json!({"sub": "d", "exp": seconds_from_now(60)});
    assert!(admitted(&auth, &signed(&claims)).is_ok());
    let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
    for header in [
        json!({"alg": "none", "kid": "shared"}),
        json!({"alg": "HS384", "kid": "shared"}),
        json!({"alg": "RS256", "kid": "shared"}),
        // Without the name of a key that has a name.
        json!({"alg": "HS256"}),
        json!({"alg": "HS256", "kid": "other"}),
        json!({"alg": "HS256", "kid": "shared", "crit": ["exp"]}),
        json!({"kid": "shared"}),
        json!([]),
    ] {
        assert!(admitted(&auth, &token_of(&header, &claims, SECRET)).is_err(), "{header}");
    }
    let good = signed(&claims);
    let (message, _) = good.rsplit_once('.').unwrap();
    let none = format!("{}.{}.", part(r#"{"alg":"none"}"#), part(&claims.to_string()));
    for token in [
        token_of(&header(), &claims, FOREIGN),
        token_of(&header(), &claims, vectors::RSA_KEY),
        none,
        format!("{message}."),
        format!("{good}="),
        format!(".{message}"),
        "..".to_owned(),
        "a.b.c".to_owned(),
        "\u{0}.\u{0}.\u{0}".to_owned(),
    ] {
        assert!(admitted(&auth, &token).is_err(), "{token}");
    }
}

#[test]
fn a_huge_token_is_refused_before_it_is_read() {
    let directory = TempDir::new().unwrap();
    let auth = authenticator(&config(&directory));
    let token = |bytes: usize| {
        signed(&json!({"sub": "d", "exp": seconds_from_now(60), "more": "x".repeat(bytes)}))
    };
    assert!(admitted(&auth, &token(5_900)).is_ok());
    assert!(admitted(&auth, &token(6_200)).is_err());
    // Nested so deeply that a parser without a limit would overflow its stack.
    let deep = format!(r#"{{"sub":"d","exp":4102444800,"a":{}"#, "[".repeat(5_000));
    let message = format!(
        "{}.{}",
        URL_SAFE_NO_PAD.encode(header().to_string()),
        URL_SAFE_NO_PAD.encode(deep)
    );
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    let signature = URL_SAFE_NO_PAD.encode(hmac::sign(&key, message.as_bytes()));
    assert!(admitted(&auth, &format!("{message}.{signature}")).is_err());
}

#[test]
fn what_a_token_claims_is_what_its_connection_may() {
    let directory = TempDir::new().unwrap();
    let auth = authenticator(&config(&directory));
    let claims = json!({
        "sub": "d", "exp": seconds_from_now(60), "priority": "low", "labels": ["vip", "unheard"],
        "topics": ["vip/1", "to/{device}"]
    });
    let admission = admitted(&auth, &signed(&claims)).unwrap();
    assert_eq!(admission.priority, Priority::Low);
    let grant = auth.grant(&admission.grant);
    assert!(grant.permits(Act::Subscribe, &[Actor::parse("label:vip").unwrap()], || false));
    assert!(!grant.permits(Act::Subscribe, &[Actor::parse("label:unheard").unwrap()], || false));
    for (topic, device, expected) in
        [("vip/1", "d", true), ("vip/2", "d", false), ("to/d", "d", true), ("to/e", "d", false)]
    {
        let covers = grant.covers(|pattern| pattern.matches_for(topic, device));
        assert_eq!(covers, expected, "{topic}");
    }
    // Equal grants are stored once; a label that no class names makes no difference.
    let alike = json!({
        "sub": "e", "exp": seconds_from_now(99), "labels": ["vip"],
        "topics": ["vip/1", "to/{device}"]
    });
    let other = admitted(&auth, &signed(&alike)).unwrap();
    let (GrantRef::Own(one), GrantRef::Own(other)) = (admission.grant, other.grant) else {
        panic!("they came at run time")
    };
    assert!(Arc::ptr_eq(&one, &other));
}

#[test]
fn a_key_that_cannot_be_used_is_named() {
    let directory = TempDir::new().unwrap();
    let check = |algorithm, text: Option<&str>, says: &str| {
        let file = directory.path().join("key");
        let _ = fs::remove_file(&file);
        if let Some(text) = text {
            fs::write(&file, text).unwrap();
        }
        let mut config = config(&directory);
        config.auth.jwt.keys[1] = JwtKeyConfig { kid: None, algorithm, file: file.clone() };
        let error = config.check_jwt_keys().expect_err(says).to_string();
        let begins = format!("auth.jwt.keys[1].file = {file:?}: ");
        assert!(error.starts_with(&begins) && error.contains(says), "{error}");
    };
    use JwtAlgorithm::{EdDsa, Es256, Hs256, Rs256};
    check(Rs256, None, "cannot be read");
    check(Rs256, Some(vectors::RSA_KEY_OF_1024_BITS), "1024 bits; allowed are 2048 to 8192");
    check(Rs256, Some(vectors::P256_KEY), "no RSA public key");
    check(Rs256, Some("secret"), "no RSA public key");
    check(Es256, Some(vectors::P384_KEY), "no P-256 public key");
    check(Es256, Some(vectors::RSA_KEY), "no P-256 public key");
    check(EdDsa, Some(vectors::P256_KEY), "no Ed25519 public key");
    check(Hs256, Some("too short\n"), "a secret of 9 bytes; HS256 needs 32");
    check(Hs256, Some(&"x".repeat(65_537)), "more than 65536 bytes");
    let own = rcgen::KeyPair::generate().unwrap().serialize_pem();
    check(Es256, Some(&own), "no P-256 public key");
}

#[test]
fn keys_are_replaced_when_their_files_are() {
    let directory = TempDir::new().unwrap();
    let config = config(&directory);
    let jwt = Jwt::new(&config).unwrap();
    let labels = NamedLabels::of(&config, None);
    let holds = |token: &str| jwt.verify(token, Duration::ZERO, &labels, None).is_ok();
    let claims = json!({"sub": "d", "exp": seconds_from_now(60)});
    let (old, new) = (signed(&claims), token_of(&header(), &claims, FOREIGN));
    assert!(holds(&old) && !holds(&new));
    let write = |path: &Path, text: &str| {
        let fresh = directory.path().join("fresh");
        fs::write(&fresh, text).unwrap();
        fs::rename(&fresh, path).unwrap();
    };
    let mut watch = Watch::new(&*jwt);
    write(&config.auth.jwt.keys[3].file, "short");
    assert!(!watch.look(&*jwt, true), "what cannot be used changes nothing");
    assert!(holds(&old));
    write(&config.auth.jwt.keys[3].file, FOREIGN);
    assert!(!watch.look(&*jwt, false) && watch.look(&*jwt, false));
    assert!(!holds(&old) && holds(&new));
}

#[test]
fn a_key_with_a_name_is_for_tokens_that_call_it() {
    let directory = TempDir::new().unwrap();
    let keys = keys::read(&config(&directory).auth.jwt).unwrap();
    let may = |kid: Option<&str>| keys.iter().map(|key| key.may_be(kid)).collect::<Vec<_>>();
    assert_eq!(may(None), [true, true, true, false]);
    assert_eq!(may(Some("shared")), [true; 4]);
    assert_eq!(may(Some("other")), [true, true, true, false]);
}
