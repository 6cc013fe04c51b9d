//! Reads answers of HTTP/1.1 cheaply: a server's answers are nearly always the same.

use super::fault::Fault;

/// Splits a stream of bytes into answers.
///
/// It keeps the head of the last answer. A head that differs only in its date is recognised by
/// comparison.
#[derive(Debug, Default)]
pub(super) struct Answers {
    head: Vec<u8>,
    /// Start and end of the date's value in `head`; both 0 without a date.
    date: (usize, usize),
    length: usize,
    closes: bool,
    status: u16,
}

/// A complete answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer<'a> {
    pub(super) status: u16,
    /// The content.
    pub(super) content: &'a [u8],
    /// Bytes of head and content.
    pub(super) bytes: usize,
    /// Whether the server closes the connection after it.
    pub(super) closes: bool,
}

/// Longest accepted head and content.
const HEAD_BYTES_MAX: usize = 16 << 10;
const CONTENT_BYTES_MAX: usize = 16 << 20;

impl Answers {
    /// The answer at the start of `bytes`; `None`: more must come.
    pub(super) fn next<'a>(&mut self, bytes: &'a [u8]) -> Result<Option<Answer<'a>>, Fault> {
        if !self.is_known(bytes) && !self.learn(bytes)? {
            return Ok(None);
        }
        let whole = self.head.len() + self.length;
        let content = bytes.get(self.head.len()..whole);
        let Answers { status, closes, .. } = *self;
        Ok(content.map(|content| Answer { status, content, bytes: whole, closes }))
    }

    fn is_known(&self, bytes: &[u8]) -> bool {
        let (from, to) = self.date;
        match bytes.get(..self.head.len()) {
            Some(head) if !head.is_empty() => {
                head[..from] == self.head[..from] && head[to..] == self.head[to..]
            }
            _ => false,
        }
    }

    /// Reads a head; `false` if it is incomplete.
    fn learn(&mut self, bytes: &[u8]) -> Result<bool, Fault> {
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
            let long = bytes.len() > HEAD_BYTES_MAX;
            return if long { Err(Fault::Malformed("a head without end")) } else { Ok(false) };
        };
        let head = &bytes[..end + 4];
        let status: u16 = match (head.get(..9), head.get(9..12)) {
            (Some(b"HTTP/1.1 "), Some(digits)) => text(digits)?.parse().ok(),
            _ => None,
        }
        .ok_or(Fault::Malformed("not a status line of HTTP/1.1"))?;
        let mut length = None;
        self.date = (0, 0);
        self.closes = false;
        let mut at = 0;
        for line in head[..end].split(|byte| *byte == b'\n') {
            let start = at;
            at += line.len() + 1;
            let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
            let value = text(&line[colon + 1..])?.trim();
            let name = &line[..colon];
            if name.eq_ignore_ascii_case(b"date") {
                self.date = (start + colon + 1, start + line.len());
            } else if name.eq_ignore_ascii_case(b"content-length") {
                length = value.parse().ok();
            } else if name.eq_ignore_ascii_case(b"connection") {
                self.closes = value.eq_ignore_ascii_case("close");
            }
        }
        let length = length.filter(|length| *length <= CONTENT_BYTES_MAX);
        self.length = length.ok_or(Fault::Malformed("an answer without a length"))?;
        self.status = status;
        self.head.clear();
        self.head.extend_from_slice(head);
        Ok(true)
    }
}

fn text(bytes: &[u8]) -> Result<&str, Fault> {
    std::str::from_utf8(bytes).map_err(|_| Fault::Malformed("a head that is not text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &[u8] =
        b"HTTP/1.1 200 OK\r\nDate: Sat, 21 Nov 2026 20:00:00 GMT\r\nContent-Length: 5\r\n\r\nhello";
    const NEXT: &[u8] =
        b"HTTP/1.1 200 OK\r\nDate: Sat, 21 Nov 2026 20:00:01 GMT\r\nContent-Length: 5\r\n\r\nworld";

    fn contents(mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut answers = Answers::default();
        let mut found = Vec::new();
        while let Some(answer) = answers.next(bytes).unwrap() {
            found.push(answer.content.to_vec());
            bytes = &bytes[answer.bytes..];
        }
        assert!(bytes.is_empty(), "{} bytes are left", bytes.len());
        found
    }

    #[test]
    fn answers_follow_each_other_whatever_the_date() {
        assert_eq!(contents(&[FIRST, NEXT, FIRST].concat()), [b"hello", b"world", b"hello"]);
    }

    #[test]
    fn another_head_is_read_anew() {
        let other = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi";
        let mut answers = Answers::default();
        assert!(!answers.next(FIRST).unwrap().unwrap().closes);
        let answer = answers.next(other).unwrap().unwrap();
        assert_eq!((answer.content, answer.closes), (&b"hi"[..], true));
    }

    #[test]
    fn the_status_is_that_of_each_answer() {
        let other = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n";
        let mut answers = Answers::default();
        for (bytes, status) in [(FIRST, 200), (other, 401), (NEXT, 200)] {
            assert_eq!(answers.next(bytes).unwrap().unwrap().status, status);
        }
    }

    #[test]
    fn an_answer_is_whole_or_waited_for() {
        for known in [false, true] {
            for end in 0..FIRST.len() {
                let mut answers = Answers::default();
                if known {
                    answers.next(NEXT).unwrap();
                }
                assert_eq!(answers.next(&FIRST[..end]).unwrap(), None, "{end}");
                assert!(answers.next(FIRST).unwrap().is_some());
            }
        }
    }

    #[test]
    fn what_is_no_good_answer_is_told() {
        let fault = |bytes: &[u8]| Answers::default().next(bytes).unwrap_err().kind();
        assert_eq!(fault(b"HTTP/1.0 200 OK\r\n\r\n"), "malformed");
        assert_eq!(fault(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"), "malformed");
        assert_eq!(fault(&[b'x'; 20 << 10]), "malformed");
    }
}
