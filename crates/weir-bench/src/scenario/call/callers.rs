//! The backend's side of calls to devices: a request of the admin API for each device, all at once.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::clock;
use crate::stats::Lags;

/// What became of the calls.
#[derive(Default)]
pub(super) struct Called {
    /// From the sending of a call to the device's answer.
    pub(super) answered: Lags,
    /// How long after its deadline a call of a silent device has ended.
    pub(super) late: Lags,
    /// Calls that ended before their deadline without an answer.
    pub(super) early: u64,
    /// Some of the answers that were not expected.
    pub(super) wrong: Vec<String>,
}

/// The device that is called by this number.
pub(super) fn name(number: u32) -> String {
    format!("called-{number}")
}

/// Calls all devices at once. The connections are made before, so that each deadline is measured
/// from the sending of its call.
pub(super) async fn call_all(
    admin: SocketAddr,
    count: u32,
    deadline: Duration,
    is_silent: impl Fn(u32) -> bool,
) -> Result<Called> {
    let mut streams = Vec::new();
    for number in 0..count {
        let stream = TcpStream::connect(admin).await.context("cannot connect to the admin API")?;
        stream.set_nodelay(true)?;
        streams.push((number, stream));
    }
    let mut calling = JoinSet::new();
    for (number, stream) in streams {
        let deadline_ms = deadline.as_millis();
        let body = format!(r#"{{"method":"bench/name","deadline_ms":{deadline_ms}}}"#);
        let request = format!(
            "POST /v1/devices/{}/call HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            name(number),
            body.len()
        );
        calling.spawn(async move { (number, ask(stream, &request).await) });
    }
    let mut called = Called::default();
    while let Some(asked) = calling.join_next().await {
        let (number, asked) = asked?;
        let (said, nanos) = asked?;
        let deadline = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
        if is_silent(number) && said.starts_with("HTTP/1.1 504 ") {
            match nanos.checked_sub(deadline) {
                Some(late) => called.late.record(late),
                None => called.early += 1,
            }
        } else if said.starts_with("HTTP/1.1 200 ") && said.contains(&name(number)) {
            called.answered.record(nanos);
        } else if called.wrong.len() < SHOWN_MAX {
            called.wrong.push(said);
        }
    }
    Ok(called)
}

/// The answer, and how long it took from the sending.
async fn ask(mut stream: TcpStream, request: &str) -> Result<(String, u64)> {
    let sent = clock::monotonic_ns();
    stream.write_all(request.as_bytes()).await?;
    let mut said = Vec::new();
    // The first bytes are the answer; the end of the connection is not measured.
    stream.read_buf(&mut said).await?;
    let nanos = clock::monotonic_ns() - sent;
    stream.read_to_end(&mut said).await?;
    Ok((String::from_utf8_lossy(&said).into_owned(), nanos))
}

const SHOWN_MAX: usize = 3;
