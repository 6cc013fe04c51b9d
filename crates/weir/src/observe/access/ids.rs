//! The names of a request: its id, from the client or from Weir, and its place in a trace.
//!
//! Source: W3C Trace Context, level 1 (`traceparent`, `tracestate`). `X-Request-Id` is a
//! convention.

use std::cell::RefCell;

use http::{HeaderMap, HeaderName, HeaderValue};
use tracing::{Span, info_span};

use super::escape::digits;
use crate::observe::traces::Place;

/// The names of one request. They exist only if the client sent them or someone wants them.
///
/// Cost: a walk over the names in the head, if nothing is sent or wanted.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    request: Option<RequestId>,
    trace: Option<Trace>,
    is_answered: bool,
}

/// The reasons to make an id for a request that has none.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wanted {
    /// Every answer must name its request (`http.request_ids`).
    pub(crate) in_answers: bool,
    /// The access log is on.
    pub(crate) in_log: bool,
}

#[derive(Debug)]
enum RequestId {
    /// The client's id: 1 to [`REQUEST_ID_BYTES_MAX`] visible ASCII characters.
    Sent(HeaderValue),
    Made([u8; MADE_BYTES]),
}

/// The number of times that the head has a field, with its value.
#[derive(Clone, Copy)]
enum Sent<'a> {
    Not,
    Once(&'a HeaderValue),
    Often,
}

/// A request's place in a trace.
#[derive(Debug, Clone)]
pub(crate) struct Trace {
    /// `00-TRACE-SPAN-FLAGS`, with this request's own span.
    parent: [u8; PARENT_BYTES],
    /// The sender's span, in digits; `None`: the trace begins here.
    sender: Option<[u8; 16]>,
    /// As the client sent it.
    state: Option<HeaderValue>,
}

impl Ids {
    /// Reads the ids of the head, and makes missing ones that are wanted.
    ///
    /// An invalid `traceparent` begins a new trace, and its `tracestate` is ignored. Without a
    /// `traceparent` there is no trace.
    pub(crate) fn of(head: &HeaderMap, wanted: Wanted) -> Ids {
        let (mut id, mut parent, mut state) = (Sent::Not, Sent::Not, Sent::Not);
        // One walk over all names costs less than three look-ups.
        for (name, value) in head {
            match name.as_str() {
                "x-request-id" => id.add(value),
                "traceparent" => parent.add(value),
                "tracestate" => state.add(value),
                _ => {}
            }
        }
        let is_sent = !matches!(id, Sent::Not);
        let request = match id {
            Sent::Once(id) if is_sane(id.as_bytes()) => Some(RequestId::Sent(id.clone())),
            Sent::Not if !wanted.in_answers && !wanted.in_log => None,
            Sent::Not | Sent::Once(_) | Sent::Often => Some(RequestId::make()),
        };
        let trace = Trace::of(parent, || passed_on(state, head));
        Ids { request, trace, is_answered: is_sent || wanted.in_answers }
    }

    /// The id of the request, in visible ASCII.
    pub(crate) fn request_id(&self) -> Option<&[u8]> {
        self.request.as_ref().map(|id| match id {
            RequestId::Sent(value) => value.as_bytes(),
            RequestId::Made(id) => id,
        })
    }

    pub(crate) fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// Adds the request's id to its answer, if the request had one or every answer must have one.
    /// If the request belongs to a trace, adds its span too.
    pub(crate) fn answer(&self, head: &mut HeaderMap) {
        if let Some(trace) = &self.trace {
            trace.pass_on(head);
        }
        self.name(head);
    }

    /// Adds only the id.
    pub(crate) fn name(&self, head: &mut HeaderMap) {
        let Some(request) = self.request.as_ref().filter(|_| self.is_answered) else { return };
        let value = match request {
            RequestId::Sent(value) => value.clone(),
            RequestId::Made(id) => HeaderValue::from_bytes(id).expect("digits are visible"),
        };
        head.insert(REQUEST_ID.clone(), value);
    }

    /// The span for log lines about this request. It is empty if the request has no trace and its
    /// answer no id.
    pub(crate) fn span(&self) -> Span {
        if self.trace.is_none() && !self.is_answered {
            return Span::none();
        }
        let request_id = self.request_id().and_then(|id| std::str::from_utf8(id).ok());
        let trace_id = self.trace().map(Trace::trace_id);
        let span_id = self.trace().map(Trace::span_id);
        info_span!("request", request_id, trace_id, span_id)
    }
}

impl<'a> Sent<'a> {
    fn add(&mut self, value: &'a HeaderValue) {
        *self = if matches!(self, Sent::Not) { Sent::Once(value) } else { Sent::Often };
    }
}

impl RequestId {
    /// 16 digits for the thread, and 8 for its count.
    fn make() -> RequestId {
        MAKER.with_borrow_mut(|maker| {
            if maker.count == 0 {
                maker.prefix = hex(rand::random::<u64>().to_be_bytes());
            }
            let mut id = [0; MADE_BYTES];
            id[..16].copy_from_slice(&maker.prefix);
            id[16..].copy_from_slice(&hex::<4, 8>(maker.count.to_be_bytes()));
            // After the last count, another prefix begins.
            maker.count = maker.count.wrapping_add(1);
            RequestId::Made(id)
        })
    }
}

impl Trace {
    fn of(sent: Sent<'_>, state: impl FnOnce() -> Option<HeaderValue>) -> Option<Trace> {
        let parsed = match sent {
            Sent::Not => return None,
            Sent::Once(parent) => parse(parent.as_bytes()),
            Sent::Often => None,
        };
        let Some((trace_id, sender, flags)) = parsed else { return Some(Trace::begin()) };
        let mut parent = *PARENT_FORM;
        parent[3..35].copy_from_slice(trace_id);
        parent[36..52].copy_from_slice(&new_span());
        parent[53..].copy_from_slice(&digits(flags & SAMPLED));
        Some(Trace { parent, sender: sender.try_into().ok(), state: state() })
    }

    /// A new trace, not marked for recording.
    fn begin() -> Trace {
        let mut parent = *PARENT_FORM;
        parent[3..35].copy_from_slice(&hex::<16, 32>(rand::random::<u128>().max(1).to_be_bytes()));
        parent[36..52].copy_from_slice(&new_span());
        Trace { parent, sender: None, state: None }
    }

    /// 32 hexadecimal digits.
    pub(crate) fn trace_id(&self) -> &str {
        self.text(3, 35)
    }

    /// 16 hexadecimal digits, new for this request.
    pub(crate) fn span_id(&self) -> &str {
        self.text(36, 52)
    }

    /// The request's place in its trace, if the trace began elsewhere.
    pub(crate) fn place(&self) -> Option<Place> {
        let parent = unhex(&self.sender?)?;
        let flags = byte(&self.parent[53..])?;
        let (trace, span) = (unhex(&self.parent[3..35])?, unhex(&self.parent[36..52])?);
        Some(Place { trace, parent, span: Some(span), is_sampled: flags & SAMPLED != 0 })
    }

    /// Passes the trace on in the answer.
    fn pass_on(&self, head: &mut HeaderMap) {
        let parent = HeaderValue::from_bytes(&self.parent).expect("digits are visible");
        head.insert(TRACEPARENT.clone(), parent);
        if let Some(state) = &self.state {
            head.insert(TRACESTATE.clone(), state.clone());
        }
    }

    fn text(&self, from: usize, to: usize) -> &str {
        std::str::from_utf8(&self.parent[from..to]).expect("digits are ASCII")
    }
}

/// The `tracestate`, complete or not at all. Several lines of it form one list.
fn passed_on(sent: Sent<'_>, head: &HeaderMap) -> Option<HeaderValue> {
    match sent {
        Sent::Not => return None,
        Sent::Once(state) => return (state.len() <= STATE_BYTES_MAX).then(|| state.clone()),
        Sent::Often => {}
    }
    let mut list = Vec::with_capacity(STATE_BYTES_MAX);
    for part in head.get_all(&TRACESTATE) {
        if list.len() + 1 + part.len() > STATE_BYTES_MAX {
            return None;
        }
        if !list.is_empty() {
            list.push(b',');
        }
        list.extend_from_slice(part.as_bytes());
    }
    HeaderValue::from_bytes(&list).ok()
}

/// The place of a request whose own span is not made yet.
pub(crate) fn place_of(head: &HeaderMap) -> Option<Place> {
    let mut all = head.get_all(&TRACEPARENT).iter();
    let (Some(only), None) = (all.next(), all.next()) else { return None };
    let (trace, parent, flags) = parse(only.as_bytes())?;
    let (trace, parent) = (unhex(trace)?, unhex(parent)?);
    Some(Place { trace, parent, span: None, is_sampled: flags & SAMPLED != 0 })
}

/// Trace id, span id and flags of a `traceparent`. Version 00 is read strictly; of later versions the common
/// part.
fn parse(text: &[u8]) -> Option<(&[u8], &[u8], u8)> {
    let (known, later) = text.split_at_checked(PARENT_BYTES)?;
    let dashes = [known[2], known[35], known[52]];
    let (version, flags) = (byte(&known[..2])?, byte(&known[53..])?);
    let (trace_id, parent_id) = (&known[3..35], &known[36..52]);
    let is_id = |id: &[u8]| {
        id.iter().all(|digit| value(*digit).is_some()) && id.iter().any(|digit| *digit != b'0')
    };
    let goes_on = match version {
        0 => later.is_empty(),
        255 => false,
        _ => later.is_empty() || later[0] == b'-',
    };
    (dashes == *b"---" && is_id(trace_id) && is_id(parent_id) && goes_on)
        .then_some((trace_id, parent_id, flags))
}

fn unhex<const BYTES: usize>(digits: &[u8]) -> Option<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    for (at, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *at = byte(pair)?;
    }
    Some(bytes)
}

/// Two digits.
fn byte(text: &[u8]) -> Option<u8> {
    let &[high, low] = text else { return None };
    Some(value(high)? << 4 | value(low)?)
}

/// The value of a hexadecimal digit; capital letters are invalid.
fn value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

fn is_sane(id: &[u8]) -> bool {
    (1..=REQUEST_ID_BYTES_MAX).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic)
}

fn new_span() -> [u8; 16] {
    hex(rand::random::<u64>().max(1).to_be_bytes())
}

fn hex<const BYTES: usize, const DIGITS: usize>(bytes: [u8; BYTES]) -> [u8; DIGITS] {
    let mut text = [0; DIGITS];
    for (pair, byte) in text.chunks_exact_mut(2).zip(bytes) {
        pair.copy_from_slice(&digits(byte));
    }
    text
}

/// Makes the ids of one thread.
struct Maker {
    /// Random.
    prefix: [u8; 16],
    count: u32,
}

thread_local! {
    static MAKER: RefCell<Maker> = const { RefCell::new(Maker { prefix: [0; 16], count: 0 }) };
}

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
static TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Longer than a UUID and a trace id. The answer and every line about the request contain it.
const REQUEST_ID_BYTES_MAX: usize = 64;
const MADE_BYTES: usize = 24;
/// The length that the standard asks everyone to pass on.
const STATE_BYTES_MAX: usize = 512;
/// The only flag of this version; others are not passed on.
const SAMPLED: u8 = 1;

const PARENT_FORM: &[u8; PARENT_BYTES] = b"00-________________________________-________________-00";
const PARENT_BYTES: usize = 55;

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    fn head(fields: &[(&'static str, &str)]) -> HeaderMap {
        let value = |value: &str| HeaderValue::from_bytes(value.as_bytes()).unwrap();
        fields.iter().map(|(name, text)| (HeaderName::from_static(name), value(text))).collect()
    }

    fn ids(fields: &[(&'static str, &str)]) -> Ids {
        // `collect` keeps the last of a name.
        let mut all = HeaderMap::new();
        for (name, text) in fields {
            let more = head(&[(name, text)]);
            all.append(HeaderName::from_static(name), more[*name].clone());
        }
        Ids::of(&all, Wanted::default())
    }

    #[test]
    fn a_request_without_anything_has_nothing() {
        let ids = ids(&[("host", "a")]);
        let mut answer = HeaderMap::new();
        ids.answer(&mut answer);
        assert!(ids.request_id().is_none() && ids.trace().is_none() && answer.is_empty());
        assert!(ids.span().is_none());
    }

    #[test]
    fn an_id_is_taken_if_it_is_sane_and_replaced_if_not() {
        let check = |sent: &[&str], is_taken: bool| {
            let fields: Vec<_> = sent.iter().map(|id| ("x-request-id", *id)).collect();
            let (ids, mut answer) = (ids(&fields), HeaderMap::new());
            ids.answer(&mut answer);
            let id = ids.request_id().unwrap();
            assert_eq!(answer["x-request-id"].as_bytes(), id);
            assert_eq!(id == sent[0].as_bytes(), is_taken, "{sent:?}");
            assert!(is_sane(id), "{id:?}");
        };
        check(&["a"], true);
        check(&[&"x".repeat(64)], true);
        check(&["!\"\\~"], true);
        check(&[&"x".repeat(65)], false);
        check(&[""], false);
        check(&["a b"], false);
        check(&["a\tb"], false);
        check(&["é"], false);
        check(&["a", "b"], false);
    }

    #[test]
    fn ids_are_made_for_whoever_wants_them() {
        let check = |in_answers: bool, in_log: bool| {
            let ids = Ids::of(&HeaderMap::new(), Wanted { in_answers, in_log });
            let mut answer = HeaderMap::new();
            ids.answer(&mut answer);
            assert_eq!(ids.request_id().is_some(), in_answers || in_log);
            assert_eq!(answer.contains_key("x-request-id"), in_answers);
            ids.request_id().map(<[u8]>::to_vec)
        };
        assert_eq!(check(false, false), None);
        let made = [check(true, false), check(false, true), check(true, true)];
        assert!(made[0] != made[1] && made[1] != made[2], "{made:?}");
        let elsewhere = std::thread::spawn(move || check(true, false)).join().unwrap();
        assert_ne!(elsewhere.unwrap()[..16], made[0].as_ref().unwrap()[..16]);
    }

    #[test]
    fn a_trace_is_taken_up_and_passed_on_with_a_span_of_its_own() {
        let sent = format!("00-{TRACE}-{SPAN}-03");
        let state = format!("a=1,b={}", "x".repeat(506));
        let ids = ids(&[("traceparent", &sent), ("tracestate", &state)]);
        let (trace, mut head) = (ids.trace().unwrap(), HeaderMap::new());
        trace.pass_on(&mut head);
        assert_eq!(trace.trace_id(), TRACE);
        assert_ne!(trace.span_id(), SPAN);
        let expected = format!("00-{TRACE}-{}-01", trace.span_id());
        assert_eq!(head["traceparent"], expected);
        assert_eq!(head["tracestate"], state);
        let mut answer = HeaderMap::new();
        ids.answer(&mut answer);
        assert_eq!(answer, head);
    }

    #[test]
    fn what_is_no_traceparent_begins_a_new_trace() {
        let check = |sent: &str, is_taken: bool| {
            let ids = ids(&[("traceparent", sent), ("tracestate", "a=1")]);
            let (trace, mut head) = (ids.trace().unwrap(), HeaderMap::new());
            trace.pass_on(&mut head);
            assert_eq!(trace.trace_id() == TRACE, is_taken, "{sent:?}");
            assert_eq!(head.contains_key("tracestate"), is_taken, "{sent:?}");
            assert!(parse(head["traceparent"].as_bytes()).is_some(), "{head:?}");
        };
        check(&format!("00-{TRACE}-{SPAN}-01"), true);
        check(&format!("00-{TRACE}-{SPAN}-00"), true);
        check(&format!("cc-{TRACE}-{SPAN}-01"), true);
        check(&format!("cc-{TRACE}-{SPAN}-01-more"), true);
        check(&format!("cc-{TRACE}-{SPAN}-01more"), false);
        check(&format!("00-{TRACE}-{SPAN}-01-more"), false);
        check(&format!("00-{TRACE}-{SPAN}-01-"), false);
        check(&format!("ff-{TRACE}-{SPAN}-01"), false);
        check(&format!("0g-{TRACE}-{SPAN}-01"), false);
        check(&format!("00-{TRACE}-{SPAN}-0x"), false);
        check(&format!("00-{TRACE}-{SPAN}-1"), false);
        check(&format!("00-{TRACE}-{SPAN}"), false);
        check(&format!("00_{TRACE}-{SPAN}-01"), false);
        check(&format!("00-{TRACE}_{SPAN}-01"), false);
        check(&format!("00-{}-{SPAN}-01", TRACE.to_uppercase()), false);
        check(&format!("00-{}-{SPAN}-01", "0".repeat(32)), false);
        check(&format!("00-{TRACE}-{}-01", "0".repeat(16)), false);
        check(&format!(" 00-{TRACE}-{SPAN}-01"), false);
        check("", false);
        check("é", false);
    }

    #[test]
    fn two_traceparents_begin_a_new_trace_and_a_long_state_is_left_behind() {
        let sent = format!("00-{TRACE}-{SPAN}-01");
        let twice = ids(&[("traceparent", &sent), ("traceparent", &sent)]);
        assert_ne!(twice.trace().unwrap().trace_id(), TRACE);
        let check = |states: &[&str], expected: Option<&str>| {
            let mut fields = vec![("traceparent", sent.as_str())];
            fields.extend(states.iter().map(|state| ("tracestate", *state)));
            let (ids, mut head) = (ids(&fields), HeaderMap::new());
            ids.trace().unwrap().pass_on(&mut head);
            let passed_on = head.get("tracestate").map(|state| state.to_str().unwrap());
            assert_eq!(passed_on, expected);
        };
        let long = "x".repeat(256);
        check(&["a=1", "b=2"], Some("a=1,b=2"));
        check(&[&"x".repeat(513)], None);
        check(&[&long, &long], None);
    }
}
