//! The checks, as one table. Each looks at one thing and says `None` if it does not apply here.

mod disk;
mod files;
mod memory;
mod network;
mod processor;
mod stores;
#[cfg(test)]
mod tests;

use weir::{LimitedMemory, OpenFiles, Started};

use super::check::Check;
use super::forecast::{Costs, Forecast};
use super::machine::Machine;
use super::stores::StoreLook;
use crate::config::Settings;

/// What the checks look at.
pub(super) struct Input<'a> {
    pub(super) machine: &'a Machine,
    pub(super) settings: &'a Settings,
    /// Connections that the machine should hold.
    pub(super) wanted: u64,
    /// Before the gateway raised the soft limit.
    pub(super) open_files: OpenFiles,
    /// What a gateway found and took that was started for a look.
    pub(super) started: &'a Started,
    pub(super) memory: &'a [LimitedMemory],
    pub(super) costs: &'a Costs,
    pub(super) forecast: &'a Forecast,
    pub(super) stores: &'a [StoreLook],
}

/// All checks of what applies, in the order in which they are shown.
pub(super) fn all(input: &Input<'_>) -> Vec<Check> {
    let mut checks: Vec<Check> = CHECKS.iter().filter_map(|check| check(input)).collect();
    checks.extend(input.stores.iter().flat_map(stores::checks));
    checks
}

type Checker = fn(&Input<'_>) -> Option<Check>;

const CHECKS: [Checker; 20] = [
    files::open_files,
    files::open_files_system,
    network::accept_backlog,
    network::syn_backlog,
    network::local_ports,
    network::listen_ports,
    network::tcp_memory,
    network::tcp_buffers,
    network::udp_buffers,
    network::conntrack,
    memory::memory,
    memory::budget,
    memory::huge_pages,
    memory::swap,
    processor::processors,
    processor::throttling,
    processor::clock_source,
    processor::entropy,
    disk::space,
    disk::kind,
];
