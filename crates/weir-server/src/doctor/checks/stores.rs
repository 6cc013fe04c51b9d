//! The stores that the configuration names: their clocks, and what Redis may remove.

use super::Check;
use crate::doctor::stores::{Role, StoreLook};

/// The checks of one store.
pub(super) fn checks(store: &StoreLook) -> Vec<Check> {
    let told = match &store.told {
        Ok(told) => told,
        Err(error) => {
            let why = "without it the gateway does less, or nothing";
            let found = format!("{}: no answer", store.name);
            let mend = [format!("start it, or correct {}", store.role.key())];
            return vec![Check::new("store", why, found).wrong(error.clone(), mend)];
        }
    };
    let mut checks = vec![clock(store, told.ahead_ms)];
    if let Some(policy) = &told.eviction_policy {
        checks.push(eviction(store, policy));
    }
    checks
}

fn clock(store: &StoreLook, ahead_ms: i64) -> Check {
    let found = match ahead_ms {
        0.. => format!("{}: {ahead_ms} ms ahead of this machine", store.name),
        _ => format!("{}: {} ms behind this machine", store.name, ahead_ms.unsigned_abs()),
    };
    let why = "tokens, tickets and kept messages end by the clock; nodes whose clocks differ \
               disagree about them";
    let check = Check::new("store_clock", why, found);
    if ahead_ms.unsigned_abs() < AHEAD_MS_MAX {
        return check;
    }
    let mend = ["timedatectl set-ntp true   (on both machines)"];
    check.wrong(format!("{} ms apart", ahead_ms.unsigned_abs()), mend)
}

fn eviction(store: &StoreLook, policy: &str) -> Check {
    let found = format!("{}: maxmemory-policy {policy}", store.name);
    let (why, is_fine) = match store.role {
        Role::Broker => (
            "Redis removes messages, claims of devices and positions when its memory is full",
            policy == "noeviction",
        ),
        Role::Cache | Role::Store => (
            "Redis removes the record that a token has ended before the token's own entry, and the \
             token is valid again",
            matches!(policy, "noeviction" | "volatile-ttl"),
        ),
    };
    let check = Check::new("redis_eviction", why, found);
    if is_fine {
        return check;
    }
    let mend = [
        "redis-cli config set maxmemory-policy noeviction",
        "maxmemory-policy noeviction   (in redis.conf, to keep it)",
    ];
    check.wrong("Redis may remove what must stay", mend)
}

/// Longer than a slow network makes it seem.
const AHEAD_MS_MAX: u64 = 1_000;
