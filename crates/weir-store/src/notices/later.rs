//! A file that the process before this one still holds.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::Instant;
use tracing::error;

use super::buffer::Buffer;
use super::status::QueueWatch;
use super::tables::Tables;
use super::thread::Writer;
use super::{NoticeQueue, NoticeSource, opened_file};
use crate::embedded::{OpenError, OpenedNotices};

/// What the thread opens later.
pub(super) struct Later {
    pub(super) path: PathBuf,
    pub(super) source: Box<dyn NoticeSource>,
    pub(super) queues: Vec<(NoticeQueue, QueueWatch)>,
}

impl Later {
    /// Opens the file once it may and can, and writes until the buffer is closed.
    pub(super) fn run(self, buffer: &Buffer) {
        if !buffer.has_begun() {
            return;
        }
        let Some((mut opened, tables)) = self.open(buffer) else { return };
        let mut writer = Writer::new(&opened, tables, self.source, buffer);
        let mut told = String::new();
        while let Err(error) = writer.take_over(&self.queues) {
            if fails(buffer, &mut told, error.to_string()) {
                opened.keep_mark();
                return;
            }
        }
        writer.run();
    }

    /// `None`: the buffer is closed.
    fn open(&self, buffer: &Buffer) -> Option<(OpenedNotices, Tables)> {
        let (began, mut told) = (Instant::now(), String::new());
        loop {
            let is_closed = match opened_file(&self.path, Tables::go_on) {
                Ok(opened) => return Some(opened),
                Err(OpenError::Held { .. }) if began.elapsed() < HELD_PATIENCE => {
                    buffer.closes_within(HELD_INTERVAL)
                }
                Err(error) => fails(buffer, &mut told, error.to_string()),
            };
            if is_closed {
                let notices = buffer.len();
                error!(notices, "the file of notices has not opened, and these are not in it");
                return None;
            }
        }
    }
}

/// Tells a new reason, and waits before the next attempt. Whether the buffer is closed.
fn fails(buffer: &Buffer, told: &mut String, why: String) -> bool {
    buffer.refuse_requests(&why);
    if *told != why {
        error!(why, "the file of notices does not open; it is tried again");
        *told = why;
    }
    buffer.closes_within(FAILED_INTERVAL)
}

/// The process before this one closes its file right after it has handed over.
const HELD_PATIENCE: Duration = Duration::from_secs(10);
const HELD_INTERVAL: Duration = Duration::from_millis(5);
/// Someone has to do something about it.
const FAILED_INTERVAL: Duration = Duration::from_secs(1);
