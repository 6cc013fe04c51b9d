//! Tests with imitations of the kernel's files.

use super::*;

pub(super) fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

fn quota(files: &[(&str, &str)]) -> Option<f64> {
    let root = tree(files);
    Cgroup::of_this_process(root.path()).cpu_quota()
}

#[test]
fn the_tightest_limit_on_the_way_up_holds() {
    let found = quota(&[
        ("proc/self/cgroup", "0::/outer/inner\n"),
        ("sys/fs/cgroup/outer/cpu.max", "150000 100000\n"),
        ("sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n"),
    ]);
    assert_eq!(found, Some(1.5));
}

#[test]
fn a_container_sees_its_own_limits_at_the_mount() {
    let found = quota(&[
        ("proc/self/cgroup", "0::/not/visible/here\n"),
        ("sys/fs/cgroup/cpu.max", "400000 100000\n"),
    ]);
    assert_eq!(found, Some(4.0));
}

#[test]
fn version_1_is_understood() {
    let found = quota(&[
        ("proc/self/cgroup", "9:memory:/a\n4:cpu,cpuacct:/a\n1:name=systemd:/a\n"),
        ("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "50000\n"),
        ("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n"),
        ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
        ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
    ]);
    assert_eq!(found, Some(0.5));
}

#[test]
fn without_a_cgroup_nothing_is_limited() {
    assert_eq!(quota(&[]), None);
}

#[test]
fn shards_follow_mask_and_quota() {
    let resources = |processors: usize, cpu_quota| Resources {
        processors: (10..10 + processors).collect(),
        cpu_quota,
        memory_bytes: 1 << 30,
        memory_limit: MemoryLimit::Machine,
    };
    let auto = ThreadsConfig::default();
    for (processors, quota, shards, pinned) in [
        (4, None, 4, true),
        (4, Some(8.0), 4, true),
        (4, Some(4.0), 4, true),
        (64, Some(4.0), 4, false),
        (4, Some(2.5), 3, false),
        (4, Some(0.1), 1, false),
        (1, Some(0.1), 1, true),
    ] {
        let resources = resources(processors, quota);
        assert_eq!(resources.shards(&auto), shards, "{processors} processors, quota {quota:?}");
        let pins = resources.pins(&auto, shards);
        assert_eq!(pins.iter().all(Option::is_some), pinned, "{processors}, quota {quota:?}");
        assert!(pins.iter().flatten().all(|cpu| resources.processors.contains(cpu)));
    }
    let configured = ThreadsConfig { shards: 3, ..ThreadsConfig::default() };
    let pins = resources(2, None).pins(&configured, 3);
    assert_eq!(pins, [Some(10), Some(11), Some(10)]);
    assert_eq!(resources(1, None).budget_bytes(&MemoryConfig::default()), 1 << 28);
}

#[test]
fn this_machine_has_a_processor_memory_and_descriptors() {
    let resources = Resources::detect();
    assert!(!resources.processors.is_empty());
    assert!(resources.memory_bytes > 1 << 20);
    let files = raise_open_files();
    assert!(files.soft > 0 && files.soft <= files.hard);
}

#[test]
fn a_crowd_of_threads_weighs_no_more_than_one_a_processor() {
    let nice = [(1, 2), (2, 2), (3, 2), (4, 2), (16, 2), (16, 1), (256, 1), (1, 0)]
        .map(|(threads, processors)| settling_nice(threads, processors));
    assert_eq!(nice, [10, 10, 13, 13, 19, 22, 34, 10]);
}
