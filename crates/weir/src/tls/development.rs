//! The development certificate for first trials: made once, self-signed, and kept.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aws_lc_rs::digest;
use rcgen::{CertificateParams, DnType, KeyPair, SanType, date_time_ymd};
use zeroize::Zeroizing;

use super::TlsError;
use super::certificates::{expires, read_certificates};
use crate::base::clock::unix_time;
use crate::base::config::{CertificateConfig, TlsConfig};
use crate::base::private::{make_private_directory, warn_if_exposed};

/// The certificate in use if none is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Development {
    /// PEM file of the certificate and its key, which only its owner may read.
    pub path: PathBuf,
    /// SHA-256 of the certificate, as `openssl x509 -fingerprint -sha256` writes it.
    pub fingerprint: String,
}

/// Finds the development certificate. Makes one if there is none, or if it expires soon.
pub(super) fn find_or_make(config: &TlsConfig) -> Result<Development, TlsError> {
    let directory = directory(&config.development_directory)?;
    let path = directory.join(FILE_NAME);
    let error = |what: String| TlsError::new(KEY, &path, what);
    // Checked before the search: a certificate that another process makes meanwhile is not
    // replaced.
    let is_there = path.try_exists().map_err(|cause| error(format!("cannot be read: {cause}")))?;
    if let Some(found) = find(config)? {
        warn_if_exposed(KEY, &path);
        return Ok(found);
    }
    let pem = make().map_err(|cause| error(format!("cannot be made: {cause}")))?;
    keep(&directory, &path, &pem, is_there)
        .map_err(|cause| error(format!("cannot be written: {cause}")))?;
    Development::read(path)
}

/// Finds the development certificate; `None` if one must be made.
pub(super) fn find(config: &TlsConfig) -> Result<Option<Development>, TlsError> {
    let path = directory(&config.development_directory)?.join(FILE_NAME);
    let error =
        |cause: io::Error| TlsError::new(KEY, &path, format_args!("cannot be read: {cause}"));
    if !path.try_exists().map_err(error)? || ends_soon(&path)? {
        return Ok(None);
    }
    Development::read(path).map(Some)
}

impl Development {
    fn read(path: PathBuf) -> Result<Development, TlsError> {
        let chain = read_certificates(KEY, &path)?;
        let fingerprint = digest::digest(&digest::SHA256, &chain[0]);
        let bytes: Vec<String> =
            fingerprint.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
        Ok(Development { path, fingerprint: bytes.join(":") })
    }

    /// The certificate as one of `[[tls.certificates]]`.
    pub(super) fn config(&self) -> CertificateConfig {
        CertificateConfig { certificate: self.path.clone(), key: self.path.clone() }
    }
}

/// The configured directory, or the usual one for a program's state: systemd's for a service, then
/// XDG's.
fn directory(configured: &Path) -> Result<PathBuf, TlsError> {
    if !configured.as_os_str().is_empty() {
        return Ok(configured.to_owned());
    }
    let from = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // It is a list only if a unit has several state directories.
    let of_service =
        from("STATE_DIRECTORY").filter(|path| !path.as_os_str().as_encoded_bytes().contains(&b':'));
    of_service
        .or_else(|| from("XDG_STATE_HOME").map(|home| home.join("weir")))
        .or_else(|| from("HOME").map(|home| home.join(".local/state/weir")))
        .ok_or_else(|| {
            let what = "there is no place for the development certificate, as neither STATE_DIRECTORY nor \
                        XDG_STATE_HOME nor HOME is set; set it, or [[tls.certificates]]";
            TlsError::new(KEY, configured, what)
        })
}

fn ends_soon(path: &Path) -> Result<bool, TlsError> {
    let chain = read_certificates(KEY, path)?;
    let soon = (unix_time() + RENEWED_BEFORE).as_secs();
    let end = expires(&chain[0]).map_err(|what| TlsError::new(KEY, path, what))?;
    Ok(u64::try_from(end).unwrap_or(0) < soon)
}

/// Makes a certificate and its key, in PEM.
fn make() -> Result<Zeroizing<String>, rcgen::Error> {
    let mut params = CertificateParams::new(["localhost".to_owned()])?;
    for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)] {
        params.subject_alt_names.push(SanType::IpAddress(ip));
    }
    params.distinguished_name.push(DnType::CommonName, "weir development certificate");
    let now = date_time_ymd(1970, 1, 1) + unix_time();
    (params.not_before, params.not_after) = (now - HOUR, now + VALIDITY);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    let key = Zeroizing::new(key.serialize_pem());
    Ok(Zeroizing::new(format!("{}{}", certificate.pem(), *key)))
}

/// Writes a temporary file and moves it to its place, so that no process reads half of it. If
/// `is_there` is false, another process may make a certificate at the same time. Then the first one
/// stays, since it may be in use already.
fn keep(directory: &Path, path: &Path, pem: &str, is_there: bool) -> io::Result<()> {
    make_private_directory(directory)?;
    // A process id is not unique across containers, nor after a process was killed here.
    let beside = path.with_extension(format!("{:032x}.tmp", rand::random::<u128>()));
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)
        .and_then(|mut file| {
            file.write_all(pem.as_bytes())?;
            file.sync_all()
        })
        .and_then(|()| {
            if is_there {
                return fs::rename(&beside, path);
            }
            match fs::hard_link(&beside, path) {
                Ok(()) => Ok(()),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                // Not every file system has hard links.
                Err(_) => fs::rename(&beside, path),
            }
        });
    // The file may not exist, or may have been moved.
    let _ = fs::remove_file(&beside);
    written
}

const KEY: &str = "tls.development_directory";
const FILE_NAME: &str = "development.pem";
const HOUR: Duration = Duration::from_secs(3_600);
/// The longest validity that checking systems accept.
const VALIDITY: Duration = Duration::from_secs(397 * 86_400);
const RENEWED_BEFORE: Duration = Duration::from_secs(30 * 86_400);
