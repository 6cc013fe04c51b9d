//! TLS to `openssl s_server`: own authority, client certificates, names, ALPN, changed files.
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::common::{Program, ask, upstream};
use tempfile::TempDir;
use weir_upstream::{Protocol, Settings, TlsSettings, Upstream};

/// An authority with certificates for a service `api.test` and for the gateway.
pub(crate) struct Authority(TempDir);

impl Authority {
    pub(crate) fn new() -> Authority {
        let authority = Authority(tempfile::tempdir().unwrap());
        authority.openssl("req -x509 -nodes -subj /CN=authority -keyout ca.key -out ca.pem", "ca");
        for name in ["api.test", "gateway"] {
            authority.sign(name);
        }
        authority
    }

    fn sign(&self, name: &str) {
        let line = format!(
            "req -x509 -nodes -subj /CN={name} -addext subjectAltName=DNS:{name} \
             -addext basicConstraints=critical,CA:FALSE -CA ca.pem -CAkey ca.key \
             -keyout {name}.key -out {name}.pem"
        );
        self.openssl(&line, name);
    }

    fn openssl(&self, line: &str, what: &str) {
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1";
        let mut command = Command::new("openssl");
        command.args(line.split_whitespace()).args(key.split_whitespace());
        let output = command.current_dir(self.0.path()).output().unwrap();
        assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A service that answers each request with a page about its connection.
    fn serve(&self, options: &str) -> Program {
        Program::start(|addr: SocketAddr, _: &Path| {
            let mut command = Command::new("openssl");
            command.args(["s_server", "-www", "-cert", "api.test.pem", "-key", "api.test.key"]);
            command.args(["-CAfile", "ca.pem", "-verify_return_error"]);
            command.args(["-accept", &addr.to_string()]).args(options.split_whitespace());
            command.current_dir(self.0.path());
            command
        })
    }

    /// A client that trusts this authority.
    pub(crate) fn tls(&self) -> TlsSettings {
        TlsSettings {
            ca: Some(self.path("ca.pem")),
            server_name: "api.test".to_owned(),
            ..TlsSettings::default()
        }
    }
}

fn client(service: &Program, tls: TlsSettings) -> Upstream {
    upstream(&service.addr.to_string(), |settings| settings.tls = Some(tls))
}

fn is_page(said: &str) -> bool {
    said.contains("s_server -www")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_certificate_of_the_service_is_verified() {
    let authority = Authority::new();
    let service = authority.serve("");
    let said = ask(&client(&service, authority.tls())).await;
    assert!(is_page(&said), "{said}");
    let stranger = ask(&client(&service, Authority::new().tls())).await;
    let place = "upstream api: TLS with api.test: invalid peer certificate: ";
    assert!(stranger.starts_with(place), "{stranger}");
    let public = ask(&client(&service, TlsSettings { ca: None, ..authority.tls() })).await;
    assert_eq!(public, format!("{place}UnknownIssuer"));
    let server_name = "other.test".to_owned();
    let other = client(&service, TlsSettings { server_name, ..authority.tls() });
    let said = ask(&other).await;
    assert!(said.starts_with("upstream api: TLS with other.test: invalid peer certificate: "));
    assert!(other.status().dials.tls_failures > 0);
    // Without a name, that of `host` counts.
    let host = upstream(&service.addr.to_string(), |settings| {
        settings.host = "api.test:443".to_owned();
        settings.tls = Some(TlsSettings { server_name: String::new(), ..authority.tls() });
    });
    assert!(is_page(&ask(&host).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_shows_its_certificate_and_reads_a_new_one() {
    let authority = Authority::new();
    let service = authority.serve("-Verify 1 -tls1_2");
    let none = ask(&client(&service, authority.tls())).await;
    assert!(none.starts_with("upstream api: TLS with api.test: "), "{none}");
    let files = |tls: TlsSettings| TlsSettings {
        certificate: Some(authority.path("gateway.pem")),
        key: Some(authority.path("gateway.key")),
        ..tls
    };
    let shown = client(&service, files(authority.tls()));
    assert!(is_page(&ask(&shown).await));
    // One of the two files alone does not fit: the former ones stay.
    let key = std::fs::read(authority.path("gateway.key")).unwrap();
    std::fs::copy(authority.path("api.test.key"), authority.path("gateway.key")).unwrap();
    assert!(is_page(&ask(&shown).await));
    assert_eq!(shown.status().dials.reload_failures, 1);
    std::fs::write(authority.path("gateway.key"), key).unwrap();
    assert!(is_page(&ask(&shown).await));
    // A certificate that the service does not accept, and then one that it does.
    let stranger = Authority::new();
    for file in ["gateway.pem", "gateway.key"] {
        std::fs::copy(stranger.path(file), authority.path(file)).unwrap();
    }
    let said = ask(&shown).await;
    assert!(said.starts_with("upstream api: "), "{said}");
    authority.sign("gateway");
    assert!(is_page(&ask(&shown).await));
    assert_eq!(shown.status().dials.reload_failures, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_needs_its_alpn() {
    let authority = Authority::new();
    let service = authority.serve("");
    let http2 = upstream(&service.addr.to_string(), |settings| {
        settings.protocol = Protocol::Http2;
        settings.tls = Some(authority.tls());
    });
    assert_eq!(
        ask(&http2).await,
        "upstream api: TLS with api.test: the service does not choose HTTP/2 (ALPN h2)"
    );
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let authority = Authority::new();
    let said = |change: fn(&Authority, &mut TlsSettings)| {
        let mut settings = Settings::new("api", &["127.0.0.1:1"]);
        let mut tls = authority.tls();
        change(&authority, &mut tls);
        settings.tls = Some(tls);
        Upstream::new(settings).err().map(|error| error.to_string()).unwrap_or_default()
    };
    let path = |name: &str| format!("{:?}", authority.path(name));
    let usable = "allowed is a PEM file that can be used, and";
    assert_eq!(
        said(|authority, tls| tls.ca = Some(authority.path("none"))),
        format!(
            "tls_ca = {}: {usable} it cannot be read: No such file or directory (os error 2)",
            path("none")
        )
    );
    assert_eq!(
        said(|authority, tls| tls.ca = Some(authority.path("ca.key"))),
        format!("tls_ca = {}: {usable} it holds no certificate", path("ca.key"))
    );
    let other = said(|authority, tls| {
        tls.certificate = Some(authority.path("gateway.pem"));
        tls.key = Some(authority.path("api.test.key"));
    });
    let key = path("api.test.key");
    assert!(
        other.starts_with(&format!("tls_key = {key}: {usable} the key does not fit")),
        "{other}"
    );
}
