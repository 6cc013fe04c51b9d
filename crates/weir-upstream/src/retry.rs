//! Whether a request is tried again: within a budget, and only if that can do no harm.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{Response, StatusCode};
use tower::retry::budget::{Budget, TpsBudget};

use crate::error::SendError;
use crate::incoming::Incoming;
use crate::settings::RetrySettings;

/// How many tries may follow the first ones: a share of the requests, and a few a second besides. So
/// tries again cannot multiply the load of a service that fails under load.
///
/// Source: Finagle's retry budget, in tower.
pub(crate) struct RetryBudget {
    budget: TpsBudget,
    permitted: AtomicU64,
    refused: AtomicU64,
}

/// What earlier tries of a request have left, if the last one is worse.
#[derive(Default)]
pub(crate) struct Earlier {
    /// Most requests have none, and should not be larger for it.
    answer: Option<Box<Response<Incoming>>>,
    error: Option<SendError>,
}

impl RetryBudget {
    pub(crate) fn new(settings: &RetrySettings) -> RetryBudget {
        let share = f32::from(u8::try_from(settings.percent_max).unwrap_or(100)) / 100.0;
        RetryBudget {
            budget: TpsBudget::new(BUDGET_TIME, settings.per_second, share),
            permitted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// A request begins.
    pub(crate) fn deposit(&self) {
        self.budget.deposit();
    }

    /// Whether a further try is permitted now. It then has to follow.
    pub(crate) fn withdraw(&self) -> bool {
        let is_permitted = self.budget.withdraw();
        let count = if is_permitted { &self.permitted } else { &self.refused };
        count.fetch_add(1, Ordering::Relaxed);
        is_permitted
    }

    /// The tries that were permitted, and those that were refused.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.permitted.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed))
    }
}

impl Earlier {
    /// This answer says that the endpoint does not work. It is better than none.
    pub(crate) fn keep_answer(&mut self, answer: Response<Incoming>) {
        self.answer = Some(Box::new(answer));
    }

    pub(crate) fn keep_error(&mut self, error: SendError) {
        if error.may_have_been_sent() {
            self.error = Some(error);
        }
    }

    /// The result, after the last try has failed. An error tells of all tries whether a backend may
    /// have seen the request.
    pub(crate) fn or(self, last: SendError) -> Result<Response<Incoming>, SendError> {
        match (self.answer, self.error) {
            (Some(answer), _) => Ok(*answer),
            (None, Some(earlier)) if !last.may_have_been_sent() => Err(earlier),
            (None, _) => Err(last),
        }
    }
}

/// Whether an answer says that the endpoint does not work. Another one may then do better.
pub(crate) fn is_failure(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
    )
}

/// The time over which the budget counts. Finagle's value.
const BUDGET_TIME: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(percent_max: u32, per_second: u32) -> RetryBudget {
        RetryBudget::new(&RetrySettings { tries_max: 3, percent_max, per_second })
    }

    fn drain(budget: &RetryBudget) -> usize {
        (0..10_000).take_while(|_| budget.withdraw()).count()
    }

    #[tokio::test(start_paused = true)]
    async fn a_fifth_of_the_requests_is_tried_again() {
        let budget = budget(20, 0);
        assert_eq!(drain(&budget), 0);
        (0..1_000).for_each(|_| budget.deposit());
        assert_eq!(drain(&budget), 200);
        assert_eq!(budget.counts(), (200, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_tries_a_second_are_permitted_besides() {
        let budget = budget(20, 10);
        let began = drain(&budget);
        assert!((90..=110).contains(&began), "{began}");
        tokio::time::advance(Duration::from_secs(11)).await;
        let later = drain(&budget);
        assert!((90..=110).contains(&later), "{later}");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_of_long_ago_permit_nothing() {
        let budget = budget(20, 0);
        (0..1_000).for_each(|_| budget.deposit());
        tokio::time::advance(Duration::from_secs(11)).await;
        assert_eq!(drain(&budget), 0);
    }
}
