//! `weir devices backup` and `restore`: copies of the embedded store's file.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use weir_store::Secrets;

use crate::cli::StoreArgs;
use crate::config::{Settings, StoreKind, load};
use crate::output::say;

/// Copies the store to the file `to`.
pub(super) async fn back_up(args: &StoreArgs, config: Option<PathBuf>, to: PathBuf) -> Result<()> {
    let path = settings(args, config)?.store.path()?;
    let copied = to.clone();
    let made = blocking(move || Ok(weir_store::back_up(&path, &copied)?)).await?;
    let (to, devices, bytes) = (to.display(), made.devices, made.bytes);
    say(format_args!("{to}: {devices} devices, {bytes} bytes"))
}

/// Puts a copy in the place of the store.
pub(super) async fn restore(
    args: &StoreArgs,
    config: Option<PathBuf>,
    (from, replace): (PathBuf, bool),
) -> Result<()> {
    let settings = settings(args, config)?.store;
    let (path, key) = (settings.path()?, settings.hash_key()?);
    if !key.exists() {
        bail!(
            "store.hash_key: {} does not exist: restore the key file first, because without it no key and no token \
             of the store matches",
            key.display()
        );
    }
    let target = path.clone();
    let (restored, old) = blocking(move || {
        let fingerprint = Secrets::load_or_create(&key).context("store.hash_key")?.fingerprint();
        let restored = weir_store::restore(&from, &target, &fingerprint, replace);
        restored.map_err(|error| match error {
            exists @ weir_store::BackupError::Exists(_) => {
                anyhow::Error::new(exists).context("to replace this store, add --replace")
            }
            other @ (weir_store::BackupError::Store(_)
            | weir_store::BackupError::Unusable { .. }
            | weir_store::BackupError::File { .. }) => other.into(),
        })
    })
    .await?;
    let (path, devices) = (path.display(), restored.devices);
    match old {
        Some(old) => {
            let old = old.display();
            say(format_args!("{path}: {devices} devices; the store before is {old}"))
        }
        None => say(format_args!("{path}: {devices} devices")),
    }
}

/// The settings, if they name a file on this machine.
fn settings(args: &StoreArgs, config: Option<PathBuf>) -> Result<Settings> {
    if args.admin.is_some() {
        bail!(
            "--admin: a backup is made from the store's file, and restored to it: run the command on the gateway's machine"
        );
    }
    let settings = load(config)?;
    match settings.store_kind() {
        StoreKind::Embedded => Ok(settings),
        StoreKind::Mongodb => {
            bail!("store.kind = \"mongodb\": back up the database with MongoDB's tools (mongodump)")
        }
        StoreKind::None => bail!("store.kind = \"none\": there is no store to back up"),
    }
}

/// Runs what reads and writes whole files.
async fn blocking<T: Send + 'static>(
    run: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(run).await.context("the copy was broken off")?
}
