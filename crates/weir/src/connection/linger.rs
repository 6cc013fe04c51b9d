//! The end of a connection that the gateway closes: the last bytes, and the discarding of input.
//!
//! A socket that is closed while bytes come resets the connection, and the reset overtakes the last
//! bytes (RFC 9112 section 9.6). So the input is read and discarded for a while.

use std::io;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::observe::counters::http::Discarded;
use crate::tls::stream::Stream;

/// How much unwanted input is read from a peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Linger {
    pub(crate) bytes_max: usize,
    /// The longest time in all.
    pub(crate) time: Duration,
    /// The longest pause of the peer; also the time for the last bytes.
    pub(crate) silence: Duration,
}

/// The moment at which our side of TLS ends. Without a [`Linger`] it always ends with the last
/// bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TlsEnd {
    /// With the last bytes.
    AtOnce,
    /// When the peer falls silent. Some clients (Java's) take the end of our side for the end of
    /// both, and lose the last bytes.
    AfterSilence,
}

/// Sends the last bytes and shuts down our side. With `linger`, the peer may still be sending.
///
/// Returns how the discarding ended; `None`: there was none.
pub(crate) async fn say_last(
    stream: &mut Stream,
    last: &[u8],
    linger: Option<&Linger>,
    tls_end: TlsEnd,
) -> Option<Discarded> {
    let is_late = tls_end == TlsEnd::AfterSilence && linger.is_some() && !stream.is_plain();
    let said = async {
        if !last.is_empty() {
            stream.write_all(last).await?;
            stream.flush().await?;
        }
        if !is_late {
            stream.shutdown().await?;
        }
        io::Result::Ok(())
    };
    let silence = linger.map_or(SILENCE, |linger| linger.silence);
    // If sending fails, the socket is closed at once.
    timeout(silence, said).await.ok()?.ok()?;
    let linger = linger?;
    let discarded = linger.discard(stream.socket()).await;
    if is_late && discarded == Discarded::Silent {
        let _ = timeout(silence, stream.shutdown()).await;
        linger.discard(stream.socket()).await;
    }
    Some(discarded)
}

impl Linger {
    /// Discards input until the peer ends, falls silent, or exceeds a limit of the linger.
    pub(crate) async fn discard(&self, socket: &TcpStream) -> Discarded {
        let mut left = self.bytes_max;
        let discarding = async {
            loop {
                match timeout(self.silence, socket.readable()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return Discarded::Ended,
                    Err(_) => return Discarded::Silent,
                }
                match read_away(socket) {
                    Ok(0) => return Discarded::Ended,
                    Ok(count) if count >= left => return Discarded::TooLong,
                    Ok(count) => left -= count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return Discarded::Ended,
                }
            }
        };
        timeout(self.time, discarding).await.unwrap_or(Discarded::TooLate)
    }
}

fn read_away(socket: &TcpStream) -> io::Result<usize> {
    let mut bytes = [0; 16 * 1024];
    socket.try_read(&mut bytes)
}

/// TCP has repeated a lost packet by then. A peer that pauses longer sends no more.
pub(crate) const SILENCE: Duration = Duration::from_secs(1);

/// For a peer that is refused a place.
pub(crate) const SHORT: Linger =
    Linger { bytes_max: 256 * 1024, time: Duration::from_secs(1), silence: SILENCE };
