//! Server-sent events of the admin API.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use http::Method;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::timeout;

use crate::http::Api;

/// A stream of events.
pub(crate) struct EventStream {
    body: Incoming,
    /// Bytes of events that are not whole yet.
    text: Vec<u8>,
}

/// An event.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SseEvent {
    /// Empty if the event names no kind.
    pub(crate) kind: String,
    pub(crate) data: String,
}

impl EventStream {
    /// Opens the stream at `path`.
    ///
    /// Errors: a refusal too.
    pub(crate) async fn open(api: &Api, path: &str) -> Result<EventStream> {
        let body = api.open(Method::GET, path).await?;
        Ok(EventStream { body, text: Vec::new() })
    }

    /// The next event; `None` at the end of the stream.
    ///
    /// Errors: a broken connection, or a gateway that is silent for [`SILENCE_MAX`].
    pub(crate) async fn next(&mut self) -> Result<Option<SseEvent>> {
        loop {
            while let Some((event, bytes)) = take(&self.text) {
                self.text.drain(..bytes);
                if !event.data.is_empty() {
                    return Ok(Some(event));
                }
            }
            if self.text.len() > EVENT_BYTES_MAX {
                bail!("an event is longer than {EVENT_BYTES_MAX} bytes");
            }
            let Ok(frame) = timeout(SILENCE_MAX, self.body.frame()).await else {
                bail!("the gateway has been silent for {SILENCE_MAX:?}");
            };
            let Some(frame) = frame else { return Ok(None) };
            if let Ok(data) = frame.context("the stream broke")?.into_data() {
                self.text.extend_from_slice(&data);
            }
        }
    }
}

/// The first event and its bytes; `None`: it is not whole. A comment is an event without data.
fn take(text: &[u8]) -> Option<(SseEvent, usize)> {
    let end = text.windows(2).position(|two| two == b"\n\n")?;
    let mut event = SseEvent::default();
    for line in String::from_utf8_lossy(&text[..end]).lines() {
        match line.split_once(": ") {
            Some(("event", kind)) => kind.clone_into(&mut event.kind),
            Some(("data", data)) => data.clone_into(&mut event.data),
            Some(_) | None => {}
        }
    }
    Some((event, end + 2))
}

/// The gateway sends a sign of life every 15 s.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Longer than any figures of a gateway with many shards.
const EVENT_BYTES_MAX: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_whole_however_they_are_cut() {
        let text = b":\n\nevent: connected\ndata: {\"a\":1}\n\ndata: {\"b\": 2}\n\n";
        for cut in 0..=text.len() {
            let (mut buffer, mut found) = (Vec::new(), Vec::new());
            for part in [&text[..cut], &text[cut..]] {
                buffer.extend_from_slice(part);
                while let Some((event, bytes)) = take(&buffer) {
                    buffer.drain(..bytes);
                    found.push((event.kind, event.data));
                }
            }
            let expected = [("", ""), ("connected", "{\"a\":1}"), ("", "{\"b\": 2}")];
            assert_eq!(found, expected.map(|(kind, data)| (kind.to_owned(), data.to_owned())));
        }
    }
}
