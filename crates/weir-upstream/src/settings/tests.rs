//! Tests of the errors of settings.

use std::path::PathBuf;

use super::*;

fn said(address: &str, change: impl FnOnce(&mut Settings)) -> String {
    let mut settings = Settings::new("api", &[address]);
    change(&mut settings);
    settings.check().err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn addresses_and_host() {
    let mut none = Settings::new("api", &[]);
    assert_eq!(none.check().unwrap_err().key, "addresses");
    none.addresses = vec!["a".to_owned()];
    assert_eq!(
        none.check().unwrap_err().to_string(),
        "addresses = \"a\": allowed is host:port, srv:_service._proto.name or unix:/path"
    );
    let allowed = "allowed is a host name, with or without a port";
    for (host, expected) in [
        ("", String::new()),
        ("api.example", String::new()),
        ("api.example:80", String::new()),
        ("me@api", format!("host = \"me@api\": {allowed}")),
        ("a b", format!("host = \"a b\": {allowed}")),
        ("a/b", format!("host = \"a/b\": {allowed}")),
    ] {
        assert_eq!(said("a:80", |settings| settings.host = host.to_owned()), expected);
    }
}

#[test]
fn dns() {
    let allowed = "allowed is an IP address, with or without a port";
    for (server, expected) in [
        ("127.0.0.1", String::new()),
        ("127.0.0.1:5353", String::new()),
        ("::1", String::new()),
        ("[::1]:53", String::new()),
        ("127.0.0.1:0", format!("dns_servers = \"127.0.0.1:0\": {allowed}")),
        ("dns.example", format!("dns_servers = \"dns.example\": {allowed}")),
    ] {
        let server = server.to_owned();
        assert_eq!(said("a:80", |settings| settings.dns.servers = vec![server]), expected);
    }
    let long = |settings: &mut Settings| settings.dns.ttl_min = Duration::from_secs(600);
    assert_eq!(said("a:80", long), "dns_ttl_min = 600s: allowed is at most dns_ttl_max (300s)");
}

#[test]
fn tls() {
    let tls = |address: &str, change: fn(&mut TlsSettings)| {
        said(address, |settings| change(settings.tls.insert(TlsSettings::default())))
    };
    assert_eq!(tls("a:80", |_| ()), "");
    assert_eq!(
        tls("a:80", |tls| tls.certificate = Some(PathBuf::from("/a"))),
        "tls_key = \"\": allowed is the PEM file of the key of tls_certificate"
    );
    assert_eq!(
        tls("a:80", |tls| tls.key = Some(PathBuf::from("/a"))),
        "tls_certificate = \"\": allowed is the PEM file of the certificate that belongs to tls_key"
    );
    assert_eq!(
        tls("a:80", |tls| tls.server_name = "a b".to_owned()),
        "tls_server_name = \"a b\": allowed is the DNS name or IP address of the service's certificate"
    );
    assert_eq!(
        tls("unix:/a", |_| ()),
        "tls_server_name = \"\": allowed is the name of the service's certificate, since a unix \
         socket has none"
    );
    assert_eq!(tls("unix:/a", |tls| tls.server_name = "api".to_owned()), "");
}

#[test]
fn proxies() {
    let proxy = |address: &str, url: &str, change: fn(&mut ProxySettings)| {
        said(address, |settings| {
            let mut proxy = ProxySettings { url: url.to_owned(), ..ProxySettings::default() };
            change(&mut proxy);
            settings.proxy = Some(proxy);
        })
    };
    for url in ["http://p:8080", "http://p:8080/", "socks5://127.0.0.1:1080", "http://[::1]:80"] {
        assert_eq!(proxy("a:80", url, |_| ()), "");
    }
    let allowed = "allowed is http://host:port or socks5://host:port, without user and password, \
                   which are in proxy_user and proxy_password";
    for url in ["p:80", "https://p:80", "http://p", "http://unix:/p", "socks5h://p:1", "http://"] {
        assert_eq!(proxy("a:80", url, |_| ()), format!("proxy = {url:?}: {allowed}"));
    }
    let secret = "http://me:geheim@p:80";
    assert_eq!(proxy("a:80", secret, |_| ()), format!("proxy = (hidden): {allowed}"));
    assert_eq!(
        proxy("unix:/a", "http://p:80", |_| ()),
        "proxy = \"http://p:80\": allowed is \"\", since no proxy reaches unix:/a"
    );
    let password = |proxy: &mut ProxySettings| proxy.password = "geheim".to_owned().into();
    assert_eq!(
        proxy("a:80", "http://p:80", password),
        "proxy_user = \"\": allowed is the user to whom the password belongs"
    );
    let colon = |proxy: &mut ProxySettings| proxy.user = "a:b".to_owned();
    assert!(proxy("a:80", "http://p:80", colon).starts_with("proxy_user = \"a:b\""));
    assert_eq!(proxy("a:80", "socks5://p:80", colon), "");
    let both = |proxy: &mut ProxySettings| {
        proxy.user = "me".to_owned();
        proxy.password = "geheim".to_owned().into();
        proxy.password_file = Some(PathBuf::from("/a"));
    };
    assert_eq!(
        proxy("a:80", "http://p:80", both),
        "proxy_password_file = \"/a\": allowed is a path, or proxy_password, but not both"
    );
    let long = |proxy: &mut ProxySettings| {
        proxy.user = "me".to_owned();
        proxy.password = "geheim".repeat(50).into();
    };
    assert_eq!(
        proxy("a:80", "socks5://p:80", long),
        "proxy_password = (hidden): allowed is at most 255 bytes without control characters"
    );
}
