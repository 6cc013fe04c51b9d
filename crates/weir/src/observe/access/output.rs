//! The file of the access log.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// An open file, or standard output.
pub(super) struct Output {
    path: PathBuf,
    file: File,
}

impl Output {
    /// Opens the file for appending, and creates it if it does not exist. `-` is standard output.
    ///
    /// Errors: those of the kernel; a named pipe, since opening it would wait for a reader.
    pub(super) fn open(path: &Path) -> io::Result<Output> {
        Ok(Output { path: path.to_owned(), file: open(path)? })
    }

    /// Takes a file that is already open.
    #[cfg(test)]
    pub(super) fn of(path: &Path, file: impl Into<std::os::fd::OwnedFd>) -> Output {
        Output { path: path.to_owned(), file: File::from(file.into()) }
    }

    /// Opens the same path again; after an error the open file stays in use.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        self.file = open(&self.path)?;
        Ok(())
    }

    /// Writes whole lines from `*done` on, and moves it to the end of the written part.
    ///
    /// Errors: those of the kernel; `*done` may then be inside a line.
    pub(super) fn write(&mut self, lines: &[u8], done: &mut usize) -> io::Result<()> {
        while *done < lines.len() {
            match self.file.write(&lines[*done..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => *done += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

fn open(path: &Path) -> io::Result<File> {
    if path.as_os_str() == "-" {
        // Bypasses the buffer of the standard library, which would cut writes at lines.
        return Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?));
    }
    if fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) {
        return Err(io::Error::other("it is a named pipe; allowed is a file, or - for stdout"));
    }
    OpenOptions::new().append(true).create(true).mode(FILE_MODE).open(path)
}

/// Not everybody may read addresses and devices.
const FILE_MODE: u32 = 0o640;
