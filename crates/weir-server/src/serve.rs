//! `weir serve`: the gateway as a process, from its first line to its last.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{interval, timeout};
use tracing::{info, warn};
use weir::{DeviceStore, Gateway, Handle, Resources};

use crate::config::Settings;
use crate::log::{Log, Losses};
use crate::output::say;
use crate::store::{self, Begin, Opened};
use crate::{banner, sys};

/// Runs until a signal. Exit code 0 after an orderly end, 1 if a second signal cut it short.
pub(crate) fn run(settings: Settings, begin: Begin) -> anyhow::Result<ExitCode> {
    // Dropped last, so that the lines about the end are written too.
    let log = Log::start(&settings.log)?;
    let front_threads = Resources::detect().front_threads(&settings.gateway.threads);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(front_threads)
        .thread_name("weir-front")
        .on_thread_start(weir::schedule_front_thread)
        .enable_all()
        .build()
        .context("cannot start the front threads")?;
    let end = runtime.block_on(serve(settings, begin, front_threads, log.losses()));
    // After an orderly end nothing is left to wait for; after a second signal nothing may be waited for.
    runtime.shutdown_background();
    end
}

async fn serve(
    settings: Settings,
    begin: Begin,
    front_threads: usize,
    losses: Losses,
) -> anyhow::Result<ExitCode> {
    // Before the start, so that an early signal finds somebody.
    let mut signals = Signals::catch()?;
    let devices = match Box::pin(store::open(&settings, begin)).await? {
        Opened::Store(devices) => Some(devices),
        Opened::Nothing => None,
        Opened::Held(held) => bail!("{held}; set store.path, or store.kind = \"none\""),
    };
    let over_file = settings.from_variables.iter().filter(|set| set.is_over_file());
    let over_file: Vec<String> = over_file.map(ToString::to_string).collect();
    if !over_file.is_empty() {
        info!("variables count before the configuration file: {}", over_file.join("; "));
    }
    let config = settings.gateway;
    let mut builder =
        Gateway::builder().config(config.clone()).allocated_bytes(sys::allocated_bytes);
    if let Some(devices) = &devices {
        builder = builder.devices(Arc::clone(devices));
    }
    let gateway = builder.start().await;
    // Its message names the cause already; as a source it would be named twice.
    let gateway = gateway.map_err(|error| anyhow!("{error}"))?;
    // A closed standard output is no reason not to serve.
    let _ = say(banner::text(gateway.started(), &config, front_threads));
    let reporter = tokio::spawn(report_lost_lines(gateway.handle(), losses));

    // Not within the line below: what a line tells is worked out only if its level is on.
    let signal = signals.end(|| reload(&gateway.handle())).await;
    info!(signal, "stopping; a second signal ends at once");
    let code = tokio::select! {
        () = end(gateway, devices) => ExitCode::SUCCESS,
        signal = signals.end(|| info!("SIGHUP: nothing is reloaded while stopping")) => {
            warn!(signal, "ended at once");
            ExitCode::from(EXIT_CUT_SHORT)
        }
    };
    reporter.abort();
    Ok(code)
}

/// Ends in order: the gateway, then the store, whose file is whole afterwards, without the one that ends in -wal.
async fn end(gateway: Gateway, devices: Option<Arc<DeviceStore>>) {
    gateway.shutdown().await;
    let Some(devices) = devices else { return };
    if !matches!(timeout(CLOSE_TIMEOUT, devices.close()).await, Ok(Ok(()))) {
        warn!(
            "the store of devices did not end in time; what it has answered is kept nevertheless"
        );
    }
}

/// What SIGHUP asks for.
fn reload(handle: &Handle) {
    // Both are to be asked.
    if !(handle.reload_certificates() | handle.reopen_access_log()) {
        info!(
            "SIGHUP: nothing to reload: nothing listens with TLS, [auth.jwt] has no keys, and there is no access log"
        );
    }
}

/// The signals that end the program, and the one that has files read again.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn catch() -> anyhow::Result<Signals> {
        let catch = |kind| signal(kind).context("cannot catch signals");
        Ok(Signals {
            terminate: catch(SignalKind::terminate())?,
            interrupt: catch(SignalKind::interrupt())?,
            hangup: catch(SignalKind::hangup())?,
        })
    }

    /// Waits for one that ends the program.
    async fn end(&mut self, hung_up: impl Fn()) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hangup.recv() => hung_up(),
            }
        }
    }
}

/// What the log suppresses or drops it counts but tells nobody: into the metrics it goes, and into the log once there is
/// room.
async fn report_lost_lines(handle: Handle, losses: Losses) {
    let mut ticks = interval(LOST_LINES_INTERVAL);
    let mut reported = 0;
    loop {
        ticks.tick().await;
        losses.tell_suppressed();
        handle.counters().set_log_lines_suppressed(losses.suppressed());
        let total = losses.dropped();
        handle.counters().set_log_lines_dropped(total);
        if total > reported {
            let lines = total - reported;
            warn!(lines, total, "log lines dropped: standard error takes them too slowly");
            reported = total;
        }
    }
}

/// Ended by a second signal, before every device was told.
const EXIT_CUT_SHORT: u8 = 1;

/// Some 60 MB are to be moved from one file to another at the most.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Often enough for a scrape of the metrics.
const LOST_LINES_INTERVAL: Duration = Duration::from_secs(5);
