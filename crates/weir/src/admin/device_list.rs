//! Devices in the store: listing, importing, exporting, revoking.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderMap, HeaderValue};
use http_body_util::{BodyExt as _, Either};
use hyper::body::{Body, Frame};
use serde::Serialize;
use utoipa::ToSchema;
use weir_store::{BATCH_MAX, Device, DeviceEntry, Page, Put, Revoked, Serial};

use crate::Handle;
use crate::base::clock::unix_millis;
use crate::core::node::Confirmations;
use crate::http::web::problem::{Kind, Problem};
use crate::http::web::query::Query;
use crate::http::web::reply::{self, Reply};
use crate::provisioning::device_store::{DeviceStore, StoredDevice};
use crate::provisioning::import::{BadRow, Row, RowFormat, Rows, RowsError};

/// A page of devices.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = StoredDevices)]
pub(super) struct StoredPageView {
    devices: Vec<StoredDevice>,
    /// `after` of the next page; `null` on the last one.
    #[schema(required)]
    next_after: Option<String>,
}

/// The result of an import.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = Imported)]
pub(super) struct ImportedView {
    /// The number of rows that were read, bad rows included.
    rows: u64,
    added: u64,
    unchanged: u64,
    /// The devices whose labels were replaced.
    relabelled: u64,
    /// The devices whose key was replaced; their tokens have ended.
    rekeyed: u64,
    /// Rows that were skipped.
    bad: u64,
    /// The devices whose keys are so short that they may be guessed.
    short_keys: u64,
    /// The faults of the first 100 bad rows.
    errors: Vec<BadRowView>,
}

/// The fault of a row.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = BadRow)]
pub(super) struct BadRowView {
    /// The first line of the body is 1.
    line: u64,
    /// The column or member at fault; empty: the whole row.
    field: String,
    detail: String,
}

/// All devices as lines of JSON. It reads the next page when its reader needs one.
struct Export {
    devices: Arc<DeviceStore>,
    after: Option<Serial>,
    /// The request for the next page.
    asked: Option<AskedPage>,
    is_over: bool,
}

type AskedPage = Pin<Box<dyn Future<Output = Result<Vec<Device>, weir_store::Error>> + Send>>;

/// `GET /v1/devices`.
pub(super) async fn list(handle: &Handle, query: Option<&str>) -> Result<Reply, Problem> {
    let query = Query::parse(query, &["limit", "after"])?;
    let limit = query.limit()?;
    let after = query.value("after").map(|after| serial("after", after)).transpose()?;
    let store = store(handle)?.store();
    let page = store.list(Page { after, limit: limit + 1 }).await;
    let mut devices = page.map_err(|error| unanswered(&error))?;
    let more = devices.len() > limit;
    devices.truncate(limit);
    let last = devices.last().filter(|_| more);
    let next_after = last.map(|last| last.serial.to_string());
    let devices = devices.into_iter().map(StoredDevice::from).collect();
    Ok(reply::json(StatusCode::OK, &StoredPageView { devices, next_after }))
}

/// The store's record of a device; `None` if there is none, or there can be none.
pub(super) async fn find(handle: &Handle, id: &str) -> Result<Option<StoredDevice>, Problem> {
    let (Some(devices), Ok(serial)) = (handle.device_store(), Serial::new(id)) else {
        return Ok(None);
    };
    let found = devices.store().find(vec![serial]).await.map_err(|error| unanswered(&error))?;
    Ok(found.into_iter().flatten().next().map(StoredDevice::from))
}

/// Revokes a device and closes its connections, in a cluster those at all nodes. Returns whether it
/// is known, in the store or by a connection here, and in a cluster which nodes have confirmed.
pub(super) async fn revoke(
    handle: &Handle,
    id: &str,
) -> Result<(bool, Option<Confirmations>), Problem> {
    let (handle, id) = (handle.clone(), id.to_owned());
    whole(async move {
        // First in the store: a device that is admitted afterwards has been checked against the new
        // state.
        let is_kept = shut_out(&handle, &id).await?;
        let Some(node) = &handle.shared().node else {
            return Ok((handle.revoke(&id).await? || is_kept, None));
        };
        let is_here = handle.shared().devices.connections_of(&id).is_some();
        // This node closes its connections when the broker tells it to, like all others. To close
        // them now as well could hit the device when it has come back.
        let confirmations = node.revoke_everywhere(&id).await;
        if !confirmations.as_ref().is_ok_and(|confirmations| confirmations.has(node.number())) {
            handle.revoke(&id).await?;
        }
        let confirmations = confirmations.map_err(|error| Problem::broker(&error))?;
        Ok((is_here || is_kept, Some(confirmations)))
    })
    .await
}

/// Revokes the device in the store. Returns whether the store has it.
async fn shut_out(handle: &Handle, id: &str) -> Result<bool, Problem> {
    let (Some(devices), Ok(serial)) = (handle.device_store(), Serial::new(id)) else {
        return Ok(false);
    };
    let revoked = devices.store().revoke(vec![serial]).await;
    let revoked = revoked.map_err(|error| unanswered(&error))?;
    Ok(revoked.first().is_some_and(|revoked| match revoked {
        Revoked::Now | Revoked::Before => true,
        Revoked::Unknown => false,
    }))
}

/// `POST /v1/devices`.
pub(super) async fn import(
    handle: &Handle,
    format: RowFormat,
    body: &[u8],
) -> Result<Reply, Problem> {
    let devices = store(handle)?;
    let mut imported = ImportedView::default();
    let mut rows = Rows::new(body, format).map_err(|error| unreadable(&error))?;
    let mut entries = Vec::new();
    loop {
        let next = rows.next_row().map_err(|error| unreadable(&error))?;
        let is_over = next.is_none();
        match next {
            Some(row) => imported.take(row, devices, &mut entries),
            None if entries.is_empty() => break,
            None => {}
        }
        if entries.len() == BATCH_MAX || (is_over && !entries.is_empty()) {
            imported.put(handle, devices, std::mem::take(&mut entries)).await?;
        }
        if imported.rows.is_multiple_of(ROWS_AT_A_TIME) {
            tokio::task::yield_now().await;
        }
        if is_over {
            break;
        }
    }
    Ok(reply::json(StatusCode::OK, &imported))
}

/// The format of the rows of a body.
pub(super) fn format(headers: &HeaderMap) -> Result<RowFormat, Problem> {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let essence = match (types.next().map(HeaderValue::to_str), types.next()) {
        (Some(Ok(value)), None) => value.split(';').next().unwrap_or_default().trim(),
        _ => "",
    };
    let formats = [RowFormat::Csv, RowFormat::JsonLines];
    let found =
        formats.into_iter().find(|format| essence.eq_ignore_ascii_case(format.media_type()));
    found.ok_or_else(|| {
        let detail = "send devices as \"Content-Type: text/csv\" or \"application/x-ndjson\"";
        Problem::new(Kind::UnsupportedMediaType, detail).at_header("Content-Type")
    })
}

/// `GET /v1/devices/export`.
pub(super) fn export(handle: &Handle) -> Result<Reply, Problem> {
    let devices = Arc::clone(store(handle)?);
    let export = Export { devices, after: None, asked: None, is_over: false };
    let mut reply = reply::empty(StatusCode::OK);
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(RowFormat::JsonLines.media_type()));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    *reply.body_mut() = Either::Right(export.boxed_unsync());
    Ok(reply)
}

impl ImportedView {
    fn take(
        &mut self,
        row: Result<Row, BadRow>,
        devices: &DeviceStore,
        entries: &mut Vec<DeviceEntry>,
    ) {
        self.rows += 1;
        match row {
            Ok(row) => {
                self.short_keys += u64::from(row.has_short_key());
                entries.push(row.entry(devices.secrets()));
            }
            Err(BadRow { line, field, detail }) => {
                self.bad += 1;
                if self.errors.len() < ERRORS_MAX {
                    self.errors.push(BadRowView { line, field, detail });
                }
            }
        }
    }

    async fn put(
        &mut self,
        handle: &Handle,
        devices: &Arc<DeviceStore>,
        entries: Vec<DeviceEntry>,
    ) -> Result<(), Problem> {
        let puts = whole(put(handle.clone(), Arc::clone(devices), entries)).await?;
        for put in puts {
            match put {
                Put::Added => self.added += 1,
                Put::Unchanged => self.unchanged += 1,
                Put::Relabelled => self.relabelled += 1,
                Put::Rekeyed => self.rekeyed += 1,
            }
        }
        Ok(())
    }
}

/// Imports devices, and closes the connections of those whose key was replaced. A connected owner
/// of a token for the old key may not be the owner of the new key.
async fn put(
    handle: Handle,
    devices: Arc<DeviceStore>,
    entries: Vec<DeviceEntry>,
) -> Result<Vec<Put>, Problem> {
    let serials: Vec<Serial> = entries.iter().map(|entry| entry.serial.clone()).collect();
    let puts = devices.store().put(entries, unix_millis()).await;
    let puts = match puts {
        Ok(puts) => puts,
        Err(error) => {
            // The key of any of these devices may have changed, and no later answer will say so.
            // Close their connections: their devices authenticate again.
            for serial in serials {
                end_connections(&handle, serial.as_str()).await?;
            }
            return Err(unanswered(&error));
        }
    };
    let mut closed: Result<(), Problem> = Ok(());
    let rekeyed = puts.iter().zip(serials).filter(|(put, _)| **put == Put::Rekeyed);
    for (_, serial) in rekeyed {
        // A connection that cannot be closed at once does not keep the others open.
        closed = closed.and(end_connections(&handle, serial.as_str()).await);
    }
    closed?;
    Ok(puts)
}

/// Closes the connections of a device, in a cluster those at all nodes, soon.
async fn end_connections(handle: &Handle, id: &str) -> Result<(), Problem> {
    let told = match &handle.shared().node {
        Some(node) => node.revoke_soon(id).await.map_err(|error| Problem::broker(&error)),
        None => return Ok(handle.revoke(id).await.map(drop)?),
    };
    if told.is_err() {
        handle.revoke(id).await?;
    }
    told
}

/// Carries out a change to its end, even if the caller goes away. A change that stopped half-way
/// would leave connections of revoked devices open, and a repeated request would find nothing to
/// change.
async fn whole<T: Send + 'static>(
    change: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    match tokio::spawn(change).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends.
            Err(_) => Err(Problem::store_unavailable()),
        },
    }
}

impl Body for Export {
    type Data = Bytes;
    type Error = io::Error;

    /// The next lines.
    ///
    /// # Errors
    /// The store does not answer. Then the body ends without its proper end, so that no reader
    /// takes it for the whole list.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = &mut *self;
        if this.is_over {
            return Poll::Ready(None);
        }
        let asked = this.asked.get_or_insert_with(|| {
            let (devices, after) = (Arc::clone(&this.devices), this.after.clone());
            Box::pin(ask(devices, Page { after, limit: PAGE_MAX }))
        });
        let page = ready!(asked.as_mut().poll(cx));
        this.asked = None;
        let devices = match page {
            Ok(devices) => devices,
            Err(error) => {
                this.is_over = true;
                return Poll::Ready(Some(Err(io::Error::other(error))));
            }
        };
        this.is_over = devices.len() < PAGE_MAX;
        let Some(last) = devices.last() else { return Poll::Ready(None) };
        this.after = Some(last.serial.clone());
        let mut lines = Vec::new();
        for device in devices {
            // A view has only texts and numbers.
            let _ = serde_json::to_writer(&mut lines, &StoredDevice::from(device));
            lines.push(b'\n');
        }
        Poll::Ready(Some(Ok(Frame::data(lines.into()))))
    }
}

async fn ask(devices: Arc<DeviceStore>, page: Page) -> Result<Vec<Device>, weir_store::Error> {
    devices.store().list(page).await
}

fn store(handle: &Handle) -> Result<&Arc<DeviceStore>, Problem> {
    handle.device_store().ok_or_else(Problem::no_store)
}

fn serial(field: &str, text: &str) -> Result<Serial, Problem> {
    Serial::new(text).map_err(|error| Problem::field(field, format!("{field} {error}")))
}

pub(super) fn unanswered(error: &weir_store::Error) -> Problem {
    tracing::warn!(%error, "the store of devices does not answer the admin API");
    Problem::store_failed(error)
}

fn unreadable(error: &RowsError) -> Problem {
    Problem::new(Kind::InvalidRequest, error.to_string())
}

/// Enough to see the fault of a file.
const ERRORS_MAX: usize = 100;
/// Between these groups, other work of the thread has its turn.
const ROWS_AT_A_TIME: u64 = 512;
/// Some 200 KB of lines.
const PAGE_MAX: usize = 1000;
