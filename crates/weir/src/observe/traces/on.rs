//! Spans, and the queue in which they wait for the exporter.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};

use super::{Place, SpanKind};
use crate::base::clock::unix_time;
use crate::base::config::TelemetryConfig;

/// Makes spans.
///
/// Limits: `telemetry.queue_max` spans wait; a further one is dropped and counted.
/// Cost: a relaxed read for what is not recorded.
pub(crate) struct Tracer {
    is_on: AtomicBool,
    follows_parents: AtomicBool,
    one_in: AtomicU32,
    queue: mpsc::Sender<Finished>,
    /// For the exporter.
    pub(super) waiting: Mutex<mpsc::Receiver<Finished>>,
    pub(super) counts: Arc<Counts>,
}

weir_wire::named_enum! {
    /// What became of a span.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum SpanOutcome {
        /// The collector has it.
        Exported = "exported",
        /// The queue was full.
        Dropped = "dropped",
        /// The collector did not take it in time.
        Failed = "failed",
        /// The collector has refused it.
        Refused = "refused",
    }
}

#[derive(Debug, Default)]
pub(super) struct Counts([AtomicU64; SpanOutcome::ALL.len()]);

/// A piece of work that is being done. It ends when it is dropped.
pub(crate) struct Span {
    /// Taken at the end.
    pub(super) begun: Option<Box<Finished>>,
    pub(super) queue: mpsc::Sender<Finished>,
    pub(super) counts: Arc<Counts>,
}

/// A piece of work that was done.
pub(super) struct Finished {
    pub(super) name: &'static str,
    pub(super) kind: SpanKind,
    pub(super) trace: [u8; 16],
    pub(super) span: [u8; 8],
    /// `None`: the trace begins here.
    pub(super) parent: Option<[u8; 8]>,
    /// Since 1970.
    pub(super) began: Duration,
    pub(super) ended: Duration,
    pub(super) attributes: Vec<(&'static str, String)>,
    /// The kind of the failure.
    pub(super) error: Option<String>,
}

impl Tracer {
    pub(crate) fn new(config: &TelemetryConfig) -> Tracer {
        let (queue, waiting) = mpsc::channel(config.queue_max);
        let tracer = Tracer {
            is_on: AtomicBool::new(false),
            follows_parents: AtomicBool::new(false),
            one_in: AtomicU32::new(0),
            queue,
            waiting: Mutex::new(waiting),
            counts: Arc::default(),
        };
        tracer.reload(config);
        tracer
    }

    /// Uses other values from now on.
    pub(crate) fn reload(&self, config: &TelemetryConfig) {
        self.follows_parents.store(config.follow_parents, Ordering::Relaxed);
        self.one_in.store(config.sample_one_in, Ordering::Relaxed);
        self.is_on.store(!config.upstream.is_empty(), Ordering::Relaxed);
    }

    /// Whether any trace is recorded.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Begins a span, if its trace is recorded: as the sender of the request says, or else at
    /// random.
    pub(crate) fn begin(&self, name: &'static str, place: Option<Place>) -> Option<Span> {
        if !self.is_on() {
            return None;
        }
        let follows = self.follows_parents.load(Ordering::Relaxed);
        let is_recorded = match place {
            Some(place) if follows => place.is_sampled,
            Some(_) | None => {
                let one_in = self.one_in.load(Ordering::Relaxed);
                one_in > 0 && rand::random_range(0..one_in) == 0
            }
        };
        is_recorded.then(|| self.make(SpanKind::Server, name, place))
    }

    /// The same for a span of this kind, whose trace begins here.
    pub(crate) fn begin_kind(&self, kind: SpanKind, name: &'static str) -> Option<Span> {
        let mut span = self.begin(name, None)?;
        if let Some(begun) = &mut span.begun {
            begun.kind = kind;
        }
        Some(span)
    }

    fn make(&self, kind: SpanKind, name: &'static str, place: Option<Place>) -> Span {
        let began = unix_time();
        let own = place.and_then(|place| place.span);
        let begun = Finished {
            name,
            kind,
            trace: place.map_or_else(new_trace, |place| place.trace),
            span: own.unwrap_or_else(new_span),
            parent: place.map(|place| place.parent),
            began,
            ended: began,
            attributes: Vec::new(),
            error: None,
        };
        let (queue, counts) = (self.queue.clone(), Arc::clone(&self.counts));
        Span { begun: Some(Box::new(begun)), queue, counts }
    }

    /// The spans with this outcome.
    pub(crate) fn spans(&self, outcome: SpanOutcome) -> u64 {
        self.counts.0[outcome as usize].load(Ordering::Relaxed)
    }

    /// Spans that wait for the exporter.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
    }
}

impl Counts {
    pub(super) fn count(&self, outcome: SpanOutcome, spans: usize) {
        self.0[outcome as usize].fetch_add(spans as u64, Ordering::Relaxed);
    }
}

impl Span {
    /// Says more about the work. Long values are cut.
    pub(crate) fn set(&mut self, key: &'static str, value: &str) {
        if let Some(begun) = &mut self.begun {
            begun.attributes.push((key, clipped(value)));
        }
    }

    /// The work has failed. `error`: the kind of failure.
    pub(crate) fn fail(&mut self, error: &str) {
        if let Some(begun) = &mut self.begun {
            begun.error = Some(clipped(error));
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let Some(mut finished) = self.begun.take() else { return };
        finished.ended = unix_time().max(finished.began);
        if self.queue.try_send(*finished).is_err() {
            self.counts.count(SpanOutcome::Dropped, 1);
        }
    }
}

pub(super) fn new_span() -> [u8; 8] {
    rand::random::<u64>().max(1).to_be_bytes()
}

fn new_trace() -> [u8; 16] {
    rand::random::<u128>().max(1).to_be_bytes()
}

fn clipped(value: &str) -> String {
    let mut end = value.len().min(VALUE_BYTES_MAX);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    value[..end].to_owned()
}

/// A longer text costs memory in the queue.
const VALUE_BYTES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn tracer(change: impl FnOnce(&mut TelemetryConfig)) -> Tracer {
        let mut config = TelemetryConfig {
            upstream: "collector".to_owned(),
            sample_one_in: 1,
            queue_max: 64,
            ..TelemetryConfig::default()
        };
        change(&mut config);
        Tracer::new(&config)
    }

    fn place(is_sampled: bool) -> Place {
        Place { trace: [7; 16], parent: [8; 8], span: Some([9; 8]), is_sampled }
    }

    #[test]
    fn the_sender_or_chance_decides() {
        let check = |one_in, follow_parents, place: Option<Place>, expected: bool| {
            let tracer = tracer(|config| {
                (config.sample_one_in, config.follow_parents) = (one_in, follow_parents);
            });
            assert_eq!(tracer.begin("publish", place).is_some(), expected, "{one_in} {place:?}");
        };
        check(1, true, None, true);
        check(0, true, None, false);
        check(0, true, Some(place(true)), true);
        check(1, true, Some(place(false)), false);
        check(0, false, Some(place(true)), false);
        check(1, false, Some(place(false)), true);
        assert!(tracer(|config| config.upstream.clear()).begin("publish", None).is_none());
        let tracer = tracer(|config| config.sample_one_in = 10);
        let recorded = (0..10_000).filter(|_| tracer.begin("publish", None).is_some()).count();
        assert!((500..2_000).contains(&recorded), "{recorded}");
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let tracer = tracer(|_| {});
        for _ in 0..100 {
            let mut span = tracer.begin("publish", Some(place(true))).unwrap();
            span.set("topic", &"é".repeat(1_000));
            span.fail("busy");
        }
        assert_eq!((tracer.waiting(), tracer.spans(SpanOutcome::Dropped)), (64, 36));
        let mut waiting = tracer.waiting.try_lock().unwrap();
        let first = waiting.try_recv().unwrap();
        assert_eq!((first.trace, first.parent, first.span), ([7; 16], Some([8; 8]), [9; 8]));
        assert_eq!(first.attributes, [("topic", "é".repeat(128))]);
        assert_eq!(first.error.as_deref(), Some("busy"));
        assert!(first.ended >= first.began);
    }
}
