//! `weir devices`: imports, lists and revokes devices, in the store itself or through the gateway
//! that holds it.

mod access;
mod backup;
mod import;
mod progress;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use weir_store::Serial;

use crate::cli::{DevicesArgs, DevicesCommand, StoreArgs};
use crate::output::{complain, say};
use crate::store::Begin;
use access::Access;

pub(crate) async fn run(args: DevicesArgs, file: Option<PathBuf>) -> Result<()> {
    let StoreArgs { admin: asked, .. } = &args.store;
    let by_admin = asked.is_some();
    match args.command {
        DevicesCommand::Import(command) => import::run(&args.store, file, command).await,
        DevicesCommand::Export => {
            let access = Access::open(&args.store, file, Begin::Never).await?;
            each(&access, None, usize::MAX, |device| say(device)).await.map(drop)
        }
        DevicesCommand::List { after, limit } => {
            let access = Access::open(&args.store, file, Begin::Never).await?;
            let last = each(&access, after, limit, |device| say(line(device))).await?;
            // A full page does not show whether more devices follow, so ask for one more.
            if let Some(last) = last
                && !access.list(Some(&last), 1).await?.is_empty()
            {
                complain(format_args!(
                    "{limit} devices shown, more follow: continue with --after {last:?}, or show more at once with --limit"
                ));
            }
            Ok(())
        }
        DevicesCommand::Show { serial } => {
            let access = Access::open(&args.store, file, Begin::Never).await?;
            match access.show(&serial).await? {
                Some(device) => say(format_args!("{device:#}")),
                None => bail!("there is no device {serial:?}"),
            }
        }
        DevicesCommand::Revoke { serials } => {
            let access = Access::open(&args.store, file, Begin::Never).await?;
            let unknown = revoke(&access, &serials).await?;
            if access.is_shared() && !by_admin {
                complain(
                    "open connections stay: to close them, run the command with --admin for each gateway",
                );
            }
            if unknown > 0 {
                bail!("{unknown} of {} devices do not exist", serials.len());
            }
            Ok(())
        }
        DevicesCommand::Backup { file: to } => backup::back_up(&args.store, file, to).await,
        DevicesCommand::Restore { file: from, replace } => {
            backup::restore(&args.store, file, (from, replace)).await
        }
    }
}

/// Calls `with` for each device after `after`, at most `limit` times. Returns the last device if
/// more may follow.
async fn each(
    access: &Access,
    mut after: Option<String>,
    limit: usize,
    mut with: impl FnMut(&Value) -> Result<()>,
) -> Result<Option<String>> {
    let mut left = limit;
    while left > 0 {
        let page = access.list(after.as_deref(), left.min(PAGE_MAX)).await?;
        let Some(last) = page.last() else { return Ok(None) };
        after = Some(last["device"].as_str().context("a device has a name")?.to_owned());
        for device in &page {
            with(device)?;
        }
        if page.len() < left.min(PAGE_MAX) {
            return Ok(None);
        }
        left -= page.len();
    }
    Ok(after)
}

/// Revokes devices; returns how many do not exist.
async fn revoke(access: &Access, serials: &[String]) -> Result<usize> {
    let mut unknown = 0;
    for serial in serials {
        if access.revoke(serial).await? {
            say(format_args!("revoked {serial}"))?;
        } else {
            complain(format_args!("there is no device {serial:?}"));
            unknown += 1;
        }
    }
    Ok(unknown)
}

/// A device as a line of text.
fn line(device: &Value) -> String {
    let text = |name: &str| device[name].as_str().unwrap_or_default();
    let mut line = format!("{}\t{}", text("device"), text("state"));
    for (name, value) in device["labels"].as_object().into_iter().flatten() {
        line.push_str(&format!("\t{name}={}", value.as_str().unwrap_or_default()));
    }
    line
}

/// A serial number from the command line.
fn serial(text: &str) -> Result<Serial> {
    Serial::new(text).map_err(|error| anyhow::anyhow!("serial number {text:?} {error}"))
}

/// The admin API returns at most this many devices at once.
const PAGE_MAX: usize = 1000;
