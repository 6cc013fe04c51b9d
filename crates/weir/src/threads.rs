//! What the process may use: processors, memory, descriptors.

/// Processors of the inherited affinity mask.
pub(crate) fn processors() -> Vec<usize> {
    vec![0]
}
