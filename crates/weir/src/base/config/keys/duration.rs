//! Durations in text form: `"500ms"`, `"10s"`, `"15m"`, `"1h"`.

use std::time::Duration;

/// The text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a duration: allowed is a whole number and a unit (ms, s, m or h), such as \"10s\""
)]
pub struct DurationError(String);

/// Parses a duration: a whole number and a unit (`ms`, `s`, `m`, `h`), without a space.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let error = || DurationError(text.to_owned());
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| error())?;
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(error()),
    };
    number.checked_mul(unit_ms).map(Duration::from_millis).ok_or_else(error)
}
