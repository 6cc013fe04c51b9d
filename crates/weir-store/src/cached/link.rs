//! The connection to Redis: one for all, made when it is needed, left alone while Redis is down.

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

/// The connection that is used now. Each has a number, so that who failed on an old one leaves the new one alone.
#[derive(Default)]
struct Current {
    number: u64,
    conn: Option<MultiplexedConnection>,
}

/// What Redis can be asked.
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

    /// Until when what begins now has to have ended, however many trips it takes.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// Asks, and gives the connection that it went through.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        until: Instant,
        question: &(impl Question + Sync),
    ) -> Result<(T, MultiplexedConnection), Error> {
        self.breaker
            .run(async {
                let (number, mut conn) = self.bounded(until, self.connect()).await?;
                // Waiting for a free place among those on their way is included here, and nowhere else.
                let answer = self.bounded(until, ask(&mut conn, question)).await;
                if answer.is_err() {
                    self.forget(number);
                }
                answer.map(|answer| (answer, conn))
            })
            .await
    }

    /// Asks through a connection that is there already.
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
        // Boxed, as it is large, and rare.
        let conn = self.client.get_multiplexed_async_connection_with_config(&self.config);
        let conn = Box::pin(conn).await.map_err(|error| unavailable(&error))?;
        current.number += 1;
        current.conn = Some(conn.clone());
        Ok((current.number, conn))
    }

    /// Without waiting: who holds the lock for long is making a new one.
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
