//! Open files: of the process, and of the machine.

use super::{Check, Input};
use crate::doctor::check::{count, sysctl};

/// The limit of the process. The gateway raises the soft limit to the hard one.
pub(super) fn open_files(input: &Input<'_>) -> Option<Check> {
    let (soft, hard) = (input.open_files.soft, input.open_files.hard);
    let found = format!("{} soft, {} hard", shown(soft), shown(hard));
    let why = "each connection takes an open file; without one, devices are refused";
    let room = input.started.connections_max as u64;
    let needed = input.wanted + KEPT;
    let nr_open = input.machine.number("proc/sys/fs/nr_open").unwrap_or(u64::MAX);
    let mut mend = vec![
        format!("LimitNOFILE={needed}   (in the unit of systemd)"),
        format!("* hard nofile {needed}   (in /etc/security/limits.conf, for a login)"),
    ];
    if nr_open < needed {
        mend.insert(0, sysctl("fs.nr_open", needed.next_power_of_two()));
    }
    // The limit counts for each shard that has a descriptor table of its own.
    let shards = input.wanted.div_ceil(hard.saturating_sub(SHARD_KEPT).max(1));
    if shards <= SHARDS_MAX {
        let shards = shards.max(input.started.shards.len() as u64);
        mend.push(format!(
            "or, under this limit: engine.own_descriptors = true and threads.shards = {shards}"
        ));
    }
    Some(Check::new("open_files", why, found).holds((room, input.wanted), mend))
}

/// The limit of the machine, for all processes together.
pub(super) fn open_files_system(input: &Input<'_>) -> Option<Check> {
    let max = input.machine.number("proc/sys/fs/file-max")?;
    let [open, _, _] = input.machine.numbers("proc/sys/fs/file-nr").unwrap_or([0; 3]);
    let found = format!("fs.file-max {}, of which {} are open", shown(max), count(open));
    let why = "all processes share them; without one, every program of the machine fails";
    let mend = [sysctl("fs.file-max", input.wanted * 2 + open)];
    let room = max.saturating_sub(open + KEPT);
    Some(Check::new("open_files_system", why, found).holds((room, input.wanted), mend))
}

fn shown(limit: u64) -> String {
    // The kernel's own maximum is no limit.
    if limit >= i64::MAX as u64 { "unlimited".to_owned() } else { count(limit) }
}

/// The gateway's own files, and some for its admin API.
const KEPT: u64 = 1_024;
/// The files of a shard that has a table of its own, and some for connections that linger.
const SHARD_KEPT: u64 = 32;
const SHARDS_MAX: u64 = 256;
