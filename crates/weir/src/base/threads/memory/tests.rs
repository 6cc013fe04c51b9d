//! Tests with imitations of the kernel's files.

use super::super::tests::tree;
use super::*;

const MACHINE: (&str, &str) = (
    "proc/meminfo",
    "MemTotal:        8388608 kB\nMemFree: 5 kB\nCommitLimit:     4194304 kB\nCommitted_AS:    1048576 kB\n",
);
const STATUS: (&str, &str) =
    ("proc/self/status", "VmPeak:  999999 kB\nVmSize:  131072 kB\nVmData:   65536 kB\n");
const GIB: usize = 1 << 30;
const MIB: usize = 1 << 20;

fn memory(files: &[(&str, &str)], rlimits: Rlimits) -> (usize, MemoryLimit) {
    let root = tree(files);
    let cgroup = Cgroup::of_this_process(root.path());
    let memory = Memory::of_this_process(root.path(), &cgroup, rlimits, 2);
    (memory.bytes, memory.limit)
}

#[test]
fn every_limit_that_the_kernel_enforces_can_be_the_smallest() {
    let gib = Some(GIB as u64);
    let stacks = stack_bytes(2);
    let group = ("proc/self/cgroup", "0::/outer/inner\n");
    let no_limit = ("sys/fs/cgroup/outer/inner/memory.max", "max\n");
    let check = |files: &[(&str, &str)], rlimits: Rlimits, expected| {
        let files = [&[MACHINE, STATUS, group, no_limit], files].concat();
        assert_eq!(memory(&files, rlimits), expected, "{files:?} {rlimits:?}");
    };
    let none = Rlimits::default();
    check(&[], none, (8 * GIB, MemoryLimit::Machine));
    let max = ("sys/fs/cgroup/outer/memory.max", "1073741824\n");
    check(&[max], none, (GIB, MemoryLimit::CgroupMax));
    let high = ("sys/fs/cgroup/outer/inner/memory.high", "536870912\n");
    check(&[max, high], none, (GIB / 2, MemoryLimit::CgroupHigh));
    let above = ("sys/fs/cgroup/memory.high", "268435456\n");
    check(&[max, high, above], none, (GIB / 4, MemoryLimit::CgroupHigh));
    let address_space = Rlimits { address_space: gib, ..none };
    check(&[], address_space, (GIB - 128 * MIB - stacks, MemoryLimit::AddressSpace));
    check(&[high], address_space, (GIB / 2, MemoryLimit::CgroupHigh));
    let data = Rlimits { data: gib, ..none };
    check(&[], data, (GIB - 64 * MIB - stacks, MemoryLimit::Data));
    let both = Rlimits { address_space: gib, data: gib };
    check(&[], both, (GIB - 128 * MIB - stacks, MemoryLimit::AddressSpace));
    let strict = ("proc/sys/vm/overcommit_memory", "2\n");
    check(&[strict], none, (3 * GIB - stacks, MemoryLimit::Commit));
    check(&[("proc/sys/vm/overcommit_memory", "0\n")], none, (8 * GIB, MemoryLimit::Machine));
    let tiny = Rlimits { address_space: Some(1 << 20), ..none };
    check(&[], tiny, (0, MemoryLimit::AddressSpace));
}

#[test]
fn the_limits_of_version_1_are_understood() {
    let found = memory(
        &[
            MACHINE,
            ("proc/self/cgroup", "9:memory:/a/b\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "268435456\n"),
            ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"),
        ],
        Rlimits::default(),
    );
    assert_eq!(found, (256 * MIB, MemoryLimit::CgroupMax));
}

#[test]
fn where_nothing_is_said_something_is_assumed() {
    assert_eq!(memory(&[], Rlimits::default()), (FALLBACK_BYTES, MemoryLimit::Unknown));
}
