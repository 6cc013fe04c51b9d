//! Reads CPUs, memory and limits of processes and of the machine from the kernel.

use std::fmt;
use std::fs;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A set of CPUs, written as `0`, `0-3` or `0,2-3`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cpus(Vec<usize>);

impl Cpus {
    /// The CPUs that a process may use; `None`: those of the calling thread.
    pub(crate) fn allowed(pid: Option<u32>) -> Result<Cpus> {
        let set = sched_getaffinity(pid.map(pid_of).transpose()?)
            .context("cannot read the CPU affinity")?;
        Ok(Cpus((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()))
    }

    /// The first half for the measured server, and the rest for the load generator; `None` with a
    /// single CPU.
    pub(crate) fn halves(&self) -> Option<(Cpus, Cpus)> {
        let (first, second) = self.0.split_at(self.0.len() / 2);
        (!first.is_empty()).then(|| (Cpus(first.to_vec()), Cpus(second.to_vec())))
    }

    /// The number of CPUs.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Runs `work` with the calling thread bound to these CPUs. Threads and processes that it
    /// starts inherit the binding.
    pub(crate) fn bind<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let before = sched_getaffinity(None).context("cannot read the CPU affinity")?;
        self.bind_thread()?;
        let result = work();
        sched_setaffinity(None, &before).context("cannot restore the CPU affinity")?;
        result
    }

    /// Binds the calling thread.
    pub(crate) fn bind_thread(&self) -> Result<()> {
        let mut set = CpuSet::new();
        for cpu in &self.0 {
            set.set(*cpu);
        }
        sched_setaffinity(None, &set).with_context(|| format!("cannot bind to CPUs {self}"))
    }
}

/// The choice of CPUs to bind to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pin {
    /// The bench chooses.
    Auto,
    /// No binding.
    None,
    /// These CPUs.
    Cpus(Cpus),
}

impl FromStr for Pin {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Pin> {
        Ok(match text {
            "auto" => Pin::Auto,
            "none" => Pin::None,
            list => Pin::Cpus(list.parse()?),
        })
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        for &cpu in &self.0 {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == cpu => *last = cpu,
                _ => ranges.push((cpu, cpu)),
            }
        }
        for (index, (first, last)) in ranges.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            if first == last {
                write!(f, "{comma}{first}")?
            } else {
                write!(f, "{comma}{first}-{last}")?
            }
        }
        Ok(())
    }
}

impl FromStr for Cpus {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Cpus> {
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |digits: &str| {
                digits
                    .trim()
                    .parse::<usize>()
                    .with_context(|| format!("not a list of CPUs such as 0,2-3: {text:?}"))
            };
            let (first, last) = (number(first)?, number(last)?);
            if first > last || last >= CpuSet::MAX_CPU {
                bail!("CPU range {part:?} is empty or beyond {}", CpuSet::MAX_CPU - 1);
            }
            cpus.extend(first..=last);
        }
        cpus.sort_unstable();
        cpus.dedup();
        Ok(Cpus(cpus))
    }
}

/// Raises the soft limit of open files to the hard one; returns both afterwards.
pub(crate) fn raise_open_files() -> Result<(u64, u64)> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .context("cannot raise the limit of open files")?;
    let limit = getrlimit(Resource::Nofile);
    Ok((limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX)))
}

/// `RssAnon` of a process, in bytes: its own memory, without files and shared pages.
pub(crate) fn rss_anon(pid: u32) -> Result<u64> {
    memory(pid, "RssAnon:")
}

/// `VmHWM` of a process, in bytes: its largest resident memory so far, including files and shared
/// pages.
pub(crate) fn rss_peak(pid: u32) -> Result<u64> {
    memory(pid, "VmHWM:")
}

/// `VmRSS` of a process, in bytes: its resident memory now, including files and shared pages.
pub(crate) fn rss_resident(pid: u32) -> Result<u64> {
    memory(pid, "VmRSS:")
}

fn memory(pid: u32, key: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    memory_in(&status, key).with_context(|| format!("no {key} in {path}"))
}

fn memory_in(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// A number as a process id.
pub(crate) fn pid_of(pid: u32) -> Result<Pid> {
    i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .with_context(|| format!("{pid} is not a process id"))
}

/// First line of a kernel file, or "unknown".
pub(crate) fn kernel_line(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().next().map_or_else(|| "unknown".to_owned(), str::to_owned)
}

/// Name of the processor.
pub(crate) fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("model name"));
    line.map_or_else(
        || "unknown".to_owned(),
        |line| line.trim_start_matches([' ', '\t', ':']).to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        for (text, shown) in [("0", "0"), ("1,0", "0-1"), ("0-2,5,7-8", "0-2,5,7-8"), ("3,3", "3")]
        {
            assert_eq!(text.parse::<Cpus>().unwrap().to_string(), shown);
        }
        for text in ["", "x", "2-1", "1,", "99999", "-1"] {
            assert!(text.parse::<Cpus>().is_err(), "{text}");
        }
    }

    #[test]
    fn halves_leave_the_larger_part_to_the_generator() {
        let (server, client) = "0-2".parse::<Cpus>().unwrap().halves().unwrap();
        assert_eq!((server.to_string(), client.to_string()), ("0".to_owned(), "1-2".to_owned()));
        assert_eq!("4".parse::<Cpus>().unwrap().halves(), None);
    }

    #[test]
    fn memory_of_a_process() {
        assert_eq!(
            memory_in("VmRSS:\t 9 kB\nRssAnon:\t    1234 kB\nRssFile: 1 kB\n", "RssAnon:"),
            Some(1234 * 1024)
        );
        assert_eq!(memory_in("VmRSS:\t 9 kB\n", "RssAnon:"), None);
        let own = std::process::id();
        assert!((1..=rss_peak(own).unwrap()).contains(&rss_anon(own).unwrap()));
    }
}
