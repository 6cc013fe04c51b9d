//! Tests of connecting, against scripted peers.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::*;
use crate::names::Names;
use crate::settings::{ProxySettings, Secret, TlsSettings};

/// What a peer waits for, and what it then says.
type Turn = (&'static [u8], &'static [u8]);

/// A peer that reads until it has heard so many pieces that end as said, and answers each. It
/// returns what it has heard.
async fn peer(script: Vec<Turn>) -> (SocketAddr, JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut heard = Vec::new();
        for (end, answer) in script {
            let from = heard.len();
            while !heard[from..].ends_with(end) {
                let Ok(byte) = stream.read_u8().await else { return heard };
                heard.push(byte);
            }
            stream.write_all(answer).await.unwrap();
        }
        // Until the other side closes.
        let _ = stream.read_to_end(&mut Vec::new()).await;
        heard
    });
    (addr, task)
}

fn settings(address: &str, change: impl FnOnce(&mut Settings)) -> Settings {
    let mut settings = Settings::new("api", &[address]);
    change(&mut settings);
    settings.check().unwrap();
    settings
}

fn proxy(scheme: &str, addr: SocketAddr, user: &str, password: &str) -> Option<ProxySettings> {
    Some(ProxySettings {
        url: format!("{scheme}://{addr}"),
        user: user.to_owned(),
        password: Secret::from(password.to_owned()),
        password_file: None,
        resolves: true,
    })
}

async fn dial(settings: &Settings) -> Result<Stream, DialError> {
    let endpoints = Names::new(settings).unwrap().endpoints().await?;
    Dialer::new(settings).unwrap().connect(&endpoints[0]).await
}

async fn error(settings: &Settings) -> String {
    match dial(settings).await {
        Ok(_) => "connected".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn an_http_proxy_is_asked_and_no_early_byte_is_lost() {
    let answer = b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\nearly";
    let (addr, heard) = peer(vec![(b"\r\n\r\n", answer)]).await;
    let settings = settings("api.example:80", |settings| {
        settings.proxy = proxy("http", addr, "me", "a:b");
    });
    let mut stream = dial(&settings).await.unwrap();
    let mut early = [0; 5];
    stream.read_exact(&mut early).await.unwrap();
    assert_eq!(&early, b"early");
    drop(stream);
    let heard = String::from_utf8(heard.await.unwrap()).unwrap();
    assert!(heard.starts_with("CONNECT api.example:80 HTTP/1.1\r\nHost: api.example:80\r\n"));
    // `me:a:b`.
    assert!(heard.contains("\r\nProxy-Authorization: Basic bWU6YTpi\r\n"), "{heard}");
}

#[tokio::test]
async fn a_socks_proxy_is_asked_and_no_early_byte_is_lost() {
    let script: Vec<(&[u8], &[u8])> = vec![
        (&[5, 1, 2], &[5, 2]),
        (b"\x01\x02me\x03abc", &[1, 0]),
        (b"\x05\x01\x00\x03\x0bapi.example\x00\x50", b"\x05\x00\x00\x01\0\0\0\0\0\0early"),
    ];
    let (addr, _) = peer(script).await;
    let settings = settings("api.example:80", |settings| {
        settings.proxy = proxy("socks5", addr, "me", "abc");
    });
    let mut stream = dial(&settings).await.unwrap();
    let mut early = [0; 5];
    stream.read_exact(&mut early).await.unwrap();
    assert_eq!(&early, b"early");
}

#[tokio::test]
async fn a_proxy_that_does_not_connect_is_named_with_its_reason() {
    let http = [
        (&b"HTTP/1.1 407 No\r\n\r\n"[..], "", "it asks for a user and a password (proxy_user)"),
        (b"HTTP/1.0 407 No\r\n\r\n", "me", "it does not accept user and password (proxy_user)"),
        (b"HTTP/1.1 503 Busy\r\n\r\n", "", "it answers CONNECT with 503"),
        (b"SSH-2.0-x\r\n\r\n", "", "it does not connect: unsuccessful"),
    ];
    for (answer, user, reason) in http {
        let (addr, _) = peer(vec![(b"\r\n\r\n", answer)]).await;
        let settings = settings("api:80", |settings| {
            settings.proxy = proxy("http", addr, user, if user.is_empty() { "" } else { "geheim" });
        });
        assert_eq!(error(&settings).await, format!("proxy http://{addr}: {reason}"));
    }
    let socks: [(Vec<Turn>, _, _); 4] = [
        (vec![(&[5, 1, 0], &[5, 0xff])], "", "it asks for a user and a password (proxy_user)"),
        (
            vec![(&[5, 1, 2], &[5, 2]), (b"geheim", &[1, 1])],
            "me",
            "it does not accept user and password (proxy_user)",
        ),
        (vec![(&[5, 1, 2], &[5, 0xff])], "me", "it does not accept user and password (proxy_user)"),
        (
            vec![(&[5, 1, 0], &[5, 0]), (&[0, 80], &[5, 5, 0, 1, 0, 0, 0, 0, 0, 0])],
            "",
            "it does not connect: connection refused",
        ),
    ];
    for (script, user, reason) in socks {
        let (addr, _) = peer(script).await;
        let settings = settings("api:80", |settings| {
            let password = if user.is_empty() { "" } else { "geheim" };
            settings.proxy = proxy("socks5", addr, user, password);
        });
        assert_eq!(error(&settings).await, format!("proxy socks5://{addr}: {reason}"));
        assert!(!format!("{settings:?}").contains("geheim"));
    }
}

#[tokio::test]
async fn a_dead_end_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    drop(listener);
    let plain = settings(&addr.to_string(), |_| ());
    assert_eq!(
        error(&plain).await,
        format!("cannot connect: {addr}: Connection refused (os error 111)")
    );
    let proxied = settings("api:80", |settings| settings.proxy = proxy("http", addr, "", ""));
    assert_eq!(
        error(&proxied).await,
        format!(
            "proxy http://{addr}: it cannot be reached: {addr}: Connection refused (os error 111)"
        )
    );
    let unix = settings("unix:/nowhere/at/all", |_| ());
    assert_eq!(
        error(&unix).await,
        "cannot connect: unix:/nowhere/at/all: No such file or directory (os error 2)"
    );
}

#[tokio::test]
async fn connect_timeout_counts_for_all_steps_and_names_the_one() {
    let (addr, _) = peer(vec![(b"never", b"")]).await;
    let soon = |settings: &mut Settings| settings.connect_timeout = Duration::from_secs(1);
    let silent_tls = settings(&addr.to_string(), |settings| {
        soon(settings);
        settings.tls = Some(TlsSettings::default());
    });
    let (addr, _) = peer(vec![(b"never", b"")]).await;
    let silent_proxy = settings("api:80", |settings| {
        soon(settings);
        settings.proxy = proxy("socks5", addr, "", "");
    });
    let (one, two) = tokio::join!(dial(&silent_tls), dial(&silent_proxy));
    assert!(matches!(one, Err(DialError::Timeout(DialStep::Tls))));
    assert!(matches!(two, Err(DialError::Timeout(DialStep::Proxy))));
}

#[tokio::test]
async fn attempts_are_counted_by_step() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let settings = settings(&listener.local_addr().unwrap().to_string(), |_| ());
    let endpoints = Names::new(&settings).unwrap().endpoints().await.unwrap();
    let dialer = Dialer::new(&settings).unwrap();
    assert!(dialer.connect(&endpoints[0]).await.is_ok());
    drop(listener);
    assert!(dialer.connect(&endpoints[0]).await.is_err());
    let expected = DialStatus { connected: 1, connect_failures: 1, ..DialStatus::default() };
    assert_eq!(dialer.status(), expected);
}

#[test]
fn a_password_file_has_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("password");
    let said = |text: Option<&str>| {
        if let Some(text) = text {
            std::fs::write(&path, text).unwrap();
        }
        let settings = settings("10.0.0.1:80", |settings| {
            let mut proxy = proxy("http", ([127, 0, 0, 1], 1).into(), "me", "").unwrap();
            proxy.password_file = Some(path.clone());
            settings.proxy = Some(proxy);
        });
        Dialer::new(&settings).err().map(|error| error.to_string()).unwrap_or_default()
    };
    let place = format!("proxy_password_file = {path:?}: allowed is a file with the password, and");
    let missing = "it cannot be read: No such file or directory (os error 2)";
    assert_eq!(said(None), format!("{place} {missing}"));
    assert_eq!(said(Some("geheim\n")), "");
    assert_eq!(said(Some("\n")), format!("{place} it is empty"));
    assert_eq!(said(Some("geheim\nnoch eins")), format!("{place} it has more than a line"));
    assert_eq!(said(Some(&"x".repeat(256))), format!("{place} it has more than 255 bytes"));
}
