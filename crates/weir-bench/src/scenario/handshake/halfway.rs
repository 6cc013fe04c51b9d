//! The memory of handshakes that have begun and do not continue.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::super::idle::settle;
use crate::process::rss_anon;
use crate::report::Report;
use crate::spawn::Target;
use crate::stats::real;
use crate::tls::{TlsClient, TlsPlan};
use crate::worker::dial;

/// Memory must not change for this time before the first client comes, and after all have gone.
const QUIET: Duration = Duration::from_secs(6);
/// The server answers a `ClientHello` within this time.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// As in all scenarios: the port range of an address holds 28,000.
const PER_SOURCE: u32 = 8000;

/// Lets `count` clients send `ClientHello` and receive the answer, one after the other. Measures
/// the server's memory while all of them wait.
///
/// All clients send the same bytes; a server does not notice.
pub(super) fn measure(
    target: &Target,
    tls: &TlsPlan,
    count: u32,
    report: &mut Report,
) -> Result<()> {
    let mut hello = Vec::new();
    TlsClient::new(tls)?.connection(0)?.write_tls(&mut hello).context("cannot make a hello")?;
    let (before, _) = settle(target.pid, QUIET)?;
    let mut clients = Vec::new();
    for index in 0..count {
        clients.push(begin(target.addr, index, &hello)?);
    }
    let during = rss_anon(target.pid)?;
    drop(clients);
    let (after, _) = settle(target.pid, QUIET)?;
    report.set("halfway", count);
    let each = (real(during) - real(before)) / f64::from(count);
    report.figure("halfway_bytes_per_handshake", Some(each));
    report.set("halfway_rss_anon_before", before);
    report.set("halfway_rss_anon_during", during);
    report.set("halfway_rss_anon_after", after);
    Ok(())
}

fn begin(addr: SocketAddr, index: u32, hello: &[u8]) -> Result<TcpStream> {
    let [.., low] = (index / PER_SOURCE + 1).to_be_bytes();
    let source = addr.ip().is_loopback().then(|| SocketAddr::from(([127, 250, 0, low], 0)));
    let mut client = TcpStream::from(dial(addr, source.filter(|_| addr.is_ipv4()), None)?);
    client.set_nonblocking(false)?;
    client.set_read_timeout(Some(ANSWER_MAX))?;
    client.write_all(hello).context("cannot send a hello")?;
    match client.read(&mut [0; 16 * 1024]).context("waiting for the answer to a hello")? {
        0 => bail!("handshake {index} of those halfway was closed"),
        _ => Ok(client),
    }
}
