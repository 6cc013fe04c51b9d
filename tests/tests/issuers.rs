//! Signed tokens whose issuer's keys the real program fetches. The keys are made by rcgen; their sets and the tokens are
//! written here by hand.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail, ensure};
use rcgen::{
    KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PKCS_RSA_SHA256, SignatureAlgorithm,
    SigningKey as _,
};
use serde_json::{Value, json};
use weir_tests::{Answer, Device, Server};
use weir_wire::v1::{Hello, client_message::Kind, server_message};

/// The site of an issuer. It ends with the process.
struct Site {
    addr: SocketAddr,
    keys: Arc<Mutex<Option<Value>>>,
}

/// A key of the issuer.
struct Key {
    kid: &'static str,
    algorithm: &'static str,
    pair: KeyPair,
}

const ISSUER: &str = "https://login.example";

impl Site {
    /// It closes each connection until it has keys.
    fn start() -> Result<Site> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let site = Site { addr: listener.local_addr()?, keys: Arc::default() };
        let keys = Arc::clone(&site.keys);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = answer(stream, keys.lock().expect("no panic").as_ref());
            }
        });
        Ok(site)
    }

    fn has(&self, keys: &[&Key]) -> Result<()> {
        let keys: Result<Vec<Value>> = keys.iter().map(|key| key.public()).collect();
        *self.keys.lock().expect("no panic") = Some(json!({ "keys": keys? }));
        Ok(())
    }

    fn config(&self) -> String {
        format!(
            "[[upstreams]]\nname = \"login\"\naddresses = [\"{}\"]\n\
             [[auth.jwt.issuers]]\nissuer = \"{ISSUER}\"\nupstream = \"login\"\npath = \"/jwks\"\n",
            self.addr
        )
    }
}

fn answer(mut stream: TcpStream, keys: Option<&Value>) -> Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let Some(keys) = keys else { return Ok(()) };
    let (status, body) = match head.starts_with(b"GET /jwks HTTP/1.1\r\n") {
        true => ("200 OK", keys.to_string()),
        false => ("404 Not Found", String::new()),
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: application/jwk-set+json\r\nCache-Control: max-age=3600\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )?;
    Ok(())
}

impl Key {
    fn new(
        kid: &'static str,
        algorithm: &'static str,
        of: &'static SignatureAlgorithm,
    ) -> Result<Key> {
        Ok(Key { kid, algorithm, pair: KeyPair::generate_for(of)? })
    }

    fn p256(kid: &'static str) -> Result<Key> {
        Key::new(kid, "ES256", &PKCS_ECDSA_P256_SHA256)
    }

    fn public(&self) -> Result<Value> {
        let raw = self.pair.public_key_raw();
        let mut key = match self.algorithm {
            "ES256" => {
                let (x, y) = raw[1..].split_at(32);
                json!({ "kty": "EC", "crv": "P-256", "x": base64url(x), "y": base64url(y) })
            }
            "EdDSA" => json!({ "kty": "OKP", "crv": "Ed25519", "x": base64url(raw) }),
            _ => {
                let mut sequence = der(&mut &*raw, 0x30)?;
                let (n, e) = (integer(&mut sequence)?, integer(&mut sequence)?);
                json!({ "kty": "RSA", "n": base64url(n), "e": base64url(e) })
            }
        };
        key["kid"] = json!(self.kid);
        key["use"] = json!("sig");
        Ok(key)
    }

    /// A token for a device, valid until the year 2100.
    fn token(&self, device: &str) -> Result<String> {
        let header = json!({ "alg": self.algorithm, "kid": self.kid }).to_string();
        let claims = json!({ "sub": device, "exp": 4_102_444_800_u64, "iss": ISSUER }).to_string();
        let message = format!("{}.{}", base64url(header.as_bytes()), base64url(claims.as_bytes()));
        let mut signature = self.pair.sign(message.as_bytes())?;
        if self.algorithm == "ES256" {
            // Two numbers in DER; a JWT has them in 32 bytes each (RFC 7518 section 3.4).
            let mut sequence = der(&mut &*signature, 0x30)?;
            let mut fixed = Vec::new();
            for number in [integer(&mut sequence)?, integer(&mut sequence)?] {
                fixed.extend(vec![0; 32 - number.len()]);
                fixed.extend(number);
            }
            signature = fixed;
        }
        Ok(format!("{message}.{}", base64url(&signature)))
    }
}

/// The content of the next element.
fn der<'a>(bytes: &mut &'a [u8], tag: u8) -> Result<&'a [u8]> {
    let (head, mut rest) = bytes.split_at_checked(2).context("an element")?;
    ensure!(head[0] == tag, "{head:?}");
    let mut length = usize::from(head[1]);
    if length > 0x80 {
        let (long, behind) = rest.split_at_checked(length - 0x80).context("a length")?;
        length = long.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        rest = behind;
    }
    let (content, behind) = rest.split_at_checked(length).context("a content")?;
    *bytes = behind;
    Ok(content)
}

fn integer<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8]> {
    let number = der(bytes, 0x02)?;
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    Ok(&number[zeros..])
}

fn base64url(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let mut bits = [0; 4];
        bits[1..=group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes(bits);
        for at in 0..=group.len() {
            let index = bits >> (18 - 6 * at) & 63;
            text.push(char::from(LETTERS[index as usize]));
        }
    }
    text
}

/// The outcome of a `Hello` with a token.
fn hello(server: &Server, token: &str) -> Result<String> {
    let mut device = Device::connect(server.tcp)?;
    device.send(Kind::Hello(Hello { token: token.to_owned(), ..Hello::default() }))?;
    match device.hear()? {
        Some(server_message::Kind::Welcome(_)) => Ok("welcome".to_owned()),
        Some(server_message::Kind::Goodbye(goodbye)) => Ok(goodbye.reason),
        other => bail!("{other:?}"),
    }
}

fn issuers_part(server: &Server) -> Result<Value> {
    let answer = Answer::get(server.admin, "/readyz")?;
    let body: Value = serde_json::from_str(&answer.body)?;
    let parts = body["parts"].as_array().context("parts")?;
    Ok(parts.iter().find(|part| part["part"] == "issuers").cloned().unwrap_or_default())
}

#[test]
fn the_keys_of_an_issuer_are_fetched_when_it_is_there_and_when_they_change() -> Result<()> {
    let site = Site::start()?;
    let server = Server::start(&site.config())?;
    let keys = [
        Key::p256("first")?,
        Key::new("edwards", "EdDSA", &PKCS_ED25519)?,
        Key::new("rsa", "RS256", &PKCS_RSA_SHA256)?,
    ];
    // The gateway runs although the issuer is down; its tokens are told to come back.
    assert_eq!(hello(&server, &keys[0].token("lock-1")?)?, "store_unavailable");
    server.await_log("the keys of an issuer cannot be fetched", 1)?;
    let part = issuers_part(&server)?;
    assert_eq!(part["state"], "degraded");
    let cause = part["cause"].as_str().context("a cause")?;
    assert!(cause.starts_with(ISSUER) && cause.ends_with("no keys"), "{cause}");
    let [first, edwards, rsa] = &keys;
    site.has(&[first, edwards, rsa])?;
    server.await_metrics("keys", |metrics| metrics.sum("weir_jwt_keys", ISSUER) == 3.0)?;
    for key in &keys {
        let outcome = hello(&server, &key.token("lock-1")?)?;
        assert_eq!(outcome, "welcome", "{}", key.algorithm);
    }
    let stranger = Key::p256("first")?;
    assert_eq!(hello(&server, &stranger.token("lock-1")?)?, "unauthorized");
    // A new key counts at once, and one that is gone no longer.
    let second = Key::p256("second")?;
    site.has(&[&second])?;
    assert_eq!(hello(&server, &second.token("lock-2")?)?, "welcome");
    assert_eq!(hello(&server, &second.token("lock-3")?)?, "welcome");
    // It was fetched a moment ago, so a key that is unknown now may be newer still.
    assert_eq!(hello(&server, &first.token("lock-1")?)?, "rate_limited");
    assert_eq!(issuers_part(&server)?["state"], "ok");
    let metrics = server.metrics()?;
    let fetched = [("issuer", ISSUER), ("outcome", "fetched")];
    assert_eq!(metrics.sum_of("weir_jwt_key_fetches_total", &fetched), 2.0);
    assert!(metrics.sum("weir_jwt_key_fetches_total", "unreachable") >= 1.0);
    assert_eq!(metrics.sum("weir_jwt_unknown_keys_total", ISSUER), 2.0);
    Ok(())
}

#[test]
fn a_reload_brings_issuers_and_takes_them_away() -> Result<()> {
    let site = Site::start()?;
    let key = Key::p256("1")?;
    site.has(&[&key])?;
    let server = Server::start("")?;
    let verifies = || -> Result<bool> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid()))?;
        let names = tasks.flatten().map(|task| std::fs::read_to_string(task.path().join("comm")));
        Ok(names.flatten().any(|name| name.starts_with("weir-verify")))
    };
    let token = key.token("lock-1")?;
    assert_eq!(hello(&server, &token)?, "unauthorized");
    assert!(!verifies()?);
    let before = std::fs::read_to_string(server.config())?;
    std::fs::write(server.config(), format!("{before}\n{}", site.config()))?;
    let reloaded = Answer::post(server.admin, "/v1/reload", "{}")?;
    ensure!(reloaded.status == 200, "{reloaded:?}");
    assert!(reloaded.body.contains("auth.jwt.issuers"), "{reloaded:?}");
    assert_eq!(hello(&server, &token)?, "welcome");
    assert!(verifies()?);
    std::fs::write(server.config(), before)?;
    let reloaded = Answer::post(server.admin, "/v1/reload", "{}")?;
    ensure!(reloaded.status == 200, "{reloaded:?}");
    assert_eq!(hello(&server, &token)?, "unauthorized");
    assert_eq!(issuers_part(&server)?, Value::Null);
    Ok(())
}
