//! Whether Redis may remove keys when its memory is full. It must not: topics would lose messages, and devices their
//! records.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::discovery::field;
use super::options::Address;
use super::requests::Lane;
use super::subscriber::Context;
use super::values::text;

/// Asks each primary again and again, and tells when the answer is another one. Runs until it is dropped.
pub(super) async fn watch(context: &Context, primaries: impl Fn() -> Vec<(Address, Arc<Lane>)>) {
    let mut policies: HashMap<Address, String> = HashMap::new();
    loop {
        let lanes = primaries();
        policies.retain(|known, _| lanes.iter().any(|(address, _)| address == known));
        for (address, lane) in lanes {
            let mut info = redis::cmd("INFO");
            info.arg("memory");
            // One that does not answer is asked again.
            let Ok(answers) = lane.ask(vec![info], Instant::now() + context.timeout).await else {
                continue;
            };
            let policy = answers.first().and_then(|answer| text(answer).ok());
            let Some(policy) = policy.and_then(|info| field(info, "maxmemory_policy:")) else {
                continue;
            };
            let before = policies.insert(address.clone(), policy.to_owned());
            match before.as_deref() {
                before if before == Some(policy) => {}
                None if policy == KEEPS => {}
                _ if policy == KEEPS => {
                    tracing::info!(redis = %address, "Redis removes no keys any more")
                }
                _ => tracing::warn!(
                    redis = %address,
                    policy,
                    "Redis may remove keys that the cluster needs: set its maxmemory-policy to noeviction"
                ),
            }
        }
        let evicting = policies.values().filter(|policy| *policy != KEEPS).count();
        context.counts.evicting.store(evicting as u64, Ordering::Relaxed);
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// The policy of a Redis that refuses writes when its memory is full.
const KEEPS: &str = "noeviction";
const ASK_EVERY: Duration = Duration::from_secs(30);
