//! Files and directories that are their owner's alone.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;

use tracing::warn;

/// Makes a directory, and those above it, that nobody but its owner can enter: whatever the umask leaves open.
///
/// # Errors
/// Those of the system.
pub fn make_private_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Warns if others may replace what is in a directory, or read or change a file. Without one, nothing is said.
///
/// It is no error: some systems mount a volume so that everybody may write to it, and run one user there.
pub fn warn_if_exposed(key: &str, path: &Path) {
    let Ok(metadata) = fs::metadata(path) else { return };
    let mode = metadata.permissions().mode() & 0o7777;
    let path = path.display();
    if metadata.is_dir() {
        // With the sticky bit nobody replaces what is another's.
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
