//! What the two processes of an upgrade must agree on.

use std::ops::RangeInclusive;

/// The variable that names the descriptor of the pair.
pub const UPGRADE_VARIABLE: &str = "WEIR_UPGRADE_FD";

/// The versions of the state's format that this program writes.
pub(super) const FORMATS_WRITTEN: RangeInclusive<u32> = 1..=1;
/// The versions that it reads.
pub(super) const FORMATS_READ: RangeInclusive<u32> = 1..=1;
/// The part that consists of an end of another pair.
pub(super) const LINK_PART: &str = "link";
pub(super) const PROGRAM: &str = concat!("weir ", env!("CARGO_PKG_VERSION"));
