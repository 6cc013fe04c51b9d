//! Reads what the kernel tells, below a directory that holds `proc`, `sys` and `dev`. Tests prepare
//! such a directory.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use weir::OpenFiles;

/// The machine, as files tell.
#[derive(Debug)]
pub(super) struct Machine {
    root: PathBuf,
}

impl Machine {
    /// The real one has the root `/`.
    pub(super) fn new(root: &Path) -> Machine {
        Machine { root: root.to_owned() }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// A file's text without the white space around it; `None` if it cannot be read.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        Some(fs::read_to_string(self.root.join(path)).ok()?.trim().to_owned())
    }

    /// A file with one number.
    pub(super) fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// A file with several numbers.
    pub(super) fn numbers<const COUNT: usize>(&self, path: &str) -> Option<[u64; COUNT]> {
        let text = self.text(path)?;
        let numbers: Option<Vec<u64>> =
            text.split_whitespace().map(|word| word.parse().ok()).collect();
        numbers?.try_into().ok()
    }

    /// A line `NAME: 123 kB` of `/proc/meminfo`, in bytes.
    pub(super) fn memory(&self, name: &str) -> Option<u64> {
        let text = self.text("proc/meminfo")?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
    }

    /// A file of this process's cgroup, in version 2.
    pub(super) fn cgroup_file(&self, name: &str) -> Option<String> {
        let groups = self.text("proc/self/cgroup")?;
        let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
        self.text(&format!("sys/fs/cgroup/{path}/{name}"))
    }

    /// The limits on open files of this process. A gateway raises the soft one to the hard one.
    pub(super) fn open_files(&self) -> Option<OpenFiles> {
        let text = self.text("proc/self/limits")?;
        let line = text.lines().find_map(|line| line.strip_prefix("Max open files"))?;
        let mut words = line.split_whitespace();
        let mut limit = || match words.next()? {
            "unlimited" => Some(u64::MAX),
            number => number.parse().ok(),
        };
        Some(OpenFiles { soft: limit()?, hard: limit()? })
    }

    /// The kind of the file system of a path, and where it is mounted.
    pub(super) fn file_system(&self, path: &Path) -> Option<(String, PathBuf)> {
        let text = self.text("proc/self/mountinfo")?;
        // `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
        let mounts = text.lines().filter_map(|line| {
            let (place, kind) = line.split_once(" - ")?;
            let place = PathBuf::from(place.split(' ').nth(4)?.replace("\\040", " "));
            Some((kind.split(' ').next()?.to_owned(), place))
        });
        let holding = mounts.filter(|(_, place)| path.starts_with(place));
        // Of several mounts on one place the last one is seen.
        holding.max_by_key(|(_, place)| place.components().count())
    }

    /// Whether the kernel has random numbers; `None` if it cannot be asked.
    pub(super) fn is_random_ready(&self) -> Option<bool> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let random = rustix::fs::open(self.root.join("dev/random"), flags, Mode::empty()).ok()?;
        // Until it is ready, the kernel would have a reader wait.
        Some(fs::File::from(random).read_exact(&mut [0]).is_ok())
    }
}
