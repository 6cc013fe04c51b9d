//! The last moments of a connection.

use std::io;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::time::timeout;

use crate::session::discard;
use crate::tls::stream::Stream;

/// Says what is left to be said and closes. `is_heard`: the peer may still be sending; what it sends is thrown away for a
/// moment, so that our close does not become a reset, which would overtake what was said.
pub(super) async fn close(mut stream: Stream, last: &[u8], is_heard: bool) {
    if stream.is_plain() && last.is_empty() && !is_heard {
        return;
    }
    let closed = async {
        if !last.is_empty() {
            stream.write_all(last).await?;
        }
        stream.shutdown().await?;
        for _ in 0..DISCARDED_READS_MAX {
            if !is_heard {
                break;
            }
            stream.socket().readable().await?;
            if discard(stream.socket())? == 0 {
                break;
            }
        }
        io::Result::Ok(())
    };
    // Whether it arrived or not, the socket is closed now.
    let _ = timeout(LINGER_TIMEOUT, closed).await;
}

/// Together with the time-out: how much may still be sent before it is answered with a reset.
const DISCARDED_READS_MAX: usize = 64;
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
