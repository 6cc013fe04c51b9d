//! The connection to Redis. All requests share it; it is made when needed, and not tried while
//! Redis is down.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, Pipeline, RedisError};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::CacheOptions;
use crate::breaker::Breaker;
use crate::contract::Error;

/// See the module.
pub(super) struct Link {
    pub(super) breaker: Breaker,
    client: Client,
    config: AsyncConnectionConfig,
    pub(super) timeout: Duration,
    current: Mutex<Current>,
}

/// The connection in use. Each has a number, so that a failure on an old connection leaves the new
/// one alone.
#[derive(Default)]
struct Current {
    number: u64,
    conn: Option<MultiplexedConnection>,
}

/// A question for Redis.
pub(super) trait Question {
    /// Asks through a connection.
    fn ask<T: FromRedisValue>(
        &self,
        conn: &mut MultiplexedConnection,
    ) -> impl Future<Output = Result<T, RedisError>> + Send;
}

impl Question for Cmd {
    async fn ask<T: FromRedisValue>(
        &self,
        conn: &mut MultiplexedConnection,
    ) -> Result<T, RedisError> {
        self.query_async(conn).await
    }
}

impl Question for Pipeline {
    async fn ask<T: FromRedisValue>(
        &self,
        conn: &mut MultiplexedConnection,
    ) -> Result<T, RedisError> {
        self.query_async(conn).await
    }
}

impl Link {
    pub(super) fn new(options: &CacheOptions) -> Result<Link, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(options.timeout))
            .set_response_timeout(Some(options.timeout))
            .set_concurrency_limit(options.in_flight_max.max(1));
        Ok(Link {
            breaker: Breaker::new("redis", &options.breaker),
            client: Client::open(options.redis.as_str())?,
            config,
            timeout: options.timeout,
            current: Mutex::default(),
        })
    }

    /// The time by which a request that begins now must have ended, however many trips it takes.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// Asks a question and returns the connection that carried it.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        until: Instant,
        question: &(impl Question + Sync),
    ) -> Result<(T, MultiplexedConnection), Error> {
        self.breaker
            .run(async {
                let (number, mut conn) = self.bounded(until, self.connect()).await?;
                // This time includes the wait for a free place among the commands on their way.
                let answer = self.bounded(until, ask(&mut conn, question)).await;
                if answer.is_err() {
                    self.forget(number);
                }
                answer.map(|answer| (answer, conn))
            })
            .await
    }

    /// Asks through an existing connection.
    pub(super) async fn run_on<T: FromRedisValue>(
        &self,
        until: Instant,
        mut conn: MultiplexedConnection,
        question: &(impl Question + Sync),
    ) -> Result<T, Error> {
        self.breaker.run(self.bounded(until, ask(&mut conn, question))).await
    }

    async fn bounded<T>(
        &self,
        until: Instant,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        match tokio::time::timeout_at(until, work).await {
            Ok(result) => result,
            Err(_) => Err(Error::TimedOut(super::millis(self.timeout))),
        }
    }

    async fn connect(&self) -> Result<(u64, MultiplexedConnection), Error> {
        let mut current = self.current.lock().await;
        if let Some(conn) = &current.conn {
            return Ok((current.number, conn.clone()));
        }
        // Boxed, because the future is large and rare.
        let conn = self.client.get_multiplexed_async_connection_with_config(&self.config);
        let conn = Box::pin(conn).await.map_err(|error| unavailable(&error))?;
        current.number += 1;
        current.conn = Some(conn.clone());
        Ok((current.number, conn))
    }

    /// Does not wait for the lock: a holder that keeps it for long is making a new connection.
    fn forget(&self, number: u64) {
        if let Ok(mut current) = self.current.try_lock()
            && current.number == number
        {
            current.conn = None;
        }
    }
}

async fn ask<T: FromRedisValue>(
    conn: &mut MultiplexedConnection,
    question: &(impl Question + Sync),
) -> Result<T, Error> {
    question.ask(conn).await.map_err(|error| unavailable(&error))
}

fn unavailable(error: &RedisError) -> Error {
    Error::Unavailable(format!("Redis: {error}"))
}
