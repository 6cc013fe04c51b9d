//! The resources of the process: processors, memory, descriptors. In a container they are smaller
//! than the machine.

mod memory;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use tracing::debug;
use weir_engine::ThreadShare;

use crate::base::config::{MemoryConfig, ThreadsConfig};
pub use memory::{LimitedMemory, MemoryLimit};
use memory::{Memory, Rlimits};

/// The resources that the process may use.
#[derive(Debug, Clone, PartialEq)]
pub struct Resources {
    /// Processors of the inherited affinity mask.
    pub processors: Vec<usize>,
    /// Processor time that the cgroup grants, in processors; `None` without a limit.
    pub cpu_quota: Option<f64>,
    /// Bytes of memory: the smallest limit that the kernel enforces.
    pub memory_bytes: usize,
    /// The limit with this value.
    pub memory_limit: MemoryLimit,
}

/// The limit on open files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenFiles {
    /// The limit in force. It equals the hard limit, unless raising was refused. `u64::MAX`: none.
    pub soft: u64,
    /// The most that the process may set. `u64::MAX`: none.
    pub hard: u64,
}

impl Resources {
    /// Asks the kernel: affinity mask, cgroup (version 2 or 1), memory, resource limits.
    pub fn detect() -> Resources {
        Resources::detect_under(Path::new("/"))
    }

    /// The same, with the directories `proc` and `sys` under `root`.
    pub fn detect_under(root: &Path) -> Resources {
        let cgroup = Cgroup::of_this_process(root);
        let processors = processors();
        let memory = Memory::of_this_process(root, &cgroup, Rlimits::read(), processors.len());
        Resources {
            cpu_quota: cgroup.cpu_quota(),
            processors,
            memory_bytes: memory.bytes,
            memory_limit: memory.limit,
        }
    }

    /// Shards to start: as configured, or one for each processor that the mask and the quota allow.
    pub fn shards(&self, config: &ThreadsConfig) -> usize {
        if config.shards == 0 { self.processors_granted() } else { config.shards }
    }

    /// Front threads to start: as configured, or one for every two processors. The front does
    /// short-lived work and shares the processors with the shards.
    pub fn front_threads(&self, config: &ThreadsConfig) -> usize {
        if config.front == 0 { self.processors_granted().div_ceil(2) } else { config.front }
    }

    /// Threads for unsettled connections: one for every processor, since they get only the time
    /// that others leave.
    pub(crate) fn settling_threads(&self) -> usize {
        self.processors_granted()
    }

    /// Threads for the datagrams of one address: as configured, or one for every processor.
    pub(crate) fn udp_threads(&self, configured: usize) -> usize {
        if configured == 0 { self.processors_granted() } else { configured }
    }

    /// Threads for TLS handshakes: as configured, or one for every processor, since they get only
    /// the time that others leave.
    pub(crate) fn handshake_threads(&self, configured: usize) -> usize {
        if configured == 0 { self.processors_granted() } else { configured }
    }

    /// The byte budget: as configured, or a quarter of the memory.
    pub fn budget_bytes(&self, config: &MemoryConfig) -> usize {
        if config.budget_bytes == 0 { self.memory_bytes / 4 } else { config.budget_bytes }
    }

    /// The processor to which each of `shards` shards is pinned.
    ///
    /// Under a quota below the number of processors no shard is pinned. Otherwise neighbours with
    /// the same rule would all use the first processors.
    pub fn pins(&self, config: &ThreadsConfig, shards: usize) -> Vec<Option<usize>> {
        let is_shared = self.processors_granted() < self.processors.len();
        if !config.pin || is_shared || self.processors.is_empty() {
            return vec![None; shards];
        }
        self.processors.iter().copied().map(Some).cycle().take(shards).collect()
    }

    fn processors_granted(&self) -> usize {
        let count = self.processors.len().max(1);
        match self.cpu_quota {
            Some(quota) => (1..count).find(|granted| *granted as f64 >= quota).unwrap_or(count),
            None => count,
        }
    }
}

/// Gives the calling thread a short time slice. The work of a front thread is short, and its pushes
/// should not wait for the end of a busy shard's slice. Use it in the `on_thread_start` of the
/// runtime on which a gateway starts.
///
/// Cost: one syscall. With 100 connections of high priority among 10,000 that take the whole
/// processor, the p99 lag of the former fell from 5.5 to 3.0 ms (`weir-bench priorities`).
pub fn schedule_front_thread() {
    share(ThreadShare { nice: 0, slice: Some(FRONT_SLICE) });
}

/// Puts the calling thread below the shards: pushes to connected devices go before HTTP requests
/// and datagrams.
///
/// Cost: one syscall. Under attack by HTTP and by datagram on one processor, the p99 lag of
/// broadcasts to 5,000 devices fell from 290 to 166 ms (`weir-bench siege --seconds 35`).
pub(crate) fn schedule_edge_thread() {
    share(ThreadShare { nice: EDGE_NICE, slice: Some(FRONT_SLICE) });
}

/// Puts the calling thread below shards and front: connected devices go before connecting ones.
/// `threads` is the number of such threads.
pub(crate) fn schedule_settling_thread(threads: usize) {
    let nice = settling_nice(threads, processors().len());
    share(ThreadShare { nice, slice: Some(FRONT_SLICE) });
}

/// Puts the calling thread below all others: it looks up the names of functions for seconds.
pub(crate) fn schedule_profile_thread() {
    share(ThreadShare { nice: PROFILE_NICE, slice: None });
}

/// The niceness that makes the threads of one processor together weigh no more than one of them
/// alone would. Three steps of niceness halve a thread's weight.
fn settling_nice(threads: usize, processors: usize) -> i32 {
    let storm = threads.div_ceil(processors.max(1)).max(1).next_power_of_two();
    SETTLING_NICE + i32::try_from(storm.ilog2() * 3).unwrap_or(i32::MAX - SETTLING_NICE)
}

fn share(share: ThreadShare) {
    if let Err(error) = share.apply() {
        debug!(%error, ?share, "the thread keeps the share of the processor that it had");
    }
}

/// Raises the soft limit on open files to the hard one.
pub fn raise_open_files() -> OpenFiles {
    let limit = getrlimit(Resource::Nofile);
    let mut raised = limit;
    raised.current = limit.maximum;
    let refused = setrlimit(Resource::Nofile, raised).is_err();
    let soft = if refused { limit.current } else { raised.current };
    OpenFiles { soft: soft.unwrap_or(u64::MAX), hard: limit.maximum.unwrap_or(u64::MAX) }
}

/// Processors of the inherited affinity mask.
pub(crate) fn processors() -> Vec<usize> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    match sched_getaffinity(None) {
        Ok(mask) => (0..CpuSet::MAX_CPU).filter(|cpu| mask.is_set(*cpu)).collect(),
        Err(_) => vec![0],
    }
}

/// The directories with this process's limits, each with all its parents. The smallest limit
/// counts.
struct Cgroup {
    cpu: Vec<PathBuf>,
    memory: Vec<PathBuf>,
}

impl Cgroup {
    fn of_this_process(root: &Path) -> Cgroup {
        let text = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let mut cgroup = Cgroup { cpu: Vec::new(), memory: Vec::new() };
        let mounts = root.join("sys/fs/cgroup");
        // Lines are `number:controllers:path`; version 2 has the number 0 and no controllers.
        for line in text.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            if controllers.is_empty() {
                cgroup.cpu.extend(with_parents(&mounts, path));
                cgroup.memory.extend(with_parents(&mounts, path));
                continue;
            }
            for controller in controllers.split(',') {
                match controller {
                    "cpu" => cgroup.cpu.extend(with_parents(&mounts.join(controllers), path)),
                    "memory" => cgroup.memory.extend(with_parents(&mounts.join(controllers), path)),
                    _ => {}
                }
            }
        }
        cgroup
    }

    fn cpu_quota(&self) -> Option<f64> {
        let quotas = self.cpu.iter().filter_map(|directory| {
            let (quota, period) = match fs::read_to_string(directory.join("cpu.max")) {
                Ok(text) => {
                    let (quota, period) = text.trim().split_once(' ')?;
                    (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?)
                }
                Err(_) => {
                    let read = |file| read_number(&directory.join(file));
                    (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?)
                }
            };
            (quota > 0.0 && period > 0.0).then(|| quota / period)
        });
        quotas.min_by(f64::total_cmp)
    }
}

fn with_parents(mount: &Path, path: &str) -> Vec<PathBuf> {
    let inside = Path::new(path.trim_start_matches('/'));
    inside.ancestors().map(|ancestor| mount.join(ancestor)).collect()
}

fn read_number(path: &Path) -> Option<f64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Longer than most single steps of a front thread.
const FRONT_SLICE: Duration = Duration::from_micros(200);
/// A third of the weight of a shard's thread.
const EDGE_NICE: i32 = 5;
/// The lowest weight: a 60th of that of a shard's thread.
const PROFILE_NICE: i32 = 19;
/// A tenth of the weight of a shard's thread: never starved, and hardly in the way.
const SETTLING_NICE: i32 = 10;

#[cfg(test)]
mod tests;
