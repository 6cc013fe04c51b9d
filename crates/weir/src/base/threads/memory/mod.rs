//! The memory that the process may use, and the limit that says so.

mod limited;

use std::fmt;
use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

use super::Cgroup;
pub use limited::LimitedMemory;

/// A limit on memory that the kernel enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryLimit {
    /// The memory of the machine.
    Machine,
    /// `memory.max` of the cgroup or of one above it (version 1: `memory.limit_in_bytes`). Beyond
    /// it the kernel kills the process.
    CgroupMax,
    /// `memory.high` of the cgroup or of one above it. Beyond it the kernel slows the process down.
    CgroupHigh,
    /// `RLIMIT_AS` (`ulimit -v`). Beyond it an allocation fails, which ends the process.
    AddressSpace,
    /// `RLIMIT_DATA` (`ulimit -d`), with the same effect.
    Data,
    /// `CommitLimit`, if the kernel does not overcommit (`vm.overcommit_memory = 2`), with the same
    /// effect.
    Commit,
    /// The kernel names no limit, so a value is assumed.
    Unknown,
}

/// Bytes that the process may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) bytes: usize,
    pub(super) limit: MemoryLimit,
}

/// The resource limits on memory in force; `None`: unlimited.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rlimits {
    pub(super) address_space: Option<u64>,
    pub(super) data: Option<u64>,
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MemoryLimit::Machine => "the memory of the machine",
            MemoryLimit::CgroupMax => "memory.max of the cgroup",
            MemoryLimit::CgroupHigh => "memory.high of the cgroup",
            MemoryLimit::AddressSpace => "RLIMIT_AS (ulimit -v)",
            MemoryLimit::Data => "RLIMIT_DATA (ulimit -d)",
            MemoryLimit::Commit => "CommitLimit (vm.overcommit_memory = 2)",
            MemoryLimit::Unknown => "assumed, the kernel does not say",
        })
    }
}

impl Rlimits {
    pub(super) fn read() -> Rlimits {
        let soft = |resource| getrlimit(resource).current;
        Rlimits { address_space: soft(Resource::As), data: soft(Resource::Data) }
    }
}

impl Memory {
    /// The smallest of all limits. Some limits count mappings. From these, the process's existing
    /// mappings and the stacks of its future threads are subtracted. The other limits hardly count
    /// code and unused stacks.
    pub(super) fn of_this_process(
        root: &Path,
        cgroup: &Cgroup,
        rlimits: Rlimits,
        processors: usize,
    ) -> Memory {
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let (machine, status) = (read("proc/meminfo"), read("proc/self/status"));
        let left = |limit: Option<u64>, mapped: &str| {
            let limit = usize::try_from(limit?).unwrap_or(usize::MAX);
            let mapped = field(&status, mapped).unwrap_or(0);
            Some(limit.saturating_sub(mapped).saturating_sub(stack_bytes(processors)))
        };
        let is_strict = read("proc/sys/vm/overcommit_memory").trim() == "2";
        let commit = field(&machine, "CommitLimit:").filter(|_| is_strict).map(|limit| {
            let committed = field(&machine, "Committed_AS:").unwrap_or(0);
            limit.saturating_sub(committed).saturating_sub(stack_bytes(processors))
        });
        let limited = LimitedMemory::of(root, cgroup);
        let least = |limit| {
            let bytes = limited.iter().filter(|memory| memory.limit == limit);
            let bytes = bytes.map(|memory| memory.bytes_max).min()?;
            Some(usize::try_from(bytes).unwrap_or(usize::MAX))
        };
        let limits = [
            (least(MemoryLimit::Machine), MemoryLimit::Machine),
            (least(MemoryLimit::CgroupMax), MemoryLimit::CgroupMax),
            (least(MemoryLimit::CgroupHigh), MemoryLimit::CgroupHigh),
            (left(rlimits.address_space, "VmSize:"), MemoryLimit::AddressSpace),
            (left(rlimits.data, "VmData:"), MemoryLimit::Data),
            (commit, MemoryLimit::Commit),
        ];
        let known =
            limits.into_iter().filter_map(|(bytes, limit)| Some(Memory { bytes: bytes?, limit }));
        let unknown = Memory { bytes: FALLBACK_BYTES, limit: MemoryLimit::Unknown };
        known.min_by_key(|memory| memory.bytes).unwrap_or(unknown)
    }
}

/// The greatest possible mapping of all stacks: five kinds of threads with one for each processor,
/// and some others.
fn stack_bytes(processors: usize) -> usize {
    (5 * processors + OTHER_THREADS) * STACK_BYTES
}

/// Bytes of a field in the form of `/proc/meminfo`, in KiB.
fn field(text: &str, name: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Threads for blocking work, the store, the log and the allocator.
const OTHER_THREADS: usize = 8;
/// A thread's stack in Rust, with its guard page.
const STACK_BYTES: usize = 2 * 1024 * 1024 + 4096;
/// Assumed if the kernel names no limit.
const FALLBACK_BYTES: usize = 1 << 30;

#[cfg(test)]
mod tests;
