//! The options of TLS.

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::tls::credentials::{Credentials, KeyKind};
use crate::tls::{ALPN, TlsPlan, TlsVersion, version_of};

/// Whether and how devices use TLS.
#[derive(Debug, Clone, Args)]
pub(crate) struct TlsArgs {
    /// Devices use TLS; with --spawn the bench makes certificates for the run.
    #[arg(long)]
    pub(crate) tls: bool,
    /// Use only this version [default: the version that server and client agree on].
    #[arg(long, value_enum, value_name = "VERSION", requires = "tls")]
    pub(crate) tls_version: Option<TlsVersion>,
    /// Use only this cipher suite, such as TLS13_AES_128_GCM_SHA256.
    #[arg(long, value_name = "NAME", requires = "tls")]
    pub(crate) tls_suite: Option<String>,
    /// Share of the connections that resume a session, 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share_or_none, requires = "tls")]
    pub(crate) tls_resume: f64,
    /// With TLS 1.2, resume sessions by their ids only, not by tickets.
    #[arg(long, requires = "tls")]
    pub(crate) tls_session_ids: bool,
    /// With --spawn: the server demands a certificate of each client, and gets it.
    #[arg(long, requires = "tls", conflicts_with = "addr")]
    pub(crate) tls_client_cert: bool,
    /// Kind of the server's key; without --spawn: kind of the baseline's key.
    #[arg(long, value_enum, value_name = "KIND", default_value = "ecdsa", requires = "tls")]
    pub(crate) tls_key: KeyKind,
    /// Without --spawn: PEM file of the authorities of the running server's certificate.
    #[arg(long, value_name = "FILE", requires = "tls", conflicts_with = "spawn")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Name that must be in the server's certificate.
    #[arg(long, value_name = "NAME", default_value = "localhost", requires = "tls")]
    pub(crate) tls_server_name: String,
    /// Without --spawn: the clients' certificate and key, in one PEM file.
    #[arg(long, value_name = "FILE", requires = "tls", conflicts_with = "spawn")]
    pub(crate) tls_client_pem: Option<PathBuf>,
    /// Certificates, made at the first use.
    #[arg(skip)]
    made: OnceLock<Credentials>,
}

impl TlsArgs {
    /// Without TLS.
    pub(crate) fn none() -> TlsArgs {
        TlsArgs {
            tls: false,
            tls_version: None,
            tls_suite: None,
            tls_resume: 0.0,
            tls_session_ids: false,
            tls_client_cert: false,
            tls_key: KeyKind::Ecdsa,
            tls_ca: None,
            tls_server_name: "localhost".to_owned(),
            tls_client_pem: None,
            made: OnceLock::new(),
        }
    }

    /// The certificates of a started server and its clients; the same at every call.
    pub(crate) fn credentials(&self) -> Result<&Credentials> {
        if let Some(made) = self.made.get() {
            return Ok(made);
        }
        let made = Credentials::make(self.tls_key, &self.tls_server_name)
            .context("cannot make certificates")?;
        Ok(self.made.get_or_init(|| made))
    }

    /// The TLS plan for the workers; `None` without TLS.
    pub(crate) fn plan(&self, spawned: bool) -> Result<Option<TlsPlan>> {
        if !self.tls {
            return Ok(None);
        }
        let (ca, client) = if spawned {
            let made = self.credentials()?;
            (made.ca.clone(), self.tls_client_cert.then(|| made.client.clone()))
        } else {
            let Some(ca) = &self.tls_ca else {
                bail!("--tls with --addr needs --tls-ca FILE");
            };
            (read(ca)?, self.tls_client_pem.as_ref().map(read).transpose()?)
        };
        Ok(Some(TlsPlan {
            ca,
            server_name: self.tls_server_name.clone(),
            version: version_of(self.tls_version, self.tls_suite.as_deref())?,
            suite: self.tls_suite.clone(),
            group: None,
            resume: self.tls_resume,
            client,
            alpn: vec![ALPN.to_owned()],
            session_ids: self.tls_session_ids,
        }))
    }
}

fn read(path: &PathBuf) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// A share that may be nothing.
pub(super) fn share_or_none(text: &str) -> Result<f64> {
    let share: f64 = text.parse()?;
    if !(0.0..=1.0).contains(&share) {
        bail!("a share must be from 0 to 1");
    }
    Ok(share)
}
