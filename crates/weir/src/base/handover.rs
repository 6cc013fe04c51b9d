//! What the parts of a hand-over to another process have in common.

use weir_engine::handover::NotUnderstood;

/// The tables are being handed over to another process, so this one changes nothing any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HandingOver;

/// A field of an export that this program does not understand.
pub(crate) fn refused(field: &'static str, value: impl Into<u64>) -> NotUnderstood {
    NotUnderstood { field, value: value.into() }
}

/// A number in a narrower type.
pub(crate) fn narrow<T: TryFrom<u64>>(
    field: &'static str,
    value: impl Into<u64>,
) -> Result<T, NotUnderstood> {
    let value = value.into();
    T::try_from(value).map_err(|_| refused(field, value))
}

/// The variant at an index.
pub(crate) fn at<T: Copy>(field: &'static str, all: &[T], index: u32) -> Result<T, NotUnderstood> {
    all.get(index as usize).copied().ok_or_else(|| refused(field, index))
}

/// A count that goes on. Refuses one so high that it could not be added to.
pub(crate) fn count(field: &'static str, value: u64) -> Result<u64, NotUnderstood> {
    if value <= COUNT_MAX { Ok(value) } else { Err(refused(field, value)) }
}

/// Refuses a column that has not `expected` values.
pub(crate) fn check_column(
    field: &'static str,
    column: usize,
    expected: usize,
) -> Result<(), NotUnderstood> {
    if column == expected { Ok(()) } else { Err(refused(field, column as u64)) }
}

/// A million a second, for two thousand years.
const COUNT_MAX: u64 = 1 << 56;
