//! Memory: limits, the byte budget, huge pages, swap.

use weir::{LimitedMemory, MemoryLimit};

use super::{Check, Input};
use crate::doctor::check::{count, size, sysctl};

/// Room for the sockets and tables of connections.
pub(super) fn memory(input: &Input<'_>) -> Option<Check> {
    let limits = input.memory.iter().filter_map(|memory| Some((memory, memory.used_bytes()?)));
    let limits = limits.map(|(memory, used)| {
        format!("{}: {}, {} used", memory.limit, size(memory.bytes_max), size(used))
    });
    let found = limits.collect::<Vec<_>>().join("; ");
    let why = "the kernel kills the gateway when the memory is used up, so the gateway refuses \
               connections when a tenth (at most 512 MiB) is left";
    let room = input.forecast.room_in_memory()?;
    let tightest = input.memory.iter().min_by_key(|memory| memory.bytes_max)?;
    let taken = input.wanted * input.costs.idle_bytes(is_cgroup(input));
    let needed = taken + tightest.used_bytes().unwrap_or(0);
    let needed = needed + (needed / 9).min(LimitedMemory::RESERVE_BYTES_MAX);
    let mebibytes = needed.div_ceil(1 << 20);
    let more = if tightest.limit == MemoryLimit::Machine {
        format!("a machine with {} MiB or more", count(mebibytes))
    } else {
        format!("MemoryMax={mebibytes}M or more   (in the unit of systemd)")
    };
    let less = format!("or limits.connections_max = {room}   (in our configuration)");
    Some(Check::new("memory", why, found).holds((room, input.wanted), [more, less]))
}

/// Whether the byte budget fits beside the connections.
pub(super) fn budget(input: &Input<'_>) -> Option<Check> {
    let budget = input.started.budget_bytes as u64;
    let resources = &input.started.resources;
    let (limit, kind) = (resources.memory_bytes as u64, resources.memory_limit);
    let held = input.wanted.min(input.forecast.idle.connections);
    let each = input.costs.idle_bytes(is_cgroup(input));
    let connections = held * each;
    let found = format!(
        "{} for messages and {} for {} connections, of {}: {kind}",
        size(budget),
        size(connections),
        count(held),
        size(limit)
    );
    let why = "messages that wait may take the whole byte budget while all connections are there; \
               then the kernel kills the gateway";
    let room = limit.saturating_sub(budget) / each.max(1);
    let check = Check::new("byte_budget", why, found).bites_at(room);
    if budget + connections <= limit {
        return Some(check);
    }
    let less = limit.saturating_sub(connections).max(limit / 8);
    let mend = [
        format!("memory.budget_bytes = {less}   (in our configuration)"),
        format!("or limits.connections_max = {room}   (in our configuration)"),
    ];
    Some(check.wrong("together they are more than there is", mend))
}

/// Transparent huge pages.
pub(super) fn huge_pages(input: &Input<'_>) -> Option<Check> {
    let modes = input.machine.text("sys/kernel/mm/transparent_hugepage/enabled")?;
    let mode = modes.split(['[', ']']).nth(1).unwrap_or(&modes);
    let why = "the kernel backs a few used bytes with 2 MiB, and stops threads to make such pages";
    let check = Check::new("huge_pages", why, format!("transparent huge pages: {mode}"));
    if mode != "always" {
        return Some(check);
    }
    let mend = [
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        "transparent_hugepage=madvise   (on the kernel's command line, to keep it)",
    ];
    Some(check.wrong("they are used for all memory", mend))
}

/// Swap.
pub(super) fn swap(input: &Input<'_>) -> Option<Check> {
    let total = input.machine.memory("SwapTotal")?;
    let why = "tables of idle connections are what the kernel swaps out first; the next message to \
               all reads them back from the disk";
    let swappiness = input.machine.number("proc/sys/vm/swappiness").unwrap_or(60);
    let found = if total == 0 {
        "none".to_owned()
    } else {
        format!("{}, vm.swappiness {swappiness}", size(total))
    };
    let check = Check::new("swap", why, found);
    let is_forbidden = input.machine.cgroup_file("memory.swap.max").is_some_and(|max| max == "0");
    if total == 0 || swappiness <= SWAPPINESS_MAX || is_forbidden {
        return Some(check);
    }
    let mend =
        ["MemorySwapMax=0   (in the unit of systemd)".to_owned(), sysctl("vm.swappiness", 1)];
    Some(check.wrong("idle connections may be swapped out", mend))
}

/// Whether the smallest limit on memory is that of a cgroup.
fn is_cgroup(input: &Input<'_>) -> bool {
    let limit = input.started.resources.memory_limit;
    matches!(limit, MemoryLimit::CgroupMax | MemoryLimit::CgroupHigh)
}

/// Up to here the kernel prefers to drop file caches.
const SWAPPINESS_MAX: u64 = 10;
