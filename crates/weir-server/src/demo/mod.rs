//! `weir demo`: a gateway with a simulated world, for a first look.
//!
//! Gateway and world run in this process. They listen on loopback only, and keep their files in a
//! directory that is removed at the end.
//!
//! | part | holds |
//! |---|---|
//! | `setup` | free ports, certificate, configuration and store |
//! | `pages` | the page `/demo`: a chat and a map |
//! | `world` | players, phones, meters, readers and a backend |

mod pages;
mod setup;
mod world;

use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use tracing::{info, warn};
use weir::{DeviceStore, Gateway, Resources, StartError};

use crate::cli::DemoArgs;
use crate::log::{Log, Losses};
use crate::output::say;
use crate::scratch::Scratch;
use crate::serve::{self, EXIT_CUT_SHORT, Signals};
use setup::Setup;
use world::{Credentials, Places, World};

/// Runs until a signal arrives. Exit code 0 after an orderly end, 1 if a second signal cut it
/// short.
pub(crate) fn run(args: &DemoArgs, config: Option<PathBuf>) -> Result<ExitCode> {
    if let Some(config) = config {
        bail!("weir demo has its own configuration: leave out --config {}", config.display());
    }
    // Dropped last: all files of the demo are in it.
    let scratch = Scratch::new("demo")?;
    let setup = Setup::new(&scratch)?;
    let log = Log::start_in(&setup.settings.log, setup.log_file()?)?;
    let front_threads = Resources::detect().front_threads(&setup.settings.gateway.threads);
    let front = serve::front(front_threads)?;
    let end = front.block_on(Box::pin(demonstrate(setup, args.connections, log.losses())));
    front.shutdown_background();
    end
}

async fn demonstrate(setup: Setup, phones: usize, losses: Losses) -> Result<ExitCode> {
    // Before the start, so that the program handles an early signal too.
    let mut signals = Signals::catch()?;
    let (setup, gateway, devices) = Box::pin(start(setup)).await?;
    let places = Places::of(&gateway)?;
    let credentials = Credentials {
        certificate: &setup.certificate,
        service_token: &setup.service_token,
        meters: &setup.meters,
    };
    let world = World::start(places, credentials, phones, gateway.handle())?;
    let reporter = tokio::spawn(serve::report_lost_lines(gateway.handle(), losses));
    // The demo goes on even if standard output is closed.
    let _ = say(introduction(&setup, phones));

    let signal = signals.any().await;
    info!(signal, "stopping; a second signal ends at once");
    // First, so that nobody comes back while the gateway ends.
    world.end();
    let code = tokio::select! {
        () = serve::end(gateway, Some(devices)) => ExitCode::SUCCESS,
        signal = signals.any() => {
            warn!(signal, "ended at once");
            ExitCode::from(EXIT_CUT_SHORT)
        }
    };
    reporter.abort();
    Ok(code)
}

/// Starts the gateway. If another program takes one of its ports first, other ports are chosen.
async fn start(mut setup: Setup) -> Result<(Setup, Gateway, Arc<DeviceStore>)> {
    let devices = setup.open_store().await?;
    for attempt in 1.. {
        let mut builder = serve::builder(&setup.settings.gateway, Some(&devices));
        for page in pages::all(&setup) {
            builder = builder.page(page);
        }
        match builder.start().await {
            Ok(gateway) => return Ok((setup, gateway, devices)),
            Err(StartError::Listen { source, .. })
                if source.kind() == io::ErrorKind::AddrInUse && attempt < ATTEMPTS_MAX =>
            {
                setup.choose_other_ports()?;
            }
            // The message already names the cause; as a source it would appear twice.
            Err(error) => return Err(anyhow!("{error}")),
        }
    }
    bail!("no port is free")
}

/// Tells what there is to see. The last line is the address of the dashboard, alone, so that
/// programs find it.
fn introduction(setup: &Setup, phones: usize) -> String {
    let ports = &setup.ports;
    let program = std::env::args_os().next().unwrap_or_else(|| "weir".into());
    let (program, admin, tls) = (program.to_string_lossy(), ports.admin, ports.tls);
    let mut out = format!(
        "weir {} demo: {} players, {phones} phones, {} meters and {} readers are coming.\n\n",
        env!("CARGO_PKG_VERSION"),
        world::PLAYERS,
        world::METERS,
        world::READERS
    );
    for (what, place) in [
        ("chat and map", format!("http://127.0.0.1:{admin}/demo")),
        ("HTTP", format!("127.0.0.1:{}", ports.http)),
        ("TCP, UDP", format!("127.0.0.1:{}, 127.0.0.1:{}", ports.tcp, ports.udp)),
        ("TLS", format!("127.0.0.1:{tls}")),
        ("log", setup.log.display().to_string()),
    ] {
        // Writing to a text cannot fail.
        let _ = writeln!(out, "  {what:<12} {place}");
    }
    let _ = write!(
        out,
        "\nIn another terminal, be a phone that connects with TLS:\n  \
           curl -so ca.pem http://127.0.0.1:{admin}/demo/ca.pem\n  \
           {program} subscribe --tls --ca ca.pem --addr 127.0.0.1:{tls} --device my-phone phone/my-phone chat/lobby\n\
         In a third, be a backend:\n  \
           {program} publish --admin 127.0.0.1:{admin} --topic phone/my-phone --text hello\n\n\
         Ctrl-C ends the demo and removes its files. This is the dashboard:\n\
         http://127.0.0.1:{admin}/"
    );
    out
}

/// Ports are free when they are chosen, and rarely taken a moment later.
const ATTEMPTS_MAX: u32 = 5;
