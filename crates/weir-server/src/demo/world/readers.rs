//! Readers of the live page: each reads server-sent events, as a browser's `EventSource` does.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout_at};

use super::backend::LIVE;
use super::{about, begin};

/// Reads for ever. A reader that returns goes on after the last event that it has seen.
pub(super) async fn read(addr: SocketAddr, number: usize) {
    begin(number).await;
    let device = format!("reader-{}", number + 1);
    let mut last = String::new();
    loop {
        if let Err(error) = stay(addr, &device, &mut last).await {
            tracing::debug!(device, %error, "a reader of the demo connects again");
        }
        sleep(about(PAUSE)).await;
    }
}

/// One stream, for a while.
async fn stay(addr: SocketAddr, device: &str, last: &mut String) -> io::Result<()> {
    let end = Instant::now() + about(STAY);
    let mut stream = BufReader::new(TcpStream::connect(addr).await?);
    let resume = match last.as_str() {
        "" => String::new(),
        last => format!("Last-Event-ID: {last}\r\n"),
    };
    let request = format!(
        "GET /v1/sse?topic={LIVE}&device={device} HTTP/1.1\r\nHost: {addr}\r\n\
         Accept: text/event-stream\r\nUser-Agent: demo-reader\r\n{resume}\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut line = String::new();
    while let Ok(read) = timeout_at(end, stream.read_line(&mut line)).await {
        if read? == 0 {
            break;
        }
        if let Some(id) = line.trim_end().strip_prefix("id:") {
            id.trim().clone_into(last);
        }
        line.clear();
    }
    Ok(())
}

/// So that readers come and go: one every three seconds.
const STAY: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_secs(5);
