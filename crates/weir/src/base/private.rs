//! Files and directories that only their owner may use.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tracing::warn;

/// Creates a directory, and its missing parents, that only its owner can enter, whatever the umask
/// allows.
///
/// # Errors
/// Those of the system.
pub fn make_private_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The directory for a program's state: systemd's for a service, else XDG's. `None`: neither is set,
/// and there is no home.
pub fn state_directory() -> Option<PathBuf> {
    let from =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // It is a list only if a unit has several directories.
    let of_service =
        from("STATE_DIRECTORY").filter(|path| !path.as_os_str().as_encoded_bytes().contains(&b':'));
    of_service
        .or_else(|| from("XDG_STATE_HOME").map(|home| home.join("weir")))
        .or_else(|| from("HOME").map(|home| home.join(".local/state/weir")))
}

/// Warns if other users may replace files in a directory, or read or change a file. A missing path
/// causes no warning.
///
/// It is no error: some systems mount a volume so that everybody may write to it, and run only one
/// user there.
pub fn warn_if_exposed(key: &str, path: &Path) {
    let Ok(metadata) = fs::metadata(path) else { return };
    let mode = metadata.permissions().mode() & 0o7777;
    let path = path.display();
    if metadata.is_dir() {
        // With the sticky bit nobody replaces another user's files.
        if mode & 0o002 != 0 && mode & 0o1000 == 0 {
            warn!(
                "{key}: {path}: has mode {mode:04o}: others than its owner may replace its files; set its mode to 0700"
            );
        }
    } else if mode & 0o027 != 0 {
        warn!(
            "{key}: {path}: has mode {mode:04o}: others than its owner may read or change it; set its mode to 0600"
        );
    }
}
