//! Memory with a limit, and how much of it is in use.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::super::Cgroup;
use super::{MemoryLimit, field};

/// Memory that the kernel gives out up to a limit: that of the machine, or of a cgroup. Sockets take
/// some of it too, and so may other processes.
#[derive(Debug, Clone)]
pub struct LimitedMemory {
    /// The limit.
    pub bytes_max: u64,
    /// Its kind.
    pub limit: MemoryLimit,
    place: Place,
}

/// Where the kernel tells how much is in use.
#[derive(Debug, Clone)]
enum Place {
    /// The file `meminfo`.
    Machine(PathBuf),
    /// The directory of the cgroup, and its file with the bytes in use.
    Cgroup(PathBuf, PathBuf),
}

impl LimitedMemory {
    /// All such limits of this process: the machine, then its cgroup and those above it with a
    /// limit. `root` is the directory with `proc` and `sys`.
    pub fn of_this_process(root: &Path) -> Vec<LimitedMemory> {
        LimitedMemory::of(root, &Cgroup::of_this_process(root))
    }

    /// The same, of a process in this cgroup.
    pub(super) fn of(root: &Path, cgroup: &Cgroup) -> Vec<LimitedMemory> {
        let meminfo = root.join("proc/meminfo");
        let machine = read(&meminfo).and_then(|text| field(&text, "MemTotal:"));
        let machine = machine.map(|bytes| LimitedMemory {
            bytes_max: bytes as u64,
            limit: MemoryLimit::Machine,
            place: Place::Machine(meminfo),
        });
        // Version 1 writes a huge number if there is no limit.
        let huge = machine.as_ref().map_or(u64::MAX, |machine| machine.bytes_max);
        let kinds = [
            ("memory.max", MemoryLimit::CgroupMax),
            ("memory.limit_in_bytes", MemoryLimit::CgroupMax),
            ("memory.high", MemoryLimit::CgroupHigh),
        ];
        let limits = cgroup.memory.iter().flat_map(|group| {
            let used = ["memory.current", "memory.usage_in_bytes"].map(|file| group.join(file));
            let used = if used[0].exists() { &used[0] } else { &used[1] }.clone();
            kinds.iter().filter_map(move |(file, limit)| {
                let bytes_max = number(&group.join(file)).filter(|bytes| *bytes < huge)?;
                Some(LimitedMemory {
                    bytes_max,
                    limit: *limit,
                    place: Place::Cgroup(group.clone(), used.clone()),
                })
            })
        });
        machine.into_iter().chain(limits).collect()
    }

    /// Bytes in use, without the file caches that the kernel can take back. `None` if the kernel does
    /// not tell.
    ///
    /// Cost: one or two small files. Counting the caches of a cgroup is dear.
    pub fn used_bytes(&self) -> Option<u64> {
        match &self.place {
            Place::Machine(meminfo) => machine_used(meminfo),
            Place::Cgroup(group, used) => {
                Some(start_number(used)?.saturating_sub(cgroup_caches(group)))
            }
        }
    }

    /// Bytes of these that the kernel has taken for itself: for sockets, open files and the like.
    /// `None` for the machine, and if the kernel does not tell.
    pub fn kernel_bytes(&self) -> Option<u64> {
        let Place::Cgroup(group, _) = &self.place else { return None };
        number(&group.join("memory.kmem.usage_in_bytes")).or_else(|| {
            let text = read(&group.join("memory.stat"))?;
            let buffers = stat(&text, "sock").unwrap_or(0);
            // Linux before 5.18 counts only the largest part.
            Some(stat(&text, "kernel").or_else(|| stat(&text, "slab"))? + buffers)
        })
    }

    /// Bytes that connections may take. The reserve, a tenth or [`Self::RESERVE_BYTES_MAX`], is kept
    /// for what they send and receive.
    pub fn bytes_for_connections(&self) -> u64 {
        self.bytes_max - self.reserve_bytes()
    }

    /// The greatest reserve. On a large machine other programs may leave less than a tenth free.
    pub const RESERVE_BYTES_MAX: u64 = 512 << 20;

    fn reserve_bytes(&self) -> u64 {
        (self.bytes_max / 10).min(Self::RESERVE_BYTES_MAX)
    }

    /// Whether less than so many reserves is left.
    ///
    /// Cost: one small file, read without an allocation, unless the caches decide.
    pub(crate) fn leaves_less_than(&self, reserves: u64) -> bool {
        let max = self.bytes_max - self.reserve_bytes() * reserves.min(10);
        match &self.place {
            Place::Machine(meminfo) => machine_used(meminfo).is_some_and(|used| used > max),
            // The caches are counted only if they decide.
            Place::Cgroup(group, used) => start_number(used)
                .is_some_and(|used| used > max && used.saturating_sub(cgroup_caches(group)) > max),
        }
    }
}

fn machine_used(meminfo: &Path) -> Option<u64> {
    let mut buf = [0; START];
    let text = read_start(meminfo, &mut buf)?;
    let (total, available) = (field(text, "MemTotal:")?, field(text, "MemAvailable:")?);
    Some(total.saturating_sub(available) as u64)
}

/// Bytes of file caches, from all processes of the cgroup and of those below it.
fn cgroup_caches(group: &Path) -> u64 {
    let text = read(&group.join("memory.stat")).unwrap_or_default();
    // In version 1 the shorter name counts one cgroup alone.
    let bytes = |total, own| stat(&text, total).or_else(|| stat(&text, own)).unwrap_or(0);
    bytes("total_inactive_file", "inactive_file") + bytes("total_active_file", "active_file")
}

/// A number of `memory.stat`.
fn stat(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// A file's first bytes, up to its last whole line among them. The look ten times a second allocates nothing.
fn read_start<'a>(path: &Path, buf: &'a mut [u8; START]) -> Option<&'a str> {
    let count = File::open(path).ok()?.read(buf).ok()?;
    let end = buf[..count].iter().rposition(|byte| *byte == b'\n').map_or(count, |end| end + 1);
    std::str::from_utf8(&buf[..end]).ok()
}

fn start_number(path: &Path) -> Option<u64> {
    read_start(path, &mut [0; START])?.trim().parse().ok()
}

fn number(path: &Path) -> Option<u64> {
    read(path)?.trim().parse().ok()
}

/// Bytes of the start of a file: enough for the first three lines of `meminfo`.
const START: usize = 256;
