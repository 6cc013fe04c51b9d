//! Section `[access_log]`.

use std::path::PathBuf;

crate::config_table! {
    /// Section `[access_log]`: a line for each request that comes by HTTP.
    pub struct AccessLogConfig {
        /// The file that lines are appended to; it is opened anew on SIGHUP. Empty: no line, and no
        /// cost.
        path: PathBuf, allowed("\"-\" for standard output, or \"\" for none");
        /// One JSON object a line, or the combined format of web servers.
        format: AccessLogFormat;
        /// One in so many of the requests that would have a line has one. 1: all of them.
        // At a million requests a second one in a million is still a line a second.
        sample: u32 = 1, range(1..=1_000_000), unit("requests");
        /// Whether only requests that were answered with a status from 400 on have a line.
        errors_only: bool;
        /// Bytes of lines that may wait for the file; the default is half a second of 100,000
        /// requests a second. More are dropped rather than hold up requests, and counted in
        /// `weir_access_log_dropped_total`.
        // What waits longer than a minute is no log.
        queue_bytes: usize = 16 * 1024 * 1024,
            range(AccessLogConfig::QUEUE_BYTES_MIN as u64..=1 << 30), unit("bytes");
    }
}

weir_wire::named_enum! {
    /// How a line of the access log looks.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum AccessLogFormat {
        /// One JSON object.
        #[default]
        Json = "json",
        /// The combined format of web servers.
        Combined = "combined",
    }
}

crate::config_words!(AccessLogFormat);

impl AccessLogConfig {
    /// The least that `queue_bytes` may be: every thread has a chunk of 32 KiB, and as many can
    /// wait.
    pub(crate) const QUEUE_BYTES_MIN: usize = 1024 * 1024;
}
