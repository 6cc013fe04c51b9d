//! What the kernel says of this process.

use std::fs;

/// Open descriptors.
///
/// Cost: one stat; before Linux 6.2, which counts them there, a directory is read whole.
pub(crate) fn open_fds() -> Option<u64> {
    match fs::metadata(FD_DIR).ok()?.len() {
        0 => fs::read_dir(FD_DIR).ok().map(|entries| entries.count() as u64),
        count => Some(count),
    }
}

/// The soft limit on descriptors; `None` where there is none.
pub(super) fn max_fds() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

/// Resident memory in bytes.
pub(super) fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
}

const FD_DIR: &str = "/proc/self/fd";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_more_is_counted() {
        assert!(open_fds().unwrap() >= 3);
        assert!(max_fds().is_none_or(|max| max >= open_fds().unwrap()));
        assert!(resident_bytes().unwrap() > 100 * 1024);
    }
}
