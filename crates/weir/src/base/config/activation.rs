//! Section `[activation]`.

use std::time::Duration;

use serde::Deserialize;

use super::duration;

/// Section `[activation]`: how devices get their tokens.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ActivationConfig {
    /// Whether devices may activate here. Tokens are good without, too.
    pub enabled: bool,
    /// How long a token is valid.
    #[serde(with = "duration")]
    pub token_ttl: Duration,
    /// How long a token is still valid once there is a newer one.
    #[serde(with = "duration")]
    pub grace: Duration,
    /// Where devices are told to connect.
    pub gateways: Vec<String>,
    /// Attempts that may fail from one address (of IPv6: from one /64) in a minute; 0: as many as do.
    pub failures_per_source_per_minute: u32,
    /// Attempts that may fail from there at once after a silence.
    pub failures_per_source_burst: u32,
    /// For measurements only: what an activation goes through; empty: everything, as it should.
    pub bench_stages: Vec<BenchStage>,
}

/// A stage of an activation that measurements can leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BenchStage {
    /// None of those below: the request is read, and a token made.
    Nothing,
    /// The access log, if it is configured.
    Log,
    /// The cache, if it is configured.
    Redis,
    /// The store.
    Store,
}

impl BenchStage {
    /// Every stage.
    pub const ALL: [BenchStage; 4] =
        [BenchStage::Nothing, BenchStage::Log, BenchStage::Redis, BenchStage::Store];

    /// The word in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            BenchStage::Nothing => "nothing",
            BenchStage::Log => "log",
            BenchStage::Redis => "redis",
            BenchStage::Store => "store",
        }
    }
}

impl ActivationConfig {
    /// Whether activations go through this stage, where it is configured.
    pub fn has_stage(&self, stage: BenchStage) -> bool {
        self.bench_stages.is_empty() || self.bench_stages.contains(&stage)
    }
}

impl Default for ActivationConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            token_ttl: Duration::from_secs(30 * 24 * 3_600),
            grace: Duration::from_secs(60),
            gateways: Vec::new(),
            failures_per_source_per_minute: 10,
            failures_per_source_burst: 20,
            bench_stages: Vec::new(),
        }
    }
}
