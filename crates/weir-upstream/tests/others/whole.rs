//! Whole requests with bodies to nginx: each version of HTTP, plain and over TLS, directly and through
//! proxies.
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use tokio::task::JoinSet;

use super::common::{Program, upstream};
use super::proxies::{microsocks, tinyproxy};
use super::tls::Authority;
use weir_upstream::{
    Outgoing, Protocol, ProxySettings, Secret, SendOptions, TlsSettings, Upstream,
};

/// Keeps what is `PUT`, and tells at `/who` how the request came.
fn nginx(addr: SocketAddr, directory: &Path, listen: &str, authority: &Authority) -> Command {
    let (dir, path) = (directory.display(), |name| authority.path(name).display().to_string());
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {dir}/{kind};\n"))
        .concat();
    let tls = match listen.contains("ssl") {
        false => String::new(),
        true => format!(
            "ssl_certificate {};\nssl_certificate_key {};\nssl_client_certificate {};\n\
             ssl_verify_client optional;\n",
            path("api.test.pem"),
            path("api.test.key"),
            path("ca.pem"),
        ),
    };
    let text = format!(
        "daemon off;\nmaster_process off;\npid {dir}/pid;\nerror_log {dir}/errors;\nevents {{}}\n\
         http {{\naccess_log off;\n{temporary}client_max_body_size 10m;\n\
         server {{\nlisten {addr} {listen};\n{tls}root {dir};\n\
         location / {{ dav_methods PUT; }}\n\
         location = /who {{ return 200 \"$server_protocol $ssl_client_s_dn\"; }}\n}}\n}}\n"
    );
    let file = directory.join("nginx.conf");
    fs::write(&file, text).unwrap();
    let mut command = Command::new("nginx");
    command.arg("-e").arg(directory.join("errors")).arg("-c").arg(file);
    command
}

/// Status and body of the answer.
async fn told(upstream: &Upstream, request: Request<Outgoing>) -> (u16, Bytes) {
    let answer = upstream.send(request, SendOptions::default()).await.unwrap();
    let status = answer.status().as_u16();
    (status, answer.into_body().collect().await.unwrap().to_bytes())
}

async fn get(upstream: &Upstream, path: &str) -> (u16, Bytes) {
    let request = Request::get(path).body(Outgoing::Whole(Bytes::new())).unwrap();
    told(upstream, request).await
}

/// Several requests at a time send bodies and get them back. Returns what nginx says of one.
async fn exchange(upstream: &Upstream) -> String {
    let mut tasks = JoinSet::new();
    for number in 1..7_usize {
        let upstream = upstream.clone();
        tasks.spawn(async move {
            let bytes = Bytes::from(vec![b'a' + u8::try_from(number).unwrap(); 300_000 * number]);
            // With its length ahead, or in pieces.
            let body = match number % 2 {
                0 => Outgoing::Whole(bytes.clone()),
                _ => {
                    let body = Full::new(bytes.clone());
                    Outgoing::Streamed(body.map_err(|never| match never {}).boxed_unsync())
                }
            };
            let path = format!("/file{number}");
            let (status, _) = told(&upstream, Request::put(&path).body(body).unwrap()).await;
            assert!(matches!(status, 201 | 204), "{status}");
            let (status, got) = get(&upstream, &path).await;
            assert!(status == 200 && got == bytes, "{status}, {} bytes", got.len());
            assert_eq!(get(&upstream, "/none").await.0, 404);
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    let status = upstream.status();
    assert_eq!((status.retries, status.endpoints[0].failures), (0, 0));
    assert!(status.dials.connected > 0 && status.dials.proxy_failures == 0);
    let (_, said) = get(upstream, "/who").await;
    String::from_utf8(said.to_vec()).unwrap()
}

/// Each version of HTTP, plain and over TLS, through this proxy.
async fn check(url: Option<String>) {
    let authority = Authority::new();
    for (protocol, said) in [(Protocol::Http1, "HTTP/1.1 "), (Protocol::Http2, "HTTP/2.0 ")] {
        for tls in [None, Some(authority.tls())] {
            let listen = match (protocol, &tls) {
                (Protocol::Http1, None) => "",
                (Protocol::Http2, None) => "http2",
                // Over TLS the client chooses (ALPN).
                (Protocol::Http1 | Protocol::Http2, Some(_)) => "ssl http2",
            };
            let service = Program::start(|addr, dir| nginx(addr, dir, listen, &authority));
            let reached = reached(&service, protocol, url.as_deref(), tls);
            assert_eq!(exchange(&reached).await, said, "{url:?} {listen}");
        }
    }
}

fn reached(
    service: &Program,
    protocol: Protocol,
    url: Option<&str>,
    tls: Option<TlsSettings>,
) -> Upstream {
    upstream(&service.addr.to_string(), |settings| {
        (settings.protocol, settings.tls) = (protocol, tls);
        settings.proxy = url.map(|url| ProxySettings {
            url: url.to_owned(),
            user: "me".to_owned(),
            password: Secret::from("geheim".to_owned()),
            password_file: None,
            resolves: false,
        });
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_requests_pass_directly() {
    check(None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_requests_pass_through_connect() {
    let proxy = Program::start(tinyproxy);
    check(Some(format!("http://{}", proxy.addr))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_requests_pass_through_socks5() {
    let proxy = Program::start(microsocks);
    check(Some(format!("socks5://{}", proxy.addr))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_certificate_is_shown_through_a_proxy() {
    let (authority, proxy) = (Authority::new(), Program::start(microsocks));
    let service = Program::start(|addr, dir| nginx(addr, dir, "ssl http2", &authority));
    let tls = TlsSettings {
        certificate: Some(authority.path("gateway.pem")),
        key: Some(authority.path("gateway.key")),
        ..authority.tls()
    };
    let url = format!("socks5://{}", proxy.addr);
    for (protocol, said) in
        [(Protocol::Http1, "HTTP/1.1 CN=gateway"), (Protocol::Http2, "HTTP/2.0 CN=gateway")]
    {
        let reached = reached(&service, protocol, Some(&url), Some(tls.clone()));
        assert_eq!(exchange(&reached).await, said);
    }
}
