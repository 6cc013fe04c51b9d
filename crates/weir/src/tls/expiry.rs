//! The ends of the files in use, with warnings before them.

use std::path::Path;
use std::time::Duration;

use tracing::warn;

/// The end of a file's validity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expiry {
    pub(crate) kind: ExpiryKind,
    /// Its path.
    pub(crate) file: String,
    /// Seconds since 1970.
    pub(crate) not_after: i64,
}

/// The kind of file that ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpiryKind {
    /// One of `[[tls.certificates]]`, or the development certificate.
    Certificate,
    /// The list in `tls.client_crl` that ends first.
    RevocationList,
}

impl Expiry {
    pub(super) fn new(kind: ExpiryKind, file: &Path, not_after: i64) -> Expiry {
        Expiry { kind, file: file.display().to_string(), not_after }
    }

    /// Logs a line if the file has ended or soon will.
    pub(super) fn warn(&self, now: Duration) {
        let (file, what) = (&self.file, self.kind.name());
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let hours = (self.not_after - now).div_euclid(3_600);
        if self.not_after <= now {
            warn!(file, what, "expired");
        } else if hours < self.kind.warned_hours() {
            warn!(file, what, hours_left = hours, "expires soon");
        }
    }
}

impl ExpiryKind {
    const fn name(self) -> &'static str {
        match self {
            ExpiryKind::Certificate => "certificate",
            ExpiryKind::RevocationList => "revocation list",
        }
    }

    /// The label in the metrics.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            ExpiryKind::Certificate => "certificate",
            ExpiryKind::RevocationList => "revocation_list",
        }
    }

    /// A certificate is renewed weeks before its end, a list often daily.
    const fn warned_hours(self) -> i64 {
        match self {
            ExpiryKind::Certificate => 14 * 24,
            ExpiryKind::RevocationList => 24,
        }
    }
}
