//! Processors, clock and random numbers.

use super::{Check, Input};

/// Processors that the gateway gets, and the threads that want them.
pub(super) fn processors(input: &Input<'_>) -> Option<Check> {
    let resources = &input.started.resources;
    let (shards, processors) = (input.started.shards.len(), resources.processors.len());
    let quota = resources.cpu_quota;
    let found = match quota {
        Some(quota) => format!("{processors}, of which the cgroup grants {quota}; {shards} shards"),
        None => format!("{processors}; {shards} shards"),
    };
    let why = "a cgroup without processor time stops all threads until its next period, so \
               messages and heartbeats are late";
    let check = Check::new("processors", why, found);
    match quota {
        Some(quota) if quota < 1.0 => {
            let wrong = "less than one processor: every burst is stopped";
            Some(check.wrong(wrong, ["CPUQuota=100%   (in the unit of systemd, or more)"]))
        }
        _ => Some(check),
    }
}

/// Whether the cgroup has already been stopped for its quota.
pub(super) fn throttling(input: &Input<'_>) -> Option<Check> {
    let quota = input.started.resources.cpu_quota?;
    let groups = input.machine.text("proc/self/cgroup")?;
    let stats = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let is_cpu = controllers.is_empty() || controllers.split(',').any(|word| word == "cpu");
        let mount = if controllers.is_empty() { String::new() } else { format!("{controllers}/") };
        is_cpu.then(|| format!("sys/fs/cgroup/{mount}{}/cpu.stat", path.trim_start_matches('/')))
    });
    let stat = stats.filter_map(|path| input.machine.text(&path)).next()?;
    let value = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse::<u64>().ok()).unwrap_or(0)
    };
    let (periods, throttled) = (value("nr_periods"), value("nr_throttled"));
    let found = format!("stopped in {throttled} of {periods} periods");
    let why = "while the cgroup is stopped, nothing is sent";
    let check = Check::new("cpu_throttling", why, found);
    if throttled * 100 <= periods {
        return Some(check);
    }
    let more = (quota * 200.0).round();
    let mend = [format!("CPUQuota={more}%   (in the unit of systemd)")];
    Some(check.wrong("more than one period in a hundred", mend))
}

/// The clock of the kernel.
pub(super) fn clock_source(input: &Input<'_>) -> Option<Check> {
    let at =
        |file| input.machine.text(&format!("sys/devices/system/clocksource/clocksource0/{file}"));
    let (current, available) = (at("current_clocksource")?, at("available_clocksource"));
    let why = "a slow clock turns each look at the time into a system call; a shard looks in every \
               turn";
    let check = Check::new("clock_source", why, current.clone());
    if !SLOW_CLOCKS.contains(&current.as_str()) {
        return Some(check);
    }
    let available = available.unwrap_or_default();
    let fast = available.split_whitespace().find(|clock| !SLOW_CLOCKS.contains(clock));
    let mend = match fast {
        Some(fast) => format!(
            "echo {fast} > /sys/devices/system/clocksource/clocksource0/current_clocksource"
        ),
        None => "clocksource=tsc tsc=reliable   (on the kernel's command line, if the machine's \
                 counters are synchronous)"
            .to_owned(),
    };
    Some(check.wrong("reading it takes a system call", [mend]))
}

/// Whether the kernel has random numbers.
pub(super) fn entropy(input: &Input<'_>) -> Option<Check> {
    let is_ready = input.machine.is_random_ready()?;
    let why = "tokens and TLS keys need random numbers; until there are some, the gateway's start \
               waits";
    let found = if is_ready { "random numbers are ready" } else { "no random numbers yet" };
    let check = Check::new("entropy", why, found);
    if is_ready {
        return Some(check);
    }
    let mend = ["give the machine a source: virtio-rng, or the package rng-tools"];
    Some(check.wrong("the kernel has not gathered enough", mend))
}

/// Clocks that the kernel cannot read for a program without a system call.
const SLOW_CLOCKS: [&str; 6] = ["hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies", "xen"];
