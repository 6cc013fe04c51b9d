//! Sections `[tls]` and `[[tls.certificates]]`.

use std::path::PathBuf;
use std::time::Duration;

use super::TICK;
use super::cluster::Scope;
use super::keys::{HOUR, SECOND};

crate::config_table! {
    /// Section `[tls]`: rules for all listeners with TLS.
    pub struct TlsConfig {
        /// The oldest version of TLS that is accepted, with AEAD suites only.
        min_version: TlsVersion;
        /// Whether clients must show a certificate. `off`: the gateway does not ask for one.
        /// `optional`: a certificate that a client shows must be valid. `required`: without a valid
        /// certificate the handshake fails.
        client_auth: ClientAuth;
        /// PEM file of the authorities that sign clients' certificates.
        client_ca: PathBuf, allowed("not empty with client_auth");
        /// PEM file of revocation lists: one of every authority on the chain from a client's
        /// certificate to the one in `client_ca`, including that one. If a list is missing or has
        /// ended, clients are refused.
        client_crl: PathBuf, allowed("or \"\" for none");
        /// The part of a client's certificate that is its device id: the subject's common name, or
        /// the first DNS name or URI of its alternative names. Then no token is needed. `none`: the
        /// certificate only admits the connection, and the token names the device.
        client_identity: ClientIdentity, allowed("\"none\" without client_auth");
        /// ALPN protocols that the gateway accepts, the preferred one first. A client that offers
        /// only others is refused; a client that offers none is not.
        alpn: Vec<String> = vec!["weir.v1".to_owned()],
            range(0..=ALPN_MAX), unit("protocols"),
            allowed("at most {ALPN_MAX}, each of 1 to {ALPN_BYTES_MAX} bytes");
        /// Secret from which ticket keys are derived. If all nodes of a fleet have the same secret,
        /// a client resumes its session at any of them, and after a restart. A random secret ends
        /// with the process.
        ticket_secret: String, secret(),
            allowed("{SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes, or \"\" for a random one");
        /// How long a ticket key is used, by the clock. Tickets of the current period, the previous
        /// one and the next one are accepted.
        // The clock of tickets counts seconds. A ticket is valid for at most two periods, and for
        // at most seven days by RFC 8446.
        ticket_rotation: Duration = Duration::from_secs(6 * 3_600), range(SECOND..=84 * HOUR);
        /// Where TLS 1.2 sessions of clients without tickets are found. `node`: at the node that
        /// began them. `cluster`: at every node with the same secret; they are sealed like tickets
        /// and kept in Redis for one `ticket_rotation`. Tickets need neither.
        session_cache: Scope = Scope::Node,
            allowed("\"cluster\" only with cluster.redis and tls.ticket_secret");
        /// TLS 1.2 sessions that are kept for clients without tickets. The oldest is removed first.
        /// 0: none. With `session_cache = "cluster"` also the number that this node keeps in Redis.
        // A session takes some hundred bytes; the whole table is allocated at the start.
        session_cache_max: usize = 10_000, range(0..=1_000_000), unit("sessions");
        /// How often the files are checked for changes. A changed file is read when the next check
        /// finds it unchanged again, or at once on SIGHUP. If it cannot be used, the loaded one
        /// stays.
        reload_interval: Duration = Duration::from_secs(5), range(TICK..=HOUR);
        /// Threads that accept TLS connections and compute their handshakes, at a lower priority
        /// than all other threads. 0: one for each processor that affinity mask and cgroup quota
        /// allow.
        handshake_threads: usize, range(0..=256), unit("threads");
        /// Handshakes that may wait for a thread; resumed sessions nearly always go first. The next
        /// one is closed at once, and so is one that has waited for connection.hello_timeout.
        // Each one holds its ClientHello, and its client waits.
        handshake_queue_max: usize = 4_096, range(1..=1_000_000), unit("handshakes");
        /// Whether the key exchange X25519MLKEM768 is offered. It also withstands quantum computers
        /// (docs/decisions/0003-post-quantum.md).
        post_quantum: bool = true;
        /// Whether the development certificate may be used outside loopback.
        development_certificate_anywhere: bool;
        /// Directory of the development certificate. Empty: the first of these that is set:
        /// `$STATE_DIRECTORY`, `$XDG_STATE_HOME/weir`, `~/.local/state/weir`.
        development_directory: PathBuf, allowed("or \"\"");
        /// Certificates for clients. A client gets the certificate for the name that it asks for,
        /// exactly or by `*.`; otherwise the first one. If several certificates have that name, the
        /// client gets the first one that it can check, for example ECDSA before RSA. Without any,
        /// the gateway makes a development certificate. Only the file can set them.
        // All of them are read again when one changes.
        certificates: Vec<CertificateConfig>, range(0..=1_024), unit("certificates");
    }
}

crate::config_table! {
    /// One of `[[tls.certificates]]`.
    pub struct CertificateConfig
        in "tables [[tls.certificates]], each with a certificate and a key"
    {
        /// PEM file: the certificate, followed by the chain up to an authority that devices trust.
        certificate: PathBuf, allowed("not empty"), example("\"/etc/weir/gate.example.pem\""),
            needed();
        /// PEM file of the certificate's private key, without a passphrase: ECDSA, Ed25519 or RSA,
        /// as PKCS #8, SEC 1 or PKCS #1. It may be the same file.
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
    /// Whether clients must show a certificate.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum ClientAuth {
        /// The gateway does not ask for one.
        #[default]
        Off = "off",
        /// The gateway asks; a certificate that a client shows must be valid.
        Optional = "optional",
        /// Without a valid certificate the handshake fails.
        Required = "required",
    }
}

weir_wire::named_enum! {
    /// The part of a client's certificate that is its device id.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum ClientIdentity {
        /// None: the certificate only admits the connection, and a token names the device.
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
/// TLS has one byte for the length.
pub(super) const ALPN_BYTES_MAX: usize = 255;
/// As long as the keys that are derived from it.
pub(super) const SECRET_BYTES_MIN: usize = 32;
pub(super) const SECRET_BYTES_MAX: usize = 4_096;
