//! Whether an endpoint gets requests: it is set aside when it fails, and probed again.

use std::time::Duration;

use tokio::time::Instant;

use crate::settings::EjectionSettings;
use crate::status::EndpointState;

/// The health of one endpoint.
///
/// ```text
///               fails by a rule                     its time is over, a request comes
///   Available ───────────────────► SetAside(until) ──────────────────────────────────► Probing
///       ▲                              ▲  ▲    the probe is given up: at once due         │ │
///       │                              │  └──────────────────────────────────────────────┘ │
///       │                              └─ the probe fails: for twice the time ─────────────┤
///       └───────────────────────────────────────────────────── the probe succeeds ─────────┘
/// ```
pub(crate) struct Health {
    state: State,
    /// Failures since the last success.
    failures_in_row: u32,
    /// Results since the window began.
    window: Option<Window>,
    /// How often it was set aside without a long healthy time between.
    ejections_in_row: u32,
    /// When it became available again.
    returned: Option<Instant>,
}

#[derive(Clone, Copy)]
enum State {
    Available,
    SetAside(Instant),
    Probing,
}

struct Window {
    began: Instant,
    succeeded: u32,
    failed: u32,
}

/// What a request may do with an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Use it.
    Available,
    /// Use it as a probe.
    Due,
    /// Leave it.
    Aside,
}

impl Health {
    pub(crate) const NEW: Health = Health {
        state: State::Available,
        failures_in_row: 0,
        window: None,
        ejections_in_row: 0,
        returned: None,
    };

    pub(crate) fn standing(&self, now: Instant) -> Standing {
        match self.state {
            State::Available => Standing::Available,
            State::SetAside(until) if until <= now => Standing::Due,
            State::SetAside(_) | State::Probing => Standing::Aside,
        }
    }

    /// When it is due for a probe, if it is set aside.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        match self.state {
            State::SetAside(until) => Some(until),
            State::Available | State::Probing => None,
        }
    }

    /// A request goes to it to see whether it works again.
    pub(crate) fn probe(&mut self) {
        self.state = State::Probing;
    }

    /// The probing request was given up before its result.
    pub(crate) fn probe_ended(&mut self, now: Instant) {
        if let State::Probing = self.state {
            self.state = State::SetAside(now);
        }
    }

    /// Returns true if it becomes available again by it.
    pub(crate) fn succeeded(&mut self, now: Instant) -> bool {
        self.failures_in_row = 0;
        let window = self.window(now);
        window.succeeded = window.succeeded.saturating_add(1);
        let State::Probing = self.state else { return false };
        self.state = State::Available;
        self.returned = Some(now);
        self.window = None;
        true
    }

    /// Returns true if it should be set aside.
    pub(crate) fn failed(&mut self, now: Instant, rules: &EjectionSettings) -> bool {
        self.failures_in_row = self.failures_in_row.saturating_add(1);
        let window = self.window(now);
        window.failed = window.failed.saturating_add(1);
        let (results, failed) = (window.succeeded.saturating_add(window.failed), window.failed);
        let is_bad = results >= WINDOW_RESULTS_LEAST && failed >= results.div_ceil(2);
        match self.state {
            State::Probing => true,
            State::SetAside(_) => false,
            State::Available => {
                rules.failures > 0 && (self.failures_in_row >= rules.failures || is_bad)
            }
        }
    }

    /// Sets it aside: each time in a row for twice as long.
    pub(crate) fn set_aside(&mut self, now: Instant, rules: &EjectionSettings) {
        let long = rules.time_max.max(rules.time);
        if self.returned.is_some_and(|returned| now.saturating_duration_since(returned) > long) {
            self.ejections_in_row = 0;
        }
        let time = rules.time.saturating_mul(1 << self.ejections_in_row.min(20)).min(long);
        self.ejections_in_row = self.ejections_in_row.saturating_add(1);
        self.failures_in_row = 0;
        self.window = None;
        self.state = State::SetAside(now + time);
    }

    pub(crate) fn status(&self, now: Instant) -> EndpointState {
        match self.state {
            State::Available => EndpointState::Available,
            State::SetAside(until) => EndpointState::SetAside(until.saturating_duration_since(now)),
            State::Probing => EndpointState::Probing,
        }
    }

    fn window(&mut self, now: Instant) -> &mut Window {
        let is_over = |window: &Window| now.saturating_duration_since(window.began) > WINDOW;
        if self.window.as_ref().is_some_and(is_over) {
            self.window = None;
        }
        self.window.get_or_insert(Window { began: now, succeeded: 0, failed: 0 })
    }
}

/// Of the results in this time, less than half may be failures.
const WINDOW: Duration = Duration::from_secs(10);

/// With fewer results, their share says little.
const WINDOW_RESULTS_LEAST: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> EjectionSettings {
        EjectionSettings {
            failures: 3,
            time: Duration::from_secs(1),
            time_max: Duration::from_secs(4),
            percent_max: 50,
        }
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_set_it_aside_for_longer_each_time() {
        let (mut health, rules, mut now) = (Health::NEW, rules(), Instant::now());
        assert!(!health.failed(now, &rules));
        assert!(!health.failed(now, &rules));
        health.succeeded(now);
        assert!(!health.failed(now, &rules));
        assert!(!health.failed(now, &rules));
        assert!(health.failed(now, &rules));
        for time in [1, 2, 4, 4] {
            health.set_aside(now, &rules);
            assert_eq!(health.due_at(), Some(now + seconds(time)));
            assert_eq!(health.standing(now), Standing::Aside);
            assert!(!health.failed(now, &rules), "late failures change nothing");
            now += seconds(time);
            assert_eq!(health.standing(now), Standing::Due);
            health.probe();
            assert_eq!(health.standing(now), Standing::Aside, "one probe at a time");
            assert!(health.failed(now, &rules), "a failed probe is enough");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_succeeds_makes_it_available() {
        let (mut health, rules, now) = (Health::NEW, rules(), Instant::now());
        health.set_aside(now, &rules);
        health.probe();
        health.probe_ended(now);
        assert_eq!(health.standing(now), Standing::Due, "given up, so another may probe");
        health.probe();
        assert!(health.succeeded(now));
        assert_eq!(health.standing(now), Standing::Available);
        health.probe_ended(now);
        assert_eq!(health.standing(now), Standing::Available);
        health.set_aside(now, &rules);
        assert_eq!(health.due_at(), Some(now + seconds(2)), "it came back only now");
        health.probe();
        health.succeeded(now);
        health.set_aside(now + seconds(5), &rules);
        assert_eq!(health.due_at(), Some(now + seconds(6)), "it was well for long");
    }

    #[tokio::test(start_paused = true)]
    async fn half_failures_set_it_aside_even_if_never_in_a_row() {
        let (mut health, rules, now) = (Health::NEW, rules(), Instant::now());
        for _ in 0..9 {
            health.succeeded(now);
            assert!(!health.failed(now, &rules));
        }
        health.succeeded(now);
        assert!(health.failed(now, &rules));
        let (mut health, later) = (Health::NEW, now + WINDOW + seconds(1));
        for _ in 0..9 {
            health.succeeded(now);
            assert!(!health.failed(now, &rules));
        }
        health.succeeded(later);
        assert!(!health.failed(later, &rules), "old results do not count");
    }

    #[tokio::test(start_paused = true)]
    async fn zero_failures_turn_it_off() {
        let (mut health, now) = (Health::NEW, Instant::now());
        let rules = EjectionSettings { failures: 0, ..rules() };
        assert!((0..100).all(|_| !health.failed(now, &rules)));
    }
}
