//! How many connections there are, and when a request is tried again.

use std::time::Duration;

use super::SettingsError;

/// The connections of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSettings {
    /// Connections of one endpoint, with those that were upgraded.
    pub connections_max: usize,
    /// Connections of one endpoint that are kept open without requests.
    pub connections_min: usize,
    /// Requests at a time on one connection for HTTP/2. The peer may permit fewer.
    pub streams_max: usize,
    /// Requests that wait for a place on a connection. Further ones are refused.
    pub waiting_max: usize,
    /// After so long without a request a connection is closed.
    pub idle_timeout: Duration,
    /// After so long a connection gets no further request. Up to a quarter less, by chance.
    pub age_max: Duration,
}

/// When a request is tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetrySettings {
    /// Tries of one request, with the first one.
    pub tries_max: usize,
    /// Further tries, in percent of requests. At most 100.
    pub percent_max: u32,
    /// Further tries a second that are permitted besides.
    pub per_second: u32,
}

/// When an endpoint is set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EjectionSettings {
    /// After so many failures in a row it is set aside. 0: never.
    pub failures: u32,
    /// For how long, the first time. Each time in a row doubles it.
    pub time: Duration,
    /// The longest time.
    pub time_max: Duration,
    /// How many endpoints may be set aside together, in percent.
    pub percent_max: usize,
}

impl Default for PoolSettings {
    fn default() -> PoolSettings {
        PoolSettings {
            connections_max: 256,
            connections_min: 0,
            streams_max: 100,
            waiting_max: 4096,
            idle_timeout: Duration::from_secs(60),
            age_max: Duration::from_secs(3_600),
        }
    }
}

impl Default for RetrySettings {
    fn default() -> RetrySettings {
        RetrySettings { tries_max: 3, percent_max: 20, per_second: 10 }
    }
}

impl Default for EjectionSettings {
    fn default() -> EjectionSettings {
        EjectionSettings {
            failures: 5,
            time: Duration::from_secs(1),
            time_max: Duration::from_secs(60),
            percent_max: 50,
        }
    }
}

impl PoolSettings {
    /// Errors: the first value that is not allowed.
    pub(super) fn check(&self) -> Result<(), SettingsError> {
        at_least_one("connections_max", self.connections_max)?;
        at_least_one("streams_max", self.streams_max)?;
        if self.connections_min <= self.connections_max {
            return Ok(());
        }
        Err(SettingsError {
            key: "connections_min",
            value: self.connections_min.to_string(),
            allowed: format!("at most connections_max ({})", self.connections_max),
        })
    }
}

impl RetrySettings {
    /// Errors: the first value that is not allowed.
    pub(super) fn check(&self) -> Result<(), SettingsError> {
        at_least_one("tries_max", self.tries_max)?;
        at_most("retry_percent_max", self.percent_max, 100)?;
        at_most("retries_per_second", self.per_second, RETRIES_PER_SECOND_MAX)
    }
}

fn at_least_one(key: &'static str, value: usize) -> Result<(), SettingsError> {
    let wrong = SettingsError { key, value: value.to_string(), allowed: "1 or more".to_owned() };
    if value == 0 { Err(wrong) } else { Ok(()) }
}

fn at_most(key: &'static str, value: u32, max: u32) -> Result<(), SettingsError> {
    let wrong = SettingsError { key, value: value.to_string(), allowed: format!("0 to {max}") };
    if value > max { Err(wrong) } else { Ok(()) }
}

/// So that the budget can be counted.
const RETRIES_PER_SECOND_MAX: u32 = 1_000_000;
