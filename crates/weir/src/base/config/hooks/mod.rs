//! Section `[hooks]`: the services that are asked about devices, and those that are told.

mod questions;
mod receivers;

use std::path::PathBuf;

use super::keys::{Raw, Table, Value};
pub(crate) use questions::PATH_BYTES_MAX;
pub use questions::{
    ConnectHookConfig, OnFailure, PublishHookConfig, RefreshHookConfig, SubscribeHookConfig,
};

pub(crate) use receivers::RECEIVERS_MAX;
pub use receivers::{NoticeEvent, ReceiverConfig};

crate::config_table! {
    /// Section `[hooks]`.
    pub struct HooksConfig {
        /// Secret with which requests to hooks are signed: header `weir-signature`. Empty: they are
        /// not signed.
        secret: String, secret(), reload(),
            allowed("{HOOK_SECRET_BYTES_MIN} to {HOOK_SECRET_BYTES_MAX} bytes, or \"\" for none");
        /// Longest answer to a question. A longer one counts as a failure. An answer that replaces a
        /// message contains its payload, in base64 if it is binary.
        // So many bytes for each question in flight.
        answer_bytes_max: usize = 128 * 1024, range(1_024..=64 << 20), unit("bytes"), reload();
        /// Bytes of answers that are kept for the time that they name themselves. The oldest are
        /// removed first. 0: none is kept.
        cache_bytes_max: usize = 16 << 20, range(0..=1 << 30), unit("bytes"), reload();
        /// The file in which notices wait for their receivers. It is used only if there is one.
        /// Empty: `notices.db` in `$STATE_DIRECTORY`, `$XDG_STATE_HOME/weir` or
        /// `~/.local/state/weir`, the first that is set.
        notices_file: PathBuf, allowed("or \"\"");
        /// The question of who has a token.
        connect: ConnectHookConfig;
        /// The question of whether a connection may go on.
        refresh: RefreshHookConfig;
        /// The question of whether a device may subscribe to a topic.
        subscribe: SubscribeHookConfig;
        /// The question of whether a device may publish a message.
        publish: PublishHookConfig;
        /// Services that are told what happens. Only the file can set them.
        receivers: Vec<ReceiverConfig>, range(0..=RECEIVERS_MAX), unit("receivers"),
            reason(": each has its own queue"), reload();
    }
}

/// The table is on the heap, so that the configuration stays small where it is moved.
impl Value for Box<HooksConfig> {
    fn kind(&self) -> String {
        (**self).kind()
    }

    fn read(&mut self, raw: &Raw) -> bool {
        (**self).read(raw)
    }

    fn show(&self) -> Option<String> {
        (**self).show()
    }

    fn as_table(&self) -> Option<&dyn Table> {
        Some(&**self)
    }

    fn as_table_mut(&mut self) -> Option<&mut dyn Table> {
        Some(&mut **self)
    }
}

pub(crate) const HOOK_SECRET_BYTES_MIN: usize = 32;
pub(crate) const HOOK_SECRET_BYTES_MAX: usize = 4_096;
