//! Samples of the server's metrics during a phase.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;

use crate::clock;
use crate::http::Http;
use crate::metrics::Metrics;
use crate::spawn;
use crate::stats::whole;

/// Time between two samples.
pub(crate) const SAMPLE_EVERY: Duration = Duration::from_millis(100);

/// Watches the bytes that a server has queued.
pub(crate) struct Sampler {
    http: Http,
    next: Duration,
    /// Samples taken.
    pub(crate) count: u64,
    /// Most bytes queued in any sample.
    pub(crate) queued_max: f64,
    /// The last sample.
    pub(crate) last: Metrics,
}

impl Sampler {
    /// A sampler without samples yet.
    pub(crate) fn new(http: Http) -> Sampler {
        Sampler {
            http,
            next: clock::monotonic(),
            count: 0,
            queued_max: 0.0,
            last: Metrics::default(),
        }
    }

    /// Takes samples as long as `goes_on` returns true for the last one.
    pub(crate) fn sample_while(
        &mut self,
        mut goes_on: impl FnMut(&Metrics) -> Result<bool>,
    ) -> Result<()> {
        self.next = self.next.max(clock::monotonic());
        loop {
            self.last = spawn::metrics(&mut self.http)?;
            self.count += 1;
            self.queued_max =
                self.queued_max.max(self.last.sum("weir_queued_bytes", &[]).unwrap_or(0.0));
            if !goes_on(&self.last)? {
                return Ok(());
            }
            self.next += SAMPLE_EVERY;
            clock::sleep_until(self.next);
        }
    }
}

/// Growth of each counter of a family; counters without growth are omitted.
pub(crate) fn growth(
    before: &Metrics,
    after: &Metrics,
    name: &str,
    label: &str,
) -> BTreeMap<String, u64> {
    let old = before.by_label(name, label);
    let grown = after.by_label(name, label).into_iter().map(|(value, new)| {
        let growth = new - old.get(&value).copied().unwrap_or(0.0);
        (value, whole(growth))
    });
    grown.filter(|(_, growth)| *growth > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_of_a_family() {
        let before = Metrics::parse("c_total{reason=\"a\"} 1\nc_total{reason=\"b\"} 2\n");
        let after = Metrics::parse(
            "c_total{reason=\"a\"} 4\nc_total{reason=\"b\"} 2\nc_total{reason=\"d\"} 1\n",
        );
        let grown = growth(&before, &after, "c_total", "reason");
        assert_eq!(
            grown.into_iter().collect::<Vec<_>>(),
            [("a".to_owned(), 3), ("d".to_owned(), 1)]
        );
    }
}
