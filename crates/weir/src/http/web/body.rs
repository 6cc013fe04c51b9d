//! Request bodies: JSON, of bounded length, read in bounded time and memory.

use std::future::poll_fn;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, TRANSFER_ENCODING};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Body, Frame};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::problem::{Kind, Problem};

/// A body, and the room that it takes.
#[derive(Debug)]
pub(crate) struct Whole<'a> {
    pub(crate) bytes: Bytes,
    _permit: Option<SemaphorePermit<'a>>,
}

/// Room for all bodies that are being read, or whose requests are being carried out.
///
/// Shape: the bytes of a body that have come take room; announced bytes take none.
/// Limits: `ROOM_KIB` or a sixteenth of the byte budget, whichever is less, but room for one body
/// of the largest size. If no room is left, it gives up the bodies that have not grown for the
/// longest time. A body that waits for room counts as growing. If all wait, the largest is given
/// up.
pub(crate) struct Room {
    kibibytes: Semaphore,
    kib_max: usize,
    /// The largest size of one body.
    bytes_max: usize,
    timeout: Duration,
    growing: Mutex<Vec<Arc<Growing>>>,
    turns: AtomicU64,
}

/// A body that has not come completely.
#[derive(Default)]
struct Growing {
    kib: AtomicU32,
    /// The turn in which it grew last.
    grown: AtomicU64,
    /// More of the body has come, and waits for room.
    is_waiting: AtomicBool,
    is_given_up: AtomicBool,
    given_up: Notify,
}

/// The length that a head announces for its body, if any.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Announced(Option<usize>);

/// What comes of a body at one time.
type Piece = Result<Frame<Bytes>, Box<dyn std::error::Error + Send + Sync>>;

/// Keeps a body among those that grow.
struct Entry<'a> {
    room: &'a Room,
    growing: Arc<Growing>,
}

impl Room {
    /// Room for bodies of at most `bytes_max` each. Each must be whole within `timeout`.
    /// `budget_bytes`: the size of the byte budget.
    pub(crate) fn new(bytes_max: usize, timeout: Duration, budget_bytes: usize) -> Self {
        let part_kib = budget_bytes / PART_OF_BUDGET / 1024;
        let kib_max = ROOM_KIB.min(part_kib).max(bytes_max.div_ceil(1024));
        Self {
            kibibytes: Semaphore::new(kib_max),
            kib_max,
            bytes_max,
            timeout,
            growing: Mutex::default(),
            turns: AtomicU64::new(0),
        }
    }

    /// Reads a whole body, after [`Room::check`].
    ///
    /// Errors: the body is too long; it is not whole in time; it found no room in that time, or
    /// faster bodies needed its room; it is malformed, shorter than announced, or has trailers.
    pub(crate) async fn read<B>(&self, announced: Announced, body: B) -> Result<Whole<'_>, Problem>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut body = pin!(Limited::new(body, self.bytes_max));
        let first = poll_fn(|cx| Poll::Ready(body.as_mut().poll_frame(cx))).await;
        if let Poll::Ready(Some(Ok(frame))) = &first
            && body.is_end_stream()
            && let Some(whole) = self.take_whole(frame)
        {
            return announced.check(whole);
        }
        announced.check(Box::pin(self.wait(first, body)).await?)
    }

    /// Waits for the rest of a body. `first`: the piece that is there already.
    async fn wait<B>(
        &self,
        first: Poll<Option<Piece>>,
        body: Pin<&mut Limited<B>>,
    ) -> Result<Whole<'_>, Problem>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let entry = self.enter();
        tokio::select! {
            biased;
            whole = timeout(self.timeout, self.gather(&entry.growing, first, body)) => {
                whole.unwrap_or_else(|_| Err(self.too_late(&entry.growing)))
            }
            () = entry.growing.given_up.notified() => Err(self.no_room()),
        }
    }

    /// Takes a body that is whole with its first piece, as most short bodies are. It does not grow,
    /// so it is not entered. `None`: there is no room, or the piece is a trailer.
    fn take_whole(&self, piece: &Frame<Bytes>) -> Option<Whole<'_>> {
        let data = piece.data_ref()?;
        let permit = self.kibibytes.try_acquire_many(kibibytes(data.len())).ok()?;
        // The piece would keep the whole buffer that it was read into.
        Some(Whole { bytes: Bytes::copy_from_slice(data), _permit: Some(permit) })
    }

    async fn gather<B>(
        &self,
        growing: &Growing,
        mut first: Poll<Option<Piece>>,
        mut body: Pin<&mut Limited<B>>,
    ) -> Result<Whole<'_>, Problem>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (mut bytes, mut permit) = (Vec::new(), None::<SemaphorePermit<'_>>);
        loop {
            let next = match mem::replace(&mut first, Poll::Pending) {
                Poll::Ready(piece) => piece,
                Poll::Pending => body.frame().await,
            };
            let Some(frame) = next else { break };
            let frame = match frame {
                Ok(frame) => frame,
                Err(error) if error.is::<LengthLimitError>() => return Err(self.too_large()),
                Err(_) => return Err(broken()),
            };
            // Neither library tells a well-formed trailer from a malformed one.
            let Ok(data) = frame.into_data() else { return Err(trailed()) };
            growing.grown.store(self.turns.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
            let kib = kibibytes(bytes.len() + data.len());
            let more = kib - growing.kib.load(Ordering::Relaxed);
            if more > 0 {
                let taken = self.take(growing, more).await;
                match &mut permit {
                    Some(permit) => permit.merge(taken),
                    None => permit = Some(taken),
                }
                growing.kib.store(kib, Ordering::Relaxed);
            }
            bytes.extend_from_slice(&data);
        }
        Ok(Whole { bytes: bytes.into(), _permit: permit })
    }

    /// Waits for room. If there is none, other bodies have to give up theirs.
    async fn take(&self, growing: &Growing, kib: u32) -> SemaphorePermit<'_> {
        if let Ok(permit) = self.kibibytes.try_acquire_many(kib) {
            return permit;
        }
        growing.is_waiting.store(true, Ordering::Relaxed);
        self.make_room(kib);
        let permit = self.kibibytes.acquire_many(kib).await.expect("the semaphore is never closed");
        growing.is_waiting.store(false, Ordering::Relaxed);
        permit
    }

    /// Gives up bodies until they leave `kib`, or no body has bytes.
    fn make_room(&self, kib: u32) {
        let growing = self.lock();
        let mut left = 0;
        while left < kib {
            let holders = || growing.iter().filter(|holder| holder.holds());
            let Some(first) = holders().min_by_key(|holder| holder.rank()) else { return };
            // A lone body waits for whole bodies, and these leave soon.
            if first.is_waiting.load(Ordering::Relaxed) && holders().count() == 1 {
                return;
            }
            first.is_given_up.store(true, Ordering::Relaxed);
            first.given_up.notify_one();
            left += first.kib.load(Ordering::Relaxed);
        }
    }

    /// The problem of a body that was not whole in time: nothing came, or it found no room.
    fn too_late(&self, growing: &Growing) -> Problem {
        if self.kibibytes.available_permits() == 0 && growing.kib.load(Ordering::Relaxed) == 0 {
            return self.no_room();
        }
        let detail = format!("the body was not whole after {:?}", self.timeout);
        Problem::new(Kind::BodyTimeout, detail)
    }

    /// Refuses a body that is coded, or whose announced length is over the limit. [`Room::read`]
    /// does not need the head any more.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<Announced, Problem> {
        check_coding(headers)?;
        let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        // With both headers, the chunks count, and hyper ends the connection (RFC 9112 section
        // 6.3).
        match announced.filter(|_| !headers.contains_key(TRANSFER_ENCODING)).map(str::parse) {
            Some(Ok(bytes)) if bytes <= self.bytes_max => Ok(Announced(Some(bytes))),
            Some(_) => Err(self.too_large()),
            None => Ok(Announced(None)),
        }
    }

    fn no_room(&self) -> Problem {
        let detail = format!("the bodies of other requests use all {} KiB", self.kib_max);
        Problem::retry(Kind::TooManyRequests, RETRY_AFTER, detail)
    }

    fn too_large(&self) -> Problem {
        let detail = format!("the body is over the limit of {} bytes", self.bytes_max);
        Problem::new(Kind::TooLarge, detail)
    }

    fn enter(&self) -> Entry<'_> {
        let growing = Arc::<Growing>::default();
        self.lock().push(Arc::clone(&growing));
        Entry { room: self, growing }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Growing>>> {
        self.growing.lock().expect("no panic happens under the lock of the bodies")
    }
}

impl Growing {
    fn holds(&self) -> bool {
        !self.is_given_up.load(Ordering::Relaxed) && self.kib.load(Ordering::Relaxed) > 0
    }

    /// The body of the lowest rank gives way first: the longest idle one, then the largest that
    /// waits.
    fn rank(&self) -> (bool, u64) {
        let is_waiting = self.is_waiting.load(Ordering::Relaxed);
        let kib = u64::from(self.kib.load(Ordering::Relaxed));
        (is_waiting, if is_waiting { u64::MAX - kib } else { self.grown.load(Ordering::Relaxed) })
    }
}

impl Announced {
    /// Errors: the body is not as long as announced. Over HTTP/2, a body ends so if its stream is
    /// reset without an error.
    fn check(self, whole: Whole<'_>) -> Result<Whole<'_>, Problem> {
        match self.0 {
            Some(announced) if announced != whole.bytes.len() => Err(broken()),
            Some(_) | None => Ok(whole),
        }
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.room.lock().retain(|other| !Arc::ptr_eq(other, &self.growing));
    }
}

fn broken() -> Problem {
    Problem::new(Kind::InvalidRequest, "the body ends or is framed wrongly")
}

fn trailed() -> Problem {
    Problem::new(Kind::InvalidRequest, "the body has trailers, which this server does not take")
}

/// Refuses a body with a content coding: it would be read as if it were plain.
fn check_coding(headers: &HeaderMap) -> Result<(), Problem> {
    let mut codings = headers.get_all(CONTENT_ENCODING).iter();
    if codings.all(|coding| coding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Ok(());
    }
    Err(Problem::coding("send the body without a content coding"))
}

/// Whether the transfer coding of a request is `chunked`, or it has none.
pub(crate) fn is_chunked_alone(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => true,
        (Some(coding), None) => coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked"),
        (Some(_), Some(_)) => false,
    }
}

/// Whether the next request can be found behind a body that nobody reads: the body must be short,
/// and its length known from the head. We do not leave the end of chunks to hyper, which reads a
/// bare LF in a trailer as a part of a line.
pub(crate) fn is_passed_over(body: &impl Body) -> bool {
    body.size_hint().exact().is_some_and(|bytes| bytes <= PASSED_OVER_BYTES_MAX)
}

/// Refuses a body that is not announced as JSON in UTF-8.
pub(crate) fn check_json(headers: &HeaderMap) -> Result<(), Problem> {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let is_json = match (types.next().map(|value| value.to_str()), types.next()) {
        (Some(Ok(value)), None) => is_json(value),
        _ => false,
    };
    if is_json {
        return Ok(());
    }
    let detail = "send \"Content-Type: application/json\"";
    Err(Problem::new(Kind::UnsupportedMediaType, detail).at_header("Content-Type"))
}

/// Refuses a body without a length and without chunks.
pub(crate) fn check_length(headers: &HeaderMap) -> Result<(), Problem> {
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

/// The room that so many bytes take.
fn kibibytes(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).expect("a body has at most some megabytes")
}

/// 32 bodies of a megabyte.
const ROOM_KIB: usize = 32 * 1024;
/// A small budget means a small machine.
const PART_OF_BUDGET: usize = 16;
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// hyper skips the bytes that came with the head. A longer body would end the connection without an
/// announcement.
const PASSED_OVER_BYTES_MAX: u64 = 4 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;
    use std::convert::Infallible;
    use std::task::Context;
    use tokio::sync::mpsc::{Receiver, Sender, channel};

    const BODY_BYTES_MAX: usize = 1 << 20;

    /// A body that never comes.
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

    /// Sends its bytes, and then nothing more.
    struct Stalled(Option<Bytes>);

    impl Body for Stalled {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.0.take().map_or(Poll::Pending, |bytes| Poll::Ready(Some(Ok(Frame::data(bytes)))))
        }
    }

    /// Sends what a test feeds it, until the test drops its end.
    struct Fed(Receiver<Bytes>);

    impl Fed {
        fn new() -> (Sender<Bytes>, Fed) {
            let (parts, fed) = channel(2);
            (parts, Fed(fed))
        }
    }

    impl Body for Fed {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.0.poll_recv(cx).map(|part| part.map(|part| Ok(Frame::data(part))))
        }
    }

    fn room(kib: usize, timeout: Duration) -> Room {
        Room { kibibytes: Semaphore::new(kib), ..Room::new(BODY_BYTES_MAX, timeout, 1 << 30) }
    }

    /// The length of the body, or the status of the refusal.
    async fn read<B>(room: &Room, body: B) -> Result<usize, u16>
    where
        B: Body<Data = Bytes, Error = Infallible>,
    {
        let whole = room.read(Announced(None), body).await;
        whole
            .map(|whole| whole.bytes.len())
            .map_err(|problem| problem.into_response().status().as_u16())
    }

    #[tokio::test]
    async fn a_body_that_does_not_come_or_has_no_room_is_given_up() {
        let soon = Duration::from_millis(10);
        let large = || Full::from(vec![0; BODY_BYTES_MAX]);
        assert_eq!(read(&room(1024, soon), Full::from("{}")).await, Ok(2));
        assert_eq!(read(&room(1024, soon), large()).await, Ok(BODY_BYTES_MAX));
        assert_eq!(read(&room(0, soon), Full::from("{}")).await, Err(503));
        assert_eq!(
            read(&room(1024, soon), Full::from(vec![0; BODY_BYTES_MAX + 1])).await,
            Err(413)
        );
        assert_eq!(read(&room(1024, soon), Silent).await, Err(408));
    }

    #[tokio::test]
    async fn a_slow_body_gives_way_to_one_that_comes() {
        let room = Arc::new(room(3, Duration::from_secs(60)));
        let mut slow = Vec::new();
        for count in 0..3 {
            let reader = Arc::clone(&room);
            let part = Bytes::from_static(&[b' '; 1024]);
            slow.push(tokio::spawn(async move { read(&reader, Stalled(Some(part))).await }));
            while room.kibibytes.available_permits() > 2 - count {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(read(&room, Full::from(vec![b' '; 2048])).await, Ok(2048));
        let last = slow.pop().unwrap();
        for slow in slow {
            assert_eq!(slow.await.unwrap(), Err(503));
        }
        assert!(!last.is_finished());
        assert_eq!(room.kibibytes.available_permits(), 2);
        last.abort();
    }

    #[tokio::test]
    async fn of_bodies_that_all_wait_the_largest_gives_way() {
        let room = Arc::new(room(8, Duration::from_secs(60)));
        let mut begun = Vec::new();
        for (kib, left) in [(1, 7), (1, 6), (6, 0)] {
            let (reader, (parts, body)) = (Arc::clone(&room), Fed::new());
            parts.try_send(Bytes::from(vec![b' '; kib << 10])).unwrap();
            begun.push((tokio::spawn(async move { read(&reader, body).await }), parts));
            while room.kibibytes.available_permits() > left {
                tokio::task::yield_now().await;
            }
        }
        // The first body gives way to the small one. The large one would take that room before it
        // is there.
        let [(idle, _parts), (small, more), (large, more_of_large)] =
            <[_; 3]>::try_from(begun).unwrap();
        for more in [more, more_of_large] {
            more.try_send(Bytes::from_static(b" ")).unwrap();
        }
        assert_eq!(small.await.unwrap(), Ok(1025));
        assert_eq!(idle.await.unwrap(), Err(503));
        assert_eq!(large.await.unwrap(), Err(503));
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
