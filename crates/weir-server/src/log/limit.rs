//! Limits the rate of log lines, so that peers cannot fill a disk.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber, error, warn};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use weir::AUDIT_TARGET;

/// Lets a number of lines per second pass from each place in the code that logs, libraries
/// included.
///
/// Other lines are counted; from time to time one line for each place reports their number. An
/// operator who needs every line of a detailed level turns the limit off for a while.
///
/// Shape: an entry for each place that has logged. The code has a fixed number of such places.
/// Cost: a shared lock and an atomic operation per line; nothing for lines of a level that is off.
#[derive(Clone)]
pub(super) struct LineLimit(Arc<Inner>);

struct Inner {
    /// 0: no limit.
    lines_per_second: AtomicU32,
    started: Instant,
    places: RwLock<HashMap<Identifier, Arc<Place>>>,
    suppressed: AtomicU64,
}

/// A place in the code that logs.
struct Place {
    metadata: &'static Metadata<'static>,
    window: Window,
    /// Suppressed and not yet reported.
    suppressed: AtomicU64,
}

/// The upper half is the second; the lower half counts the lines in it.
#[derive(Default)]
struct Window(AtomicU64);

impl LineLimit {
    pub(super) fn new(lines_per_second: u32) -> LineLimit {
        LineLimit(Arc::new(Inner {
            lines_per_second: lines_per_second.into(),
            started: now(),
            places: RwLock::default(),
            suppressed: AtomicU64::new(0),
        }))
    }

    /// Changes the limit; 0: none.
    pub(super) fn limit(&self, lines_per_second: u32) {
        self.0.lines_per_second.store(lines_per_second, Ordering::Relaxed);
    }

    /// Lines suppressed so far.
    pub(crate) fn suppressed(&self) -> u64 {
        self.0.suppressed.load(Ordering::Relaxed)
    }

    /// Logs for each place the number of lines that were suppressed since the last report.
    pub(crate) fn tell(&self) {
        let places = self.0.places.read().unwrap_or_else(PoisonError::into_inner);
        let places: Vec<Arc<Place>> = places.values().cloned().collect();
        for place in places {
            let lines = place.suppressed.swap(0, Ordering::Relaxed);
            if lines == 0 {
                continue;
            }
            let of = place.metadata.target();
            let at = place.metadata.line();
            // The place's own level is on, because its lines were counted.
            if *place.metadata.level() == Level::ERROR {
                error!(lines, of, at, "similar lines were suppressed");
            } else {
                warn!(lines, of, at, "similar lines were suppressed");
            }
        }
    }

    fn admits(&self, metadata: &'static Metadata<'static>) -> bool {
        // The lines of this module are bounded already: by the number of places and the timer. The
        // audit log bounds what strangers can cause, and must not lack what others have done.
        let lines_per_second = self.0.lines_per_second.load(Ordering::Relaxed);
        let target = metadata.target();
        if lines_per_second == 0 || target == module_path!() || target == AUDIT_TARGET {
            return true;
        }
        let place = self.place(metadata);
        let second = now().duration_since(self.0.started).as_secs();
        if place.window.admits(second, lines_per_second) {
            return true;
        }
        place.suppressed.fetch_add(1, Ordering::Relaxed);
        self.0.suppressed.fetch_add(1, Ordering::Relaxed);
        false
    }

    fn place(&self, metadata: &'static Metadata<'static>) -> Arc<Place> {
        let id = metadata.callsite();
        let known = self.0.places.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
        known.unwrap_or_else(|| {
            let mut places = self.0.places.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(places.entry(id).or_insert_with(|| Arc::new(Place::new(metadata))))
        })
    }
}

impl<S: Subscriber> Layer<S> for LineLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        self.admits(event.metadata())
    }
}

impl Place {
    fn new(metadata: &'static Metadata<'static>) -> Place {
        Place { metadata, window: Window::default(), suppressed: AtomicU64::new(0) }
    }
}

impl Window {
    fn admits(&self, second: u64, lines_max: u32) -> bool {
        let second = second << COUNT_BITS;
        let counted = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |window| {
            let count =
                if window >> COUNT_BITS == second >> COUNT_BITS { window & COUNT_MASK } else { 0 };
            (count < u64::from(lines_max)).then_some(second | (count + 1))
        });
        counted.is_ok()
    }
}

#[expect(clippy::disallowed_methods, reason = "the time of a log line, on any thread")]
fn now() -> Instant {
    Instant::now()
}

const COUNT_BITS: u32 = 32;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Mutex;

    use tracing::{info, subscriber};
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::{fmt, registry};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The lines that are logged under a limit.
    fn logged(limit: &LineLimit, log: impl FnOnce()) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let layer = fmt::layer().with_ansi(false).with_writer(move || writer.clone());
        subscriber::with_default(registry().with(limit.clone()).with(layer), log);
        let lines = lines.0.lock().unwrap();
        String::from_utf8(lines.clone()).unwrap()
    }

    #[test]
    fn a_place_that_floods_silences_itself_alone() {
        let limit = LineLimit::new(10);
        let log = logged(&limit, || {
            (0..50_000).for_each(|_| warn!("flood"));
            info!("other");
            limit.tell();
            limit.tell();
        });
        let floods = log.matches("flood").count();
        // This has taken a second or two.
        assert!((10..10_000).contains(&floods), "{floods} lines");
        assert_eq!(log.matches("other").count(), 1);
        let suppressed = 50_000 - floods;
        assert_eq!(limit.suppressed(), suppressed as u64);
        assert_eq!(log.matches("suppressed lines=").count(), 1, "{log}");
        assert!(log.contains(&format!("lines={suppressed} of=\"{}\"", module_path!())), "{log}");
    }

    #[test]
    fn the_audit_log_has_every_line() {
        let limit = LineLimit::new(10);
        let act = || (0..1_000).for_each(|_| info!(target: "audit", act = "close"));
        assert_eq!(logged(&limit, act).lines().count(), 1_000);
    }

    #[test]
    fn without_a_limit_every_line_is_written() {
        let limit = LineLimit::new(0);
        let log = logged(&limit, || (0..1_000).for_each(|_| warn!("line")));
        assert_eq!((log.lines().count(), limit.suppressed()), (1_000, 0));
    }

    #[test]
    fn each_second_has_its_lines() {
        let window = Window::default();
        let admitted = |second| (0..100).filter(|_| window.admits(second, 7)).count();
        assert_eq!([admitted(0), admitted(0), admitted(1), admitted(5)], [7, 0, 7, 7]);
    }
}
