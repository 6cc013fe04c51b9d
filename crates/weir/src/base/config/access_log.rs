//! Section `[access_log]`.

use std::path::PathBuf;

crate::config_table! {
    /// Section `[access_log]`: a line for each HTTP request.
    pub struct AccessLogConfig {
        /// The file to which lines are appended. SIGHUP opens it again. Empty: no access log, and
        /// no cost.
        path: PathBuf, allowed("\"-\" for standard output, or \"\" for none");
        /// `json`: one JSON object per line. `combined`: the combined format of web servers.
        format: AccessLogFormat;
        /// Writes one line for every N requests that would have one. 1: all of them.
        // At a million requests per second, one in a million is still a line per second.
        sample: u32 = 1, range(1..=1_000_000), unit("requests");
        /// Whether only requests with a status of 400 or above get a line.
        errors_only: bool;
        /// Bytes of lines that may wait for the file. The default is half a second of 100,000
        /// requests per second. Further lines are dropped, so that they do not delay requests, and
        /// counted in `weir_access_log_dropped_total`.
        // Lines that wait longer than a minute are no use as a log.
        queue_bytes: usize = 16 * 1024 * 1024,
            range(AccessLogConfig::QUEUE_BYTES_MIN as u64..=1 << 30), unit("bytes");
    }
}

weir_wire::named_enum! {
    /// The format of the access log.
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
    /// The least value of `queue_bytes`: every thread has a chunk of 32 KiB, and as many can wait.
    pub(crate) const QUEUE_BYTES_MIN: usize = 1024 * 1024;
}
