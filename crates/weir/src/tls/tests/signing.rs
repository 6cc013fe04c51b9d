//! Keys outside of files.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::SignatureScheme;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::sign::{Signer, SigningKey};

use super::super::failure::failure_of;
use super::super::signing::{NoKey, SigningKeys};
use super::*;
use crate::base::files::Watch;
use crate::observe::counters::tls::HandshakeFailure;

/// A key in a service that may refuse to sign, or hide its public part.
#[derive(Debug)]
struct Service {
    key: Arc<dyn SigningKey>,
    is_open: bool,
    is_dead: bool,
}

#[derive(Debug)]
struct Dead(SignatureScheme);

impl SigningKey for Service {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let signer = self.key.choose_scheme(offered)?;
        Some(if self.is_dead { Box::new(Dead(signer.scheme())) } else { signer })
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        self.key.public_key().filter(|_| self.is_open)
    }

    fn algorithm(&self) -> rustls::SignatureAlgorithm {
        self.key.algorithm()
    }
}

impl Signer for Dead {
    fn sign(&self, _: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        Err(rustls::Error::General("it is dead".to_owned()))
    }

    fn scheme(&self) -> SignatureScheme {
        self.0
    }
}

/// The key of a file that is removed from the place where the gateway would look for it.
fn taken(files: &CertificateConfig) -> Arc<dyn SigningKey> {
    let der = PrivateKeyDer::from_pem_file(&files.key).unwrap();
    std::fs::remove_file(&files.key).unwrap();
    any_supported_type(&der).unwrap()
}

fn with_keys(
    config: &Config,
    find: impl Fn(&CertificateConfig) -> Result<Option<Arc<dyn SigningKey>>, NoKey>
    + Send
    + Sync
    + 'static,
) -> Result<Contexts, TlsError> {
    let find: Box<SigningKeys> = Box::new(find);
    Contexts::new(config, Arc::new(NoKeyLog {}), Some(find))
}

#[test]
fn a_key_may_be_elsewhere_and_another_in_its_file() {
    let authority = Authority::new("ca");
    let elsewhere = authority.files("elsewhere", &["elsewhere.example"]);
    let here = authority.files("here", &["here.example"]);
    let key = taken(&elsewhere);
    let config = config(vec![elsewhere.clone(), here]);
    let contexts = with_keys(&config, move |asked| {
        let key = (asked.key == elsewhere.key).then(|| Arc::clone(&key));
        Ok(key.map(|key| Arc::new(Service { key, is_open: true, is_dead: false }) as _))
    })
    .unwrap();
    for version in TlsVersion::ALL {
        for name in ["elsewhere.example", "here.example"] {
            let client = ClientOf { version: Some(version), ..ClientOf::default() };
            shake(&contexts, &client.config(&authority), name).unwrap();
        }
    }
}

#[test]
fn a_reload_asks_for_keys_again_and_keeps_those_it_had_if_there_are_none() {
    let authority = Authority::new("ca");
    let files = authority.files("c", &["gate.example"]);
    let service = Arc::new(Mutex::new(Ok(taken(&files))));
    let asked = Arc::new(AtomicUsize::new(0));
    let (of_gateway, counted) = (Arc::clone(&service), Arc::clone(&asked));
    let contexts = with_keys(&config(vec![files.clone()]), move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        let key: Result<Arc<dyn SigningKey>, &str> = of_gateway.lock().unwrap().clone();
        Ok(Some(Arc::new(Service { key: key?, is_open: true, is_dead: false })))
    })
    .unwrap();
    let mut watch = Watch::new(&contexts);
    let shown = |contexts: &Contexts| {
        let pair = shake(contexts, &client(&authority), "gate.example").unwrap();
        pair.client.peer_certificates().unwrap()[0].clone()
    };
    let first = shown(&contexts);
    let begun = contexts.current(Spoken::Frames, false, true);

    authority.files("c", &["gate.example"]);
    let key = taken(&files);
    // The certificate arrives before the key, so they do not match.
    assert!(!watch.look(&contexts, true));
    *service.lock().unwrap() = Err("the service is away");
    assert!(!watch.look(&contexts, true));
    assert_eq!(shown(&contexts), first);

    *service.lock().unwrap() = Ok(key);
    assert!(watch.look(&contexts, true));
    assert_ne!(shown(&contexts), first);
    shake_with(begun, &client(&authority), "gate.example").unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 4);
}

#[test]
fn keys_that_do_not_fit_or_cannot_be_had_are_named() {
    let authority = Authority::new("ca");
    let files = authority.files("c", &["gate.example"]);
    let other = taken(&authority.files("other", &["gate.example"]));
    let config = config(vec![files]);
    let said = |is_open: bool, result: Result<(), &'static str>| {
        let key = Arc::clone(&other);
        let contexts = with_keys(&config, move |_| {
            result?;
            Ok(Some(Arc::new(Service { key: Arc::clone(&key), is_open, is_dead: false })))
        });
        let said = contexts.err().map(|error| error.to_string()).unwrap_or_default();
        said.replace(&format!("{}/", authority.path().display()), "")
    };
    assert_eq!(
        said(true, Ok(())),
        "tls.certificates[0].key: c.key: the key does not belong to the certificate in c.pem (keys may not be \
         consistent: KeyMismatch)"
    );
    assert_eq!(
        said(true, Err("the service is away")),
        "tls.certificates[0].key: c.key: the key cannot be had: the service is away"
    );
    // A key without a public part is trusted.
    assert_eq!(said(false, Ok(())), "");
}

#[test]
fn a_signer_that_fails_is_told_from_other_faults() {
    let authority = Authority::new("ca");
    let files = authority.files("c", &["gate.example"]);
    let key = taken(&files);
    let contexts = with_keys(&config(vec![files]), move |_| {
        Ok(Some(Arc::new(Service { key: Arc::clone(&key), is_open: true, is_dead: true })))
    })
    .unwrap();
    for version in TlsVersion::ALL {
        let client = ClientOf { version: Some(version), ..ClientOf::default() };
        let error = shake(&contexts, &client.config(&authority), "gate.example").err().unwrap();
        assert_eq!(failure_of(&error), HandshakeFailure::Signer, "{error}");
        let said = "other error: the signer has failed: unexpected error: it is dead";
        assert_eq!(error.to_string(), said);
    }
}

/// The development certificate uses its own key, even if the embedding program provides keys.
#[test]
fn nobody_is_asked_for_the_key_of_the_development_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(Vec::new());
    config.tls.development_directory = directory.path().to_owned();
    with_keys(&config, |_| Err("nobody asks".into())).unwrap();
}
