//! A private directory for files that nobody needs afterwards.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A directory that only this user can read. It is removed when dropped.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Makes the directory among the temporary files. `purpose` is a part of its name.
    pub(crate) fn new(purpose: &str) -> Result<Scratch> {
        let name = format!("weir-{purpose}-{}-{:016x}", std::process::id(), rand::random::<u64>());
        let path = std::env::temp_dir().join(name);
        weir::make_private_directory(&path)
            .with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Scratch(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // One that cannot be removed stays among the temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}
