//! The kernel's numbers about this process.

use std::fs;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::base::clock::unix_time;

/// The number of open descriptors.
///
/// Cost: one stat. Linux before 6.2 does not count them there, so a whole directory is read.
pub(crate) fn open_fds() -> Option<u64> {
    match fs::metadata(FD_DIR).ok()?.len() {
        0 => fs::read_dir(FD_DIR).ok().map(|entries| entries.count() as u64),
        count => Some(count),
    }
}

/// The soft limit on descriptors; `None`: no limit.
pub(super) fn max_fds() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

/// Processor time of all threads since the start.
pub(super) fn cpu_time() -> Duration {
    clock(ClockId::ProcessCPUTime)
}

/// The start of the process, since 1970. It is read once, so that it does not change when the clock
/// is set.
pub(super) fn started() -> Option<Duration> {
    static STARTED: OnceLock<Option<Duration>> = OnceLock::new();
    *STARTED.get_or_init(|| {
        let after_boot = start_after_boot(&fs::read_to_string("/proc/self/stat").ok()?)?;
        let age = clock(ClockId::Boottime).checked_sub(after_boot)?;
        unix_time().checked_sub(age)
    })
}

/// Reads the time between the boot and the start of a process. The name of the process may contain
/// anything; the start is the twentieth field behind it. The kernel counts in ticks of 10 ms for
/// all programs.
fn start_after_boot(stat: &str) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: u64 = fields.split_whitespace().nth(19)?.parse().ok()?;
    Some(Duration::from_millis(ticks.checked_mul(10)?))
}

fn clock(id: ClockId) -> Duration {
    let time = clock_gettime(id);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Resident memory in bytes.
pub(super) fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
}

/// Datagrams of the machine, or of the network namespace, that no socket received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MachineUdp {
    pub(super) unknown_port: u64,
    pub(super) buffer_full: u64,
}

/// The kernel's counters of IPv4 and IPv6 together.
pub(super) fn udp_of_machine() -> Option<MachineUdp> {
    let v4 = machine_udp_v4(&fs::read_to_string("/proc/net/snmp").ok()?)?;
    let v6 = fs::read_to_string("/proc/net/snmp6").unwrap_or_default();
    let of_v6 = |name| {
        let mut lines = v6.lines().filter_map(|line| line.split_once(char::is_whitespace));
        let (_, count) = lines.find(|(found, _)| *found == name)?;
        count.trim().parse::<u64>().ok()
    };
    Some(MachineUdp {
        unknown_port: v4.unknown_port + of_v6("Udp6NoPorts").unwrap_or(0),
        buffer_full: v4.buffer_full + of_v6("Udp6RcvbufErrors").unwrap_or(0),
    })
}

/// Reads the two lines of `Udp:`. The first line has the names.
fn machine_udp_v4(text: &str) -> Option<MachineUdp> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp:"));
    let (names, counts) = (lines.next()?, lines.next()?);
    let count = |name| {
        let mut pairs = names.split_whitespace().zip(counts.split_whitespace());
        pairs.find(|(found, _)| *found == name)?.1.parse().ok()
    };
    Some(MachineUdp { unknown_port: count("NoPorts")?, buffer_full: count("RcvbufErrors")? })
}

const FD_DIR: &str = "/proc/self/fd";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_that_reached_nobody_are_found_by_name() {
        let text = "Tcp: NoPorts\nTcp: 1\nUdp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors\n\
                    Udp: 9 7 2 8 5\n";
        let expected = MachineUdp { unknown_port: 7, buffer_full: 5 };
        assert_eq!(machine_udp_v4(text), Some(expected));
        assert_eq!(machine_udp_v4("Udp: NoPorts\n"), None);
        assert!(udp_of_machine().is_some());
    }

    #[test]
    fn the_start_is_found_behind_any_name() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 1 0 0 0 3 4 0 0 20 0 9 0 12345 6 7";
        assert_eq!(start_after_boot(stat), Some(Duration::from_millis(123_450)));
        assert_eq!(start_after_boot("7 (a) S 1"), None);
        let age = unix_time().checked_sub(started().unwrap());
        assert!(age.unwrap() < Duration::from_secs(24 * 3600), "{age:?}");
    }

    #[test]
    fn a_descriptor_more_is_counted() {
        assert!(open_fds().unwrap() >= 3);
        assert!(max_fds().is_none_or(|max| max >= open_fds().unwrap()));
        assert!(resident_bytes().unwrap() > 100 * 1024);
        assert!(cpu_time() > Duration::ZERO);
    }
}
