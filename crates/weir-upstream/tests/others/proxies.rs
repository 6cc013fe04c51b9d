//! Upstreams behind tinyproxy, squid and microsocks, with right and wrong passwords, and behind dead
//! proxies.
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use super::common::{Program, ask, free_addr, service, upstream};
use weir_upstream::{ProxySettings, Secret};

pub(crate) fn tinyproxy(addr: SocketAddr, directory: &Path) -> Command {
    let file = directory.join("tinyproxy.conf");
    let text = format!(
        "Port {}\nListen 127.0.0.1\nTimeout 60\nMaxClients 20\nBasicAuth me geheim\n",
        addr.port()
    );
    fs::write(&file, text).unwrap();
    let mut command = Command::new("tinyproxy");
    command.arg("-d").arg("-c").arg(file);
    command
}

fn squid(addr: SocketAddr, directory: &Path) -> Command {
    // It gives up root's rights, and its helper reads the file.
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
    let hash = Command::new("openssl").args(["passwd", "-apr1", "geheim"]).output().unwrap();
    let hash = String::from_utf8(hash.stdout).unwrap();
    let words = directory.join("words");
    fs::write(&words, format!("me:{hash}")).unwrap();
    fs::set_permissions(&words, fs::Permissions::from_mode(0o644)).unwrap();
    let text = format!(
        "http_port {addr}\npid_filename none\ncache deny all\naccess_log none\n\
         cache_log /dev/null\ncache_store_log none\nlogfile_rotate 0\ncoredump_dir {directory}\n\
         auth_param basic program /usr/lib/squid/basic_ncsa_auth {words}\n\
         auth_param basic children 1 startup=1\nacl known proxy_auth REQUIRED\n\
         http_access allow known\nhttp_access deny all\nshutdown_lifetime 0 seconds\n",
        directory = directory.display(),
        words = words.display(),
    );
    let file = directory.join("squid.conf");
    fs::write(&file, text).unwrap();
    let mut command = Command::new("squid");
    command.arg("-N").arg("-f").arg(file);
    command
}

pub(crate) fn microsocks(addr: SocketAddr, _: &Path) -> Command {
    let mut command = Command::new("microsocks");
    command.args(["-i", "127.0.0.1", "-u", "me", "-P", "geheim", "-p"]);
    command.arg(addr.port().to_string());
    command
}

/// What a request through the proxy brings.
async fn said(address: &str, url: &str, user: &str, password: &str, resolves: bool) -> String {
    let upstream = upstream(address, |settings| {
        // Nobody answers there.
        settings.dns.servers = vec![free_addr().to_string()];
        settings.proxy = Some(ProxySettings {
            url: url.to_owned(),
            user: user.to_owned(),
            password: Secret::from(password.to_owned()),
            password_file: None,
            resolves,
        });
    });
    let said = ask(&upstream).await;
    let dials = upstream.status().dials;
    match said.as_str() {
        "through" => assert_eq!((dials.proxy_failures, dials.connected > 0), (0, true)),
        _ => assert!(dials.proxy_failures > 0, "{dials:?}: {said}"),
    }
    assert!(!said.contains("geheim") && !format!("{:?}", upstream.settings()).contains("geheim"));
    said
}

async fn check(scheme: &str, command: impl Fn(SocketAddr, &Path) -> Command) {
    let mut proxy = Program::start(command);
    let addr = service(([127, 0, 0, 1], 0).into(), "through").await;
    let (address, url) = (addr.to_string(), format!("{scheme}://{}", proxy.addr));
    assert_eq!(said(&address, &url, "me", "geheim", false).await, "through");
    // The proxy looks the name up.
    let named = format!("localhost:{}", addr.port());
    assert_eq!(said(&named, &url, "me", "geheim", true).await, "through");
    let problem = |problem: &str| format!("upstream api: proxy {url}: {problem}");
    assert_eq!(
        said(&address, &url, "me", "falsch", false).await,
        problem("it does not accept user and password (proxy_user)")
    );
    assert_eq!(
        said(&address, &url, "", "", false).await,
        problem("it asks for a user and a password (proxy_user)")
    );
    let dead = said(&free_addr().to_string(), &url, "me", "geheim", false).await;
    assert!(dead.starts_with(&problem("it ")) && !dead.contains("cannot be reached"), "{dead}");
    proxy.stop();
    let dead = said(&address, &url, "me", "geheim", false).await;
    assert!(dead.starts_with(&problem("it cannot be reached: ")), "{dead}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tinyproxy_connects() {
    check("http", tinyproxy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn squid_connects() {
    check("http", squid).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn microsocks_connects() {
    check("socks5", microsocks).await;
}
