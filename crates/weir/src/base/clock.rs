//! Wall time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Wall time since 1970.
pub(crate) fn unix_time() -> Duration {
    #[expect(clippy::disallowed_methods, reason = "wall time is told to devices and made ids of")]
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Wall time in milliseconds since 1970, as stores of devices use it.
pub fn unix_millis() -> weir_store::Millis {
    millis(unix_time())
}

/// A duration in whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
