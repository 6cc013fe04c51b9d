//! What Redis says on a connection with subscriptions (RESP2).

/// One thing that it says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply<'a> {
    /// A message on a channel.
    Message { channel: &'a [u8], payload: &'a [u8] },
    /// The subscription to a channel stands.
    Subscribed(&'a [u8]),
    /// It stands no longer: asked for, or because the channel's slot has moved.
    Unsubscribed(&'a [u8]),
    /// Something was done.
    Done,
    /// Something was refused.
    Refused(&'a str),
    /// Something else, which means nothing here.
    Other,
}

/// Bytes that cannot be Redis'.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken;

impl<'a> Reply<'a> {
    /// The first reply, and how many bytes it has; `None`: more input is needed.
    ///
    /// # Errors
    /// Bytes that cannot be Redis'.
    pub(super) fn decode(input: &'a [u8]) -> Result<Option<(Reply<'a>, usize)>, Broken> {
        let mut rest = input;
        let Some(line) = line(&mut rest)? else { return Ok(None) };
        let Some((kind, line)) = line.split_first() else { return Err(Broken) };
        let reply = match kind {
            b'+' => Reply::Done,
            b'-' => Reply::Refused(str::from_utf8(line).map_err(|_| Broken)?),
            b'*' => {
                let mut parts: [&[u8]; PARTS_MAX] = [&[]; PARTS_MAX];
                let count = number(line)?.filter(|&count| count <= PARTS_MAX).ok_or(Broken)?;
                for part in &mut parts[..count] {
                    let Some(found) = scalar(&mut rest)? else { return Ok(None) };
                    *part = found;
                }
                match (parts[0], count) {
                    (b"smessage", 3) => Reply::Message { channel: parts[1], payload: parts[2] },
                    (b"ssubscribe", 3) => Reply::Subscribed(parts[1]),
                    (b"sunsubscribe", 3) => Reply::Unsubscribed(parts[1]),
                    _ => Reply::Other,
                }
            }
            _ => return Err(Broken),
        };
        Ok(Some((reply, input.len() - rest.len())))
    }
}

/// A string or a number.
fn scalar<'a>(rest: &mut &'a [u8]) -> Result<Option<&'a [u8]>, Broken> {
    let Some(line) = line(rest)? else { return Ok(None) };
    match line.split_first() {
        Some((b':', line)) => Ok(Some(line)),
        Some((b'$', line)) => {
            // Of a string that is not there the length is -1.
            let Some(length) = number(line)? else { return Ok(Some(&[])) };
            let Some((found, behind)) = rest.split_at_checked(length) else { return Ok(None) };
            match behind {
                [b'\r', b'\n', behind @ ..] => *rest = behind,
                [] | [b'\r'] => return Ok(None),
                _ => return Err(Broken),
            }
            Ok(Some(found))
        }
        _ => Err(Broken),
    }
}

/// What stands before the next end of a line.
fn line<'a>(rest: &mut &'a [u8]) -> Result<Option<&'a [u8]>, Broken> {
    let window = &rest[..rest.len().min(LINE_MAX)];
    let Some(end) = window.iter().position(|&byte| byte == b'\r') else {
        return if window.len() == LINE_MAX { Err(Broken) } else { Ok(None) };
    };
    let line = &rest[..end];
    match rest.get(end + 1) {
        None => return Ok(None),
        Some(b'\n') => *rest = &rest[end + 2..],
        Some(_) => return Err(Broken),
    }
    Ok(Some(line))
}

/// A length; `None` for -1.
fn number(line: &[u8]) -> Result<Option<usize>, Broken> {
    if line == b"-1" {
        return Ok(None);
    }
    let text = str::from_utf8(line).map_err(|_| Broken)?;
    text.parse().map(Some).map_err(|_| Broken)
}

/// Parts of a reply: its name, a channel, and a payload or number.
const PARTS_MAX: usize = 3;
/// Bytes of a line. Errors are the longest.
const LINE_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    /// Whole, it is this; cut anywhere, more is needed.
    fn check(input: &[u8], expected: Reply<'_>) {
        for end in 0..input.len() {
            assert_eq!(Reply::decode(&input[..end]), Ok(None), "cut at {end}");
        }
        let mut more = input.to_vec();
        more.extend(b"+x");
        assert_eq!(Reply::decode(&more), Ok(Some((expected, input.len()))));
    }

    #[test]
    fn replies_are_read_and_may_be_cut_anywhere() {
        let expected = Reply::Message { channel: b"a{b}", payload: b"\r\n$x" };
        check(b"*3\r\n$8\r\nsmessage\r\n$4\r\na{b}\r\n$4\r\n\r\n$x\r\n", expected);
        check(b"*3\r\n$10\r\nssubscribe\r\n$1\r\nc\r\n:12\r\n", Reply::Subscribed(b"c"));
        check(b"*3\r\n$12\r\nsunsubscribe\r\n$1\r\nc\r\n:0\r\n", Reply::Unsubscribed(b"c"));
        check(b"*3\r\n$12\r\nsunsubscribe\r\n$-1\r\n:0\r\n", Reply::Unsubscribed(b""));
        check(b"*2\r\n$4\r\npong\r\n$0\r\n\r\n", Reply::Other);
        check(b"+OK\r\n", Reply::Done);
        check(b"-MOVED 12 a:1\r\n", Reply::Refused("MOVED 12 a:1"));
    }

    #[test]
    fn what_cannot_be_is_broken() {
        let long = [b'+'; LINE_MAX];
        let inputs: [&[u8]; 9] = [
            b"HTTP/1.1 400\r\n",
            b"\r\n",
            b"+OK\rx",
            b"*4\r\n",
            b"*-1\r\n",
            b"*1\r\n$x\r\n",
            b"*1\r\n$2\r\nabc\r\n",
            b"*1\r\n*1\r\n",
            &long,
        ];
        for input in inputs {
            assert_eq!(Reply::decode(input), Err(Broken), "{input:?}");
        }
    }
}
