//! A cgroup with a limit on memory, made by hand: of version 2 or 1, whichever this machine has.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};

use crate::wait::{PATIENCE, now, rest};

/// A cgroup; removed when dropped. All its processes must have ended by then.
pub struct Cgroup {
    directory: PathBuf,
}

impl Cgroup {
    /// Makes one with so many bytes of memory, the kernel's memory for its sockets included.
    ///
    /// # Errors
    /// Says why none can be made, as where this process is not root.
    pub fn with_memory(bytes: u64) -> Result<Cgroup> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("weir-test-{}-{number}", std::process::id());
        let (parent, limit) = place()?;
        let directory = parent.join(name);
        fs::create_dir(&directory).with_context(|| format!("making {}", directory.display()))?;
        let cgroup = Cgroup { directory };
        let file = cgroup.directory.join(limit);
        fs::write(&file, bytes.to_string())
            .with_context(|| format!("writing {}", file.display()))?;
        Ok(cgroup)
    }

    /// What a shell does to enter it.
    pub fn enter(&self) -> String {
        format!("echo $$ > {}", self.directory.join("cgroup.procs").display())
    }

    /// How often the kernel has killed a process of it for its memory.
    pub fn kills(&self) -> Result<u64> {
        let text = |name| fs::read_to_string(self.directory.join(name));
        let text = text("memory.events").or_else(|_| text("memory.oom_control"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        Ok(line.context("the kernel counts them")?.trim().parse()?)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A process that was killed a moment ago may still be there.
        let deadline = now() + PATIENCE;
        while fs::remove_dir(&self.directory).is_err() && now() < deadline {
            rest();
        }
    }
}

/// Where a cgroup can be made, and the name of its limit. In version 1 it is inside this process's
/// own, whose end it shares. In version 2 only the root may have processes beside groups.
fn place() -> Result<(PathBuf, &'static str)> {
    let own = fs::read_to_string("/proc/self/cgroup").context("/proc/self/cgroup")?;
    let root = Path::new("/sys/fs/cgroup");
    for line in own.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        if controllers.split(',').any(|controller| controller == "memory") {
            let own = root.join(controllers).join(path.trim_start_matches('/'));
            return Ok((own, "memory.limit_in_bytes"));
        }
    }
    let control = root.join("cgroup.subtree_control");
    let given = fs::read_to_string(&control).context("no cgroup limits memory here")?;
    if !given.split_whitespace().any(|controller| controller == "memory") {
        fs::write(&control, "+memory").context("no cgroup can limit memory here")?;
    }
    if !root.join("cgroup.procs").exists() {
        bail!("{} holds no cgroups", root.display());
    }
    Ok((root.to_owned(), "memory.max"))
}
