//! `weir serve`: runs the gateway as a process.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{interval, timeout};
use tracing::{info, warn};
use weir::{
    Config, DeviceStore, Gateway, GatewayBuilder, Handle, Hello, Predecessor, Reloader, Resources,
};

use crate::config::{self, Settings, StoreKind};
use crate::log::{Log, Losses};
use crate::output::say;
use crate::profile::{self, OwnProfiler};
use crate::reload::OwnReloader;
use crate::store::{self, Begin, Later, Opened, Opening};
use crate::upgrade::{self, Control, Handed, Program};
use crate::{banner, sys, systemd};

/// Runs until a signal arrives, or until another process has taken over. Exit code 0 after an
/// orderly end, 1 if a second signal cut it short.
///
/// If an old process has started this one to take its place, that is told of a failure.
pub(crate) fn run(file: Option<PathBuf>, begin: Begin) -> anyhow::Result<ExitCode> {
    let mut predecessor = Predecessor::from_environment().context("cannot take over")?;
    let end = load_and_run(file, begin, &mut predecessor);
    if let (Err(error), Some(predecessor)) = (&end, predecessor) {
        predecessor.fail(&format!("{error:#}"));
    }
    end
}

fn load_and_run(
    file: Option<PathBuf>,
    begin: Begin,
    predecessor: &mut Option<Predecessor>,
) -> anyhow::Result<ExitCode> {
    let settings = config::load(file.clone())?;
    if settings.gateway.admin.heap_profile {
        profile::enable_heap_profile()?;
    }
    // Dropped last, so that the log also writes the lines about the end.
    let log = Log::start(&settings.log)?;
    if let Some(predecessor) = predecessor {
        let config = &settings.gateway;
        config.check_files().map_err(|error| config::Refused::file(&error))?;
        config.check_jwt_keys().map_err(|error| config::Refused::file(&error))?;
        predecessor.hello(&Hello::of(config)).map_err(|error| anyhow!("{error}"))?;
    }
    let program = Program::of_this_process(file.clone())?;
    let front_threads = Resources::detect().front_threads(&settings.gateway.threads);
    let runtime = front(front_threads)?;
    let own = Settings { gateway: Config::default(), ..settings.clone() };
    let reloader = OwnReloader::new(file, own, log.control());
    let given = (front_threads, program, predecessor);
    let end = runtime.block_on(serve(settings, begin, given, (reloader, log.losses())));
    // After an orderly end nothing is running any more; after a second signal nothing may delay the
    // end.
    runtime.shutdown_background();
    end
}

async fn serve(
    settings: Settings,
    begin: Begin,
    (front_threads, program, predecessor): (usize, Program, &mut Option<Predecessor>),
    (reloader, losses): (Arc<OwnReloader>, Losses),
) -> anyhow::Result<ExitCode> {
    // Before the start, so that the program handles an early signal too.
    let (mut signals, mut control) = (Signals::catch()?, Control::catch()?);
    let takes_over = predecessor.is_some();
    let sockets = sys::passed::sockets().context("cannot take the sockets of LISTEN_FDS")?;
    let (devices, later) = open_store(&settings, begin, predecessor.as_ref()).await?;
    tell_overridden(&settings);
    let socket = settings.upgrade.socket(&settings.store);
    let is_embedded = settings.store_kind() == StoreKind::Embedded;
    let config = settings.gateway;
    let mut builder = builder(&config, devices.as_ref()).sockets(sockets);
    if let Some(predecessor) = predecessor.take() {
        builder = builder.take_over(predecessor);
    }
    let gateway = builder.reloader(Arc::clone(&reloader) as Arc<dyn Reloader>).start().await;
    // The message already names the cause; as a source it would appear twice.
    let mut gateway = gateway.map_err(|error| anyhow!("{error}"))?;
    reloader.begin(gateway.handle());
    let opening = later.map(Later::begin);
    if let Some(opening) = &opening {
        // `weir upgrade` waits for the socket: what comes after it finds the store.
        opening.tried().await;
    }
    control.listen(socket, takes_over);
    // The gateway serves even if standard output is closed.
    let _ = say(banner::text(gateway.started(), &config, front_threads));
    let reporter = tokio::spawn(report_lost_lines(gateway.handle(), losses));
    if !takes_over {
        systemd::tell_ready();
    }
    let watchdog = tokio::spawn(systemd::ping_watchdog(gateway.handle(), takes_over));
    let ended =
        Box::pin(until_end(&mut gateway, &mut signals, &mut control, (&program, &reloader)));
    let ended = ended.await;
    control.close();
    let over = config.connection.drain_timeout;
    let store = OpenStore { devices, opening, is_embedded };
    let last = Box::pin(finish(gateway, store, ended, (&reloader, over)));
    let code = tokio::select! {
        () = last => ExitCode::SUCCESS,
        signal = signals.end(|| info!("SIGHUP: nothing is reloaded while stopping")) => {
            warn!(signal, "ended at once");
            ExitCode::from(EXIT_CUT_SHORT)
        }
    };
    reporter.abort();
    watchdog.abort();
    Ok(code)
}

/// The store of this process.
struct OpenStore {
    devices: Option<Arc<DeviceStore>>,
    /// It opens only now, or has done so.
    opening: Option<Opening>,
    /// One process at a time can use it.
    is_embedded: bool,
}

/// The embedded store has one owner: the old process, until it has handed over.
async fn open_store(
    settings: &Settings,
    begin: Begin,
    predecessor: Option<&Predecessor>,
) -> anyhow::Result<(Option<Arc<DeviceStore>>, Option<Later>)> {
    let (opened, later) = match predecessor {
        None => (Box::pin(store::open(settings, begin)).await?, None),
        Some(predecessor) => Box::pin(store::take_over(settings, begin, predecessor.pid())).await?,
    };
    match opened {
        Opened::Store(devices) => Ok((Some(devices), later)),
        Opened::Nothing => Ok((None, None)),
        Opened::Held(held) => bail!("{held}; set store.path, or store.kind = \"none\""),
    }
}

/// Logs the keys that variables have set instead of the file.
fn tell_overridden(settings: &Settings) {
    let over_file = settings.from_variables.iter().filter(|set| set.is_over_file());
    let over_file: Vec<String> = over_file.map(ToString::to_string).collect();
    if !over_file.is_empty() {
        info!("environment variables override the configuration file: {}", over_file.join("; "));
    }
}

/// Why the gateway ends.
enum Ended {
    /// A signal.
    BySignal(&'static str),
    /// A new process serves.
    ByUpgrade(Handed),
}

/// Serves, and carries out orders to upgrade, until the gateway ends.
async fn until_end(
    gateway: &mut Gateway,
    signals: &mut Signals,
    control: &mut Control,
    (program, reloader): (&Program, &Arc<OwnReloader>),
) -> Ended {
    // Not inside the line below: the log evaluates its fields only if the level is on.
    let hung_up = || {
        let reloader = Arc::clone(reloader);
        tokio::spawn(async move { Box::pin(reloader.hang_up()).await });
    };
    loop {
        let order = tokio::select! {
            signal = signals.end(hung_up) => return Ended::BySignal(signal),
            order = control.next() => order,
        };
        let settings = reloader.upgrade().await;
        let stopped = signals.end(hung_up);
        let started = match upgrade::start(gateway, program, (&settings, &order), stopped).await {
            Ok(started) => started,
            Err(signal) => return Ended::BySignal(signal),
        };
        // From here on, signals wait for the decision.
        if let Some(started) = started
            && let Some(handed) = Box::pin(upgrade::hand_over(gateway, started, order)).await
        {
            return Ended::ByUpgrade(handed);
        }
    }
}

/// Ends the gateway in order.
async fn finish(
    gateway: Gateway,
    store: OpenStore,
    ended: Ended,
    (reloader, drain_timeout): (&OwnReloader, Duration),
) {
    match ended {
        Ended::BySignal(signal) => {
            info!(signal, "stopping; a second signal ends at once");
            systemd::tell_stopping(drain_timeout);
            gateway.shutdown().await;
            store.close().await;
        }
        Ended::ByUpgrade(handed) => {
            let settings = reloader.upgrade().await;
            // The new process waits for the file.
            let store = if store.is_embedded {
                store.close().await;
                None
            } else {
                Some(store)
            };
            upgrade::leave(gateway, &settings, handed).await;
            if let Some(store) = store {
                store.close().await;
            }
        }
    }
}

/// The builder of a gateway with everything that this program gives to it.
pub(crate) fn builder(config: &Config, devices: Option<&Arc<DeviceStore>>) -> GatewayBuilder {
    let builder = Gateway::builder()
        .config(config.clone())
        .allocated_bytes(sys::allocated_bytes)
        .diagnostics(Arc::new(sys::Process))
        .profiler(Arc::new(OwnProfiler::default()));
    match devices {
        Some(devices) => builder.devices(Arc::clone(devices)),
        None => builder,
    }
}

/// Starts the threads of the front.
pub(crate) fn front(threads: usize) -> anyhow::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("weir-front")
        .on_thread_start(weir::schedule_front_thread)
        .enable_all()
        .build()
        .context("cannot start the front threads")
}

/// Ends the gateway, then the store. The store's file is whole afterwards, without a -wal file
/// beside it.
pub(crate) async fn end(gateway: Gateway, devices: Option<Arc<DeviceStore>>) {
    gateway.shutdown().await;
    close(devices).await;
}

impl OpenStore {
    async fn close(self) {
        close(self.devices).await;
        if let Some(opening) = self.opening
            && timeout(CLOSE_TIMEOUT, opening.end()).await.is_err()
        {
            warn!("the device store was still opening");
        }
    }
}

async fn close(devices: Option<Arc<DeviceStore>>) {
    let Some(devices) = devices else { return };
    if !matches!(timeout(CLOSE_TIMEOUT, devices.close()).await, Ok(Ok(()))) {
        warn!("the device store did not close in time; everything that it has confirmed is kept");
    }
}

/// The signals that end the program, and SIGHUP, which makes it read files again.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    pub(crate) fn catch() -> anyhow::Result<Signals> {
        let catch = |kind| signal(kind).context("cannot catch signals");
        Ok(Signals {
            terminate: catch(SignalKind::terminate())?,
            interrupt: catch(SignalKind::interrupt())?,
            hangup: catch(SignalKind::hangup())?,
        })
    }

    /// Waits for any of the signals.
    pub(crate) async fn any(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.hangup.recv() => "SIGHUP",
        }
    }

    /// Waits for a signal that ends the program; calls `hung_up` for each SIGHUP.
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

/// Reports the lines that the log has suppressed or dropped: in the metrics, and in the log once it
/// has room.
pub(crate) async fn report_lost_lines(handle: Handle, losses: Losses) {
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
            warn!(lines, total, "log lines dropped: standard error is too slow");
            reported = total;
        }
    }
}

/// A second signal ended the program before every device got its goodbye.
pub(crate) const EXIT_CUT_SHORT: u8 = 1;

/// The store moves at most some 60 MB from one file to another.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The metrics need no shorter interval.
const LOST_LINES_INTERVAL: Duration = Duration::from_secs(5);
