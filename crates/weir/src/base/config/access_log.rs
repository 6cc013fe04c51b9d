//! Section `[access_log]`.

use std::path::PathBuf;

use serde::Deserialize;

/// Section `[access_log]`: a line for each request that comes by HTTP.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AccessLogConfig {
    /// The file; `-`: standard output; empty: none, and no line.
    pub path: PathBuf,
    /// How a line looks.
    pub format: AccessLogFormat,
    /// One in so many requests has a line.
    pub sample: u32,
    /// Whether only requests that were answered with a status from 400 on have one.
    pub errors_only: bool,
    /// Bytes of lines that may wait for the file.
    pub queue_bytes: usize,
}

/// How a line of the access log looks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessLogFormat {
    /// One JSON object.
    #[default]
    Json,
    /// The combined format of web servers.
    Combined,
}

impl AccessLogConfig {
    /// The least that `queue_bytes` may be: every thread has a chunk of 32 KiB, and as many can wait.
    pub(crate) const QUEUE_BYTES_MIN: usize = 1024 * 1024;
    /// The most that it may be: what waits longer than a minute is no log.
    pub(crate) const QUEUE_BYTES_MAX: usize = 1024 * 1024 * 1024;
}

impl AccessLogFormat {
    /// Every format.
    pub const ALL: [AccessLogFormat; 2] = [AccessLogFormat::Json, AccessLogFormat::Combined];

    /// The word in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            AccessLogFormat::Json => "json",
            AccessLogFormat::Combined => "combined",
        }
    }
}

impl Default for AccessLogConfig {
    fn default() -> Self {
        Self {
            path: PathBuf::new(),
            format: AccessLogFormat::default(),
            sample: 1,
            errors_only: false,
            // Half a second of 100,000 requests a second: what a busy disk takes to catch up.
            queue_bytes: 16 * 1024 * 1024,
        }
    }
}
