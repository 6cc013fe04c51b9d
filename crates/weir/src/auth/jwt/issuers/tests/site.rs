//! The site of an issuer: a server of HTTP/1.1 that answers as a test says.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PKCS_RSA_SHA256};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::base::clock::unix_millis;

/// A running site. It ends when it is dropped.
pub(super) struct Site {
    pub(super) addr: SocketAddr,
    answer: Arc<Mutex<Answer>>,
    pub(super) asked: watch::Receiver<u64>,
    task: AbortHandle,
}

/// How it answers.
#[derive(Clone)]
pub(super) enum Answer {
    /// With a head and a body.
    Text(String),
    /// Not at all.
    Silence,
    /// It closes the connection.
    End,
}

/// A key of an issuer.
pub(super) struct IssuerKey {
    kid: &'static str,
    algorithm: Algorithm,
    private: EncodingKey,
    public: Value,
}

impl Site {
    pub(super) async fn start(answer: Answer) -> Site {
        Site::start_at("127.0.0.1:0".parse().unwrap(), answer).await
    }

    pub(super) async fn start_at(addr: SocketAddr, answer: Answer) -> Site {
        let listener = TcpListener::bind(addr).await.unwrap();
        let (addr, answer) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(answer)));
        let (count, asked) = watch::channel(0);
        let count = Arc::new(count);
        let answers = Arc::clone(&answer);
        let serving = async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&answers), Arc::clone(&count)));
            }
        };
        let task = tokio::spawn(serving).abort_handle();
        Site { addr, answer, asked, task }
    }

    pub(super) fn say(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }

    pub(super) fn asked(&self) -> u64 {
        *self.asked.borrow()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut stream: TcpStream, answers: Arc<Mutex<Answer>>, count: Arc<watch::Sender<u64>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("GET /keys?of=weir HTTP/1.1\r\n"), "{head}");
    let answer = answers.lock().unwrap().clone();
    count.send_modify(|count| *count += 1);
    match answer {
        Answer::Text(text) => {
            // A client that has enough of it closes first.
            let _ = stream.write_all(text.as_bytes()).await;
        }
        Answer::Silence => {
            let _ = stream.read_u8().await;
        }
        Answer::End => {}
    }
}

impl Answer {
    pub(super) fn with(status: &str, headers: &str, body: &str) -> Answer {
        let length = body.len();
        Answer::Text(format!(
            "HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
        ))
    }

    pub(super) fn body(body: &str) -> Answer {
        Answer::with("200 OK", "", body)
    }

    pub(super) fn keys(keys: &[&IssuerKey]) -> Answer {
        Answer::body(&set(keys))
    }
}

/// The key set with these keys.
pub(super) fn set(keys: &[&IssuerKey]) -> String {
    json!({ "keys": keys.iter().map(|key| key.public()).collect::<Vec<_>>() }).to_string()
}

impl IssuerKey {
    pub(super) fn new(kid: &'static str, algorithm: Algorithm) -> IssuerKey {
        crate::auth::jwt::keys::install_provider();
        type Read = fn(&[u8]) -> jsonwebtoken::errors::Result<EncodingKey>;
        let kinds: [(_, _, Read); 3] = [
            (Algorithm::RS256, &PKCS_RSA_SHA256, EncodingKey::from_rsa_pem),
            (Algorithm::EdDSA, &PKCS_ED25519, EncodingKey::from_ed_pem),
            (Algorithm::ES256, &PKCS_ECDSA_P256_SHA256, EncodingKey::from_ec_pem),
        ];
        let (_, of, read) = kinds.into_iter().find(|(of, ..)| *of == algorithm).unwrap();
        let pair = KeyPair::generate_for(of).unwrap();
        let private = read(pair.serialize_pem().as_bytes()).unwrap();
        // jsonwebtoken cannot derive this one.
        let x = URL_SAFE_NO_PAD.encode(pair.public_key_raw());
        let mut public = match algorithm == Algorithm::EdDSA {
            true => json!({ "kty": "OKP", "crv": "Ed25519", "x": x }),
            false => json!(Jwk::from_encoding_key(&private, algorithm).unwrap()),
        };
        public["kid"] = json!(kid);
        IssuerKey { kid, algorithm, private, public }
    }

    pub(super) fn public(&self) -> Value {
        self.public.clone()
    }

    /// A token of this issuer for the device `d`, signed with this key.
    pub(super) fn token(&self, iss: &str) -> String {
        self.token_with(Some(self.kid), iss)
    }

    pub(super) fn token_with(&self, kid: Option<&str>, iss: &str) -> String {
        let mut header = Header::new(self.algorithm);
        header.kid = kid.map(str::to_owned);
        let claims = json!({ "sub": "d", "exp": unix_millis() / 1000 + 600, "iss": iss });
        encode(&header, &claims, &self.private).unwrap()
    }
}
