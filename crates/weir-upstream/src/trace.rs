//! W3C Trace Context: each try is a span of its own.

use std::fmt::Debug;

use http::{HeaderValue, StatusCode};

use crate::error::SendError;

/// Records the tries of one request as spans.
pub trait TrySpans: Debug + Send + Sync {
    /// A try begins: `endpoint` was chosen for it.
    fn begin(&self, endpoint: &str) -> Box<dyn TrySpan>;
}

/// The span of a try. To drop it says that the caller has given the try up.
pub trait TrySpan: Send {
    /// The header `traceparent` that the try sends: its own span.
    fn traceparent(&self) -> HeaderValue;

    /// The head of the answer is there, or none will come.
    fn end(self: Box<Self>, outcome: Result<StatusCode, &SendError>);
}

/// The header for a try: the caller's trace and flags, with another span. `None`: the caller's header
/// is none of version 00.
///
/// Source: W3C Trace Context, section 3.2.
pub(crate) fn traceparent(callers: &HeaderValue, span: u64) -> Option<HeaderValue> {
    let callers = callers.as_bytes();
    let is_hex = |bytes: &[u8]| bytes.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == b'0');
    let (trace, parent, flags) = (callers.get(3..35)?, callers.get(36..52)?, callers.get(53..)?);
    let is_valid = callers.len() == 55
        && callers.starts_with(b"00-")
        && callers.get(35) == Some(&b'-')
        && callers.get(52) == Some(&b'-')
        && [trace, parent, flags].into_iter().all(is_hex)
        && !is_zero(trace)
        && !is_zero(parent);
    if !is_valid {
        return None;
    }
    let (trace, flags) = (std::str::from_utf8(trace).ok()?, std::str::from_utf8(flags).ok()?);
    HeaderValue::from_str(&format!("00-{trace}-{:016x}-{flags}", span.max(1))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(callers: &str, expected: Option<&str>) {
        let made = traceparent(&HeaderValue::from_str(callers).unwrap(), 0xab);
        assert_eq!(made.as_ref().map(|made| made.to_str().unwrap()), expected, "{callers}");
    }

    #[test]
    fn only_the_span_changes() {
        check(
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            Some("00-0af7651916cd43dd8448eb211c80319c-00000000000000ab-01"),
        );
    }

    #[test]
    fn headers_that_are_none_are_not_passed_on() {
        check("", None);
        check("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", None);
        check("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x", None);
        check("00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None);
        check("00-00000000000000000000000000000000-b7ad6b7169203331-01", None);
        check("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", None);
        check("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None);
    }
}
