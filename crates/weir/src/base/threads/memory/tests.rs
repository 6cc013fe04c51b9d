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

fn limited(files: &[(&str, &str)]) -> Vec<(u64, MemoryLimit, Option<u64>, bool)> {
    let root = tree(files);
    let found = LimitedMemory::of_this_process(root.path());
    let each = |memory: &LimitedMemory| {
        (memory.bytes_max, memory.limit, memory.used_bytes(), memory.leaves_less_than(1))
    };
    found.iter().map(each).collect()
}

#[test]
fn each_limit_tells_what_is_used_of_it() {
    let machine = ("proc/meminfo", "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 900 kB\n");
    let kib = 1024;
    let found = limited(&[machine, ("proc/self/cgroup", "0::/outer/inner\n")]);
    assert_eq!(found, [(1000 * kib, MemoryLimit::Machine, Some(100 * kib), false)]);
    let found = limited(&[
        ("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 90 kB\n"),
        ("proc/self/cgroup", "0::/outer/inner\n"),
        ("sys/fs/cgroup/outer/memory.max", "100000\n"),
        ("sys/fs/cgroup/outer/memory.current", "95000\n"),
        ("sys/fs/cgroup/outer/memory.stat", "anon 5\ninactive_file 3000\nactive_file 2001\n"),
        ("sys/fs/cgroup/outer/inner/memory.max", "max\n"),
        ("sys/fs/cgroup/outer/inner/memory.high", "50000\n"),
        ("sys/fs/cgroup/outer/inner/memory.current", "45001\n"),
    ]);
    let expected = [
        (1000 * kib, MemoryLimit::Machine, Some(910 * kib), true),
        (50_000, MemoryLimit::CgroupHigh, Some(45_001), true),
        // Caches do not count.
        (100_000, MemoryLimit::CgroupMax, Some(89_999), false),
    ];
    assert_eq!(found, expected);
}

#[test]
fn the_reserve_of_a_large_machine_is_bounded() {
    let lacks = |available_mib: u64| {
        let available = available_mib * 1024;
        let text = format!("MemTotal: 67108864 kB\nMemAvailable: {available} kB\n");
        let root = tree(&[("proc/meminfo", &text)]);
        let machine = LimitedMemory::of_this_process(root.path()).remove(0);
        [3, 1].map(|reserves| machine.leaves_less_than(reserves))
    };
    assert_eq!(lacks(1_537), [false, false]);
    assert_eq!(lacks(1_535), [true, false]);
    assert_eq!(lacks(513), [true, false]);
    assert_eq!(lacks(511), [true, true]);
}

#[test]
fn version_1_counts_the_groups_below_too() {
    let found = limited(&[
        MACHINE,
        ("proc/self/cgroup", "9:memory:/a\n"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "100000\n"),
        ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "99000\n"),
        (
            "sys/fs/cgroup/memory/a/memory.stat",
            "inactive_file 1\nactive_file 1\ntotal_inactive_file 5000\ntotal_active_file 6000\n",
        ),
    ]);
    let machine = (8 * GIB as u64, MemoryLimit::Machine, None, false);
    assert_eq!(found, [machine, (100_000, MemoryLimit::CgroupMax, Some(88_000), false)]);
}

#[test]
fn a_cgroup_tells_what_the_kernel_has_taken() {
    let kernel = |files: &[(&str, &str)]| {
        let root =
            tree(&[&[MACHINE, ("proc/self/cgroup", "9:memory:/a\n0::/a\n")], files].concat());
        let found = LimitedMemory::of_this_process(root.path());
        found.iter().map(LimitedMemory::kernel_bytes).collect::<Vec<_>>()
    };
    let (limit, stat) = ("sys/fs/cgroup/a/memory.max", "sys/fs/cgroup/a/memory.stat");
    assert_eq!(kernel(&[]), [None]);
    let newer = "anon 1\nkernel 5000\nkernel_stack 9\nsock 300\nslab 4000\n";
    assert_eq!(kernel(&[(limit, "4096"), (stat, newer)]), [None, Some(5_300)]);
    assert_eq!(kernel(&[(limit, "4096"), (stat, "sock 300\nslab 4000\n")]), [None, Some(4_300)]);
    let found = kernel(&[
        ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4096"),
        ("sys/fs/cgroup/memory/a/memory.kmem.usage_in_bytes", "700\n"),
    ]);
    assert_eq!(found, [None, Some(700)]);
}
