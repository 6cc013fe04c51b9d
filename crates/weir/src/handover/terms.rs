//! What the two processes of an upgrade must agree on.

use std::ops::RangeInclusive;

/// The variable that names the descriptor of the pair.
pub const UPGRADE_VARIABLE: &str = "WEIR_UPGRADE_FD";

/// The versions of the state's format that this program writes.
pub(super) fn formats_written() -> RangeInclusive<u32> {
    1..=newest_format()
}

/// The versions that it reads.
pub(super) fn formats_read() -> RangeInclusive<u32> {
    1..=newest_format()
}

/// A test build stands for the program after this one, if a variable tells it to.
fn newest_format() -> u32 {
    let is_next = cfg!(feature = "next-format") && std::env::var_os("WEIR_NEXT_FORMAT").is_some();
    1 + u32::from(is_next)
}

/// The part that consists of an end of another pair.
pub(super) const LINK_PART: &str = "link";
pub(super) const PROGRAM: &str = concat!("weir ", env!("CARGO_PKG_VERSION"));
