//! The keys of `[access_log]`.

use super::{At, Key, Settings};

pub(super) static KEYS: &[Key] = &[
    key!(
        access_log.path,
        "\"-\" for standard output, or \"\" for none",
        "The file that lines are appended to; it is opened anew on SIGHUP. Empty: no line, and no cost."
    ),
    key!(access_log.format, "", "One JSON object a line, or the combined format of web servers."),
    key!(
        access_log.sample,
        "1 to 1000000",
        "One in so many of the requests that would have a line has one. 1: all of them."
    ),
    key!(
        access_log.errors_only,
        "",
        "Whether only requests that were answered with a status from 400 on have a line."
    ),
    key!(
        access_log.queue_bytes,
        "1048576 to 1073741824",
        "Bytes of lines that may wait for the file; the default is half a second of 100,000 requests a second. More are \
         dropped rather than hold up requests, and counted in `weir_access_log_dropped_total`."
    ),
];
