//! The store in MongoDB, which several gateways can share.
//!
//! The collection `devices` has the serial number as `_id`, and `tokens` has the hash. A third one,
//! `store`, has one document with the fingerprint of the secrets. The first two have a sentinel
//! each: a document with an empty `_id`, which every look-up asks for too. So a dropped collection
//! counts as lost, and not as empty.
//!
//! The document of the device decides. It is replaced only if its generation is still the one that
//! was read, so no transaction is needed. For each kind of write a batch is one command with many
//! statements. The code uses nothing that MongoDB 5 lacks: no transactions, no change streams, no
//! pipelines.
//!
//! All reads go to the primary. The tests run against mongo-java-server 1.47, and not against
//! MongoDB itself. mongo-java-server speaks MongoDB's protocol, but orders `_id` by UTF-16, where
//! MongoDB orders by bytes.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use mongodb::Client;
use mongodb::bson::RawDocumentBuf;
use mongodb::options::{ClientOptions, ReadPreference, SelectionCriteria};
use tokio::sync::OnceCell;

use crate::contract::{Answer, Error, Store};
use crate::records::{
    Device, DeviceEntry, Hash, Holder, Issue, Issued, Millis, Page, Proof, Put, Refusal, Revoked,
    Serial,
};

mod amend;
mod commands;
mod documents;

use commands::Write;
use documents::TokenRecord;

/// The address of MongoDB, and how the gateway uses it.
#[derive(Debug, Clone)]
pub struct MongoOptions {
    /// The address: `mongodb://…` or `mongodb+srv://…`, with credentials and TLS options.
    pub uri: String,
    /// The database with the collections.
    pub database: String,
    /// When MongoDB answers a write: `majority`, or a number of members. With less than a majority,
    /// an answered activation can be lost with the primary.
    pub write_concern: String,
    /// Connections that stay open, so that the first requests do not wait for them.
    pub connections_min: u32,
    /// The largest number of connections.
    pub connections_max: u32,
    /// The time limit of each method.
    pub timeout: Duration,
    /// The [`crate::Secrets::fingerprint`] of the secrets with which keys and tokens are hashed.
    pub fingerprint: Hash,
    /// Whether to make missing collections. Otherwise a missing one is [`Error::Lost`].
    pub create: bool,
}

impl Default for MongoOptions {
    fn default() -> Self {
        MongoOptions {
            uri: "mongodb://127.0.0.1:27017".into(),
            database: "weir".into(),
            write_concern: "majority".into(),
            connections_min: 2,
            connections_max: 16,
            timeout: Duration::from_secs(2),
            fingerprint: Hash([0; 32]),
            create: false,
        }
    }
}

/// What is wrong with [`MongoOptions`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MongoOptionsError(String);

/// The store in MongoDB.
///
/// Limits: each method ends within [`MongoOptions::timeout`]. The driver does not bound the number
/// of requests that wait for a connection; the layer in front of the store must do it.
pub struct Mongo {
    database: mongodb::Database,
    write_concern: mongodb::bson::RawBson,
    timeout: Duration,
    fingerprint: Hash,
    create: bool,
    /// Set when the indexes are there and the stored fingerprint is known to be ours.
    prepared: OnceCell<()>,
}

impl Mongo {
    /// Takes options. Connections are made only when needed, so a gateway can start while its
    /// database is down.
    ///
    /// # Errors
    /// The options make no sense, or the name in a `mongodb+srv://` URI does not resolve.
    pub async fn new(options: &MongoOptions) -> Result<Mongo, MongoOptionsError> {
        let wrong = |error: mongodb::error::Error| MongoOptionsError(error.to_string());
        let mut client = ClientOptions::parse(&options.uri).await.map_err(wrong)?;
        client.app_name = Some("weir".into());
        client.connect_timeout = Some(options.timeout);
        // A request that finds no server fails early enough to be answered.
        client.server_selection_timeout = Some(options.timeout / 2);
        client.min_pool_size = Some(options.connections_min.min(options.connections_max));
        client.max_pool_size = Some(options.connections_max);
        // The default is two at a time; then a cold pool is slow when it is needed.
        client.max_connecting = Some(options.connections_max);
        client.selection_criteria =
            Some(SelectionCriteria::ReadPreference(ReadPreference::Primary));
        let client = Client::with_options(client).map_err(wrong)?;
        Ok(Mongo {
            database: client.database(&options.database),
            write_concern: write_concern(&options.write_concern)?,
            timeout: options.timeout,
            fingerprint: options.fingerprint,
            create: options.create,
            prepared: OnceCell::new(),
        })
    }

    /// Does now what the first use would otherwise do: checks the collections and the fingerprint
    /// of the secrets, and makes the indexes.
    ///
    /// # Errors
    /// [`Error::OtherSecrets`], [`Error::Lost`], and those of the other methods.
    pub async fn prepare(&self) -> Result<(), Error> {
        self.bounded(async { Ok(()) }).await
    }

    /// Runs one method within its time limit.
    fn bounded<'a, T: Send + 'a>(
        &'a self,
        method: impl Future<Output = Result<T, Error>> + Send + 'a,
    ) -> Answer<'a, T> {
        let prepared = async {
            self.prepare_once().await?;
            method.await
        };
        Box::pin(async move {
            match tokio::time::timeout(self.timeout, prepared).await {
                Ok(result) => result,
                Err(_) => Err(self.timed_out()),
            }
        })
    }

    fn timed_out(&self) -> Error {
        Error::TimedOut(u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX))
    }

    /// The known devices among these serial numbers.
    async fn devices(
        &self,
        serials: impl IntoIterator<Item = &Serial>,
    ) -> Result<HashMap<Serial, Device>, Error> {
        let found = self.device_documents(serials).await?;
        let devices = found.iter().map(|document| documents::device(document));
        devices.map(|device| device.map(|device| (device.serial.clone(), device))).collect()
    }

    async fn device_documents(
        &self,
        serials: impl IntoIterator<Item = &Serial>,
    ) -> Result<Vec<RawDocumentBuf>, Error> {
        let serials: BTreeSet<&Serial> = serials.into_iter().collect();
        if serials.is_empty() {
            return Ok(Vec::new());
        }
        let ids = serials.into_iter().map(|serial| serial.as_str().into()).collect();
        self.by_ids("devices", ids).await
    }

    /// The devices of these tokens, whether the tokens are valid or not.
    async fn owners(
        &self,
        tokens: impl IntoIterator<Item = &Hash>,
    ) -> Result<HashMap<Hash, Serial>, Error> {
        let tokens: BTreeSet<&[u8; 32]> = tokens.into_iter().map(|token| &token.0).collect();
        if tokens.is_empty() {
            return Ok(HashMap::new());
        }
        let ids = tokens.into_iter().map(|token| documents::binary(&Hash(*token)).into()).collect();
        let found = self.by_ids("tokens", ids).await?;
        found.iter().map(|document| documents::owner(document)).collect()
    }

    async fn issue_all(&self, issues: Vec<Issue>) -> Result<Vec<Result<Issued, Refusal>>, Error> {
        let shown = issues.iter().filter_map(|issue| match &issue.proof {
            Proof::Token(token) => Some(token),
            Proof::Key { .. } => None,
        });
        let mut owners = self.owners(shown).await?;
        let mut answers = vec![Err(Refusal::InvalidToken); issues.len()];
        let mut items = Vec::with_capacity(issues.len());
        for (place, issue) in issues.iter().enumerate() {
            let serial = match &issue.proof {
                Proof::Key { serial, .. } => Some(serial),
                Proof::Token(token) => owners.get(token),
            };
            if let Some(serial) = serial.cloned() {
                // A later item of the batch may use the token. The device's record says whether it
                // was issued.
                owners.insert(issue.token, serial.clone());
                items.push((serial, (place, issue)));
            }
        }
        let issued = self.amend(&items, |serial, (_, issue), device| issued(serial, issue, device));
        // If all items showed keys, nobody has looked at this collection yet. Beside the others,
        // the look takes no time.
        let (issued, is_there) = tokio::join!(issued, self.by_ids("tokens", vec![]));
        is_there?;
        let mut tokens = Vec::with_capacity(items.len());
        for ((_, (place, issue)), answer) in items.iter().zip(issued?) {
            if let Ok(Issued { serial, generation, .. }) = &answer {
                let (token, expires) = (issue.token, issue.expires);
                tokens.push(documents::token(&TokenRecord {
                    token,
                    serial,
                    expires,
                    generation: *generation,
                }));
            }
            answers[*place] = answer;
        }
        // After the devices, when the generation is certain. Until this is answered no device has
        // the token.
        self.write(Write::Insert, "tokens", tokens).await?;
        Ok(answers)
    }

    async fn check_all(
        &self,
        tokens: Vec<Hash>,
        now: Millis,
    ) -> Result<Vec<Option<Holder>>, Error> {
        let owners = self.owners(&tokens).await?;
        let devices = self.devices(owners.values()).await?;
        let holder = |token: &Hash| {
            let device = devices.get(owners.get(token)?)?;
            let expires = device.admits(token, now)?;
            Some(Holder {
                serial: device.serial.clone(),
                labels: device.labels.clone(),
                generation: device.generation,
                expires,
            })
        };
        Ok(tokens.iter().map(holder).collect())
    }

    async fn put_all(&self, entries: Vec<DeviceEntry>, now: Millis) -> Result<Vec<Put>, Error> {
        let items: Vec<_> =
            entries.into_iter().map(|entry| (entry.serial.clone(), entry)).collect();
        self.amend(&items, |_, entry, device| match device {
            Some(device) => {
                let (put, device) = device.put(entry);
                (put, Some(device))
            }
            None => (Put::Added, Some(Device::new(entry.clone(), now))),
        })
        .await
    }

    async fn revoke_all(&self, serials: Vec<Serial>) -> Result<Vec<Revoked>, Error> {
        let items: Vec<_> = serials.into_iter().map(|serial| (serial, ())).collect();
        self.amend(&items, |_, (), device| match device {
            Some(device) => {
                let (revoked, device) = device.revoke();
                (revoked, Some(device))
            }
            None => (Revoked::Unknown, None),
        })
        .await
    }
}

impl Store for Mongo {
    fn name(&self) -> &'static str {
        "mongodb"
    }

    fn put(&self, entries: Vec<DeviceEntry>, now: Millis) -> Answer<'_, Vec<Put>> {
        self.bounded(self.put_all(entries, now))
    }

    fn issue(&self, issues: Vec<Issue>) -> Answer<'_, Vec<Result<Issued, Refusal>>> {
        self.bounded(self.issue_all(issues))
    }

    fn check(&self, tokens: Vec<Hash>, now: Millis) -> Answer<'_, Vec<Option<Holder>>> {
        self.bounded(self.check_all(tokens, now))
    }

    fn revoke(&self, serials: Vec<Serial>) -> Answer<'_, Vec<Revoked>> {
        self.bounded(self.revoke_all(serials))
    }

    fn find(&self, serials: Vec<Serial>) -> Answer<'_, Vec<Option<Device>>> {
        self.bounded(async move {
            let devices = self.devices(&serials).await?;
            Ok(serials.iter().map(|serial| devices.get(serial).cloned()).collect())
        })
    }

    fn list(&self, page: Page) -> Answer<'_, Vec<Device>> {
        self.bounded(async move {
            let found = self.page(page.after.as_ref(), page.limit).await?;
            found.iter().map(|document| documents::device(document)).collect()
        })
    }

    fn seen(&self, seen: Vec<(Serial, Millis)>) -> Answer<'_, ()> {
        self.bounded(async move {
            let statements = seen.iter().map(|(serial, at)| documents::seen(serial, *at)).collect();
            self.write(Write::Update, "devices", statements).await?;
            Ok(())
        })
    }

    fn sweep(&self, now: Millis, limit: usize) -> Answer<'_, usize> {
        self.bounded(self.sweep_tokens(now, limit))
    }

    fn count(&self) -> Answer<'_, u64> {
        self.bounded(self.count_devices())
    }

    fn probe(&self) -> Answer<'_, ()> {
        self.bounded(self.probe_all())
    }
}

fn issued(
    serial: &Serial,
    issue: &Issue,
    device: Option<&Device>,
) -> (Result<Issued, Refusal>, Option<Device>) {
    let Some(device) = device else {
        let refusal = match issue.proof {
            Proof::Key { .. } => Refusal::UnknownDevice,
            Proof::Token(_) => Refusal::InvalidToken,
        };
        return (Err(refusal), None);
    };
    match device.issue(issue) {
        Ok(changed) => {
            let issued = Issued {
                serial: serial.clone(),
                generation: changed.generation,
                is_first: device.activated.is_none(),
            };
            (Ok(issued), Some(changed))
        }
        Err(refusal) => (Err(refusal), None),
    }
}

fn write_concern(text: &str) -> Result<mongodb::bson::RawBson, MongoOptionsError> {
    match text.parse::<i32>() {
        Ok(members @ 1..) => Ok(members.into()),
        Err(_) if text == "majority" => Ok(text.into()),
        Ok(_) | Err(_) => Err(MongoOptionsError(format!(
            "the write concern is {text:?}; \"majority\" and numbers from 1 on are allowed"
        ))),
    }
}
