//! Taking what nobody wants from a peer, so that it hears why.

use std::io;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::observe::counters::http::Discarded;

/// How much of what nobody wants is taken from a peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Linger {
    pub(crate) bytes_max: usize,
    /// Altogether. Of silence it is [`SILENCE`] at the most.
    pub(crate) time: Duration,
}

impl Linger {
    /// Throws away what comes, until the peer ends, falls silent, or has sent too much.
    pub(crate) async fn discard(self, socket: &TcpStream) -> Discarded {
        let mut left = self.bytes_max;
        let discarding = async {
            loop {
                match timeout(SILENCE, socket.readable()).await {
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

/// A packet that is lost is sent again by then; who says nothing for so long says no more.
pub(crate) const SILENCE: Duration = Duration::from_secs(1);
