//! Text that becomes wrong long before its message ends.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use weir_tests::{PATIENCE, Socket, masked};

use super::{Format, PING, PONG, TEXT, open, texts};

/// 6.4: a wrong text in three parts, each sent when the one before has been read. How much of it is in the first, and
/// in the second, which makes it wrong; and whether the parts are fragments, or parts of one frame.
pub(super) const CASES: &[(&str, usize, usize)] =
    &[("6.4.1", 11, 4), ("6.4.2", 12, 1), ("6.4.3", 11, 4), ("6.4.4", 12, 1)];

/// Whether the connection ends before the third part is sent.
///
/// Errors: it does not end with 1007 even then.
pub(super) fn is_failed_fast(
    addr: SocketAddr,
    id: &str,
    first: usize,
    second: usize,
) -> Result<bool> {
    let mut socket = open(addr, id, Format::Json)?;
    let (before, rest) = texts::BEYOND.split_at(first);
    let (wrong, behind) = rest.split_at(second);
    let is_in_fragments = ["6.4.1", "6.4.2"].contains(&id);
    let is_open = if is_in_fragments {
        socket.send(&masked(0x01, before))?;
        socket.send(&masked(0, wrong))?;
        // Whoever has read the second fragment and goes on answers what comes behind it.
        socket.send(&masked(PING, b"still there?"))?;
        socket.hear()?.is_some_and(|(first, _)| first == PONG)
    } else {
        let frame = masked(TEXT, texts::BEYOND);
        let (sent, rest) = frame.split_at(frame.len() - behind.len());
        socket.send(sent)?;
        // A frame is not finished, so nothing can be asked: who goes on is silent.
        let is_open = is_silent(&mut socket)?;
        if is_open {
            socket.send(rest)?;
        }
        is_open
    };
    if !is_open {
        return Ok(true);
    }
    if is_in_fragments {
        socket.send(&masked(0x80, behind))?;
    }
    let (code, _) = socket.closed()?;
    ensure!(code == 1007, "closed with {code}");
    Ok(false)
}

fn is_silent(socket: &mut Socket) -> Result<bool> {
    socket.stream.set_read_timeout(Some(Duration::from_millis(200)))?;
    let peeked = socket.stream.peek(&mut [0]);
    socket.stream.set_read_timeout(Some(PATIENCE))?;
    match peeked {
        Ok(_) => Ok(false),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Ok(true)
        }
        Err(error) => Err(error.into()),
    }
}
