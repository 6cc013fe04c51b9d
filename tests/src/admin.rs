//! A plain HTTP/1.1 client for the admin API, and a reader of its metrics.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use anyhow::{Context, Result};

use crate::device::connect_from;
use crate::wait::PATIENCE;

/// An HTTP answer.
#[derive(Debug)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// The head, as it came.
    pub head: String,
    /// The body.
    pub body: String,
}

impl Answer {
    /// `GET path`.
    pub fn get(addr: SocketAddr, path: &str) -> Result<Answer> {
        Self::ask(
            addr,
            &format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n"),
        )
    }

    /// `DELETE path`.
    pub fn delete(addr: SocketAddr, path: &str) -> Result<Answer> {
        Self::ask(
            addr,
            &format!("DELETE {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n"),
        )
    }

    /// `POST path` with a JSON body.
    pub fn post(addr: SocketAddr, path: &str, body: &str) -> Result<Answer> {
        let length = body.len();
        Self::ask(
            addr,
            &format!(
                "POST {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\
                 Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
            ),
        )
    }

    /// Sends `request` as it is.
    pub fn ask(addr: SocketAddr, request: &str) -> Result<Answer> {
        Self::over(TcpStream::connect(addr)?, request)
    }

    /// The same from an address of its own, any of 127.0.0.0/8.
    pub fn ask_from(local: Ipv4Addr, addr: SocketAddr, request: &str) -> Result<Answer> {
        Self::over(connect_from(local, addr)?, request)
    }

    fn over(mut stream: TcpStream, request: &str) -> Result<Answer> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("an HTTP head")?;
        let status = head.split(' ').nth(1).context("a status")?.parse()?;
        let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        let body = if is_chunked { unchunk(body)? } else { body.to_owned() };
        Ok(Answer { status, head: head.to_owned(), body })
    }
}

fn unchunk(body: &str) -> Result<String> {
    let mut rest = body;
    let mut whole = String::new();
    loop {
        let (size, after) = rest.split_once("\r\n").context("a chunk size")?;
        let size = usize::from_str_radix(size.trim(), 16)?;
        if size == 0 {
            return Ok(whole);
        }
        whole.push_str(after.get(..size).context("a whole chunk")?);
        rest = after.get(size + 2..).context("an end of chunk")?;
    }
}

/// The metrics of a server at one moment.
#[derive(Debug)]
pub struct Metrics {
    text: String,
}

impl Metrics {
    /// Reads them.
    pub fn read(addr: SocketAddr) -> Result<Metrics> {
        Ok(Metrics::of(Answer::get(addr, "/metrics")?.body))
    }

    /// The metrics in an answer.
    pub fn of(text: String) -> Metrics {
        Metrics { text }
    }

    /// All of them.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Sum of all samples of a metric whose labels contain `label` (may be empty); 0 if there is none.
    pub fn sum(&self, name: &str, label: &str) -> f64 {
        let samples = self.text.lines().filter(|line| {
            let is_name = line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
            is_name && line.contains(label)
        });
        samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Sum of all samples of a metric that have all these labels; 0 if there is none.
    pub fn sum_of(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let samples = self.text.lines().filter(|line| {
            let is_name = line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
            let has = |(key, value): &(&str, &str)| line.contains(&format!("{key}=\"{value}\""));
            is_name && labels.iter().all(has)
        });
        samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Connections closed for a reason.
    pub fn closed(&self, reason: &str) -> f64 {
        self.sum("weir_connections_closed_total", &format!("reason=\"{reason}\""))
    }

    /// Connections in a state.
    pub fn connections(&self, state: &str) -> f64 {
        self.sum("weir_connections", &format!("state=\"{state}\""))
    }

    /// Whether nothing of any connection is left.
    pub fn is_empty_house(&self) -> bool {
        let levels = [
            self.connections("settled"),
            self.connections("unsettled"),
            self.connections("lingering"),
            self.sum("weir_table_entries", ""),
            self.sum("weir_devices", ""),
            self.sum("weir_topics", ""),
            self.sum("weir_memberships", ""),
            self.sum("weir_queued_bytes", ""),
        ];
        levels.iter().sum::<f64>() == 0.0
    }
}
