//! Request bodies: JSON, of bounded length, read in bounded time and memory.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, TRANSFER_ENCODING};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Body;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::problem::{Kind, Problem};

/// A body, and its part of what all bodies together may take.
#[derive(Debug)]
pub(super) struct Whole<'a> {
    pub(super) bytes: Bytes,
    _permit: SemaphorePermit<'a>,
}

/// Room for all bodies that are being read or carried out.
pub(super) struct Room {
    kibibytes: Semaphore,
    timeout: Duration,
}

impl Room {
    pub(super) fn new() -> Self {
        Self { kibibytes: Semaphore::new(ROOM_KIB), timeout: BODY_TIMEOUT }
    }

    /// Reads a body whole.
    ///
    /// Errors: over `BODY_BYTES_MAX`; not there within `BODY_TIMEOUT`; no room for it within that time; broken.
    pub(super) async fn read<B>(&self, headers: &HeaderMap, body: B) -> Result<Whole<'_>, Problem>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let kib = kibibytes(headers)?;
        let Ok(permit) = timeout(self.timeout, self.kibibytes.acquire_many(kib)).await else {
            let detail = format!("other requests' bodies take all of {ROOM_KIB} KiB");
            return Err(Problem::retry(Kind::TooManyRequests, RETRY_AFTER, detail));
        };
        let permit = permit.expect("the semaphore is never closed");
        match timeout(self.timeout, Limited::new(body, BODY_BYTES_MAX).collect()).await {
            Ok(Ok(whole)) => Ok(Whole { bytes: whole.to_bytes(), _permit: permit }),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
            Ok(Err(_)) => {
                Err(Problem::new(Kind::InvalidRequest, "the body ends or is framed wrongly"))
            }
            Err(_) => {
                let detail = format!("the body was not whole after {:?}", self.timeout);
                Err(Problem::new(Kind::BodyTimeout, detail))
            }
        }
    }
}

/// Refuses what is not announced as JSON in UTF-8.
pub(super) fn check_json(headers: &HeaderMap) -> Result<(), Problem> {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let is_json = match (types.next().map(|value| value.to_str()), types.next()) {
        (Some(Ok(value)), None) => is_json(value),
        _ => false,
    };
    if is_json {
        return Ok(());
    }
    let detail = "a POST says \"Content-Type: application/json\"";
    Err(Problem::new(Kind::UnsupportedMediaType, detail).at_header("Content-Type"))
}

/// Refuses a body that comes without length and without chunks.
pub(super) fn check_length(headers: &HeaderMap) -> Result<(), Problem> {
    if headers.contains_key(CONTENT_LENGTH) || headers.contains_key(TRANSFER_ENCODING) {
        return Ok(());
    }
    let detail = "send Content-Length, or the body in chunks";
    Err(Problem::new(Kind::LengthRequired, detail).at_header("Content-Length"))
}

fn is_json(value: &str) -> bool {
    let mut parts = value.split(';').map(str::trim);
    let essence = parts.next().is_some_and(|part| part.eq_ignore_ascii_case("application/json"));
    essence
        && parts.all(|parameter| {
            let charset = parameter
                .split_once('=')
                .filter(|(name, _)| name.trim_end().eq_ignore_ascii_case("charset"));
            charset.is_none_or(|(_, charset)| {
                charset.trim().trim_matches('"').eq_ignore_ascii_case("utf-8")
            })
        })
}

/// The room that a body takes: its length where it is announced, the limit otherwise.
fn kibibytes(headers: &HeaderMap) -> Result<u32, Problem> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let bytes = match announced.map(str::parse::<usize>) {
        Some(Ok(bytes)) if bytes <= BODY_BYTES_MAX => bytes,
        Some(_) => return Err(too_large()),
        None => BODY_BYTES_MAX,
    };
    Ok(u32::try_from(bytes.div_ceil(1024)).expect("at most BODY_BYTES_MAX / 1024"))
}

fn too_large() -> Problem {
    let detail = format!("the body is over the limit of {BODY_BYTES_MAX} bytes");
    Problem::new(Kind::TooLarge, detail)
}

/// A thousand messages of 1 KiB; with many more the answer would come too late to be of use.
const BODY_BYTES_MAX: usize = 1 << 20;
/// 32 bodies of the largest size.
const ROOM_KIB: usize = 32 * 1024;
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;
    use hyper::body::Frame;
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    /// A body of which nothing ever comes.
    struct Silent;

    impl Body for Silent {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Pending
        }
    }

    /// The status of reading `body` into room for `kib` where time is short.
    async fn read<B>(kib: usize, body: B) -> Result<usize, u16>
    where
        B: Body<Data = Bytes, Error = Infallible>,
    {
        let room = Room { kibibytes: Semaphore::new(kib), timeout: Duration::from_millis(10) };
        let whole = room.read(&HeaderMap::new(), body).await;
        whole
            .map(|whole| whole.bytes.len())
            .map_err(|problem| problem.into_response().status().as_u16())
    }

    #[tokio::test]
    async fn a_body_that_does_not_come_or_has_no_room_is_given_up() {
        assert_eq!(read(1024, Full::from("{}")).await, Ok(2));
        assert_eq!(read(1023, Full::from("{}")).await, Err(503));
        assert_eq!(read(1024, Full::from(vec![0; BODY_BYTES_MAX + 1])).await, Err(413));
        assert_eq!(read(1024, Silent).await, Err(408));
    }

    #[test]
    fn only_json_in_utf_8_is_json() {
        for value in [
            "application/json",
            "Application/JSON",
            "application/json; charset=utf-8",
            "application/json;charset=\"UTF-8\"",
        ] {
            assert!(is_json(value), "{value}");
        }
        for value in ["", "text/plain", "application/jsonp", "application/json; charset=utf-16"] {
            assert!(!is_json(value), "{value}");
        }
    }
}
