//! The report, as text and as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::PUSHED_BYTES;
use super::check::{Check, count, size};
use super::forecast::{Costs, Forecast, Load, Outlook};

/// Everything that was found.
pub(super) struct Report {
    pub(super) checks: Vec<Check>,
    pub(super) forecast: Forecast,
    pub(super) costs: Costs,
    pub(super) load: Load,
}

/// The report as JSON.
#[derive(Serialize)]
struct Shown<'a> {
    ok: bool,
    checks: &'a [Check],
    forecast: ShownForecast<'a>,
}

#[derive(Serialize)]
struct ShownForecast<'a> {
    idle_connections: u64,
    limited_by: &'a str,
    tls_connections: u64,
    tls_limited_by: &'a str,
    pushed_connections: Option<u64>,
    pushed_limited_by: Option<&'a str>,
    tls_pushed_connections: Option<u64>,
    tls_pushed_limited_by: Option<&'a str>,
    pushed_rate: f64,
    pushed_bytes: usize,
    /// The room for idle connections that each limit leaves.
    rooms: Vec<Room<'a>>,
    costs: &'a Costs,
}

#[derive(Serialize)]
struct Room<'a> {
    name: &'a str,
    connections: u64,
}

impl Report {
    pub(super) fn is_fine(&self) -> bool {
        self.checks.iter().all(|check| check.ok)
    }

    pub(super) fn json(&self) -> serde_json::Result<String> {
        let Forecast { idle, tls, pushed, tls_pushed, rooms } = &self.forecast;
        let room =
            |(name, connections): &(&'static str, u64)| Room { name, connections: *connections };
        let shown = Shown {
            ok: self.is_fine(),
            checks: &self.checks,
            forecast: ShownForecast {
                idle_connections: idle.connections,
                limited_by: idle.limited_by,
                tls_connections: tls.connections,
                tls_limited_by: tls.limited_by,
                pushed_connections: pushed.map(|pushed| pushed.connections),
                pushed_limited_by: pushed.map(|pushed| pushed.limited_by),
                tls_pushed_connections: tls_pushed.map(|pushed| pushed.connections),
                tls_pushed_limited_by: tls_pushed.map(|pushed| pushed.limited_by),
                pushed_rate: self.load.rate,
                pushed_bytes: PUSHED_BYTES,
                rooms: rooms.iter().map(room).collect(),
                costs: &self.costs,
            },
        };
        serde_json::to_string_pretty(&shown)
    }

    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        for check in &self.checks {
            out.push_str(&check.text());
            out.push('\n');
        }
        let Forecast { idle, tls, pushed, tls_pushed, .. } = &self.forecast;
        out.push_str("\nForecast: this machine holds\n");
        let load = format!("{} × {PUSHED_BYTES} B a second", self.load.rate);
        let rows = [
            ("idle".to_owned(), Some(idle)),
            ("idle, with TLS".to_owned(), Some(tls)),
            (format!("pushed to: {load}"), pushed.as_ref()),
            ("the same, with TLS".to_owned(), tls_pushed.as_ref()),
        ];
        for (kind, outlook) in rows {
            let Some(Outlook { connections, limited_by }) = outlook else { continue };
            let connections = count(*connections);
            let _ = writeln!(out, "  {connections:>11} {kind} (limited by {limited_by})");
        }
        out.push_str(&self.costs());
        let wrong = self.checks.iter().filter(|check| !check.ok).count();
        let _ = match wrong {
            0 => write!(out, "Nothing to mend."),
            1 => write!(out, "1 thing to mend."),
            more => write!(out, "{more} things to mend."),
        };
        if wrong > 0 {
            out.push_str(
                " What sysctl -w sets ends with the next boot; a line KEY = VALUE in \
                          /etc/sysctl.d/90-weir.conf keeps it.",
            );
        }
        out
    }

    fn costs(&self) -> String {
        let costs = &self.costs;
        let kernel = match costs.cgroup_kernel_bytes {
            Some(cgroup) => format!(
                "{} in the kernel, of which the cgroup counts {}",
                size(costs.kernel_bytes),
                size(cgroup)
            ),
            None => format!("{} in the kernel", size(costs.kernel_bytes)),
        };
        let source = |measured| if measured { "measured" } else { "assumed" };
        let mut out = format!(
            "A connection takes {} in the process ({} with TLS; {}), and {kernel} ({}).\n",
            size(costs.process_bytes),
            size(costs.tls_process_bytes),
            source(costs.process_measured),
            source(costs.kernel_measured)
        );
        if let (Some(plain), Some(tls)) = (costs.delivery_us, costs.tls_delivery_us) {
            let _ = writeln!(
                out,
                "A delivery takes {plain:.1} µs of a processor ({tls:.1} µs with TLS), over loopback."
            );
        }
        out
    }
}
