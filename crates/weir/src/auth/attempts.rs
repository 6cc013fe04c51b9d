//! Limits on invalid tokens whose check is expensive.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weir_engine::handover::NotUnderstood;
use weir_engine::{Footprint, Nanos};
use weir_wire::handover::v1;

use crate::base::config::AuthConfig;
use crate::limits::sources::{Source, Sources};

/// The origin of a token.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TokenOrigin {
    /// A connection. All connections without a known address count as one source.
    Connection(Option<IpAddr>),
    /// A request. Requests without a known address count like connections.
    Request(Option<IpAddr>),
    /// A datagram, whose address may be forged.
    Datagram(IpAddr),
    /// A settled connection: `Refresh` has a rate of its own.
    Settled,
}

impl TokenOrigin {
    /// The address of a connection. A datagram's address proves nothing.
    pub(super) fn proven(self) -> Option<IpAddr> {
        match self {
            TokenOrigin::Connection(source) | TokenOrigin::Request(source) => source,
            TokenOrigin::Datagram(_) | TokenOrigin::Settled => None,
        }
    }
}

/// Attempts with tokens that need a store or a signature check. Only failed ones count in the end.
///
/// Each attempt is taken from its buckets first, and given back if the token is valid. So attempts
/// in progress count too.
///
/// Limits: for connections by source, for all such tokens. For datagrams only signed tokens count,
/// by source and all together: a store is asked in batches and a look-up is cheap, but a signature
/// takes up to 100 us. Datagrams have their own tables, because anybody can forge a datagram's
/// source.
/// Cost: a look into a table of sources, under one of sixteen locks.
pub(super) struct Attempts {
    /// Whether failures by source are limited.
    by_source: AtomicBool,
    of_connections: Sources,
    of_datagrams: Sources,
    all_datagrams: Option<Sources>,
}

/// An attempt in progress.
#[must_use]
pub(super) struct Attempt<'a>([Option<(&'a Sources, Source)>; 2]);

impl Attempts {
    pub(super) fn new(config: &AuthConfig) -> Attempts {
        let (per_second, burst) =
            (config.failures_per_source_per_second, config.failures_per_source_burst);
        let all = config.jwt.datagram_failures_per_second;
        Attempts {
            by_source: AtomicBool::new(per_second > 0),
            of_connections: Sources::of_attempts(per_second, burst),
            of_datagrams: Sources::of_attempts(per_second, burst),
            all_datagrams: (all > 0).then(|| Sources::of_attempts(all, all)),
        }
    }

    /// Changes the limits by source.
    pub(super) fn limit(&self, config: &AuthConfig) {
        let (per_second, burst) =
            (config.failures_per_source_per_second, config.failures_per_source_burst);
        for table in [&self.of_connections, &self.of_datagrams] {
            table.limit_attempts(per_second, burst);
        }
        self.by_source.store(per_second > 0, Ordering::Relaxed);
    }

    /// The sources of failed attempts: of connections, of datagrams, and of all datagrams together.
    pub(super) fn export(&self) -> [Option<v1::Sources>; 3] {
        let all_datagrams = self.all_datagrams.as_ref();
        [Some(&self.of_connections), Some(&self.of_datagrams), all_datagrams]
            .map(|table| table.map(Sources::export))
    }

    /// Goes on with the failures of another process. There were none here so far.
    pub(super) fn import(
        &self,
        [of_connections, of_datagrams, all_datagrams]: [Option<v1::Sources>; 3],
    ) -> Result<(), NotUnderstood> {
        let tables = [
            (Some(&self.of_connections), of_connections),
            (Some(&self.of_datagrams), of_datagrams),
            (self.all_datagrams.as_ref(), all_datagrams),
        ];
        // Without a table in either process, there is no limit there.
        let mut pairs = tables.into_iter().filter_map(|(table, sources)| table.zip(sources));
        pairs.try_for_each(|(table, sources)| table.import(sources))
    }

    /// The sources of failed attempts.
    pub(super) fn footprint(&self) -> Footprint {
        let mut sum = self.of_connections.footprint();
        sum += self.of_datagrams.footprint();
        self.all_datagrams.iter().for_each(|table| sum += table.footprint());
        sum
    }

    /// Begins an attempt, or returns the time to wait.
    pub(super) fn begin(
        &self,
        origin: TokenOrigin,
        is_signed: bool,
    ) -> Result<Attempt<'_>, Duration> {
        let by_source = self.by_source.load(Ordering::Relaxed);
        let limited = |table| Some(table).filter(|_| by_source);
        let places = match origin {
            TokenOrigin::Connection(addr) | TokenOrigin::Request(addr) => {
                [(limited(&self.of_connections), addr.unwrap_or(UNKNOWN)), (None, UNKNOWN)]
            }
            TokenOrigin::Datagram(addr) if is_signed => {
                [(limited(&self.of_datagrams), addr), (self.all_datagrams.as_ref(), UNKNOWN)]
            }
            TokenOrigin::Datagram(_) | TokenOrigin::Settled => [(None, UNKNOWN); 2],
        };
        let mut attempt = Attempt([None; 2]);
        for (taken, (table, addr)) in attempt.0.iter_mut().zip(places) {
            let Some(table) = table else { continue };
            let source = Source::of(addr);
            if let Err(wait) = table.take(source, now()) {
                attempt.give_back();
                return Err(wait);
            }
            *taken = Some((table, source));
        }
        Ok(attempt)
    }
}

impl Attempt<'_> {
    /// The attempt did not fail.
    pub(super) fn give_back(self) {
        for (table, source) in self.0.into_iter().flatten() {
            table.give_back(source, now());
        }
    }
}

fn now() -> Duration {
    Duration::from_nanos(Nanos::now().0)
}

/// Stands for all sources without an address, or for all sources together.
const UNKNOWN: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::config::JwtConfig;

    fn attempts(burst: u32, all_datagrams: u32) -> Attempts {
        Attempts::new(&AuthConfig {
            failures_per_source_per_second: 1,
            failures_per_source_burst: burst,
            jwt: JwtConfig { datagram_failures_per_second: all_datagrams, ..JwtConfig::default() },
            ..AuthConfig::default()
        })
    }

    fn addr(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[test]
    fn failures_of_a_source_have_a_burst_and_successes_count_for_nothing() {
        let attempts = attempts(3, 1_000);
        let origin = TokenOrigin::Connection(Some(addr(1)));
        for _ in 0..100 {
            attempts.begin(origin, true).expect("none has failed").give_back();
        }
        let in_progress: Vec<_> =
            (0..3).map(|_| attempts.begin(origin, false).expect("the burst")).collect();
        assert!(attempts.begin(origin, true).is_err());
        assert!(attempts.begin(TokenOrigin::Connection(Some(addr(2))), true).is_ok());
        // Datagrams with its forged address are counted separately.
        assert!(attempts.begin(TokenOrigin::Datagram(addr(1)), true).is_ok());
        assert!(attempts.begin(TokenOrigin::Settled, true).is_ok());
        in_progress.into_iter().for_each(Attempt::give_back);
        assert!(attempts.begin(origin, true).is_ok());
    }

    #[test]
    fn datagrams_of_many_addresses_have_one_rate_together() {
        let attempts = attempts(3, 5);
        let fails = |last| attempts.begin(TokenOrigin::Datagram(addr(last)), true).is_err();
        let failed = (0..100).filter(|last| fails(*last)).count();
        // A slow machine forgives some failures meanwhile.
        assert!((50..=95).contains(&failed), "{failed}");
        // A refusal by the limit of all uses up nothing of the source's own. Tokens for the store
        // do not count.
        assert!((0..10).all(|_| attempts.begin(TokenOrigin::Datagram(addr(7)), false).is_ok()));
    }

    #[test]
    fn without_limits_nobody_waits() {
        let attempts = Attempts::new(&AuthConfig {
            failures_per_source_per_second: 0,
            jwt: JwtConfig { datagram_failures_per_second: 0, ..JwtConfig::default() },
            ..AuthConfig::default()
        });
        for origin in [TokenOrigin::Connection(None), TokenOrigin::Datagram(addr(1))] {
            assert!((0..10_000).all(|_| attempts.begin(origin, true).is_ok()));
        }
    }
}
