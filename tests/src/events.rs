//! A reader of server-sent events (WHATWG HTML, section 9.2.6), wherever they come from.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::wait::PATIENCE;

/// A stream of events.
pub struct Events<R> {
    lines: BufReader<R>,
}

/// One of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Event {
    /// Empty for a message.
    pub name: String,
    /// JSON.
    pub data: Value,
    /// Empty: it has none.
    pub id: String,
    /// What a client is to wait, in milliseconds.
    pub retry: Option<u64>,
}

impl Events<TcpStream> {
    /// Asks for them over HTTP/1.1, by a connection of its own.
    ///
    /// `headers`: whole lines with their ends.
    pub fn get(addr: SocketAddr, path: &str, headers: &str) -> Result<Events<TcpStream>> {
        Self::ask(addr, ("HTTP/1.1", path), headers)
    }

    /// Asks the admin API for them, without chunks.
    pub fn get_unchunked(admin: SocketAddr, path: &str) -> Result<Events<TcpStream>> {
        Self::ask(admin, ("HTTP/1.0", path), "")
    }

    fn ask(
        addr: SocketAddr,
        (version, path): (&str, &str),
        headers: &str,
    ) -> Result<Events<TcpStream>> {
        let mut stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let head = format!("GET {path} {version}\r\nHost: {addr}\r\n{headers}\r\n");
        stream.write_all(head.as_bytes())?;
        let mut events = Events::over(stream);
        let status = events.line()?.context("a status line")?;
        ensure!(status == format!("{version} 200 OK"), "it answers {status}");
        while events.line()?.is_some_and(|line| !line.is_empty()) {}
        Ok(events)
    }
}

impl<R: Read> Events<R> {
    /// Reads events from a body.
    pub fn over(body: R) -> Events<R> {
        Events { lines: BufReader::new(body) }
    }

    /// Where they come from.
    pub fn source(&mut self) -> &mut R {
        self.lines.get_mut()
    }

    /// A line without its end; `None` at the end of the stream.
    fn line(&mut self) -> Result<Option<String>> {
        let mut line = String::new();
        // An abrupt end is an end.
        match self.lines.read_line(&mut line) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Ok(None),
            Err(error) => return Err(error).context("reading events"),
        }
        Ok(Some(line.trim_end_matches('\n').trim_end_matches('\r').to_owned()))
    }

    /// The next event; `None` at the end. Comments are passed over, and so is an event that is cut off.
    pub fn hear(&mut self) -> Result<Option<Event>> {
        let (mut event, mut data) = (Event::default(), None::<String>);
        while let Some(line) = self.line()? {
            let (field, value) = line.split_once(':').unwrap_or((&line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "" if line.is_empty() => {
                    if let Some(data) = data {
                        event.data = serde_json::from_str(&data).with_context(|| data)?;
                        return Ok(Some(event));
                    }
                    event = Event::default();
                }
                "" => {}
                "event" => value.clone_into(&mut event.name),
                "data" => {
                    ensure!(data.is_none(), "more than one line of data: {line}");
                    data = Some(value.to_owned());
                }
                "id" => value.clone_into(&mut event.id),
                "retry" => event.retry = Some(value.parse()?),
                _ => bail!("a line that no event has: {line:?}"),
            }
        }
        Ok(None)
    }

    /// The next event, which must have this name.
    pub fn expect(&mut self, name: &str) -> Result<Event> {
        let event = self.hear()?.with_context(|| format!("{name:?}, and not the end"))?;
        ensure!(event.name == name, "wanted {name:?}, heard {event:?}");
        Ok(event)
    }

    /// `welcome`, and one `subscribed` for each topic.
    pub fn settle(&mut self, topics: usize) -> Result<Vec<Event>> {
        self.expect("welcome")?;
        (0..topics).map(|_| self.expect("subscribed")).collect()
    }

    /// Reads on until `goodbye`, and on to the end behind it.
    pub fn goodbye(&mut self) -> Result<Event> {
        loop {
            let event = self.hear()?.context("the stream ended without goodbye")?;
            if event.name == "goodbye" {
                let more = self.hear()?;
                ensure!(more.is_none(), "{more:?} behind goodbye");
                return Ok(event);
            }
            ensure!(event.name.is_empty(), "expected goodbye, got {event:?}");
        }
    }
}
