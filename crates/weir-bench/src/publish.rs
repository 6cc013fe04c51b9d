//! Publishes at a fixed rate, however long the answers take: an open loop in its own thread.

use std::fmt::Write;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustls::StreamOwned;
use serde::Deserialize;
use weir_wire::hot::{Payload, Push};

use crate::baseline::Baseline;
use crate::clock;
use crate::http::Http;
use crate::payload::Header;
use crate::payload::foreign::{self, Piece, Protocol};
use crate::tls::TlsClient;
use crate::worker::keys::name as key_name;

/// The destination of messages.
pub(crate) trait Sink {
    /// Publishes one message.
    fn publish(&mut self, stream: u32, text: &str) -> Result<Outcome>;
}

impl<S: Sink + ?Sized> Sink for Box<S> {
    fn publish(&mut self, stream: u32, text: &str) -> Result<Outcome> {
        (**self).publish(stream, text)
    }
}

/// The result of a publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The message was queued for this number of connections.
    Accepted(u64),
    /// The server was too busy.
    Refused,
}

/// The schedule of a stream of messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schedule {
    /// The time of the first message.
    pub(crate) start: Duration,
    /// Messages a second in each stream.
    pub(crate) rate: f64,
    /// Messages in each stream.
    pub(crate) count: u32,
    /// Bytes of a payload.
    pub(crate) size: usize,
}

/// The results of a schedule.
#[derive(Debug, Clone, Default)]
pub(crate) struct Published {
    /// Messages accepted.
    pub(crate) accepted: u64,
    /// Refused messages; their numbers were used again.
    pub(crate) refused: u64,
    /// Sum of the connections for which the messages were queued, as the server says.
    pub(crate) addressed: u64,
    /// Longest delay of a publish behind its schedule.
    pub(crate) late_max: Duration,
}

/// Publishes by the schedule. `seqs` holds the next number of each stream, and is advanced.
pub(crate) fn run(
    sink: &mut impl Sink,
    schedule: &Schedule,
    seqs: &mut [u32],
) -> Result<Published> {
    let mut published = Published::default();
    let mut text = String::new();
    let streams = u32::try_from(seqs.len()).context("too many streams")?;
    for number in 0..u64::from(schedule.count) * u64::from(streams) {
        let due = schedule.start + schedule.offset(number, streams);
        clock::sleep_until(due);
        published.late_max = published.late_max.max(clock::monotonic().saturating_sub(due));
        let stream = u32::try_from(number % u64::from(streams)).context("a stream is a u32")?;
        let seq = &mut seqs[stream as usize];
        Header { stream, seq: *seq, sent_ns: clock::realtime_ns() }
            .compose(schedule.size, &mut text);
        match sink.publish(stream, &text)? {
            Outcome::Accepted(connections) => {
                *seq += 1;
                published.accepted += 1;
                published.addressed += connections;
            }
            Outcome::Refused => published.refused += 1,
        }
    }
    Ok(published)
}

impl Schedule {
    /// The time of message `number` after the start. The messages of all streams are spread evenly.
    fn offset(&self, number: u64, streams: u32) -> Duration {
        Duration::from_secs_f64(crate::stats::real(number) / (self.rate * f64::from(streams)))
    }

    /// Time of the whole schedule, including the pause after the last message.
    pub(crate) fn length(&self) -> Duration {
        Duration::from_secs_f64(f64::from(self.count) / self.rate)
    }
}

/// The publish API of a server.
pub(crate) struct HttpSink {
    http: Http,
    /// The topic of each stream; without topics, messages go to all connections.
    topics: Vec<String>,
    /// Whether all streams are keys of one topic.
    keyed: bool,
    body: String,
}

#[derive(Deserialize)]
struct Accepted {
    connections: u64,
}

impl HttpSink {
    /// Publishes to these topics, or to all connections if there are none.
    pub(crate) fn new(http: Http, topics: Vec<String>) -> HttpSink {
        HttpSink { http, topics, keyed: false, body: String::new() }
    }

    /// Publishes to one topic, each stream under its own key.
    pub(crate) fn keyed(http: Http, topic: String) -> HttpSink {
        HttpSink { http, topics: vec![topic], keyed: true, body: String::new() }
    }
}

impl Sink for HttpSink {
    fn publish(&mut self, stream: u32, text: &str) -> Result<Outcome> {
        self.body.clear();
        // Topics and payloads of the bench contain nothing that JSON escapes.
        let place = if self.keyed { 0 } else { stream as usize };
        match self.topics.get(place) {
            Some(topic) if self.keyed => {
                let key = key_name(stream);
                write!(self.body, r#"{{"topic":"{topic}","key":"{key}","text":"{text}"}}"#)?;
            }
            Some(topic) => write!(self.body, r#"{{"topic":"{topic}","text":"{text}"}}"#)?,
            None => write!(self.body, r#"{{"all":true,"text":"{text}"}}"#)?,
        }
        let response = self.http.post("/v1/publish", &self.body)?;
        match response.status {
            200 => {
                let accepted: Accepted = serde_json::from_str(&response.body)
                    .with_context(|| format!("the server answered {:?}", response.body))?;
                Ok(Outcome::Accepted(accepted.connections))
            }
            503 => Ok(Outcome::Refused),
            status => bail!("publishing gave {status}: {}", response.body),
        }
    }
}

/// A publisher at a server with another protocol. It waits until the server has taken each message.
pub(crate) struct ForeignSink {
    protocol: Protocol,
    socket: Box<dyn Socket>,
    topics: Vec<String>,
    out: Vec<u8>,
    partial: Vec<u8>,
}

/// A connected socket, plain or with TLS.
trait Socket: Read + io::Write + Send {}
impl<S: Read + io::Write + Send> Socket for S {}

impl ForeignSink {
    /// Connects, and publishes each stream to its topic.
    pub(crate) fn connect(
        protocol: Protocol,
        addr: SocketAddr,
        tls: Option<&TlsClient>,
        topics: Vec<String>,
    ) -> Result<ForeignSink> {
        let socket = TcpStream::connect(addr).context("a publisher cannot connect")?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let socket: Box<dyn Socket> = match tls {
            None => Box::new(socket),
            Some(tls) => Box::new(StreamOwned::new(*tls.connection(0)?, socket)),
        };
        let out = foreign::publisher_greeting(protocol, "publisher");
        let mut sink = ForeignSink { protocol, socket, topics, out, partial: Vec::new() };
        sink.exchange().context("a publisher gets no answer")?;
        Ok(sink)
    }

    /// Sends what is prepared and a ping, and waits for the answer to the ping.
    fn exchange(&mut self) -> Result<()> {
        let ForeignSink { protocol, socket, out, partial, .. } = self;
        out.extend_from_slice(foreign::ping(*protocol));
        socket.write_all(out)?;
        socket.flush()?;
        out.clear();
        let mut buf = [0; 4096];
        loop {
            let mut used = 0;
            let mut found = false;
            while let Some((piece, length)) =
                foreign::next(*protocol, &partial[used..]).map_err(|error| anyhow!(error))?
            {
                found |= foreign::is_pong(*protocol, &partial[used..used + length]);
                if piece == Piece::Ping {
                    socket.write_all(foreign::answer_to_ping(*protocol))?;
                }
                used += length;
            }
            partial.drain(..used);
            if found {
                return Ok(());
            }
            match socket.read(&mut buf)? {
                0 => bail!("the server closed the publisher's connection"),
                got => partial.extend_from_slice(&buf[..got]),
            }
        }
    }
}

impl Sink for ForeignSink {
    fn publish(&mut self, stream: u32, text: &str) -> Result<Outcome> {
        let topic = self.topics.get(stream as usize).context("no topic of that number")?;
        foreign::publish(self.protocol, topic, text, &mut self.out);
        self.exchange()?;
        // These protocols do not tell how many connections there are.
        Ok(Outcome::Accepted(0))
    }
}

/// Longest wait for the answer to a publish.
const PATIENCE: Duration = Duration::from_secs(20);

/// Bare baselines: each sends to all of its connections.
pub(crate) struct BaselineSink<'a> {
    /// The baselines.
    pub(crate) baselines: &'a mut [Baseline],
    /// Topic in the frames.
    pub(crate) topic: String,
    /// Bytes of a frame, if known.
    pub(crate) frame_bytes: Option<u64>,
}

impl Sink for BaselineSink<'_> {
    fn publish(&mut self, _stream: u32, text: &str) -> Result<Outcome> {
        let frame = frame_of(&self.topic, text, self.frame_bytes);
        let mut connections = 0;
        for baseline in &mut *self.baselines {
            let (whole, short) = baseline.send(&frame)?;
            if short > 0 {
                bail!(
                    "{short} sockets of the baseline did not take a whole message: the load is too high"
                );
            }
            connections += whole;
        }
        Ok(Outcome::Accepted(connections))
    }
}

/// The frame of a message as a server sends it. Unused fields bring it to the length `bytes`, if
/// possible.
pub(crate) fn frame_of(topic: &str, text: &str, bytes: Option<u64>) -> Vec<u8> {
    let payload = Payload::Text(text);
    let mut push = Push { topic, payload, message_id: 1, ..Push::default() };
    let wanted = bytes.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0);
    let lacking = wanted.saturating_sub(push.frame_bytes());
    let padding = "x".repeat(lacking.saturating_sub(2));
    // An offset takes one byte for its name and one for each seven bits.
    if (2..=11).contains(&lacking) {
        push.offset = 1 << (7 * (lacking - 2));
    } else if lacking > 11 {
        push.content_type = &padding;
        while push.frame_bytes() > wanted {
            push.content_type = &push.content_type[1..];
        }
    }
    let mut frame = Vec::new();
    push.encode_frame(&mut frame);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Recorder(Vec<(u32, Header)>);

    impl Sink for Recorder {
        fn publish(&mut self, stream: u32, text: &str) -> Result<Outcome> {
            let header = Header::parse(text.as_bytes()).context("no header")?;
            self.0.push((stream, header));
            Ok(if self.0.len() == 2 { Outcome::Refused } else { Outcome::Accepted(10) })
        }
    }

    #[test]
    fn a_refused_number_is_used_again() {
        let mut recorder = Recorder(Vec::new());
        let schedule = Schedule { start: clock::monotonic(), rate: 1000.0, count: 2, size: 64 };
        let mut seqs = [5, 7];
        let published = run(&mut recorder, &schedule, &mut seqs).unwrap();
        assert_eq!((published.accepted, published.refused, published.addressed), (3, 1, 30));
        let numbers: Vec<_> = recorder
            .0
            .iter()
            .map(|(stream, header)| (*stream, header.stream, header.seq))
            .collect();
        assert_eq!(numbers, [(0, 0, 5), (1, 1, 7), (0, 0, 6), (1, 1, 7)]);
        assert_eq!(seqs, [7, 8]);
    }

    #[test]
    fn messages_are_spread_over_time() {
        let schedule = Schedule { start: Duration::ZERO, rate: 2.0, count: 4, size: 64 };
        assert_eq!(schedule.offset(0, 4), Duration::ZERO);
        assert_eq!(schedule.offset(1, 4), Duration::from_millis(125));
        assert_eq!(schedule.offset(15, 4), Duration::from_millis(1875));
        assert_eq!(schedule.length(), Duration::from_secs(2));
    }

    #[test]
    fn frames_are_brought_to_size() {
        let text = "t".repeat(64);
        let natural = frame_of("topic", &text, None).len() as u64;
        for bytes in (natural + 2..natural + 25).chain([natural]) {
            assert_eq!(frame_of("topic", &text, Some(bytes)).len() as u64, bytes);
        }
        assert_eq!(frame_of("topic", &text, Some(1)).len() as u64, natural);
    }
}
