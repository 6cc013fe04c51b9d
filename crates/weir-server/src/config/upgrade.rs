//! Section `[upgrade]`: the replacement of the running process by a new one.

use std::path::PathBuf;
use std::time::Duration;

use weir::keys::{HOUR, SECOND};

use super::StoreSettings;

weir::config_table! {
    /// Section `[upgrade]`.
    pub(crate) struct UpgradeSettings {
        /// The unix socket on which the gateway waits for `weir upgrade`. Only its own user and
        /// root may use it. Empty: `upgrade.sock` beside the file of `store.path`; if that is empty
        /// too, in `$STATE_DIRECTORY`, `$XDG_STATE_HOME/weir` or `~/.local/state/weir`, the first
        /// that is set.
        socket: PathBuf, allowed("or \"\"");
        /// How long the new process may take for what it gets in the pause, with 50 us more for each
        /// connection and 20 ms for each MiB of messages; also how long it may be silent when it is
        /// asked to serve. Then it is ended, and the old one serves on. Nobody is served meanwhile.
        pause_max: Duration = Duration::from_secs(1), range(100..=10 * SECOND), reload();
        /// How long the old process may finish what does not move: handshakes and HTTP requests.
        /// What is left then is closed.
        linger: Duration = Duration::from_secs(30), range(0..=HOUR), reload();
    }
}

impl UpgradeSettings {
    /// The socket, as configured or by default. `None`: no directory for the program's state is
    /// known.
    pub(crate) fn socket(&self, store: &StoreSettings) -> Option<PathBuf> {
        if !self.socket.as_os_str().is_empty() {
            return Some(self.socket.clone());
        }
        let beside = store.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = beside.map(PathBuf::from).or_else(weir::state_directory)?;
        Some(directory.join("upgrade.sock"))
    }
}
