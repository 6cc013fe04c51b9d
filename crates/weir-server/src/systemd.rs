//! What `weir serve` tells systemd: that it is ready, alive, stopping, or replaced by another
//! process. Without systemd, nothing.

use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use sd_notify::NotifyState;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tracing::warn;
use weir::Handle;

/// The gateway listens. A process that has taken over does not say so: the service is active.
pub(crate) fn tell_ready() {
    tell(&[NotifyState::Ready]);
}

/// The gateway drains. It takes so long at most.
pub(crate) fn tell_stopping(over: Duration) {
    let over = over.saturating_add(AFTER_DRAIN);
    let micros = u32::try_from(over.as_micros()).unwrap_or(u32::MAX);
    tell(&[NotifyState::Stopping, NotifyState::ExtendTimeoutUsec(micros)]);
}

/// Pings the watchdog, if the unit has one, as long as every shard answers. This task itself shows
/// that the front works.
///
/// A process that has taken over is not the one that systemd has started: the variable
/// `WATCHDOG_PID` still names that.
pub(crate) async fn ping_watchdog(handle: Handle, has_taken_over: bool) {
    let patience =
        if has_taken_over { inherited_patience() } else { sd_notify::watchdog_enabled() };
    let Some(patience) = patience.filter(|patience| !patience.is_zero()) else { return };
    let each = patience / PINGS;
    // systemd hears only the main process, which the one before this is until it leaves.
    let first = if has_taken_over { each } else { Duration::ZERO };
    let mut ticks = interval_at(Instant::now() + first, each);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match handle.check_shards().await {
            Ok(()) => tell(&[NotifyState::Watchdog]),
            Err(silent) => {
                warn!(shard = silent.shard, "no ping to the watchdog: the shard does not answer");
            }
        }
    }
}

/// The time of the watchdog, whatever process it was given to.
fn inherited_patience() -> Option<Duration> {
    let micros = std::env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
    Some(Duration::from_micros(micros))
}

/// Another process is the main one of the service now. Returns when systemd has taken note of it;
/// then this one may end.
pub(crate) async fn tell_main_process(pid: u32) {
    let Some(place) = std::env::var_os("NOTIFY_SOCKET") else { return };
    tell(&[NotifyState::MainPid(pid)]);
    if let Err(error) = barrier(&place).await {
        warn!(%error, "systemd has not confirmed which process is the main one");
    }
}

/// Waits until systemd has handled all that was told before: then it closes its copy of a pipe.
async fn barrier(place: &OsStr) -> io::Result<()> {
    let (theirs, mut ours) = pipe::pipe()?;
    let theirs = theirs.into_blocking_fd()?;
    pass(place, b"BARRIER=1", &theirs)?;
    drop(theirs);
    let mut nothing = [0];
    timeout(BARRIER_PATIENCE, ours.read(&mut nothing)).await??;
    Ok(())
}

/// Sends a message with a descriptor to systemd.
fn pass(place: &OsStr, message: &[u8], descriptor: &OwnedFd) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    match place.as_bytes() {
        [b'@', name @ ..] => socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?,
        path => socket.connect(OsStr::from_bytes(path))?,
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    let is_pushed = ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    debug_assert!(is_pushed, "there is space for one");
    sendmsg(&socket, &[IoSlice::new(message)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!(%error, "cannot tell systemd of the state");
    }
}

/// Pings within the time of the watchdog: two may come late.
const PINGS: u32 = 3;
/// The end after `connection.drain_timeout`: of shards, notices, store and logs.
const AFTER_DRAIN: Duration = Duration::from_secs(40);
/// systemd answers at once, unless it reloads its units.
const BARRIER_PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::io::IoSliceMut;

    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    use tokio::task::spawn_blocking;

    use super::*;

    /// Plays systemd: receives the message, and closes the descriptor only then.
    async fn check(place: &OsStr, manager: UnixDatagram) {
        let manager = spawn_blocking(move || {
            let mut text = [0; 64];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(&mut text)];
            let count =
                recvmsg(&manager, &mut parts, &mut ancillary, RecvFlags::empty()).unwrap().bytes;
            let mut passed = 0;
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    passed += descriptors.count();
                }
            }
            (text[..count].to_vec(), passed)
        });
        barrier(place).await.unwrap();
        assert_eq!(manager.await.unwrap(), (b"BARRIER=1".to_vec(), 1));
    }

    #[tokio::test]
    async fn the_barrier_waits_until_systemd_has_read_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        check(path.as_os_str(), UnixDatagram::bind(&path).unwrap()).await;
        let name = format!("weir-test-{}", std::process::id());
        let addr = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&addr).unwrap();
        check(OsStr::new(&format!("@{name}")), manager).await;
        assert!(barrier(OsStr::new("/nowhere/notify")).await.is_err());
    }
}
