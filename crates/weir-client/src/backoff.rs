//! The time to wait before connecting again.

use std::time::Duration;

use rand::RngExt;
use weir_wire::Advice;

use crate::{ClientError, Goodbye};

/// Delays between attempts to connect. They double, have a random part, and are never shorter than
/// the server asked for.
///
/// Many clients that lost the same server must not come back at the same moment. So every delay has
/// a random half. The advice in the server's `Goodbye` comes first:
///
/// | the server says | delay |
/// |---|---|
/// | nothing (network error) | half a step, plus up to another half |
/// | reconnect now | up to one step |
/// | reconnect later, with a delay | that delay, plus up to half a step |
/// | fix the credentials; do not return | none: give up |
///
/// The first step is `min`. Each next one is twice as long, up to `max`. Call
/// [`Backoff::handle_lasted`] before asking for the delay after a connection; otherwise the steps
/// only grow.
///
/// This loop connects again, and continues where the earlier connection ended:
///
/// ```no_run
/// # use weir_client::{Backoff, Client, Event, Options};
/// # async fn run() {
/// let mut options = Options::device("thermometer-7").topic("weather");
/// let mut backoff = Backoff::default();
/// loop {
///     let delay = match Client::connect("127.0.0.1:7070", options.clone()).await {
///         Ok(mut client) => {
///             let since = std::time::Instant::now();
///             let delay = loop {
///                 let next = client.next().await;
///                 backoff.handle_lasted(since.elapsed());
///                 match next {
///                     Ok(Some(Event::Goodbye(goodbye))) => break backoff.after_goodbye(&goodbye),
///                     Ok(Some(Event::Subscribed(told))) if told.recovered => {
///                         println!("{}: all that was missed follows", told.topic);
///                     }
///                     Ok(Some(event)) => println!("{event:?}"),
///                     Ok(None) => break Some(backoff.after_close()),
///                     Err(error) => break backoff.after_error(&error),
///                 }
///             };
///             options.topics = client.positions();
///             delay
///         }
///         Err(error) => backoff.after_error(&error),
///     };
///     let Some(delay) = delay else { break };
///     tokio::time::sleep(delay).await;
/// }
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    step: Duration,
}

impl Backoff {
    /// Steps from `min` to `max`. A `max` below `min` counts as `min`.
    pub fn new(min: Duration, max: Duration) -> Backoff {
        Backoff { min, max: max.max(min), step: min }
    }

    /// The delay before the next attempt after `Goodbye`; `None`: another attempt would not help.
    pub fn after_goodbye(&mut self, goodbye: &Goodbye) -> Option<Duration> {
        match goodbye.advice {
            Advice::ReconnectNow => {
                let step = self.take_step();
                Some(goodbye.retry_after.unwrap_or_default() + random_up_to(step))
            }
            Advice::ReconnectLater => Some(self.jittered(goodbye.retry_after)),
            Advice::FixCredentials | Advice::DoNotReturn => None,
        }
    }

    /// The delay before the next attempt after an error; `None`: another attempt would not help.
    pub fn after_error(&mut self, error: &ClientError) -> Option<Duration> {
        match error {
            ClientError::Refused(goodbye) => self.after_goodbye(goodbye),
            ClientError::Wire(_) | ClientError::Protocol(_) | ClientError::TooLarge { .. } => None,
            ClientError::Tls(error) if error.is_lasting() => None,
            ClientError::Io(_)
            | ClientError::Tls(_)
            | ClientError::ConnectTimedOut(_)
            | ClientError::ClosedBeforeWelcome
            | ClientError::Truncated
            | ClientError::Silent { .. }
            | ClientError::Ended => Some(self.jittered(None)),
        }
    }

    /// The delay before the next attempt after the server closed without `Goodbye`.
    pub fn after_close(&mut self) -> Duration {
        self.jittered(None)
    }

    /// Notes how long a connection has been open. If that is at least the next step, the delays
    /// start over with the shortest one. To do so at every welcome would hammer a server that
    /// welcomes and closes at once.
    pub fn handle_lasted(&mut self, lasted: Duration) {
        if lasted >= self.step {
            self.reset();
        }
    }

    /// Starts over with the shortest step.
    pub fn reset(&mut self) {
        self.step = self.min;
    }

    fn jittered(&mut self, asked: Option<Duration>) -> Duration {
        let half = self.take_step() / 2;
        asked.unwrap_or(half) + random_up_to(half)
    }

    fn take_step(&mut self) -> Duration {
        let step = self.step;
        self.step = (step * 2).min(self.max);
        step
    }
}

impl Default for Backoff {
    /// From half a second to half a minute.
    fn default() -> Backoff {
        Backoff::new(Duration::from_millis(500), Duration::from_secs(30))
    }
}

fn random_up_to(most: Duration) -> Duration {
    rand::rng().random_range(Duration::ZERO..=most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goodbye(code: u32, retry_after: Option<Duration>) -> Goodbye {
        let advice = Advice::from_code(code).unwrap_or(Advice::ReconnectLater);
        Goodbye { code, reason: String::new(), advice, retry_after }
    }

    fn backoff() -> Backoff {
        Backoff::new(Duration::from_secs(1), Duration::from_secs(10))
    }

    #[test]
    fn silence_doubles_the_wait_up_to_the_maximum() {
        let mut backoff = backoff();
        for step in [1, 2, 4, 8, 10, 10] {
            let delay = backoff.after_close();
            let step = Duration::from_secs(step);
            assert!((step / 2..=step).contains(&delay), "{delay:?} for a step of {step:?}");
        }
        backoff.reset();
        assert!(backoff.after_close() <= Duration::from_secs(1));
    }

    #[test]
    fn only_a_connection_that_lasted_starts_the_steps_anew() {
        let mut backoff = backoff();
        for _ in 0..3 {
            backoff.after_close();
        }
        backoff.handle_lasted(Duration::from_millis(7_999));
        assert!(backoff.after_close() >= Duration::from_secs(4));
        backoff.handle_lasted(Duration::from_secs(10));
        assert!(backoff.after_close() <= Duration::from_secs(1));
    }

    #[test]
    fn the_server_s_delay_is_a_lower_bound() {
        let asked = Duration::from_secs(7);
        let delay = backoff().after_goodbye(&goodbye(4100, Some(asked))).unwrap();
        assert!((asked..=asked + Duration::from_millis(500)).contains(&delay), "{delay:?}");
    }

    #[test]
    fn reconnect_now_waits_at_most_a_step() {
        let delay = backoff().after_goodbye(&goodbye(4000, None)).unwrap();
        assert!(delay <= Duration::from_secs(1), "{delay:?}");
    }

    #[test]
    fn wrong_credentials_and_a_final_no_are_not_tried_again() {
        for code in [4200, 4201, 4300, 4303] {
            assert_eq!(backoff().after_goodbye(&goodbye(code, None)), None);
            let refused = ClientError::Refused(goodbye(code, None));
            assert_eq!(backoff().after_error(&refused), None);
        }
        assert!(backoff().after_error(&ClientError::Truncated).is_some());
    }
}
