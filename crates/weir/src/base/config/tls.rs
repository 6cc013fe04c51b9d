//! Sections `[tls]` and `[[tls.certificates]]`.

use std::path::PathBuf;
use std::time::Duration;

use super::TICK;
use super::keys::{HOUR, SECOND};

crate::config_table! {
    /// Section `[tls]`: settings of all listeners with TLS.
    pub struct TlsConfig {
        /// The oldest version that is accepted, with AEAD suites only.
        min_version: TlsVersion;
        /// Whether clients show a certificate. `optional`: if a client shows one, it must be valid.
        /// `required`: without a valid one the handshake fails.
        client_auth: ClientAuth;
        /// PEM file of the authorities that sign clients' certificates.
        client_ca: PathBuf, allowed("not empty with client_auth");
        /// PEM file of revocation lists: one of every authority from a client's certificate up to
        /// and including the one in `client_ca`. If one is missing or has ended, clients are
        /// refused.
        client_crl: PathBuf, allowed("or \"\" for none");
        /// The part of a client's certificate that is its device id: the subject's common name, or
        /// the first DNS name or URI of its alternative names. Then the client needs no token.
        /// `none`: the certificate only admits the client, and the token identifies it.
        client_identity: ClientIdentity, allowed("\"none\" without client_auth");
        /// Protocols offered by ALPN, the preferred one first. A client that offers only other
        /// protocols is refused; a client without ALPN is not.
        alpn: Vec<String> = vec!["weir.v1".to_owned()],
            range(0..=ALPN_MAX), unit("protocols"),
            allowed("at most {ALPN_MAX}, each of 1 to {ALPN_BYTES_MAX} bytes");
        /// The secret from which ticket keys are derived. If all nodes of a fleet have the same
        /// secret, a client can resume its session on any of them, and after a restart. A random
        /// secret ends with the process.
        ticket_secret: String, secret(),
            allowed("{SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes, or \"\" for a random one");
        /// The time for which a ticket key is used, by the clock. Tickets of the running period,
        /// the one before and the one after it are accepted.
        // The clock of tickets counts seconds. A ticket is valid for at most two periods, and for
        // seven days by RFC 8446.
        ticket_rotation: Duration = Duration::from_secs(6 * 3_600), range(SECOND..=84 * HOUR);
        /// TLS 1.2 sessions that are stored for clients without tickets; the oldest is removed
        /// first. 0: none.
        // A session takes some hundred bytes. The table for all is allocated at the start.
        session_cache_max: usize = 10_000, range(0..=1_000_000), unit("sessions");
        /// Interval at which the files are checked. Changed files are read once they stay the same
        /// for one check, or at once on SIGHUP. If they cannot be used, the ones loaded before
        /// stay.
        reload_interval: Duration = Duration::from_secs(5), range(TICK..=HOUR);
        /// Threads that accept TLS connections and compute their handshakes, at the lowest
        /// priority. 0: one for each processor that the affinity mask and the cgroup quota allow.
        handshake_threads: usize, range(0..=256), unit("threads");
        /// Handshakes that may wait for a thread. Handshakes that resume a session nearly always go
        /// first. One more is closed at once, and so is one that has waited for
        /// `connection.hello_timeout`.
        // Each holds its ClientHello, and its client waits.
        handshake_queue_max: usize = 4_096, range(1..=1_000_000), unit("handshakes");
        /// Whether the key exchange X25519MLKEM768 is offered. A quantum computer would not break
        /// it either (docs/decisions/0003-post-quantum.md).
        post_quantum: bool = true;
        /// Whether the development certificate may be used outside loopback.
        development_certificate_anywhere: bool;
        /// Directory of the development certificate. Empty: `$STATE_DIRECTORY`,
        /// `$XDG_STATE_HOME/weir` or `~/.local/state/weir`, the first that is set.
        development_directory: PathBuf, allowed("or \"\"");
        /// The server's certificates. A client gets the certificate with the name that it asks for,
        /// exactly or by `*.`; other clients get the first one. If several have that name, a client
        /// gets the first that it can check, such as ECDSA before RSA. Without any, a development
        /// certificate is made. Only in the file.
        // All are read again when one changes.
        certificates: Vec<CertificateConfig>, range(0..=1_024), unit("certificates");
    }
}

crate::config_table! {
    /// One of `[[tls.certificates]]`.
    pub struct CertificateConfig
        in "tables [[tls.certificates]], each with a certificate and a key"
    {
        /// PEM file: the certificate, followed by those that lead to an authority that devices
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
        /// Clients are not asked for one.
        #[default]
        Off = "off",
        /// Clients are asked; a certificate that is shown must be valid.
        Optional = "optional",
        /// Without a valid one the handshake fails.
        Required = "required",
    }
}

weir_wire::named_enum! {
    /// The part of a client's certificate that is its device id.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum ClientIdentity {
        /// None: the certificate only admits the client, and a token identifies it.
        #[default]
        None = "none",
        /// The subject's common name.
        CommonName = "common_name",
        /// The first DNS name among the subject's alternative names.
        SanDns = "san_dns",
        /// The first URI among the subject's alternative names.
        SanUri = "san_uri",
    }
}

crate::config_words!(TlsVersion, ClientAuth, ClientIdentity);

const ALPN_MAX: u64 = 16;
/// A protocol's length has one byte.
pub(super) const ALPN_BYTES_MAX: usize = 255;
/// As long as the keys derived from it.
pub(super) const SECRET_BYTES_MIN: usize = 32;
pub(super) const SECRET_BYTES_MAX: usize = 4_096;
