//! Rules of `[tls]`. Errors in its files show when they are read.

use std::path::Path;

use super::auth::{is_word, quoted};
use super::error;
use crate::base::config::keys::ConfigError;
use crate::base::config::tls::{ALPN_BYTES_MAX, SECRET_BYTES_MAX, SECRET_BYTES_MIN};
use crate::base::config::{ClientAuth, ClientIdentity, Config, Scope, TlsConfig};

impl Config {
    pub(super) fn check_tls(&self) -> Result<(), ConfigError> {
        let tls = &self.tls;
        self.check_certificates()?;
        check_clients(tls)?;
        check_alpn(&tls.alpn)?;
        let bytes = tls.ticket_secret.len();
        if bytes != 0 && !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&bytes) {
            let allowed = format!(
                "{SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes (openssl rand -hex 32), or an empty text for a random one"
            );
            return Err(error("tls.ticket_secret", format_args!("({bytes} bytes)"), allowed));
        }
        self.check_sessions()
    }

    fn check_sessions(&self) -> Result<(), ConfigError> {
        let tls = &self.tls;
        if tls.session_cache == Scope::Node {
            return Ok(());
        }
        if !self.cluster.is_set() {
            let allowed = "\"node\" while cluster.redis is empty: this node belongs to no cluster";
            let error = error("tls.session_cache", "\"cluster\"", allowed);
            return Err(ConfigError { depends_on: &["cluster.redis"], ..error });
        }
        let depends_on: &[_] = &["tls.session_cache"];
        if tls.ticket_secret.is_empty() {
            let allowed = format!(
                "{SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes (openssl rand -hex 32), the same at all nodes, since \
                 tls.session_cache = \"cluster\": sessions are sealed with keys made from it"
            );
            let error = error("tls.ticket_secret", "(0 bytes)", allowed);
            return Err(ConfigError { depends_on, ..error });
        }
        if tls.session_cache_max == 0 {
            let allowed =
                "at least 1 while tls.session_cache = \"cluster\": with 0 no session is kept";
            return Err(ConfigError { depends_on, ..error("tls.session_cache_max", 0, allowed) });
        }
        Ok(())
    }

    fn check_certificates(&self) -> Result<(), ConfigError> {
        let certificates = &self.tls.certificates;
        for (index, certificate) in certificates.iter().enumerate() {
            for (name, path) in
                [("certificate", &certificate.certificate), ("key", &certificate.key)]
            {
                if path.as_os_str().is_empty() {
                    let key = format!("tls.certificates[{index}].{name}");
                    return Err(error(&key, shown(path), "the path of a PEM file"));
                }
            }
        }
        let tls = self.listen.tls.iter().map(|addr| ("listen.tls", addr));
        let https = self.listen.https.iter().map(|addr| ("listen.https", addr));
        let exposed = tls.chain(https).find(|(_, addr)| !addr.ip().is_loopback());
        if let (true, false, Some((key, addr))) =
            (certificates.is_empty(), self.tls.development_certificate_anywhere, exposed)
        {
            let allowed = format!(
                "at least one certificate, since {addr} of {key} is not on loopback: no authority has \
                 signed the development certificate; set [[tls.certificates]], or \
                 tls.development_certificate_anywhere = true"
            );
            let depends_on = &["listen.tls", "listen.https"];
            return Err(ConfigError { depends_on, ..error("tls.certificates", "[]", allowed) });
        }
        Ok(())
    }
}

fn check_clients(tls: &TlsConfig) -> Result<(), ConfigError> {
    let is_asked = tls.client_auth != ClientAuth::Off;
    if is_asked && tls.client_ca.as_os_str().is_empty() {
        let allowed = format!(
            "the path of a PEM file with the authorities of clients' certificates, since tls.client_auth = \"{}\"",
            tls.client_auth.name()
        );
        let depends_on = &["tls.client_auth"];
        return Err(ConfigError { depends_on, ..error("tls.client_ca", "\"\"", allowed) });
    }
    let allowed =
        "an empty text while tls.client_auth = \"off\": clients are not asked for a certificate";
    for (key, path) in [("tls.client_ca", &tls.client_ca), ("tls.client_crl", &tls.client_crl)] {
        if !is_asked && !path.as_os_str().is_empty() {
            return Err(error(key, shown(path), allowed));
        }
    }
    if !is_asked && tls.client_identity != ClientIdentity::None {
        let allowed =
            "\"none\" while tls.client_auth = \"off\": clients are not asked for a certificate";
        return Err(error("tls.client_identity", quoted(tls.client_identity.name()), allowed));
    }
    Ok(())
}

fn check_alpn(alpn: &[String]) -> Result<(), ConfigError> {
    for (index, name) in alpn.iter().enumerate() {
        let key = format!("tls.alpn[{index}]");
        if !is_word(name, ALPN_BYTES_MAX) {
            let allowed = format!("1 to {ALPN_BYTES_MAX} bytes without control characters");
            return Err(error(&key, quoted(name), allowed));
        }
        if alpn[..index].contains(name) {
            return Err(error(&key, quoted(name), super::auth::ONCE));
        }
    }
    Ok(())
}

fn shown(path: &Path) -> String {
    quoted(&path.display().to_string())
}
