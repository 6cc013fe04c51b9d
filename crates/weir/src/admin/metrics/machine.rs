//! The metrics of the process, of the memory that limits it, and of the machine's clock.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::registry::Unit;

use super::Gateway;
use super::families::Families;
use crate::admin::process;
use crate::base::clock::unix_time;
use crate::base::threads::MemoryLimit;

impl Gateway {
    /// The process has the names that all exporters use. Numbers that the kernel does not tell are
    /// left out.
    pub(super) fn machine(&self, to: &mut Families<'_>) -> fmt::Result {
        if let Some(count) = process::open_fds() {
            to.gauge("process_open_fds", "Open file descriptors.", count)?;
        }
        if let Some(count) = process::max_fds() {
            to.gauge("process_max_fds", "The soft limit on open file descriptors.", count)?;
        }
        if let Some(bytes) = process::resident_bytes() {
            let help = "Resident memory.";
            to.gauge_in("process_resident_memory", &Unit::Bytes, help, bytes)?;
        }
        let help = "Processor time of all threads.";
        to.seconds("process_cpu", help, process::cpu_time().as_secs_f64())?;
        if let Some(started) = process::started() {
            let help = "When the process started, in seconds since 1970.";
            to.duration("process_start_time", help, started)?;
        }
        let help = "The time by this machine's clock, in seconds since 1970.";
        to.duration("weir_clock", help, unix_time())?;
        self.memory_limits(to)?;
        to.info("weir_build", "The program.", &[("version", env!("CARGO_PKG_VERSION"))])
    }

    /// Of several limits of a kind, the one of which the least is left: a cgroup may lie in others.
    fn memory_limits(&self, to: &mut Families<'_>) -> fmt::Result {
        let mut by_kind: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for memory in self.handle.admission().memory() {
            let (Some(used), max) = (memory.used_bytes(), memory.bytes_max) else { continue };
            let known = by_kind.entry(label(memory.limit)).or_insert((used, max));
            if max.saturating_sub(used) < known.1.saturating_sub(known.0) {
                *known = (used, max);
            }
        }
        let rows = |of: fn(&(u64, u64)) -> u64| {
            let rows = by_kind.iter();
            rows.map(move |(limit, pair)| ([("limit", *limit)], of(pair))).collect::<Vec<_>>()
        };
        to.gauges(
            "weir_memory_used_bytes",
            "Memory in use under each limit, by all its processes, without file caches.",
            rows(|pair| pair.0),
        )?;
        to.gauges(
            "weir_memory_limit_bytes",
            "Each limit on memory: of the machine, and of the cgroup or one above it.",
            rows(|pair| pair.1),
        )
    }
}

fn label(limit: MemoryLimit) -> &'static str {
    match limit {
        MemoryLimit::Machine => "machine",
        MemoryLimit::CgroupMax => "cgroup_max",
        MemoryLimit::CgroupHigh => "cgroup_high",
        MemoryLimit::AddressSpace => "address_space",
        MemoryLimit::Data => "data",
        MemoryLimit::Commit => "commit",
        MemoryLimit::Unknown => "unknown",
    }
}
