//! Section `[access_log]`.

use std::path::PathBuf;

crate::config_table! {
    /// Section `[access_log]`: one line for each HTTP request.
    pub struct AccessLogConfig {
        /// The file to which lines are appended; SIGHUP opens it again. Empty: no access log, and
        /// no cost.
        path: PathBuf, allowed("\"-\" for standard output, or \"\" for none");
        /// One JSON object a line, or the combined format of web servers.
        format: AccessLogFormat;
        /// The share of requests that get a line: one in so many. 1: all of them.
        // One in a million of a million requests a second is still one line a second.
        sample: u32 = 1, range(1..=1_000_000), unit("requests");
        /// Whether only requests answered with a status of 400 or more get a line.
        errors_only: bool;
        /// Bytes of lines that may wait for the file. The default holds half a second of 100,000
        /// requests a second. Further lines are dropped, so that they do not delay requests;
        /// `weir_access_log_dropped_total` counts them.
        // A log must not lag by more than a minute.
        queue_bytes: usize = 16 * 1024 * 1024,
            range(AccessLogConfig::QUEUE_BYTES_MIN as u64..=1 << 30), unit("bytes");
    }
}

weir_wire::named_enum! {
    /// The form of a line in the access log.
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
    /// The least value of `queue_bytes`: every thread has a chunk of 32 KiB, and the same number
    /// can wait.
    pub(crate) const QUEUE_BYTES_MIN: usize = 1024 * 1024;
}
