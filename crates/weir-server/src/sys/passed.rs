//! Sockets that systemd has opened for this process.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

/// The passed sockets with their names, `FileDescriptorName=` of their units. Call it once: each call
/// returns the same descriptors.
///
/// Errors: the variables `LISTEN_…` are malformed, or name descriptors that are not open.
pub(crate) fn sockets() -> io::Result<Vec<(String, OwnedFd)>> {
    let passed = sd_notify::listen_fds_with_names()?;
    let own = passed.map(|(fd, name)| {
        #[expect(unsafe_code, reason = "the environment names descriptors by number")]
        // SAFETY: `LISTEN_PID` is this process, so these descriptors were left open for it and
        // nothing else here owns them. sd-notify has just set their flags, so they are open.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        (name, fd)
    });
    Ok(own.collect())
}
