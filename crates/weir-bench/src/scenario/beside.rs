//! Connections that stay and receive messages while other connections come and go.

use anyhow::Result;

use super::{arrival_of, publish_beside};
use crate::clock;
use crate::protocol::ChurnPlan;
use crate::publish::{HttpSink, Published, Schedule};
use crate::report::Report;
use crate::stats::whole;
use crate::workers::{Totals, Workers};

/// A run of such a scenario.
pub(super) struct Beside {
    /// The connections that stay.
    pub(super) held: Workers,
    /// The guests, which come and go.
    pub(super) others: Workers,
    /// The plan of the guests.
    pub(super) plan: ChurnPlan,
    /// The destination of messages.
    pub(super) sink: HttpSink,
    /// Number of the next message.
    pub(super) seqs: Vec<u32>,
    /// Messages a second to each connection that stays.
    pub(super) rate: f64,
    /// Bytes of a payload.
    pub(super) size: usize,
}

/// The results of the held connections in a phase.
pub(super) struct Phase {
    pub(super) published: Published,
    pub(super) totals: Totals,
}

impl Beside {
    /// Sends messages to the held connections for this time; runs `beside` meanwhile.
    pub(super) fn phase(
        &mut self,
        seconds: f64,
        beside: impl FnOnce(&mut Workers, &ChurnPlan) -> Result<()>,
    ) -> Result<Phase> {
        let Beside { held, others, plan, sink, seqs, rate, size } = self;
        let (rate, size) = (*rate, *size);
        let count = u32::try_from(whole((rate * seconds).max(1.0)))?;
        held.begin()?;
        let schedule = Schedule { start: clock::monotonic(), rate, count, size };
        let published = publish_beside(sink, &schedule, seqs, |_| beside(others, plan))?;
        let totals = held.collect(&arrival_of(seqs, false))?;
        Ok(Phase { published, totals })
    }
}

/// Reports the messages of both phases.
pub(super) fn fill_messages(report: &mut Report, quiet: &Phase, busy: &Phase) {
    report.set("messages", quiet.published.accepted + busy.published.accepted);
    report.set("publish_refused", quiet.published.refused + busy.published.refused);
    report.set("delivered", quiet.totals.tally.delivered + busy.totals.tally.delivered);
}

/// Reports the lags of both phases and checks the messages; `what` names the busy phase.
pub(super) fn fill_lags(report: &mut Report, quiet: &Phase, what: &str, busy: &Phase) {
    let p99 = |phase: &Phase| phase.totals.lags.quantile_ms(0.99);
    report.figure("quiet_lag_p50_ms", quiet.totals.lags.quantile_ms(0.5));
    report.figure("quiet_lag_p99_ms", p99(quiet));
    report.figure("lag_p50_ms", busy.totals.lags.quantile_ms(0.5));
    report.figure("lag_p99_ms", p99(busy));
    report.figure("lag_max_ms", busy.totals.lags.max_ms());
    report.figure("lag_ratio", p99(busy).zip(p99(quiet)).map(|(busy, quiet)| busy / quiet));
    report.check_messages("quiet phase", &quiet.totals);
    report.check_messages(what, &busy.totals);
}
