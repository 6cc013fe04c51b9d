//! Chaos on real processes, one of each fault. `cargo xtask chaos` has them happen at length.
//!
//! Each test prints a line for each time (`--nocapture`). Variables make it larger:
//! - `WEIR_CHAOS_CLIENTS`: clients on three nodes (60); with more, faults last longer too;
//! - `WEIR_CHAOS_TOPICS`: topics (6), of which each client is in two;
//! - `WEIR_CHAOS_RATE`: messages a second (60);
//! - `WEIR_CHAOS_TIMES`: how often each fault happens (1);
//! - `WEIR_CHAOS_RACES`: devices that connect to two nodes at once (300).

use anyhow::{Result, anyhow, ensure};
use weir_tests::chaos::{Fault, Scale, race, revoke, run};

#[expect(clippy::print_stdout, reason = "the figures are part of the test")]
fn check(fault: Fault) -> Result<()> {
    let mut result = Ok(());
    run(fault, &Scale::read()?, |round| {
        println!("chaos {fault} {round}");
        if round.untold > 0 || round.lost_connections > 0 {
            result = Err(anyhow!("{round}: {:#?}", round.problems));
        }
    })?;
    result
}

#[test]
fn node_killed() -> Result<()> {
    check(Fault::NodeKilled)
}

#[test]
fn node_stopped() -> Result<()> {
    check(Fault::NodeStopped)
}

#[test]
fn redis_killed() -> Result<()> {
    check(Fault::RedisKilled)
}

#[test]
fn redis_killed_with_file() -> Result<()> {
    check(Fault::RedisKilledWithFile)
}

#[test]
fn failover() -> Result<()> {
    check(Fault::Failover)
}

#[test]
fn redis_stopped() -> Result<()> {
    check(Fault::RedisStopped)
}

#[test]
fn cut() -> Result<()> {
    check(Fault::Cut)
}

#[test]
fn delayed() -> Result<()> {
    check(Fault::Delayed)
}

#[test]
fn blackholed() -> Result<()> {
    check(Fault::Blackholed)
}

#[test]
fn outgrown() -> Result<()> {
    check(Fault::Outgrown)
}

#[test]
fn mixed() -> Result<()> {
    check(Fault::Mixed)
}

#[test]
fn resharded() -> Result<()> {
    check(Fault::Resharded)
}

#[test]
fn primary_killed() -> Result<()> {
    check(Fault::PrimaryKilled)
}

/// A device has one connection at most, however many nodes it connects to at once.
#[test]
fn raced() -> Result<()> {
    let devices = Scale::number("RACES", 300)?;
    let mut problems = Vec::new();
    race(devices, |round| {
        println!("chaos raced {round}");
        problems.extend(round.problems.iter().cloned());
    })?;
    ensure!(problems.is_empty(), "{problems:#?}");
    Ok(())
}

/// A revocation reaches a node that could not reach Redis when it was made.
#[test]
fn revoked() -> Result<()> {
    revoke(2 * Scale::read()?.times, |round| println!("chaos revoked {round}"))
}
