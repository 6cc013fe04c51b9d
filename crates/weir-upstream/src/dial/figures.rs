//! Figures of connecting.

use std::sync::atomic::{AtomicU64, Ordering};

use super::error::DialStep;

/// How connecting went, since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DialStatus {
    /// Connections that were made.
    pub connected: u64,
    /// Attempts without an address. Requests that never got an endpoint are not among them.
    pub dns_failures: u64,
    /// Attempts that the kernel could not connect.
    pub connect_failures: u64,
    /// Attempts that a proxy did not connect.
    pub proxy_failures: u64,
    /// Attempts without a TLS handshake.
    pub tls_failures: u64,
    /// Changed files of TLS that could not be used; the former ones stayed.
    pub reload_failures: u64,
}

impl DialStatus {
    /// The failures of each step, by its word.
    pub fn failures_by_step(&self) -> [(&'static str, u64); 4] {
        [
            (DialStep::Dns.word(), self.dns_failures),
            (DialStep::Connect.word(), self.connect_failures),
            (DialStep::Proxy.word(), self.proxy_failures),
            (DialStep::Tls.word(), self.tls_failures),
        ]
    }
}

#[derive(Default)]
pub(super) struct Figures {
    connected: AtomicU64,
    dns: AtomicU64,
    connect: AtomicU64,
    proxy: AtomicU64,
    tls: AtomicU64,
}

impl Figures {
    pub(super) fn count(&self, failed: Option<DialStep>) {
        let counter = match failed {
            None => &self.connected,
            Some(DialStep::Dns) => &self.dns,
            Some(DialStep::Connect) => &self.connect,
            Some(DialStep::Proxy) => &self.proxy,
            Some(DialStep::Tls) => &self.tls,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn status(&self, reload_failures: u64) -> DialStatus {
        DialStatus {
            connected: self.connected.load(Ordering::Relaxed),
            dns_failures: self.dns.load(Ordering::Relaxed),
            connect_failures: self.connect.load(Ordering::Relaxed),
            proxy_failures: self.proxy.load(Ordering::Relaxed),
            tls_failures: self.tls.load(Ordering::Relaxed),
            reload_failures,
        }
    }
}
