//! A look at Redis from outside, for operators: its clock, and whether it may remove keys.

use redis::Value;

use super::dial::Dialer;
use super::discovery::field;
use super::options::{Address, Endpoint, RedisOptions};
use super::values::{array, number, text};
use crate::contract::Error;

/// What one Redis of the options tells about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisAnswer {
    /// Where it is.
    pub address: String,
    /// What it tells, or why nothing was learnt.
    pub told: Result<RedisInfo, String>,
}

/// The answers of one Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisInfo {
    /// By how many milliseconds its clock is ahead of ours.
    pub ahead_ms: i64,
    /// Its `maxmemory-policy`; `None` if the user may not ask for it.
    pub eviction_policy: Option<String>,
}

/// Asks each Redis of the options. `clock` tells our wall time in milliseconds since 1970.
///
/// # Errors
/// [`Error::Refused`]: an option cannot be.
pub async fn ask_redis(
    options: &RedisOptions,
    clock: fn() -> u64,
) -> Result<Vec<RedisAnswer>, Error> {
    let endpoint = Endpoint::new(options)?;
    let dialer = Dialer::new(&endpoint, options)?;
    let mut looks = Vec::new();
    for address in &endpoint.seeds {
        // Boxed, as it is large, and rare.
        let told = Box::pin(ask(&dialer, address, clock)).await;
        looks.push(RedisAnswer { address: address.to_string(), told });
    }
    Ok(looks)
}

async fn ask(dialer: &Dialer, address: &Address, clock: fn() -> u64) -> Result<RedisInfo, String> {
    let mut requests = dialer.dial_for_requests(address).await?;
    let conn = &mut requests.conn;
    let asked = clock();
    let time: Value =
        redis::cmd("TIME").query_async(conn).await.map_err(|error| error.to_string())?;
    // Redis looked at its clock somewhere between the two.
    let ours = i64::try_from(asked.midpoint(clock())).unwrap_or(i64::MAX);
    let ahead_ms = i64::try_from(millis(&time)?).unwrap_or(i64::MAX).saturating_sub(ours);
    let info: Result<Value, _> = redis::cmd("INFO").arg("memory").query_async(conn).await;
    let info = info.ok();
    let policy = info.as_ref().and_then(|info| field(text(info).ok()?, "maxmemory_policy:"));
    Ok(RedisInfo { ahead_ms, eviction_policy: policy.map(str::to_owned) })
}

/// Reads the answer to `TIME`: seconds since 1970, and microseconds.
fn millis(time: &Value) -> Result<u64, String> {
    let [seconds, micros] = array(time)? else {
        return Err(format!("two numbers were expected, not {time:?}"));
    };
    Ok(number(seconds)? * 1000 + number(micros)? / 1000)
}
