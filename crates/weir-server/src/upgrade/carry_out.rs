//! An upgrade in the old process: it starts the new one, hands over, and leaves.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::task::spawn_blocking;
use tracing::{info, warn};
use weir::{Gateway, Hello, LimitedMemory, NotMoved, Stage, Successor};

use super::control::{Order, Teller};
use super::lines::{Line, Request};
use crate::config::UpgradeSettings;
use crate::systemd;

/// The program that runs, as it was started.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    path: PathBuf,
    config: Option<PathBuf>,
}

/// An upgrade after the decision: the new process serves.
pub(crate) struct Handed {
    order: Order,
    teller: Teller,
    pid: u32,
}

impl Program {
    /// Call it at the start: later the file may be another one, and its name another inode's.
    pub(crate) fn of_this_process(config: Option<PathBuf>) -> anyhow::Result<Program> {
        let name = env::args_os().next();
        let path = name.as_deref().and_then(|name| find(name, env::var_os("PATH").as_deref()));
        let path = match path {
            Some(path) => path,
            None => env::current_exe().context("cannot tell the path of this program")?,
        };
        Ok(Program { path, config })
    }

    /// The command that starts the new process.
    fn command(&self, request: &Request) -> Result<Command, NotMoved> {
        let program = request.program.as_ref().unwrap_or(&self.path);
        if !program.is_absolute() {
            let program = program.display();
            return Err(NotMoved(format!("the program {program} is no absolute path")));
        }
        let mut command = Command::new(program);
        command.arg("serve");
        // systemd's sockets come from this process, with all others.
        for name in ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] {
            command.env_remove(name);
        }
        if let Some(config) = request.config.as_ref().or(self.config.as_ref()) {
            command.arg("--config").arg(config);
        }
        Ok(command)
    }
}

/// The file that a shell has started by this name.
fn find(name: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    if name.as_encoded_bytes().contains(&b'/') {
        return std::path::absolute(name).ok();
    }
    let mut found = env::split_paths(path?).map(|directory| directory.join(name));
    found.find(|file| file.is_absolute() && file.is_file())
}

/// Starts the new process, and waits until it has accepted its configuration. `None`: it has not,
/// or the order was for a dry run; the order is answered.
///
/// Errors: the value of `stopped`, if that comes first. The new process has ended then.
pub(crate) async fn start<T>(
    gateway: &Gateway,
    program: &Program,
    (settings, order): (&UpgradeSettings, &Order),
    stopped: impl Future<Output = T>,
) -> Result<Option<(Successor, Teller)>, T> {
    let (request, teller) = (order.request.clone(), order.teller());
    info!(
        program = %request.program.as_ref().unwrap_or(&program.path).display(),
        by_signal = order.is_by_signal(),
        dry_run = request.dry_run,
        "upgrade: a new process is started"
    );
    let pause_max = settings.pause_max;
    let (command, to) = (program.command(&request), teller.clone());
    let want = Arc::new(());
    let wanted = Arc::downgrade(&want);
    let mut started = spawn_blocking(move || {
        has_memory()?;
        let tell = |pid| to.tell_stage(&Stage::Started { pid });
        Successor::start(command?, pause_max, tell, || wanted.strong_count() > 0)
    });
    let started = tokio::select! {
        started = &mut started => started,
        stop = stopped => {
            drop(want);
            // It ends the new process, and has no other outcome.
            let _ = started.await;
            return Err(stop);
        }
    };
    let successor = match started.unwrap_or_else(|error| Err(NotMoved(error.to_string()))) {
        Ok(successor) => successor,
        Err(why) => {
            failed(gateway, &teller, why);
            return Ok(None);
        }
    };
    teller.tell_stage(&Stage::Answered { hello: successor.hello().clone() });
    if !request.dry_run {
        return Ok(Some((successor, teller)));
    }
    let forecast = gateway.forecast(successor.hello());
    let trial = NotMoved("this was a dry run".to_owned());
    // Its outcome is that reason.
    let _ = spawn_blocking(|| successor.abandon(trial)).await;
    teller.tell(Line::forecast(forecast));
    Ok(None)
}

/// Hands the gateway over. `None`: the upgrade has failed, the order is answered, and the gateway
/// serves on.
pub(crate) async fn hand_over(
    gateway: &mut Gateway,
    (successor, teller): (Successor, Teller),
    order: Order,
) -> Option<Handed> {
    let Hello { pid, .. } = *successor.hello();
    let to = teller.clone();
    match gateway.hand_over(successor, move |stage| to.tell_stage(&stage)).await {
        Ok(moved) => {
            let memory = (resident_bytes(std::process::id()), resident_bytes(pid));
            let all = |counts: &[(&'static str, u64)]| counts.iter().map(|(_, n)| n).sum::<u64>();
            info!(
                pid,
                connections = all(&moved.connections),
                stayed = all(&moved.stayed),
                pause_ms = moved.pause.as_secs_f64() * 1000.0,
                bytes = moved.bytes,
                "upgrade: the new process serves"
            );
            teller.tell_stage(&Stage::Leaving { connections: all(&moved.stayed) });
            teller.tell(Line::moved(&moved, memory));
            Some(Handed { order, teller, pid })
        }
        Err(why) => {
            failed(gateway, &teller, why);
            None
        }
    }
}

/// Ends the old gateway, and tells systemd which process is the main one now.
pub(crate) async fn leave(gateway: Gateway, settings: &UpgradeSettings, handed: Handed) {
    let Handed { order, teller, pid } = handed;
    systemd::tell_main_process(pid).await;
    let left = gateway.leave(settings.linger).await;
    info!(finished = left.finished, closed = left.closed, "upgrade: this process ends");
    teller.tell(Line::left(&left));
    drop(teller);
    order.finish().await;
}

fn failed(gateway: &Gateway, teller: &Teller, why: NotMoved) {
    gateway.tell_upgrade_failed(&why);
    let NotMoved(why) = why;
    warn!(why, "upgrade failed: this process serves on");
    teller.tell(Line::Refused { why });
}

/// Whether a second process of the same size has room beside this one.
fn has_memory() -> Result<(), NotMoved> {
    let needed = resident_bytes(std::process::id());
    for memory in LimitedMemory::of_this_process(Path::new("/")) {
        let Some(used) = memory.used_bytes() else { continue };
        check_memory(needed, memory.bytes_max.saturating_sub(used), &memory.limit)?;
    }
    Ok(())
}

fn check_memory(needed: u64, free: u64, limit: &impl std::fmt::Display) -> Result<(), NotMoved> {
    if needed <= free {
        return Ok(());
    }
    Err(NotMoved(format!(
        "a second process beside this one needs some {} MiB of memory, and {} MiB are free under \
         {limit}",
        needed >> 20,
        free >> 20
    )))
}

/// Memory that a process uses; 0 if the kernel does not tell.
fn resident_bytes(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_the_one_that_was_named() {
        let check = |name: &str, path: Option<&str>, expected: Option<&str>| {
            let found = find(OsStr::new(name), path.map(OsStr::new));
            assert_eq!(found.as_deref(), expected.map(Path::new), "{name}");
        };
        // A link stays a link, so that it may lead to another version later.
        check("/opt/weir/current/weir", None, Some("/opt/weir/current/weir"));
        check("sh", Some("/nowhere:/bin"), Some("/bin/sh"));
        check("sh", Some("relative:"), None);
        check("no-such-program", Some("/bin"), None);
        let here = env::current_dir().unwrap();
        check("./weir", None, here.join("weir").to_str());
    }

    #[test]
    fn the_command_has_the_configuration_that_was_asked_for() {
        let program = Program { path: "/p".into(), config: Some("old.toml".into()) };
        let line = |request: &Request| {
            let command = program.command(request)?;
            let words = [command.get_program()].into_iter().chain(command.get_args());
            Ok(words.map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" "))
        };
        let mut request = Request::default();
        assert_eq!(line(&request).as_deref(), Ok("/p serve --config old.toml"));
        request.program = Some("/q".into());
        request.config = Some("/new.toml".into());
        assert_eq!(line(&request).as_deref(), Ok("/q serve --config /new.toml"));
        request.program = Some("q".into());
        let command = program.command(&Request::default()).unwrap();
        let removed = command.get_envs().find(|(name, _)| *name == "LISTEN_FDNAMES");
        assert_eq!(removed, Some((OsStr::new("LISTEN_FDNAMES"), None)));
        let refused = NotMoved("the program q is no absolute path".to_owned());
        assert_eq!(line(&request), Err(refused));
    }

    #[test]
    fn too_little_memory_is_refused_with_figures() {
        assert_eq!(check_memory(1 << 30, 1 << 30, &"x"), Ok(()));
        let why = check_memory(3 << 30, 1 << 30, &"memory.max").unwrap_err().0;
        assert!(why.contains("3072 MiB") && why.contains("1024 MiB are free under memory.max"));
        assert!(resident_bytes(std::process::id()) > 1 << 20);
        assert_eq!(resident_bytes(u32::MAX), 0);
    }
}
