//! Keys outside of files: other hardware or a service signs with them.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::sign::{Signer, SigningKey};
use rustls::{OtherError, SignatureAlgorithm, SignatureScheme};
use tracing::warn;

use crate::base::clock::unix_time;
use crate::base::config::CertificateConfig;

/// Finds the key of a certificate; `None` if it is in its file.
pub(crate) type SigningKeys =
    dyn Fn(&CertificateConfig) -> Result<Option<Arc<dyn SigningKey>>, NoKey> + Send + Sync;

/// The reason why a key is not available.
pub(crate) type NoKey = Box<dyn Error + Send + Sync>;

/// A key outside of files, whose failures are recognisable.
#[derive(Debug)]
pub(super) struct Elsewhere {
    key: Arc<dyn SigningKey>,
    failures: Arc<Failures>,
}

/// The error of a signer.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the signer has failed: {0}")]
pub(super) struct SignerFailed(rustls::Error);

/// Logs one key's failures: one line now and then, however many there are.
#[derive(Debug)]
struct Failures {
    /// The key's name in the configuration.
    name: String,
    /// The time of the last line, in seconds since 1970.
    told_at: AtomicU64,
    untold: AtomicU64,
}

/// One signature.
#[derive(Debug)]
struct Watched {
    signer: Box<dyn Signer>,
    failures: Arc<Failures>,
}

impl Elsewhere {
    pub(super) fn new(key: Arc<dyn SigningKey>, config: &CertificateConfig) -> Elsewhere {
        let name = config.key.display().to_string();
        let failures = Failures { name, told_at: AtomicU64::new(0), untold: AtomicU64::new(0) };
        Elsewhere { key, failures: Arc::new(failures) }
    }
}

impl SigningKey for Elsewhere {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let signer = self.key.choose_scheme(offered)?;
        Some(Box::new(Watched { signer, failures: Arc::clone(&self.failures) }))
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        self.key.public_key()
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.key.algorithm()
    }
}

impl Signer for Watched {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        self.signer.sign(message).map_err(|error| {
            self.failures.tell(&error);
            rustls::Error::Other(OtherError(Arc::new(SignerFailed(error))))
        })
    }

    fn scheme(&self) -> SignatureScheme {
        self.signer.scheme()
    }
}

impl SignerFailed {
    /// Whether a signer's error caused the failure of a handshake.
    pub(super) fn is(error: &OtherError) -> bool {
        error.0.is::<SignerFailed>()
    }
}

impl Failures {
    fn tell(&self, error: &rustls::Error) {
        self.untold.fetch_add(1, Ordering::Relaxed);
        let (now, told_at) = (unix_time().as_secs(), self.told_at.load(Ordering::Relaxed));
        // The clock may be set back.
        let is_due = now.abs_diff(told_at) >= LINE_INTERVAL_SECS;
        let (new, old) = (Ordering::Relaxed, Ordering::Relaxed);
        // Only one of several threads writes a due line.
        if is_due && self.told_at.compare_exchange(told_at, now, new, old).is_ok() {
            let handshakes = self.untold.swap(0, Ordering::Relaxed);
            warn!(key = self.name, %error, handshakes, "the signer has failed; without it handshakes fail");
        }
    }
}

/// A failed signer fails thousands of handshakes a second.
const LINE_INTERVAL_SECS: u64 = 10;
