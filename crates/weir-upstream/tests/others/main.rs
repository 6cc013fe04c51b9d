//! Upstreams against programs that others wrote: dnsmasq, tinyproxy, squid, microsocks, OpenSSL, nginx.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod common;
mod dns;
mod proxies;
mod tls;
mod whole;
