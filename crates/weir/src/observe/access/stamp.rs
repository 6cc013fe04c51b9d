//! Wall time in the form of the log. The calendar is computed once a second.

use std::time::{Duration, UNIX_EPOCH};

use humantime::format_rfc3339_seconds;

/// The last shown time, kept for the next line.
pub(super) struct Stamp {
    second: u64,
    /// `2026-11-21T20:19:01.`
    rfc3339: [u8; 20],
    /// `21/Nov/2026:20:19:01`
    combined: [u8; 20],
    /// `123`
    millis: [u8; 3],
}

impl Stamp {
    pub(super) fn new() -> Stamp {
        Stamp::of_second(0)
    }

    /// Sets the time, in microseconds since 1970.
    pub(super) fn set(&mut self, unix_us: u64) {
        let second = unix_us / 1_000_000;
        if second != self.second {
            *self = Stamp::of_second(second);
        }
        let digit = |by: u64| {
            let digit = (unix_us / by) % 10;
            b'0' + u8::try_from(digit).expect("it is below ten")
        };
        self.millis = [digit(100_000), digit(10_000), digit(1_000)];
    }

    fn of_second(second: u64) -> Stamp {
        // The last second of the year 9999. A later clock is wrong.
        let shown = Duration::from_secs(second.min(253_402_300_799));
        let text = format_rfc3339_seconds(UNIX_EPOCH + shown).to_string();
        let text = text.as_bytes();
        let mut rfc3339 = [b'.'; 20];
        rfc3339[..19].copy_from_slice(&text[..19]);
        let month = usize::from((text[5] - b'0') * 10 + (text[6] - b'0'));
        let mut combined = [0; 20];
        let parts = [&text[8..10], b"/", MONTHS[month - 1], b"/", &text[..4], b":", &text[11..19]];
        let mut rest = combined.as_mut_slice();
        for part in parts {
            let (room, others) = rest.split_at_mut(part.len());
            room.copy_from_slice(part);
            rest = others;
        }
        Stamp { second, rfc3339, combined, millis: *b"000" }
    }

    /// `2026-11-21T20:19:01.123Z`
    pub(super) fn rfc3339(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.rfc3339);
        out.extend_from_slice(&self.millis);
        out.push(b'Z');
    }

    /// `21/Nov/2026:20:19:01 +0000`
    pub(super) fn combined(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.combined);
        out.extend_from_slice(b" +0000");
    }
}

const MONTHS: [&[u8]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_both_ways() {
        let mut stamp = Stamp::new();
        let mut check = |unix_us: u64, rfc3339: &str, combined: &str| {
            let (mut one, mut other) = (Vec::new(), Vec::new());
            stamp.set(unix_us);
            stamp.rfc3339(&mut one);
            stamp.combined(&mut other);
            assert_eq!(String::from_utf8(one).unwrap(), rfc3339);
            assert_eq!(String::from_utf8(other).unwrap(), combined);
        };
        check(0, "1970-01-01T00:00:00.000Z", "01/Jan/1970:00:00:00 +0000");
        check(1_795_292_341_123_999, "2026-11-21T20:19:01.123Z", "21/Nov/2026:20:19:01 +0000");
        check(1_795_292_341_007_000, "2026-11-21T20:19:01.007Z", "21/Nov/2026:20:19:01 +0000");
        check(1_709_164_800_000_000, "2024-02-29T00:00:00.000Z", "29/Feb/2024:00:00:00 +0000");
        check(u64::MAX, "9999-12-31T23:59:59.551Z", "31/Dec/9999:23:59:59 +0000");
    }
}
