//! Sections `[tls]` and `[[tls.certificates]]`.

use std::path::PathBuf;
use std::time::Duration;

use super::TICK;
use super::keys::{HOUR, SECOND};

crate::config_table! {
    /// Section `[tls]`: what holds for all that listens with TLS.
    pub struct TlsConfig {
        /// The oldest version that is spoken, with AEAD suites only.
        min_version: TlsVersion;
        /// Whether clients show a certificate. `optional`: one that is shown has to be valid;
        /// `required`: without a valid one the handshake fails.
        client_auth: ClientAuth;
        /// PEM file of the authorities that sign clients' certificates.
        client_ca: PathBuf, allowed("not empty with client_auth");
        /// PEM file of revocation lists, one of every authority on the way from a client's
        /// certificate to the one in `client_ca`, that one's included. Where one is missing or has
        /// ended, clients are refused.
        client_crl: PathBuf, allowed("or \"\" for none");
        /// The part of a client's certificate that is its device id: the subject's common name, or
        /// the first DNS name or URI of its alternative names. No token is needed then. `none`: a
        /// certificate lets through, and the token says who it is.
        client_identity: ClientIdentity, allowed("\"none\" without client_auth");
        /// Protocols offered to clients that name some by ALPN, the preferred one first. Who names
        /// others only is refused; who names none is not.
        alpn: Vec<String> = vec!["weir.v1".to_owned()],
            range(0..=ALPN_MAX), unit("protocols"),
            allowed("at most {ALPN_MAX}, each of 1 to {ALPN_BYTES_MAX} bytes");
        /// What ticket keys are derived from. With the same secret on every node of a fleet a
        /// client resumes its session at any of them, and after a restart; a random one ends with
        /// the process.
        ticket_secret: String, secret(),
            allowed("{SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes, or \"\" for a random one");
        /// How long a ticket key is used, by the clock. Tickets of the running period, the one
        /// before and the one after it are accepted.
        // The clock of tickets counts seconds. A ticket is good for two periods at the most, and
        // for seven days by RFC 8446.
        ticket_rotation: Duration = Duration::from_secs(6 * 3_600), range(SECOND..=84 * HOUR);
        /// Sessions of TLS 1.2 that are kept for clients without tickets; the oldest goes. 0: none.
        // A session takes some hundred bytes, and the table of all is made at the start.
        session_cache_max: usize = 10_000, range(0..=1_000_000), unit("sessions");
        /// How often the files are looked at. What has changed is read when the next look finds
        /// nothing new, at once on SIGHUP; if it cannot be used, what was loaded before stays.
        reload_interval: Duration = Duration::from_secs(5), range(TICK..=HOUR);
        /// Threads that accept connections with TLS and compute their handshakes, below everything
        /// else. 0: one for each processor that affinity mask and cgroup quota allow.
        handshake_threads: usize, range(0..=256), unit("threads");
        /// Handshakes that may wait for a thread, those that resume a session nearly always first.
        /// One more is closed at once, and so is one that has waited for connection.hello_timeout.
        // Each holds its hello, and the client waits.
        handshake_queue_max: usize = 4_096, range(1..=1_000_000), unit("handshakes");
        /// Whether the key exchange X25519MLKEM768 is offered, which a quantum computer would not
        /// break either (docs/decisions/0003-post-quantum.md).
        post_quantum: bool = true;
        /// Whether the development certificate may be shown beyond loopback.
        development_certificate_anywhere: bool;
        /// Where the development certificate is kept. Empty: `$STATE_DIRECTORY`,
        /// `$XDG_STATE_HOME/weir` or `~/.local/state/weir`, the first that is set.
        development_directory: PathBuf, allowed("or \"\"");
        /// What clients are shown: the certificate whose names hold the one that the client asks
        /// for, exactly or by `*.`, and the first one for everybody else. Of several for one name a
        /// client gets the first that it can check, such as ECDSA before RSA. Without any, a
        /// development certificate is made. Only in the file.
        // Each is read again when one changes.
        certificates: Vec<CertificateConfig>, range(0..=1_024), unit("certificates");
    }
}

crate::config_table! {
    /// One of `[[tls.certificates]]`.
    pub struct CertificateConfig
        in "tables [[tls.certificates]], each with a certificate and a key"
    {
        /// PEM file: the certificate, and behind it those that lead to an authority which devices
        /// know.
        certificate: PathBuf, allowed("not empty"), example("\"/etc/weir/gate.example.pem\""),
            needed();
        /// PEM file of its private key, without a passphrase: ECDSA, Ed25519 or RSA, as PKCS #8,
        /// SEC 1 or PKCS #1. It may be the same file.
        key: PathBuf, allowed("not empty"), example("\"/etc/weir/gate.example.key\""), needed();
    }
}

weir_wire::named_enum! {
    /// A version of TLS.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum TlsVersion {
        /// TLS 1.2, with AEAD suites only.
        #[default]
        Tls12 = "1.2",
        /// TLS 1.3.
        Tls13 = "1.3",
    }
}

weir_wire::named_enum! {
    /// Whether clients show a certificate.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum ClientAuth {
        /// They are not asked.
        #[default]
        Off = "off",
        /// They are asked; one that is shown has to be valid.
        Optional = "optional",
        /// Without a valid one the handshake fails.
        Required = "required",
    }
}

weir_wire::named_enum! {
    /// The part of a client's certificate that is its device id.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum ClientIdentity {
        /// None: a certificate lets through, and a token says who it is.
        #[default]
        None = "none",
        /// The subject's common name.
        CommonName = "common_name",
        /// The first DNS name among the subject's alternative names.
        SanDns = "san_dns",
        /// The first URI among them.
        SanUri = "san_uri",
    }
}

crate::config_words!(TlsVersion, ClientAuth, ClientIdentity);

const ALPN_MAX: u64 = 16;
/// Its length stands in one byte.
pub(super) const ALPN_BYTES_MAX: usize = 255;
/// As long as the keys that are made of it.
pub(super) const SECRET_BYTES_MIN: usize = 32;
pub(super) const SECRET_BYTES_MAX: usize = 4_096;
