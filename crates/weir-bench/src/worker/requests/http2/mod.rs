//! A minimal HTTP/2 client: requests with one fixed head, and answers of which only status and
//! content count (RFC 9113, RFC 7541). No I/O and no clock.

use super::asker::Asker;
use super::fault::Fault;

/// The client's side of one connection.
///
/// The settings forbid the server a dynamic table, so each answer can be read separately. The
/// client's table holds path and authority from the first request on, unless the server wants a
/// smaller table.
#[derive(Debug)]
pub(super) struct Http2 {
    path: String,
    authority: String,
    scheme: u8,
    /// Id of the next stream.
    next_id: u32,
    /// Streams in flight, and the limit on them.
    on_their_way: u32,
    streams_max: u32,
    /// Slots of streams, by half their id. If a stream is still in flight when its slot is used
    /// again, it is lost; as many answers as there are slots must come before it.
    slots: Vec<Slot>,
    /// Received content for which the connection's window was not widened yet.
    unacknowledged: u32,
    /// The server's settings have come.
    ready: bool,
    /// Whether path and authority are in the client's table.
    indexed: bool,
    /// Whether the server wants another table size. Then the client uses no table, and announces
    /// that once.
    tableless: bool,
    said_tableless: bool,
    /// Whether the server accepts no more streams on this connection.
    closing: bool,
}

/// A stream in flight.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    id: u32,
    began_ns: u64,
    content_bytes: u32,
    /// 0: the head has not come.
    status: u16,
    is_hit: bool,
}

/// The meaning of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Brought<'a> {
    /// Nothing of interest.
    Nothing,
    /// The end of an answer.
    Answer {
        /// Time of the request.
        began_ns: u64,
        status: u16,
        /// The result of [`Asker::write`] for the request.
        is_hit: bool,
        /// The last piece of its content, and whether it is the only one.
        last: &'a [u8],
        whole: bool,
        /// Bytes of content in all.
        bytes: u32,
    },
    /// A stream that the server did not process: the request may be sent again elsewhere.
    Refused,
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Length, kind, flags, stream.
const HEAD_BYTES: usize = 9;
/// Largest frame that the client accepts: the smallest limit that the RFC permits.
const FRAME_BYTES_MAX: usize = 16_384;
/// Content that the server may send on a connection before the window is widened.
const WINDOW: u32 = 1 << 30;
/// Initial size of a server's header table.
const TABLE_BYTES: u32 = 4096;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const ACK: u8 = 0x1;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITISED: u8 = 0x20;

/// Error code of a stream that was not processed.
const REFUSED_STREAM: u32 = 7;

impl Http2 {
    /// A connection for this number of requests in flight.
    pub(super) fn new(path: &str, authority: &str, tls: bool, depth: u32) -> Http2 {
        let slots = (depth as usize).next_power_of_two() * SLOTS_PER_STREAM;
        Http2 {
            path: path.to_owned(),
            authority: authority.to_owned(),
            scheme: if tls { SCHEME_HTTPS } else { SCHEME_HTTP },
            next_id: 1,
            on_their_way: 0,
            streams_max: depth,
            slots: vec![Slot::default(); slots],
            unacknowledged: 0,
            ready: false,
            indexed: false,
            tableless: false,
            said_tableless: false,
            closing: false,
        }
    }

    /// Writes the first bytes of the connection.
    pub(super) fn begin(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(PREFACE);
        // No table for the server's headers, no pushes, and a window that no answer exhausts.
        let settings = [(1_u16, 0_u32), (2, 0), (4, WINDOW)];
        frame_head(settings.len() * 6, SETTINGS, 0, 0, out);
        for (key, value) in settings {
            out.extend_from_slice(&key.to_be_bytes());
            out.extend_from_slice(&value.to_be_bytes());
        }
        frame_head(4, WINDOW_UPDATE, 0, 0, out);
        out.extend_from_slice(&WINDOW.to_be_bytes());
    }

    /// Sends as many requests as the server and the depth permit now, at most `most`. Returns their
    /// number.
    pub(super) fn ask(
        &mut self,
        now_ns: u64,
        most: u32,
        asker: &mut Asker,
        out: &mut Vec<u8>,
    ) -> u32 {
        if !self.ready || self.closing {
            return 0;
        }
        let count = self.streams_max.saturating_sub(self.on_their_way).min(most);
        for _ in 0..count {
            self.request(now_ns, asker, out);
        }
        count
    }

    /// Whether the server ends this connection and has answered all requests that it accepts.
    pub(super) fn is_over(&self) -> bool {
        self.closing && self.on_their_way == 0
    }

    fn request(&mut self, now_ns: u64, asker: &mut Asker, out: &mut Vec<u8>) {
        let id = self.next_id;
        self.next_id += 2;
        self.on_their_way += 1;
        let place = self.place(id);
        let at = out.len();
        let (method, end) = if asker.posts() { (METHOD_POST, 0) } else { (METHOD_GET, END_STREAM) };
        frame_head(0, HEADERS, end | END_HEADERS, id, out);
        if self.tableless && !self.said_tableless {
            self.said_tableless = true;
            out.push(TABLE_SIZE_0);
        }
        out.extend_from_slice(&[method, self.scheme]);
        if self.indexed {
            out.extend_from_slice(&[PATH_IN_TABLE, AUTHORITY_IN_TABLE]);
        } else {
            let kind = if self.tableless { WITHOUT_TABLE } else { INTO_TABLE };
            literal(kind | NAME_PATH, &self.path, out);
            literal(kind | NAME_AUTHORITY, &self.authority, out);
            self.indexed = !self.tableless;
        }
        set_length(at, out);
        let at = out.len();
        if asker.posts() {
            frame_head(0, DATA, END_STREAM, id, out);
        }
        let is_hit = asker.write_content(out);
        if asker.posts() {
            set_length(at, out);
        }
        self.slots[place] = Slot { id, began_ns: now_ns, content_bytes: 0, status: 0, is_hit };
    }

    /// Handles the frame at the start of `bytes`, and writes an answer to `out` if the frame needs
    /// one. Returns its length; `None` if it is incomplete.
    pub(super) fn next<'a>(
        &mut self,
        bytes: &'a [u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<(Brought<'a>, usize)>, Fault> {
        let Some(&[l0, l1, l2, kind, flags, i0, i1, i2, i3]) = bytes.first_chunk::<HEAD_BYTES>()
        else {
            return Ok(None);
        };
        let length = u32::from_be_bytes([0, l0, l1, l2]) as usize;
        let id = u32::from_be_bytes([i0, i1, i2, i3]) & (u32::MAX >> 1);
        if length > FRAME_BYTES_MAX {
            return Err(Fault::Malformed("a frame above 16 KiB"));
        }
        let Some(content) = bytes.get(HEAD_BYTES..HEAD_BYTES + length) else { return Ok(None) };
        let brought = match kind {
            DATA => self.take_data(id, flags, content, out)?,
            HEADERS => self.take_headers(id, flags, content)?,
            RST_STREAM => self.take_reset(id, content)?,
            SETTINGS => {
                self.take_settings(flags, content, out)?;
                Brought::Nothing
            }
            PING if flags & ACK == 0 => {
                frame_head(length, PING, ACK, 0, out);
                out.extend_from_slice(content);
                Brought::Nothing
            }
            GOAWAY => self.take_goaway(content)?,
            // A continued head: its first frame had the status.
            PING | WINDOW_UPDATE | PRIORITY | CONTINUATION => Brought::Nothing,
            PUSH_PROMISE => return Err(Fault::Malformed("a push that was not allowed")),
            _ => Brought::Nothing,
        };
        Ok(Some((brought, HEAD_BYTES + length)))
    }

    fn take_settings(&mut self, flags: u8, content: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
        if flags & ACK != 0 {
            return Ok(());
        }
        for entry in content.chunks(6) {
            let &[k0, k1, v0, v1, v2, v3] = entry else {
                return Err(Fault::Malformed("settings cut short"));
            };
            let value = u32::from_be_bytes([v0, v1, v2, v3]);
            match u16::from_be_bytes([k0, k1]) {
                1 if value != TABLE_BYTES && !self.indexed => self.tableless = true,
                3 => self.streams_max = self.streams_max.min(value),
                _ => {}
            }
        }
        frame_head(0, SETTINGS, ACK, 0, out);
        self.ready = true;
        Ok(())
    }

    fn take_headers<'a>(
        &mut self,
        id: u32,
        flags: u8,
        content: &'a [u8],
    ) -> Result<Brought<'a>, Fault> {
        let mut block = unpadded(flags, content)?;
        if flags & PRIORITISED != 0 {
            block = block.get(5..).ok_or(Fault::Malformed("a head cut short"))?;
        }
        let slot = self.slot(id)?;
        // Trailers may follow the content, after the status.
        if slot.status == 0 {
            let status = status_in(block).filter(|status| *status >= 200);
            slot.status = status.ok_or(Fault::Malformed("an unknown status"))?;
        }
        if flags & END_STREAM == 0 { Ok(Brought::Nothing) } else { self.finish(id, &[]) }
    }

    fn take_data<'a>(
        &mut self,
        id: u32,
        flags: u8,
        content: &'a [u8],
        out: &mut Vec<u8>,
    ) -> Result<Brought<'a>, Fault> {
        let bytes = u32::try_from(content.len()).unwrap_or(u32::MAX);
        self.unacknowledged += bytes;
        if self.unacknowledged > WINDOW / 2 {
            frame_head(4, WINDOW_UPDATE, 0, 0, out);
            out.extend_from_slice(&self.unacknowledged.to_be_bytes());
            self.unacknowledged = 0;
        }
        let content = unpadded(flags, content)?;
        if flags & END_STREAM != 0 {
            return self.finish(id, content);
        }
        self.slot(id)?.content_bytes += u32::try_from(content.len()).unwrap_or(u32::MAX);
        Ok(Brought::Nothing)
    }

    fn finish<'a>(&mut self, id: u32, last: &'a [u8]) -> Result<Brought<'a>, Fault> {
        let slot = std::mem::take(self.slot(id)?);
        let Slot { began_ns, content_bytes, status, is_hit, .. } = slot;
        self.on_their_way -= 1;
        if status == 0 {
            return Err(Fault::Malformed("an answer without a head"));
        }
        let bytes = content_bytes + u32::try_from(last.len()).unwrap_or(u32::MAX);
        let whole = content_bytes == 0;
        Ok(Brought::Answer { began_ns, status, is_hit, last, whole, bytes })
    }

    fn take_reset<'a>(&mut self, id: u32, content: &[u8]) -> Result<Brought<'a>, Fault> {
        let code = *content.first_chunk().ok_or(Fault::Malformed("a reset cut short"))?;
        let code = u32::from_be_bytes(code);
        if code != REFUSED_STREAM {
            return Err(Fault::Reset(code));
        }
        *self.slot(id)? = Slot::default();
        self.on_their_way -= 1;
        Ok(Brought::Refused)
    }

    /// The server has not processed streams above the last one that it names.
    fn take_goaway<'a>(&mut self, content: &[u8]) -> Result<Brought<'a>, Fault> {
        let &[l0, l1, l2, l3, c0, c1, c2, c3] =
            content.first_chunk::<8>().ok_or(Fault::Malformed("a goodbye cut short"))?;
        let code = u32::from_be_bytes([c0, c1, c2, c3]);
        if code != 0 {
            return Err(Fault::GoAway(code));
        }
        let last = u32::from_be_bytes([l0, l1, l2, l3]) & (u32::MAX >> 1);
        self.closing = true;
        for slot in self.slots.iter_mut().filter(|slot| slot.id > last) {
            *slot = Slot::default();
            self.on_their_way -= 1;
        }
        Ok(Brought::Nothing)
    }

    fn place(&self, id: u32) -> usize {
        (id / 2) as usize % self.slots.len()
    }

    fn slot(&mut self, id: u32) -> Result<&mut Slot, Fault> {
        let place = self.place(id);
        let slot = &mut self.slots[place];
        if slot.id == id && id != 0 { Ok(slot) } else { Err(Fault::Malformed("an unknown stream")) }
    }
}

/// Slots per request in flight.
const SLOTS_PER_STREAM: usize = 64;

// HPACK: entries of the static table, forms of a literal, and the newest two entries of the dynamic
// table.
const METHOD_GET: u8 = 0x80 | 2;
const METHOD_POST: u8 = 0x80 | 3;
const SCHEME_HTTP: u8 = 0x80 | 6;
const SCHEME_HTTPS: u8 = 0x80 | 7;
const NAME_AUTHORITY: u8 = 1;
const NAME_PATH: u8 = 4;
const INTO_TABLE: u8 = 0x40;
const WITHOUT_TABLE: u8 = 0;
const AUTHORITY_IN_TABLE: u8 = 0x80 | 62;
const PATH_IN_TABLE: u8 = 0x80 | 63;
const TABLE_SIZE_0: u8 = 0x20;
/// Status codes of the static table, from entry 8 on.
const STATUSES: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];

fn frame_head(length: usize, kind: u8, flags: u8, id: u32, out: &mut Vec<u8>) {
    let [.., high, middle, low] = length.to_be_bytes();
    out.extend_from_slice(&[high, middle, low, kind, flags]);
    out.extend_from_slice(&id.to_be_bytes());
}

/// Writes the length of the complete frame that begins at `at`.
fn set_length(at: usize, out: &mut [u8]) {
    let [.., high, middle, low] = (out.len() - at - HEAD_BYTES).to_be_bytes();
    out[at..at + 3].copy_from_slice(&[high, middle, low]);
}

/// A literal of less than 127 bytes, after the entry of its name.
fn literal(name: u8, value: &str, out: &mut Vec<u8>) {
    out.push(name);
    debug_assert!(value.len() <= LITERAL_BYTES_MAX, "paths and authorities are shorter");
    out.push(u8::try_from(value.len()).unwrap_or(0));
    out.extend_from_slice(value.as_bytes());
}

/// Longest literal whose length fits one byte.
pub(super) const LITERAL_BYTES_MAX: usize = 126;

fn unpadded(flags: u8, content: &[u8]) -> Result<&[u8], Fault> {
    if flags & PADDED == 0 {
        return Ok(content);
    }
    let cut = content
        .split_first()
        .and_then(|(padding, rest)| rest.get(..rest.len().checked_sub(usize::from(*padding))?));
    cut.ok_or(Fault::Malformed("more padding than content"))
}

/// The status at the start of a header block: an entry of the static table, or a literal after its
/// name.
fn status_in(block: &[u8]) -> Option<u16> {
    let (first, rest) = block.split_first()?;
    match first {
        0x20..=0x3f => status_in(rest),
        0x88..=0x8e => STATUSES.get(usize::from(first - 0x88)).copied(),
        // The name is one of the same entries; the value is three digits, plain or in Huffman code.
        0x08..=0x0e | 0x18..=0x1e | 0x48..=0x4e => match rest.split_first()? {
            (3, digits) => std::str::from_utf8(digits.get(..3)?).ok()?.parse().ok(),
            (length @ 0x82..=0x83, code) => huffman_status(code.get(..usize::from(length & 0x7f))?),
            _ => None,
        },
        _ => None,
    }
}

/// Three digits in Huffman code: 0 to 2 have five bits, the others six.
fn huffman_status(code: &[u8]) -> Option<u16> {
    let bits = code.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
    let mut left = 8 * u32::try_from(code.len()).ok()?;
    let mut status = 0;
    for _ in 0..3 {
        let five = bits >> left.checked_sub(5)? & 0x1f;
        let digit = if five <= 2 {
            left -= 5;
            five
        } else {
            left = left.checked_sub(6)?;
            // 3 is 011001.
            (bits >> left & 0x3f).checked_sub(0x19 - 3).filter(|digit| (3..10).contains(digit))?
        };
        status = status * 10 + u16::try_from(digit).ok()?;
    }
    Some(status)
}

#[cfg(test)]
mod tests;
