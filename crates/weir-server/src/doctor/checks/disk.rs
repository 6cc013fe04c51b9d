//! The disk under the embedded store.

use std::path::{Path, PathBuf};

use super::{Check, Input};
use crate::config::StoreKind;
use crate::doctor::check::size;

/// Free space.
pub(super) fn space(input: &Input<'_>) -> Option<Check> {
    let (path, directory) = place(input)?;
    let stat = rustix::fs::statvfs(&directory).ok()?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let file = std::fs::metadata(&path).map_or(0, |file| file.len());
    let found = format!("{} free below {}", size(free), directory.display());
    let why = "when the disk is full, no device can activate, and none can be revoked";
    let check = Check::new("disk_space", why, found);
    // An import writes each change twice before the first copy goes.
    let wanted = FREE_BYTES_MIN.max(file);
    if free >= wanted {
        return Some(check);
    }
    let mend = [format!("free {} there, or move store.path", size(wanted - free))];
    Some(check.wrong(format!("less than {}", size(wanted)), mend))
}

/// The kind of the file system.
pub(super) fn kind(input: &Input<'_>) -> Option<Check> {
    let (_, directory) = place(input)?;
    let (kind, mount) = input.machine.file_system(&directory)?;
    let found = format!("{kind} at {}", mount.display());
    let why = "the store needs files that survive, with locks and shared mappings";
    let check = Check::new("disk_kind", why, found);
    let wrong = match kind.as_str() {
        "tmpfs" | "ramfs" => "devices and tokens are gone after the next boot",
        "overlay" | "aufs" => "devices and tokens are gone with this container",
        "nfs" | "nfs4" | "cifs" | "smb3" | "9p" | "ceph" | "afs" => {
            "on a network file system the store can be damaged"
        }
        _ => return Some(check),
    };
    let mend = ["store.path = a path on a local disk or a volume   (in our configuration)"];
    Some(check.wrong(wrong, mend))
}

/// The file of the embedded store, and the nearest directory above it that exists. `None` without
/// such a store.
fn place(input: &Input<'_>) -> Option<(PathBuf, PathBuf)> {
    if input.settings.store_kind() != StoreKind::Embedded {
        return None;
    }
    let path = std::path::absolute(input.settings.store.path().ok()?).ok()?;
    let directory = path.ancestors().skip(1).find(|directory| directory.exists())?;
    let directory = directory.canonicalize().unwrap_or_else(|_| Path::new("/").to_owned());
    Some((path, directory))
}

/// The store moves some 60 MB from one file to another.
const FREE_BYTES_MIN: u64 = 256 << 20;
