//! Numbers by name.

use std::collections::BTreeMap;

/// Numbers by name.
pub(super) type Counts = BTreeMap<&'static str, u64>;

/// A number for each value of an enum, by its name.
pub(super) fn by_name<T: Copy, const N: usize>(
    all: [T; N],
    name: fn(T) -> &'static str,
    count: impl Fn(T) -> u64,
) -> Counts {
    all.into_iter().map(|of| (name(of), count(of))).collect()
}
