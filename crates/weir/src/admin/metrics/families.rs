//! Metric families from plain numbers: a descriptor, then a line for each set of labels.

use std::fmt;
use std::time::Duration;

use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use weir_broker::DurationCounts;
use weir_engine::Durations;

use crate::observe::counters::Times;

/// Writes one family after the other.
pub(super) struct Families<'e> {
    encoder: DescriptorEncoder<'e>,
}

impl<'e> Families<'e> {
    pub(super) fn new(encoder: DescriptorEncoder<'e>) -> Self {
        Self { encoder }
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.family(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    /// A duration; a moment is one since 1970.
    pub(super) fn duration(&mut self, name: &str, help: &str, duration: Duration) -> fmt::Result {
        let mut family = self.family(name, help, Some(&Unit::Seconds), MetricType::Gauge)?;
        family.encode_gauge(&duration.as_secs_f64())
    }

    pub(super) fn gauge_in(
        &mut self,
        name: &str,
        unit: &Unit,
        help: &str,
        value: u64,
    ) -> fmt::Result {
        self.family(name, help, Some(unit), MetricType::Gauge)?.encode_gauge(&value)
    }

    pub(super) fn gauges<S: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (S, V)>,
    ) -> fmt::Result {
        each(self.family(name, help, None, MetricType::Gauge)?, values)
    }

    pub(super) fn gauges_in<S: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        unit: &Unit,
        help: &str,
        values: impl IntoIterator<Item = (S, V)>,
    ) -> fmt::Result {
        each(self.family(name, help, Some(unit), MetricType::Gauge)?, values)
    }

    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        count(&mut self.family(name, help, None, MetricType::Counter)?, value)
    }

    pub(super) fn counter_in(
        &mut self,
        name: &str,
        unit: &Unit,
        help: &str,
        value: u64,
    ) -> fmt::Result {
        count(&mut self.family(name, help, Some(unit), MetricType::Counter)?, value)
    }

    /// A counter of seconds; the encoder adds the unit to its name.
    pub(super) fn seconds(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let unit = Some(&Unit::Seconds);
        let mut family = self.family(name, help, unit, MetricType::Counter)?;
        family.encode_counter::<NoLabelSet, f64, f64>(&value, None)
    }

    pub(super) fn counters<S: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (S, u64)>,
    ) -> fmt::Result {
        let mut family = self.family(name, help, None, MetricType::Counter)?;
        values
            .into_iter()
            .try_for_each(|(labels, value)| count(&mut family.encode_family(&labels)?, value))
    }

    pub(super) fn histogram(&mut self, name: &str, help: &str, value: &Histogram) -> fmt::Result {
        let unit = Some(&Unit::Seconds);
        value.encode(&mut self.family(name, help, unit, MetricType::Histogram)?)
    }

    pub(super) fn histograms<'a, S: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (S, &'a Histogram)>,
    ) -> fmt::Result {
        let mut family = self.family(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        values
            .into_iter()
            .try_for_each(|(labels, value)| value.encode(&mut family.encode_family(&labels)?))
    }

    pub(super) fn info(
        &mut self,
        name: &str,
        help: &str,
        labels: &impl EncodeLabelSet,
    ) -> fmt::Result {
        self.family(name, help, None, MetricType::Info)?.encode_info(labels)
    }

    fn family<'s>(
        &'s mut self,
        name: &'s str,
        help: &str,
        unit: Option<&'s Unit>,
        kind: MetricType,
    ) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.encoder.encode_descriptor(name, help, unit, kind)
    }
}

/// A gauge for each set of labels.
fn each<S: EncodeLabelSet, V: EncodeGaugeValue>(
    mut family: MetricEncoder<'_>,
    values: impl IntoIterator<Item = (S, V)>,
) -> fmt::Result {
    values
        .into_iter()
        .try_for_each(|(labels, value)| family.encode_family(&labels)?.encode_gauge(&value))
}

/// The encoder adds `_total` to the name.
fn count(encoder: &mut MetricEncoder<'_>, value: u64) -> fmt::Result {
    encoder.encode_counter::<NoLabelSet, u64, f64>(&value, None)
}

/// The durations of all shards together, or of the front.
#[derive(Debug)]
pub(in crate::admin) struct Histogram {
    /// By bucket, not cumulated.
    pub(in crate::admin) counts: [u64; Durations::BUCKETS],
    /// In seconds.
    pub(in crate::admin) sum: f64,
    /// In seconds.
    pub(in crate::admin) max: f64,
}

impl Histogram {
    pub(super) fn sum<'a>(durations: impl Iterator<Item = &'a Durations>) -> Self {
        let mut all = Self { counts: [0; Durations::BUCKETS], sum: 0.0, max: 0.0 };
        for one in durations {
            for (sum, count) in all.counts.iter_mut().zip(one.counts()) {
                *sum += count;
            }
            all.sum += one.sum().as_secs_f64();
            all.max = all.max.max(one.max().as_secs_f64());
        }
        all
    }

    /// A histogram that many threads count in. It has no longest value.
    pub(in crate::admin) fn of(times: &Times) -> Self {
        Self { counts: times.counts(), sum: times.sum().as_secs_f64(), max: 0.0 }
    }

    /// What the broker's crate has counted, in the same buckets.
    pub(super) fn of_broker(durations: &DurationCounts) -> Self {
        Self { counts: durations.buckets, sum: durations.sum.as_secs_f64(), max: 0.0 }
    }

    /// Not cumulated: the encoder does that.
    fn encode(&self, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        let buckets: [(f64, u64); Durations::BUCKETS] = std::array::from_fn(|index| {
            let bound = Durations::bound(index).map_or(f64::INFINITY, |bound| bound.as_secs_f64());
            (bound, self.counts[index])
        });
        let count = self.counts.iter().sum();
        encoder.encode_histogram::<NoLabelSet>(self.sum, count, &buckets, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_broker_counts_in_the_same_buckets() {
        let bounds = |bound: fn(usize) -> Option<std::time::Duration>| {
            (0..Durations::BUCKETS).map(bound).collect::<Vec<_>>()
        };
        assert_eq!(bounds(DurationCounts::bound), bounds(Durations::bound));
    }
}
