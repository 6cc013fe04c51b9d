//! The forecast: how many connections this machine holds, and which limit comes first. Arithmetic
//! alone.

use serde::Serialize;

/// What one connection costs, measured by the self-test or assumed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Costs {
    /// Connections of the self-test, of each kind; 0 without one.
    pub(super) connections: u64,
    /// Whether the bytes of the process were measured; otherwise they are assumed.
    pub(super) process_measured: bool,
    /// The same for the kernel.
    pub(super) kernel_measured: bool,
    /// Memory of the gateway for an idle connection.
    pub(super) process_bytes: u64,
    /// The same with TLS.
    pub(super) tls_process_bytes: u64,
    /// Memory of the kernel for the gateway's end of a connection.
    pub(super) kernel_bytes: u64,
    /// The part of it that counts against the limit of the cgroup, if there is one.
    pub(super) cgroup_kernel_bytes: Option<u64>,
    /// Processor time of the shards for one delivery; `None` if it was not measured.
    pub(super) delivery_us: Option<f64>,
    /// The same with TLS.
    pub(super) tls_delivery_us: Option<f64>,
}

impl Default for Costs {
    /// As measured on Linux 6.18 on x86-64.
    fn default() -> Costs {
        Costs {
            connections: 0,
            process_measured: false,
            kernel_measured: false,
            process_bytes: 220,
            tls_process_bytes: 440,
            kernel_bytes: 5_000,
            cgroup_kernel_bytes: None,
            delivery_us: None,
            tls_delivery_us: None,
        }
    }
}

impl Costs {
    /// Memory of an idle connection without TLS, as the machine or a cgroup counts it.
    pub(super) fn idle_bytes(&self, is_cgroup: bool) -> u64 {
        self.process_bytes + self.counted_kernel_bytes(is_cgroup)
    }

    fn counted_kernel_bytes(&self, is_cgroup: bool) -> u64 {
        self.cgroup_kernel_bytes.filter(|_| is_cgroup).unwrap_or(self.kernel_bytes)
    }
}

/// One limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limit {
    /// So many connections, whatever they cost.
    Connections(u64),
    /// So many bytes, for process and kernel together.
    Memory { bytes: u64, is_cgroup: bool },
}

/// The load for which pushed-to connections are forecast.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Load {
    /// Messages a second to each connection.
    pub(super) rate: f64,
    /// Processors that the shards get.
    pub(super) processors: f64,
}

/// How many connections the machine holds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Forecast {
    pub(super) idle: Outlook,
    pub(super) tls: Outlook,
    /// `None` if deliveries were not measured.
    pub(super) pushed: Option<Outlook>,
    /// The same with TLS.
    pub(super) tls_pushed: Option<Outlook>,
    /// The room that each limit leaves for idle connections without TLS.
    pub(super) rooms: Vec<(&'static str, u64)>,
}

/// A number of connections, and the limit that ends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outlook {
    pub(super) connections: u64,
    pub(super) limited_by: &'static str,
}

impl Limit {
    fn room(self, costs: &Costs, process_bytes: u64) -> u64 {
        match self {
            Limit::Connections(connections) => connections,
            Limit::Memory { bytes, is_cgroup } => {
                bytes / (process_bytes + costs.counted_kernel_bytes(is_cgroup)).max(1)
            }
        }
    }
}

impl Forecast {
    /// The smallest room of all limits, for each kind of connection.
    pub(super) fn new(limits: &[(&'static str, Limit)], costs: &Costs, load: &Load) -> Forecast {
        let rooms = |process_bytes| {
            let room =
                |(name, limit): &(&'static str, Limit)| (*name, limit.room(costs, process_bytes));
            limits.iter().map(room).collect::<Vec<_>>()
        };
        let (plain, tls) = (rooms(costs.process_bytes), rooms(costs.tls_process_bytes));
        let pushed = |rooms: &[(&'static str, u64)], delivery_us: Option<f64>| {
            let served = (PROCESSORS, deliverable(load, delivery_us?));
            Some(smallest(rooms.iter().copied().chain([served])))
        };
        Forecast {
            idle: smallest(plain.iter().copied()),
            tls: smallest(tls.iter().copied()),
            pushed: pushed(&plain, costs.delivery_us),
            tls_pushed: pushed(&tls, costs.tls_delivery_us),
            rooms: plain,
        }
    }

    /// The smallest room that memory leaves, without other limits.
    pub(super) fn room_in_memory(&self) -> Option<u64> {
        let rooms = self.rooms.iter().filter(|(name, _)| *name == CGROUP || *name == MACHINE);
        rooms.map(|(_, room)| *room).min()
    }
}

/// Connections to which the shards can deliver at the rate.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the conversion saturates, and no number is negative"
)]
fn deliverable(load: &Load, delivery_us: f64) -> u64 {
    let each_second = load.processors * BUSY_MAX * 1e6 / delivery_us.max(0.01);
    (each_second / load.rate) as u64
}

fn smallest(rooms: impl Iterator<Item = (&'static str, u64)>) -> Outlook {
    let least = rooms.min_by_key(|(_, connections)| *connections);
    let (limited_by, connections) = least.unwrap_or(("nothing", u64::MAX));
    Outlook { connections, limited_by }
}

/// The name of the limit on memory of a cgroup.
pub(super) const CGROUP: &str = "cgroup_memory";
/// The name of the limit on memory of the machine.
pub(super) const MACHINE: &str = "machine_memory";
const PROCESSORS: &str = "processors";
/// Above this share of the processors, queues grow at each unevenness.
const BUSY_MAX: f64 = 0.9;

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        connections: 2_000,
        process_measured: true,
        kernel_measured: true,
        process_bytes: 200,
        tls_process_bytes: 600,
        kernel_bytes: 4_800,
        cgroup_kernel_bytes: Some(1_400),
        delivery_us: Some(9.0),
        tls_delivery_us: Some(18.0),
    };

    #[track_caller]
    fn check(limits: &[(&'static str, Limit)], rate: f64, expected: [(u64, &'static str); 4]) {
        let forecast = Forecast::new(limits, &COSTS, &Load { rate, processors: 2.0 });
        let found = [Some(forecast.idle), Some(forecast.tls), forecast.pushed, forecast.tls_pushed]
            .map(|outlook| outlook.map(|outlook| (outlook.connections, outlook.limited_by)));
        assert_eq!(found, expected.map(Some));
    }

    #[test]
    fn the_first_limit_counts() {
        let files = ("open_files", Limit::Connections(10_000));
        let machine = (MACHINE, Limit::Memory { bytes: 54_000_000, is_cgroup: false });
        let cgroup = (CGROUP, Limit::Memory { bytes: 8_000_000, is_cgroup: true });
        check(
            &[files, machine],
            1.0,
            [
                (10_000, "open_files"),
                (10_000, "open_files"),
                (10_000, "open_files"),
                (10_000, "open_files"),
            ],
        );
        // 1,600 and 2,000 bytes each.
        check(
            &[files, machine, cgroup],
            20.0,
            [(5_000, CGROUP), (4_000, CGROUP), (5_000, CGROUP), (4_000, CGROUP)],
        );
        // 200,000 deliveries a second without TLS, 100,000 with it.
        check(
            &[files],
            50.0,
            [
                (10_000, "open_files"),
                (10_000, "open_files"),
                (4_000, "processors"),
                (2_000, "processors"),
            ],
        );
    }

    #[test]
    fn without_a_self_test_nothing_is_said_about_pushes() {
        let load = Load { rate: 1.0, processors: 2.0 };
        let memory = (MACHINE, Limit::Memory { bytes: 52_200_000, is_cgroup: false });
        let forecast = Forecast::new(&[memory], &Costs::default(), &load);
        assert_eq!((forecast.idle.connections, forecast.pushed), (10_000, None));
        assert_eq!(forecast.room_in_memory(), Some(10_000));
        assert_eq!(Forecast::new(&[], &Costs::default(), &load).idle.connections, u64::MAX);
    }
}
