//! The metrics of notices: of each receiver, and of the way to the file.

use std::fmt;

use super::Gateway;
use super::families::Families;
use crate::backends::notices::Figures;
use crate::base::clock::unix_millis;

/// A family's name and help, and the number of a receiver that it shows.
type Row = (&'static str, &'static str, fn(&Figures) -> u64);

impl Gateway {
    pub(super) fn notices(&self, to: &mut Families<'_>) -> fmt::Result {
        let notices = &self.handle.shared().notices;
        let Some((buffered, forgotten)) = notices.buffer() else { return Ok(()) };
        let figures = notices.figures();
        let each = |count: fn(&Figures) -> u64| {
            figures.iter().map(move |one| ([("receiver", one.name.clone())], count(one)))
        };
        let levels: [Row; 4] = [
            ("weir_notices_waiting", "Notices that were not delivered yet.", |one| {
                one.status.waiting
            }),
            (
                "weir_notices_kept",
                "Notices in the queue, the delivered ones included that can be read again.",
                |one| one.status.kept,
            ),
            ("weir_notices_kept_bytes", "The bytes of their texts.", |one| one.status.bytes),
            ("weir_notices_failing", "Whether the last request with notices has failed.", |one| {
                u64::from(one.is_failing)
            }),
        ];
        for (name, help, count) in levels {
            to.gauges(name, help, each(count))?;
        }
        let now = unix_millis();
        #[expect(clippy::cast_precision_loss, reason = "an age has less than 2^52 milliseconds")]
        let ages = figures.iter().map(|one| {
            let age = one.status.oldest.map_or(0, |oldest| now.saturating_sub(oldest));
            ([("receiver", one.name.clone())], age as f64 / 1000.0)
        });
        to.gauges(
            "weir_notices_oldest_age_seconds",
            "The age of the oldest notice that was not delivered.",
            ages,
        )?;
        let totals: [Row; 4] = [
            ("weir_notices_delivered", "Notices that a receiver has accepted.", |one| {
                one.delivered
            }),
            (
                "weir_notices_requests",
                "Requests with notices, tries that failed included.",
                |one| one.requests,
            ),
            (
                "weir_notices_failures",
                "Tries to deliver that failed; the same notices are sent again.",
                |one| one.failures,
            ),
            (
                "weir_notices_dropped",
                "Notices that were dropped before they were delivered, since the queue began.",
                |one| one.status.dropped,
            ),
        ];
        for (name, help, count) in totals {
            to.counters(name, help, each(count))?;
        }
        to.gauge("weir_notices_buffered", "Notices on their way to the file.", buffered as u64)?;
        to.counter(
            "weir_notices_forgotten",
            "Notices that found no room on their way to the file. Each receiver counts its own as dropped too.",
            forgotten,
        )
    }
}
