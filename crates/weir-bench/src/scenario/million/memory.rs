//! The machine's memory: what is available, and what the kernel uses for connections.

use std::fs;

use anyhow::{Context, Result};

use crate::sys;

/// Bytes of the machine's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MachineMemory {
    /// What programs can have without swapping.
    pub(super) available: u64,
    /// Objects of the kernel: sockets, files, entries of epoll.
    pub(super) slab: u64,
    /// Buffers of TCP, in use and in reserve.
    pub(super) buffers: u64,
    /// Page tables, kernel stacks, and what is allocated by page for tables of descriptors.
    pub(super) tables: u64,
}

impl MachineMemory {
    pub(super) fn now() -> Result<MachineMemory> {
        let read =
            |path: &str| fs::read_to_string(path).with_context(|| format!("cannot read {path}"));
        let (meminfo, sockstat) = (read("/proc/meminfo")?, read("/proc/net/sockstat")?);
        MachineMemory::of(&meminfo, &sockstat).context("the kernel tells its memory otherwise")
    }

    fn of(meminfo: &str, sockstat: &str) -> Option<MachineMemory> {
        let kilobytes = |key: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(key))?;
            line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
        };
        let tcp = sockstat.lines().find_map(|line| line.strip_prefix("TCP:"))?;
        let pages = tcp.split_whitespace().skip_while(|word| *word != "mem").nth(1)?;
        let tables = ["PageTables:", "KernelStack:", "VmallocUsed:"].map(kilobytes);
        Some(MachineMemory {
            available: kilobytes("MemAvailable:")? * 1024,
            slab: kilobytes("Slab:")? * 1024,
            buffers: pages.parse::<u64>().ok()? * sys::page_bytes(),
            tables: tables.into_iter().flatten().sum::<u64>() * 1024,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_its_memory() {
        let meminfo = "MemTotal: 9 kB\nMemAvailable:    1000 kB\nSlab:   20 kB\nKernelStack: 3 kB\n\
                       PageTables: 4 kB\nVmallocUsed: 5 kB\n";
        let sockstat = "sockets: used 28\nTCP: inuse 6 orphan 0 tw 0 alloc 6 mem 413\nUDP: inuse 0";
        let memory = MachineMemory::of(meminfo, sockstat).unwrap();
        assert_eq!((memory.available, memory.slab), (1000 << 10, 20 << 10));
        assert_eq!((memory.buffers, memory.tables), (413 * sys::page_bytes(), 12 << 10));
        assert!(MachineMemory::now().unwrap().available > 0);
        assert_eq!(MachineMemory::of("", sockstat), None);
    }
}
