//! The metrics of questions to hooks.

use std::fmt;

use prometheus_client::registry::Unit;

use super::families::Histogram;
use super::{Families, Gateway};
use crate::observe::counters::hooks::{Hook, QuestionOutcome};

impl Gateway {
    pub(super) fn hooks(&self, to: &mut Families<'_>) -> fmt::Result {
        let counts = &self.handle.counters().hooks;
        let of = |hook: Hook| {
            QuestionOutcome::ALL.map(|outcome| {
                let labels = [("hook", hook.name()), ("outcome", outcome.name())];
                (labels, counts.outcomes(hook, outcome))
            })
        };
        to.counters(
            "weir_hook_questions",
            "Questions to hooks, by how they ended; `full` were not asked.",
            Hook::ALL.into_iter().flat_map(of),
        )?;
        let reused = |hook: Hook| {
            let labels = |how| [("hook", hook.name()), ("how", how)];
            [(labels("cached"), counts.cached(hook)), (labels("joined"), counts.joined(hook))]
        };
        to.counters(
            "weir_hook_questions_saved",
            "Questions that were not asked, because the answer was kept, or the same question was in flight.",
            Hook::ALL.into_iter().flat_map(reused),
        )?;
        to.gauges(
            "weir_hook_questions_in_flight",
            "Questions that wait for their answers.",
            Hook::ALL.map(|hook| ([("hook", hook.name())], counts.in_flight(hook) as u64)),
        )?;
        let times = Hook::ALL.map(|hook| (hook, Histogram::of(counts.times(hook))));
        to.histograms(
            "weir_hook_question",
            "How long questions took until their answer, or until they failed.",
            times.iter().map(|(hook, times)| ([("hook", hook.name())], times)),
        )?;
        to.gauge_in(
            "weir_hook_cache",
            &Unit::Bytes,
            "Bytes of kept answers.",
            counts.cache_bytes() as u64,
        )?;
        to.gauge(
            "weir_hook_frames_waiting",
            "Frames of connections that wait for an answer, or behind a frame that does.",
            counts.waiting_frames() as u64,
        )
    }
}
