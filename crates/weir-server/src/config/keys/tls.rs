//! The keys of `[tls]`.

use super::{At, Key, Settings};

pub(super) static KEYS: &[Key] = &[
    key!(tls.min_version, "", "The oldest version that is spoken, with AEAD suites only."),
    key!(
        tls.client_auth,
        "",
        "Whether clients show a certificate. `optional`: one that is shown has to be valid; `required`: without a valid \
         one the handshake fails."
    ),
    key!(
        tls.client_ca,
        "not empty with client_auth",
        "PEM file of the authorities that sign clients' certificates."
    ),
    key!(
        tls.client_crl,
        "or \"\" for none",
        "PEM file of revocation lists, one of every authority on the way from a client's certificate to the one in \
         `client_ca`, that one's included. Where one is missing or has ended, clients are refused."
    ),
    key!(
        tls.client_identity,
        "\"none\" without client_auth",
        "The part of a client's certificate that is its device id: the subject's common name, or the first DNS name or \
         URI of its alternative names. No token is needed then. `none`: a certificate lets through, and the token says \
         who it is."
    ),
    key!(
        tls.alpn,
        "at most 16, each of 1 to 255 bytes",
        "Protocols offered to clients that name some by ALPN, the preferred one first. Who names others only is refused; \
         who names none is not."
    ),
    key!(
        secret tls.ticket_secret,
        "32 to 4096 bytes, or \"\" for a random one",
        "What ticket keys are derived from. With the same secret on every node of a fleet a client resumes its session at \
         any of them, and after a restart; a random one ends with the process."
    ),
    key!(
        tls.ticket_rotation,
        "1s to 84h",
        "How long a ticket key is used, by the clock. Tickets of the running period, the one before and the one after it \
         are accepted."
    ),
    key!(
        tls.session_cache_max,
        "0 to 1000000",
        "Sessions of TLS 1.2 that are kept for clients without tickets; the oldest goes. 0: none."
    ),
    key!(
        tls.reload_interval,
        "100ms to 1h",
        "How often the files are looked at. What has changed is read when the next look finds nothing new, at once on \
         SIGHUP; if it cannot be used, what was loaded before stays."
    ),
    key!(
        tls.handshake_threads,
        "0 to 256",
        "Threads that accept connections with TLS and compute their handshakes, below everything else. 0: one for each \
         processor that affinity mask and cgroup quota allow."
    ),
    key!(
        tls.handshake_queue_max,
        "1 to 1000000",
        "Handshakes that may wait for a thread, those that resume a session nearly always first. One more is closed at \
         once, and so is one that has waited for connection.hello_timeout."
    ),
    key!(
        tls.post_quantum,
        "",
        "Whether the key exchange X25519MLKEM768 is offered, which a quantum computer would not break either (docs/decisions/0003-post-quantum.md)."
    ),
    key!(
        tls.development_certificate_anywhere,
        "",
        "Whether the development certificate may be shown beyond loopback."
    ),
    key!(
        tls.development_directory,
        "or \"\"",
        "Where the development certificate is kept. Empty: `$STATE_DIRECTORY`, `$XDG_STATE_HOME/weir` or \
         `~/.local/state/weir`, the first that is set."
    ),
    key!(
        tls.certificates,
        "at most 1024",
        "What clients are shown: the certificate whose names hold the one that the client asks for, exactly or by `*.`, \
         and the first one for everybody else. Of several for one name a client gets the first that it can check, such \
         as ECDSA before RSA. Without any, a development certificate is made. Only in the file."
    ),
];
