//! Access to the stored devices: through the store itself, or through the admin API of the gateway
//! that holds it.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use http::Method;
use serde_json::Value;
use weir::{DeviceStore, Row, RowFormat, StoredDevice};
use weir_client::TlsOptions;
use weir_store::{Page, Put, Revoked};

use super::serial;
use crate::addresses::reachable;
use crate::cli::StoreArgs;
use crate::config::{Settings, StoreKind, load};
use crate::http::{Admin, Body, percent_encoded, refusal};
use crate::output::complain;
use crate::store::{self, Begin, Opened};

/// See the module.
pub(super) enum Access {
    Store { devices: Arc<DeviceStore>, is_shared: bool },
    Gateway { addr: String, token: Option<String>, tls: Option<Box<TlsOptions>> },
}

/// The results of an import.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) added: u64,
    pub(super) unchanged: u64,
    pub(super) relabelled: u64,
    pub(super) rekeyed: u64,
}

impl Access {
    /// The admin API, if an option names one; else the store; if a gateway holds that, the
    /// gateway's admin API.
    pub(super) async fn open(
        args: &StoreArgs,
        config: Option<PathBuf>,
        begin: Begin,
    ) -> Result<Access> {
        let shown = args.token.clone().or_else(|| std::env::var("WEIR_ADMIN_TOKEN").ok());
        if let Some(addr) = &args.admin {
            let tls = crate::tls::options(&args.tls, addr)?.map(Box::new);
            return Ok(Access::Gateway { addr: addr.clone(), token: shown, tls });
        }
        let settings = load(config)?;
        match Box::pin(store::open_patiently(&settings, begin)).await? {
            Opened::Store(devices) => {
                let is_shared = settings.store_kind() == StoreKind::Mongodb;
                Ok(Access::Store { devices, is_shared })
            }
            Opened::Nothing => {
                bail!(
                    "store.kind = \"none\": no store to work on; name a configuration with --config"
                )
            }
            Opened::Held(held) => Self::holder(&settings, shown, &held),
        }
    }

    fn holder(settings: &Settings, shown: Option<String>, held: &str) -> Result<Access> {
        let Some(addr) = settings.gateway.listen.admin else {
            bail!("{held}, and listen.admin names no admin API: name its address with --admin");
        };
        let addr = reachable(addr);
        complain(format_args!("{held}: using the admin API at {addr}"));
        let configured = settings.gateway.admin.token.clone();
        let token = shown.or(Some(configured).filter(|token| !token.is_empty()));
        Ok(Access::Gateway { addr: addr.to_string(), token, tls: None })
    }

    /// Whether gateways may use the store at the same time. They do not learn of the changes made
    /// here.
    pub(super) fn is_shared(&self) -> bool {
        match self {
            Access::Store { is_shared, .. } => *is_shared,
            Access::Gateway { .. } => false,
        }
    }

    /// Imports devices, at most [`weir_store::BATCH_MAX`].
    pub(super) async fn put(&self, rows: Vec<Row>) -> Result<Counts> {
        match self {
            Access::Store { devices, .. } => {
                let secrets = devices.secrets();
                let entries = rows.into_iter().map(|row| row.entry(secrets)).collect();
                let puts = devices.store().put(entries, weir::unix_millis()).await?;
                Ok(Counts::of(&puts))
            }
            Access::Gateway { .. } => {
                let (mut counts, mut body) = (Counts::default(), String::new());
                for row in &rows {
                    body.push_str(&row.to_json_line());
                    if body.len() > BODY_BYTES {
                        counts.add(self.send(std::mem::take(&mut body)).await?);
                    }
                }
                if !body.is_empty() {
                    counts.add(self.send(body).await?);
                }
                Ok(counts)
            }
        }
    }

    /// Imports rows through the gateway.
    async fn send(&self, rows: String) -> Result<Counts> {
        let body = Body { kind: RowFormat::JsonLines.media_type(), bytes: rows.into_bytes() };
        let answer = self.ask(Method::POST, "/v1/devices", Some(body)).await?;
        Counts::read(&answer.unwrap_or_default())
    }

    /// A page of devices.
    pub(super) async fn list(&self, after: Option<&str>, limit: usize) -> Result<Vec<Value>> {
        match self {
            Access::Store { devices, .. } => {
                let after = after.map(serial).transpose()?;
                let page = devices.store().list(Page { after, limit }).await?;
                let devices = page.into_iter().map(StoredDevice::from);
                Ok(devices.map(serde_json::to_value).collect::<Result<_, _>>()?)
            }
            Access::Gateway { .. } => {
                let after = after.map(|after| format!("&after={}", encoded(after)));
                let path = format!("/v1/devices?limit={limit}{}", after.unwrap_or_default());
                let mut answer = self.ask(Method::GET, &path, None).await?.unwrap_or_default();
                let Value::Array(devices) = answer["devices"].take() else {
                    bail!("the answer does not come from a gateway's admin API");
                };
                Ok(devices)
            }
        }
    }

    /// One device.
    pub(super) async fn show(&self, name: &str) -> Result<Option<Value>> {
        match self {
            Access::Store { devices, .. } => {
                let found = devices.store().find(vec![serial(name)?]).await?;
                let found = found.into_iter().flatten().next().map(StoredDevice::from);
                Ok(found.map(serde_json::to_value).transpose()?)
            }
            Access::Gateway { .. } => {
                let path = format!("/v1/devices/{}", encoded(name));
                self.ask(Method::GET, &path, None).await
            }
        }
    }

    /// Revokes a device; returns whether it exists.
    pub(super) async fn revoke(&self, name: &str) -> Result<bool> {
        match self {
            Access::Store { devices, .. } => {
                let revoked = devices.store().revoke(vec![serial(name)?]).await?;
                Ok(revoked.first().is_some_and(|revoked| *revoked != Revoked::Unknown))
            }
            Access::Gateway { .. } => {
                let path = format!("/v1/devices/{}/revoke", encoded(name));
                let body = Body { kind: "application/json", bytes: b"{}".to_vec() };
                Ok(self.ask(Method::POST, &path, Some(body)).await?.is_some())
            }
        }
    }

    /// The answer of the admin API; `None` if it answers 404 for the device.
    async fn ask(&self, method: Method, path: &str, body: Option<Body>) -> Result<Option<Value>> {
        let Access::Gateway { addr, token, tls } = self else { bail!("there is no admin API") };
        let to = Admin { addr, tls: tls.as_deref(), token: token.as_deref() };
        let (status, answer) = crate::http::request(to, method, path, body).await?;
        if status == http::StatusCode::NOT_FOUND && path != "/v1/devices" && !path.contains('?') {
            return Ok(None);
        }
        if !status.is_success() {
            return Err(refusal(status, &answer, token.is_some()));
        }
        if answer.is_empty() {
            return Ok(Some(Value::Null));
        }
        let answer = serde_json::from_slice(&answer);
        Ok(Some(answer.context("the answer does not come from a gateway's admin API")?))
    }
}

impl Counts {
    fn of(puts: &[Put]) -> Counts {
        let count = |kind| puts.iter().filter(|put| **put == kind).count() as u64;
        Counts {
            added: count(Put::Added),
            unchanged: count(Put::Unchanged),
            relabelled: count(Put::Relabelled),
            rekeyed: count(Put::Rekeyed),
        }
    }

    fn read(answer: &Value) -> Result<Counts> {
        if let Some(error) = answer["errors"].as_array().and_then(|errors| errors.first()) {
            bail!(
                "the gateway refuses a row that is valid here; does it have another version? Its error: {error}"
            );
        }
        let number =
            |name: &str| answer[name].as_u64().with_context(|| format!("no {name} in {answer}"));
        Ok(Counts {
            added: number("added")?,
            unchanged: number("unchanged")?,
            relabelled: number("relabelled")?,
            rekeyed: number("rekeyed")?,
        })
    }

    pub(super) fn add(&mut self, other: Counts) {
        self.added += other.added;
        self.unchanged += other.unchanged;
        self.relabelled += other.relabelled;
        self.rekeyed += other.rekeyed;
    }
}

/// The serial number as a segment of a path. `/v1/devices/export` is another path.
fn encoded(serial: &str) -> String {
    if serial == "export" { "%65xport".to_owned() } else { percent_encoded(serial) }
}

/// A row has at most 64 KiB, and as JSON at most twice as much. So a body with one more row stays
/// below the megabyte that the admin API accepts.
const BODY_BYTES: usize = 768 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded_for_any_place() {
        assert_eq!(encoded("a/b c.é"), "a%2Fb%20c%2E%C3%A9");
        assert_eq!(encoded("export"), "%65xport");
    }
}
