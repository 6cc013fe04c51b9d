//! TLS options of the commands that connect.

use std::path::Path;

use anyhow::Context;
use weir_client::TlsOptions;

use crate::options::TlsArgs;

/// TLS options for a connection to `addr`; `None` without `--tls`.
pub(crate) fn options(args: &TlsArgs, addr: &str) -> anyhow::Result<Option<TlsOptions>> {
    let Some(ca) = args.ca.as_deref().filter(|_| args.tls) else { return Ok(None) };
    let name = args.server_name.as_deref().unwrap_or_else(|| host(addr));
    let options = TlsOptions::new(name, &read(ca)?).with_context(|| {
        format!("cannot connect to {name} with TLS and the authorities in {}", ca.display())
    })?;
    let Some(path) = &args.certificate else { return Ok(Some(options)) };
    let pem = read(path)?;
    let options = options
        .certificate(&pem, &pem)
        .with_context(|| format!("cannot use the certificate in {}", path.display()))?;
    Ok(Some(options))
}

/// The host of an address, without port and without the brackets of IPv6.
fn host(addr: &str) -> &str {
    let host = addr.rsplit_once(':').map_or(addr, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_what_stands_before_the_port() {
        for (addr, expected) in [
            ("gateway.example:7443", "gateway.example"),
            ("127.0.0.1:7443", "127.0.0.1"),
            ("[::1]:7443", "::1"),
            ("gateway.example", "gateway.example"),
        ] {
            assert_eq!(host(addr), expected);
        }
    }
}
