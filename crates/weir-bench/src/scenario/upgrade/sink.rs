//! A backend that publishes each message until it is accepted.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::clock;
use crate::http::Http;
use crate::publish::{Outcome, Sink};

/// Publishes each stream to its topic. A message that is refused is sent again, under the same
/// idempotency key and with its first time, so that its lag counts the refusals too.
pub(super) struct Insistent {
    http: Http,
    topics: Vec<String>,
    /// What no other run's keys begin with, and the number of the next key.
    run: u64,
    next: u64,
    body: String,
    told: Told,
}

/// What a publisher was told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// Requests that were answered with the advice to come again.
    pub(super) busy: u64,
    /// Requests whose connection ended before the answer.
    pub(super) broken: u64,
    /// Longest time until a message was accepted.
    pub(super) longest: Duration,
}

/// Time between two attempts.
const RETRY: Duration = Duration::from_millis(2);
/// A message that is not accepted for so long ends the run.
const PATIENCE: Duration = Duration::from_secs(20);

impl Insistent {
    /// Publishes to these topics.
    pub(super) fn new(http: Http, topics: Vec<String>) -> Insistent {
        let (body, told) = (String::new(), Told::default());
        Insistent { http, topics, run: rand::random(), next: 0, body, told }
    }

    /// What it was told since the last call.
    pub(super) fn take_told(&mut self) -> Told {
        std::mem::take(&mut self.told)
    }

    /// One attempt; `false`: not now.
    fn attempt(&mut self, key: &str) -> Result<bool> {
        let Ok(response) = self.http.post_once("/v1/publish", &self.body, key) else {
            self.told.broken += 1;
            return Ok(false);
        };
        match response.status {
            200 => Ok(true),
            409 | 429 | 503 => {
                self.told.busy += 1;
                Ok(false)
            }
            status => bail!("publishing gave {status}: {}", response.body),
        }
    }
}

impl Sink for Insistent {
    fn publish(&mut self, stream: u32, text: &str) -> Result<Outcome> {
        let topic = self.topics.get(stream as usize).context("no topic of that number")?;
        self.body.clear();
        // Topics and payloads of the bench contain nothing that JSON escapes.
        write!(self.body, r#"{{"topic":"{topic}","text":"{text}"}}"#)?;
        let key = format!("{:016x}-{}", self.run, self.next);
        self.next += 1;
        let began = clock::monotonic();
        while !self.attempt(&key)? {
            if clock::monotonic() > began + PATIENCE {
                bail!("a message was not accepted for {PATIENCE:?}: {:?}", self.told);
            }
            clock::sleep(RETRY);
        }
        self.told.longest = self.told.longest.max(clock::monotonic().saturating_sub(began));
        Ok(Outcome::Accepted(0))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_message_keeps_its_key_until_it_is_accepted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            // The first request gets no answer, the second is refused, the third accepted.
            let answers = ["", "503 Busy", "200 OK", "200 OK"].map(|status| match status {
                "" => String::new(),
                status => {
                    format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                }
            });
            answers.map(|answer| {
                let mut stream = BufReader::new(listener.accept().unwrap().0);
                let (mut key, mut length) = (String::new(), 0);
                loop {
                    let mut line = String::new();
                    stream.read_line(&mut line).unwrap();
                    if line.trim().is_empty() {
                        break;
                    }
                    if let Some(found) = line.strip_prefix("Idempotency-Key: ") {
                        found.trim().clone_into(&mut key);
                    }
                    if let Some(found) = line.strip_prefix("Content-Length: ") {
                        length = found.trim().parse().unwrap();
                    }
                }
                let mut body = vec![0; length];
                stream.read_exact(&mut body).unwrap();
                stream.get_mut().write_all(answer.as_bytes()).unwrap();
                (key, String::from_utf8(body).unwrap())
            })
        });
        let mut sink = Insistent::new(Http::new(addr, None), vec!["a".to_owned()]);
        assert_eq!(sink.publish(0, "x").unwrap(), Outcome::Accepted(0));
        let told = sink.take_told();
        assert_eq!((told.busy, told.broken), (1, 1));
        assert!(told.longest >= 2 * RETRY);
        sink.publish(0, "y").unwrap();
        assert_eq!(sink.take_told().busy, 0);
        let [first, second, third, fourth] = server.join().unwrap();
        assert_eq!(first, second);
        assert_eq!(second, third);
        assert!(third.0 != fourth.0 && fourth.1.contains(r#""text":"y""#));
    }
}
