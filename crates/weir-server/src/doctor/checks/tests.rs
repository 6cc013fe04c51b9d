//! Each check, on machines that are prepared as files.

use std::fs;

use weir::{Buffers, LimitedMemory, MemoryLimit, RedisInfo, Resources};

use super::*;
use crate::doctor::forecast::{CGROUP, Limit, Load, MACHINE};
use crate::doctor::stores::Role;

/// A machine on which nothing is wrong for 100,000 connections.
const FINE: [(&str, &str); 22] = [
    ("proc/self/limits", "Limit  Soft  Hard  Units\nMax open files  1024  200000  files\n"),
    ("proc/sys/fs/nr_open", "1048576\n"),
    ("proc/sys/fs/file-max", "9223372036854775807\n"),
    ("proc/sys/fs/file-nr", "1500\t0\t9223372036854775807\n"),
    ("proc/sys/net/core/somaxconn", "4096\n"),
    ("proc/sys/net/core/rmem_max", "2097152\n"),
    ("proc/sys/net/core/wmem_max", "2097152\n"),
    ("proc/sys/net/ipv4/tcp_max_syn_backlog", "2048\n"),
    ("proc/sys/net/ipv4/tcp_syncookies", "1\n"),
    ("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n"),
    ("proc/sys/net/ipv4/ip_local_reserved_ports", "\n"),
    ("proc/sys/net/ipv4/tcp_mem", "188000\t250000\t376000\n"),
    ("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n"),
    ("proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304\n"),
    ("proc/sys/net/netfilter/nf_conntrack_max", "262144\n"),
    ("proc/sys/net/netfilter/nf_conntrack_count", "77\n"),
    ("proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 7000000 kB\nSwapTotal: 0 kB\n"),
    ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
    ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
    ("sys/devices/system/clocksource/clocksource0/available_clocksource", "tsc hpet acpi_pm \n"),
    ("dev/random", "x"),
    (
        "proc/self/mountinfo",
        "1 0 8:1 / / rw - ext4 /dev/root rw\n2 1 0:5 / /nowhere rw shared:1 - tmpfs tmpfs rw\n",
    ),
];

/// The checks of a machine that differs from [`FINE`] in these files.
fn found(
    differences: &[(&str, &str)],
    change: impl Fn(&mut Settings, &mut Started),
    stores: &[StoreLook],
) -> Vec<Check> {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in FINE.iter().chain(differences) {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let machine = Machine::new(root.path());
    let mut settings = Settings::default();
    settings.gateway.limits.connections_max = 100_000;
    settings.store.path = "/weir-doctor-test/devices.db".into();
    let open_files = machine.open_files().unwrap();
    let resources = Resources::detect_under(root.path());
    let mut started = Started {
        tcp: vec![],
        tls: vec![],
        http: vec![],
        https: vec![],
        udp: vec![],
        udp_buffers: None,
        development: None,
        admin: None,
        shards: vec![None; 2],
        budget_bytes: resources.memory_bytes / 4,
        open_files,
        connections_max: usize::try_from(open_files.hard).unwrap().saturating_sub(400),
        buffers: Buffers { send_bytes: 131_072, recv_bytes: 131_072 },
        resources,
    };
    change(&mut settings, &mut started);
    let memory = LimitedMemory::of_this_process(root.path());
    let costs = Costs::default();
    let limits = memory.iter().map(|memory| {
        let is_cgroup = memory.limit != MemoryLimit::Machine;
        let bytes = memory.bytes_for_connections() - memory.used_bytes().unwrap_or(0);
        (if is_cgroup { CGROUP } else { MACHINE }, Limit::Memory { bytes, is_cgroup })
    });
    let limits: Vec<_> = limits.collect();
    let forecast = Forecast::new(&limits, &costs, &Load { rate: 1.0, processors: 2.0 });
    all(&Input {
        machine: &machine,
        settings: &settings,
        wanted: settings.gateway.limits.connections_max as u64,
        open_files,
        started: &started,
        memory: &memory,
        costs: &costs,
        forecast: &forecast,
        stores,
    })
}

/// What is wrong: the check, the connections at which it bites, and the first line that mends it.
#[track_caller]
fn check_wrong(checks: &[Check], expected: &[(&str, Option<u64>, &str)]) {
    let wrong: Vec<_> = checks
        .iter()
        .filter(|check| !check.ok)
        .map(|check| (check.name, check.bites_at_connections, check.mend[0].as_str()))
        .collect();
    assert_eq!(wrong, expected, "{checks:#?}");
    assert!(checks.iter().all(|check| check.ok == check.wrong.is_none()));
}

#[track_caller]
fn check(differences: &[(&str, &str)], expected: &[(&str, Option<u64>, &str)]) {
    check_wrong(&found(differences, |_, _| {}, &[]), expected);
}

#[test]
fn on_a_fine_machine_nothing_is_to_mend() {
    let checks = found(&[], |_, _| {}, &[]);
    check_wrong(&checks, &[]);
    let names: Vec<&str> = checks.iter().map(|check| check.name).collect();
    let expected = "open_files open_files_system accept_backlog syn_backlog local_ports listen_ports \
                    tcp_memory tcp_buffers udp_buffers conntrack memory byte_budget huge_pages swap \
                    processors clock_source entropy disk_space disk_kind";
    assert_eq!(names, expected.split(' ').collect::<Vec<_>>());
}

#[test]
fn too_few_open_files_are_found() {
    let limits = "Max open files            256                  256                  files\n";
    let mend = "LimitNOFILE=101024   (in the unit of systemd)";
    // The gateway that was started for a look says how many connections that is.
    let checks =
        found(&[("proc/self/limits", limits)], |_, started| started.connections_max = 160, &[]);
    check_wrong(&checks, &[("open_files", Some(160), mend)]);
    assert_eq!(checks[0].found, "256 soft, 256 hard");
    assert_eq!(checks[0].mend.len(), 2, "there cannot be so many shards");
    let limits = "Max open files            20000                20000                files\n";
    let checks = found(&[("proc/self/limits", limits)], |_, _| {}, &[]);
    let last = "or, under this limit: engine.own_descriptors = true and threads.shards = 6";
    assert_eq!(checks[0].mend.last().map(String::as_str), Some(last));
    check(
        &[("proc/sys/fs/nr_open", "65536"), ("proc/self/limits", "Max open files 1 65536 files\n")],
        &[("open_files", Some(65_136), "sysctl -w fs.nr_open='131072'")],
    );
    check(
        &[("proc/sys/fs/file-max", "50000"), ("proc/sys/fs/file-nr", "976 0 50000")],
        &[("open_files_system", Some(48_000), "sysctl -w fs.file-max='200976'")],
    );
}

#[test]
fn what_the_kernel_sets_for_sockets_is_compared_with_the_configuration() {
    let somaxconn = ("proc/sys/net/core/somaxconn", "128");
    check(&[somaxconn], &[("accept_backlog", Some(128), "sysctl -w net.core.somaxconn='4096'")]);
    check(
        &[("proc/sys/net/ipv4/tcp_syncookies", "0")],
        &[("syn_backlog", Some(2_048), "sysctl -w net.ipv4.tcp_syncookies='1'")],
    );
    check(
        &[("proc/sys/net/ipv4/tcp_mem", "10000 20000 30000")],
        &[("tcp_memory", Some(20_000), "sysctl -w net.ipv4.tcp_mem='75000 100000 150000'")],
    );
    check(
        &[("proc/sys/net/core/rmem_max", "212992"), ("proc/sys/net/core/wmem_max", "32768")],
        &[
            ("tcp_buffers", None, "sysctl -w net.core.wmem_max='65536'"),
            ("udp_buffers", None, "sysctl -w net.core.rmem_max='2097152'"),
        ],
    );
    check(
        &[
            ("proc/sys/net/netfilter/nf_conntrack_max", "65536"),
            ("proc/sys/net/netfilter/nf_conntrack_count", "536"),
        ],
        &[("conntrack", Some(65_000), "sysctl -w net.netfilter.nf_conntrack_max='200000'")],
    );
    // A table that no rule uses harms nobody.
    check(
        &[
            ("proc/sys/net/netfilter/nf_conntrack_max", "1000"),
            ("proc/sys/net/netfilter/nf_conntrack_count", "0"),
        ],
        &[],
    );
}

#[test]
fn ports_matter_to_proxies_here_and_to_the_listeners() {
    let with_proxy = |settings: &mut Settings, _: &mut Started| {
        settings.gateway.listen.proxy_networks = vec!["127.0.0.0/8".parse().unwrap()];
    };
    let mend = "sysctl -w net.ipv4.ip_local_port_range='1024 65535'";
    check_wrong(&found(&[], with_proxy, &[]), &[("local_ports", Some(28_232), mend)]);
    let range = ("proc/sys/net/ipv4/ip_local_port_range", "1024 65535");
    let reserved = ("proc/sys/net/ipv4/ip_local_reserved_ports", "7000-7080,9");
    let mend = "sysctl -w net.ipv4.ip_local_reserved_ports='7070,7090,8080'";
    check(&[range], &[("listen_ports", None, mend)]);
    let mend = "sysctl -w net.ipv4.ip_local_reserved_ports='7000-7080,9,7090,8080'";
    check(&[range, reserved], &[("listen_ports", None, mend)]);
}

#[test]
fn memory_is_compared_with_the_connections() {
    let cgroup = [
        ("proc/self/cgroup", "0::/weir\n"),
        ("sys/fs/cgroup/weir/memory.max", "536870912\n"),
        ("sys/fs/cgroup/weir/memory.current", "30000000\n"),
    ];
    // Nine tenths of 512 MiB without what is used, divided by 5,220 bytes.
    let mend = "MemoryMax=585M or more   (in the unit of systemd)";
    let checks = found(&cgroup, |_, _| {}, &[]);
    let budget = "memory.budget_bytes = 83691392   (in our configuration)";
    check_wrong(&checks, &[("memory", Some(86_816), mend), ("byte_budget", Some(77_136), budget)]);
    let with_less = |_: &mut Settings, started: &mut Started| started.budget_bytes = 80_000_000;
    check_wrong(&found(&cgroup, with_less, &[]), &[("memory", Some(86_816), mend)]);
    check(
        &[("sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never")],
        &[("huge_pages", None, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")],
    );
    let meminfo = "MemTotal: 8000000 kB\nMemAvailable: 7000000 kB\nSwapTotal: 2097148 kB\n";
    let swap = ("proc/meminfo", meminfo);
    check(&[swap], &[("swap", None, "MemorySwapMax=0   (in the unit of systemd)")]);
    check(&[swap, ("proc/sys/vm/swappiness", "1")], &[]);
    let none = ("sys/fs/cgroup/weir/memory.swap.max", "0\n");
    check(&[swap, ("proc/self/cgroup", "0::/weir\n"), none], &[]);
}

#[test]
fn processors_clock_and_random_numbers_are_looked_at() {
    let quota = [
        ("proc/self/cgroup", "0::/weir\n"),
        ("sys/fs/cgroup/weir/cpu.max", "50000 100000\n"),
        ("sys/fs/cgroup/weir/cpu.stat", "usage_usec 1\nnr_periods 1000\nnr_throttled 300\n"),
    ];
    check(
        &quota,
        &[
            ("processors", None, "CPUQuota=100%   (in the unit of systemd, or more)"),
            ("cpu_throttling", None, "CPUQuota=100%   (in the unit of systemd)"),
        ],
    );
    let clock = "sys/devices/system/clocksource/clocksource0";
    let current = format!("{clock}/current_clocksource");
    let available = format!("{clock}/available_clocksource");
    let mend = format!("echo tsc > /{current}");
    check(&[(&current, "hpet")], &[("clock_source", None, &mend)]);
    let checks = found(&[(&current, "hpet"), (&available, "hpet acpi_pm")], |_, _| {}, &[]);
    assert!(checks.iter().any(|check| !check.ok && check.mend[0].contains("tsc=reliable")));
    let mend = "give the machine a source: virtio-rng, or the package rng-tools";
    check(&[("dev/random", "")], &[("entropy", None, mend)]);
}

#[test]
fn the_disk_must_keep_what_it_gets() {
    let mounts = "1 0 8:1 / / rw - ext4 /dev/root rw\n9 1 0:5 / / rw - overlay overlay rw\n";
    let mend = "store.path = a path on a local disk or a volume   (in our configuration)";
    check(&[("proc/self/mountinfo", mounts)], &[("disk_kind", None, mend)]);
    let none = |settings: &mut Settings, _: &mut Started| {
        settings.store.kind = Some(crate::config::StoreKind::None);
    };
    let checks = found(&[("proc/self/mountinfo", mounts)], none, &[]);
    check_wrong(&checks, &[]);
    assert!(checks.iter().all(|check| !check.name.starts_with("disk")));
}

#[test]
fn stores_must_answer_have_our_time_and_keep_what_they_are_given() {
    let look = |role, told: Result<(i64, Option<&str>), &str>| StoreLook {
        name: "it".to_owned(),
        role,
        told: told.map_err(str::to_owned).map(|(ahead_ms, policy)| RedisInfo {
            ahead_ms,
            eviction_policy: policy.map(str::to_owned),
        }),
    };
    let wrong = |role, told| {
        let checks = found(&[], |_, _| {}, &[look(role, told)]);
        let wrong = checks.into_iter().filter(|check| !check.ok);
        wrong.map(|check| check.name).collect::<Vec<_>>()
    };
    assert_eq!(wrong(Role::Broker, Ok((999, Some("noeviction")))), [""; 0]);
    assert_eq!(wrong(Role::Cache, Ok((-999, Some("volatile-ttl")))), [""; 0]);
    assert_eq!(wrong(Role::Broker, Ok((0, Some("volatile-ttl")))), ["redis_eviction"]);
    assert_eq!(wrong(Role::Cache, Ok((0, Some("allkeys-lru")))), ["redis_eviction"]);
    assert_eq!(wrong(Role::Store, Ok((1_000, None))), ["store_clock"]);
    assert_eq!(wrong(Role::Store, Ok((-60_000, None))), ["store_clock"]);
    assert_eq!(wrong(Role::Broker, Err("connection refused")), ["store"]);
}
