//! Reads orders from standard input, one per line, when epoll reports input.

use std::os::fd::AsFd;

use anyhow::{Context, Result, bail};
use rustix::io::{Errno, read};
use serde::de::DeserializeOwned;

/// Splits bytes into lines.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    buf: Vec<u8>,
}

/// Bytes per read.
const READ_BYTES: usize = 64 << 10;
/// Longest line.
const LINE_BYTES_MAX: usize = 64 << 20;

impl Lines {
    /// Reads the available bytes; `false` at the end of the input.
    pub(crate) fn fill(&mut self, input: impl AsFd) -> Result<bool> {
        let start = self.buf.len();
        if start > LINE_BYTES_MAX {
            bail!("an order longer than {LINE_BYTES_MAX} bytes");
        }
        self.buf.resize(start + READ_BYTES, 0);
        let got = match read(input, &mut self.buf[start..]) {
            Err(Errno::INTR | Errno::AGAIN) => {
                self.buf.truncate(start);
                return Ok(true);
            }
            result => result?,
        };
        self.buf.truncate(start + got);
        Ok(got > 0)
    }

    /// The order in the next whole line.
    pub(crate) fn next_order<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let Some(line) = self.next_line() else { return Ok(None) };
        let order = serde_json::from_str(&line);
        order.map(Some).with_context(|| format!("not an order: {line:?}"))
    }

    /// The next whole line, without its end.
    fn next_line(&mut self) -> Option<String> {
        let end = self.buf.iter().position(|byte| *byte == b'\n')?;
        let line = String::from_utf8_lossy(&self.buf[..end]).into_owned();
        self.buf.drain(..=end);
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn lines_are_put_together_from_pieces() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut lines = Lines::default();
        writer.write_all(b"one\ntw").unwrap();
        assert!(lines.fill(&reader).unwrap());
        assert_eq!(lines.next_line().as_deref(), Some("one"));
        assert_eq!(lines.next_line(), None);
        writer.write_all(b"o\n\n").unwrap();
        assert!(lines.fill(&reader).unwrap());
        assert_eq!(lines.next_line().as_deref(), Some("two"));
        assert_eq!(lines.next_line().as_deref(), Some(""));
        drop(writer);
        assert!(!lines.fill(&reader).unwrap());
    }
}
