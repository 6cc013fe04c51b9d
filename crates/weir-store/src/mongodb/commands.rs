//! The commands for MongoDB, and their answers.

use std::time::Duration;

use mongodb::bson::raw::{RawArrayBuf, RawBson, cstr};
use mongodb::bson::{Bson, Document, RawDocumentBuf, doc, rawdoc};
use mongodb::error::{Error as DriverError, ErrorKind};

use super::{Mongo, documents};
use crate::contract::Error;
use crate::records::{Millis, Serial};

/// The kind of a command with many statements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Write {
    Insert,
    Update,
    Delete,
}

/// The result of a write.
#[derive(Default)]
pub(super) struct Written {
    /// Documents that the command found and changed; with [`Write::Insert`], documents that it
    /// added.
    pub(super) matched: usize,
    /// Places of the statements whose document was there already.
    pub(super) duplicates: Vec<usize>,
}

impl Mongo {
    /// By how many milliseconds the database's clock is ahead of ours. `clock` tells our wall time.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::TimedOut`], and an answer without a time.
    pub async fn clock_ahead_ms(&self, clock: fn() -> Millis) -> Result<i64, Error> {
        let asked = clock();
        // Newer servers know `hello` too, older ones only this.
        let hello = self.database.run_command(doc! { "isMaster": 1 });
        let answer = tokio::time::timeout(self.timeout, hello).await;
        let answer = answer.map_err(|_| self.timed_out())?.map_err(|error| self.error(&error))?;
        // The database looked at its clock somewhere between the two.
        let ours = i64::try_from(asked.midpoint(clock())).unwrap_or(i64::MAX);
        let theirs = answer.get_datetime("localTime");
        let theirs = theirs.map_err(|error| Error::Unavailable(format!("MongoDB: {error}")))?;
        Ok(theirs.timestamp_millis().saturating_sub(ours))
    }

    /// Checks that everything is there and hashed with our secrets, and makes the indexes. Does all
    /// of this once.
    pub(super) async fn prepare_once(&self) -> Result<(), Error> {
        let make = || async {
            if !self.is_whole().await? {
                self.begin().await?;
            }
            // The database removes ended tokens by itself; `sweep` is for operators who want it
            // sooner.
            let ends = doc! { "key": { "expires": 1 }, "name": "expires", "expireAfterSeconds": 0 };
            let command = doc! { "createIndexes": "tokens", "indexes": [ends] };
            self.database.run_command(command).await.map_err(|error| self.error(&error))?;
            Ok(())
        };
        self.prepared.get_or_try_init(make).await?;
        Ok(())
    }

    /// Whether the secrets and the sentinels are there. The secrets must be ours.
    async fn is_whole(&self) -> Result<bool, Error> {
        Ok(self.has_secrets().await?
            && self.has_sentinel("devices").await?
            && self.has_sentinel("tokens").await?)
    }

    async fn has_secrets(&self) -> Result<bool, Error> {
        let ids = rawdoc! { "_id": documents::SECRETS_ID };
        let found = self.documents("store", ids, 1, false).await?;
        match found.first().map(|document| documents::fingerprint(document)).transpose()? {
            Some(fingerprint) if fingerprint == self.fingerprint => Ok(true),
            Some(_) => Err(Error::OtherSecrets),
            None => Ok(false),
        }
    }

    async fn has_sentinel(&self, collection: &str) -> Result<bool, Error> {
        match self.by_ids(collection, vec![]).await {
            Ok(_) => Ok(true),
            Err(Error::Lost(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether an older version, which had no sentinels, has written devices.
    async fn is_older(&self) -> Result<bool, Error> {
        let any = self.documents("devices", RawDocumentBuf::new(), 1, false).await?;
        Ok(!any.is_empty() && self.has_secrets().await? && !self.has_sentinel("devices").await?)
    }

    /// Makes the missing parts, if that is permitted. The first gateway writes the fingerprint of
    /// its secrets; those of all others must equal it.
    async fn begin(&self) -> Result<(), Error> {
        if !self.create && !self.is_older().await? {
            let name = self.database.name();
            return Err(Error::Lost(format!(
                "database {name:?} has no collections of devices and tokens that belong together"
            )));
        }
        let ours = vec![documents::secrets(&self.fingerprint)];
        self.write(Write::Insert, "store", ours).await?;
        for collection in ["devices", "tokens"] {
            self.write(Write::Insert, collection, vec![documents::sentinel()]).await?;
        }
        match self.is_whole().await? {
            true => Ok(()),
            false => Err(strange()),
        }
    }

    /// Documents by their `_id`, if the collection still has its sentinel. Without any `_id` it
    /// only checks the sentinel.
    pub(super) async fn by_ids(
        &self,
        collection: &str,
        ids: Vec<RawBson>,
    ) -> Result<Vec<RawDocumentBuf>, Error> {
        let mut found = Vec::new();
        let mut ids = ids.into_iter();
        loop {
            let mut some = RawArrayBuf::new();
            some.push(documents::SENTINEL_ID);
            ids.by_ref().take(IDS_MAX).for_each(|id| some.push(id));
            let filter = rawdoc! { "_id": { "$in": some } };
            let before = found.len();
            found.extend(self.documents(collection, filter, IDS_MAX + 1, false).await?);
            let sentinel = found[before..].iter().position(|found| documents::is_sentinel(found));
            let Some(sentinel) = sentinel else {
                let name = self.database.name();
                return Err(Error::Lost(format!(
                    "the collection {collection:?} of database {name:?} was dropped or replaced"
                )));
            };
            found.swap_remove(before + sentinel);
            if ids.len() == 0 {
                return Ok(found);
            }
        }
    }

    /// Writes a document that changes nothing, if everything is there.
    pub(super) async fn probe_all(&self) -> Result<(), Error> {
        self.by_ids("devices", vec![]).await?;
        self.by_ids("tokens", vec![]).await?;
        let probe = vec![documents::probe(&self.fingerprint)];
        match self.write(Write::Update, "store", probe).await?.matched {
            0 => {
                let name = self.database.name();
                Err(Error::Lost(format!(
                    "the collection \"store\" of database {name:?} was dropped or replaced"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Devices after a serial number, in their order.
    pub(super) async fn page(
        &self,
        after: Option<&Serial>,
        limit: usize,
    ) -> Result<Vec<RawDocumentBuf>, Error> {
        self.by_ids("devices", vec![]).await?;
        // At least after the sentinel.
        let after = after.map_or(documents::SENTINEL_ID, Serial::as_str);
        let filter = rawdoc! { "_id": { "$gt": after } };
        self.documents("devices", filter, limit, true).await
    }

    pub(super) async fn sweep_tokens(&self, now: Millis, limit: usize) -> Result<usize, Error> {
        let filter = rawdoc! { "expires": { "$lte": documents::date(now) } };
        let ended = self.documents("tokens", filter, limit, false).await?;
        let mut statements = Vec::with_capacity(ended.len());
        for token in &ended {
            let (token, _) = documents::owner(token)?;
            let id = documents::binary(&token);
            statements.push(rawdoc! { "q": { "_id": id }, "limit": 1 });
        }
        Ok(self.write(Write::Delete, "tokens", statements).await?.matched)
    }

    pub(super) async fn count_devices(&self) -> Result<u64, Error> {
        self.by_ids("devices", vec![]).await?;
        let command = doc! { "count": "devices" };
        let answer =
            self.database.run_command(command).await.map_err(|error| self.error(&error))?;
        // The sentinel is no device.
        Ok(u64::try_from(number(&answer, "n")).unwrap_or(0).saturating_sub(1))
    }

    async fn documents(
        &self,
        collection: &str,
        filter: RawDocumentBuf,
        limit: usize,
        is_sorted: bool,
    ) -> Result<Vec<RawDocumentBuf>, Error> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut command = rawdoc! { "find": collection, "filter": filter };
        if is_sorted {
            command.append(cstr!("sort"), rawdoc! { "_id": 1 });
        }
        command.append(cstr!("limit"), limit);
        // All documents in one answer if they fit; a server's default is 101.
        command.append(cstr!("batchSize"), limit);
        command.append(cstr!("maxTimeMS"), millis(self.timeout));
        // A connection that broke while idle fails its first request.
        match self.read(command.clone()).await {
            Err(Error::Unavailable(_)) => self.read(command).await,
            result => result,
        }
    }

    async fn read(&self, command: RawDocumentBuf) -> Result<Vec<RawDocumentBuf>, Error> {
        let cursor = self.database.run_raw_cursor_command(command).await;
        let mut cursor = cursor.map_err(|error| self.error(&error))?;
        let mut documents = Vec::new();
        while cursor.advance().await.map_err(|error| self.error(&error))? {
            documents.push(cursor.current().to_owned());
        }
        Ok(documents)
    }

    /// Runs statements in as few commands as their size allows. Each runs even if others failed.
    pub(super) async fn write(
        &self,
        write: Write,
        collection: &str,
        statements: Vec<RawDocumentBuf>,
    ) -> Result<Written, Error> {
        let mut written = Written::default();
        let (mut chunk, mut bytes, mut first) = (RawArrayBuf::new(), 0, 0);
        let last = statements.len().wrapping_sub(1);
        for (place, statement) in statements.into_iter().enumerate() {
            bytes += statement.as_bytes().len();
            chunk.push(statement);
            if bytes >= COMMAND_BYTES || place == last {
                let chunk = std::mem::replace(&mut chunk, RawArrayBuf::new());
                self.write_chunk(write, collection, chunk, first, &mut written).await?;
                (bytes, first) = (0, place + 1);
            }
        }
        Ok(written)
    }

    async fn write_chunk(
        &self,
        write: Write,
        collection: &str,
        chunk: RawArrayBuf,
        first: usize,
        written: &mut Written,
    ) -> Result<(), Error> {
        let (name, list) = match write {
            Write::Insert => (cstr!("insert"), cstr!("documents")),
            Write::Update => (cstr!("update"), cstr!("updates")),
            Write::Delete => (cstr!("delete"), cstr!("deletes")),
        };
        let mut concern = RawDocumentBuf::new();
        concern.append(cstr!("w"), self.write_concern.clone());
        concern.append(cstr!("wtimeout"), millis(self.timeout));
        let mut command = RawDocumentBuf::new();
        command.append(name, collection);
        command.append(list, chunk);
        command.append(cstr!("ordered"), false);
        command.append(cstr!("writeConcern"), concern);
        let answer = self.database.run_raw_command(command).await;
        let answer = answer.map_err(|error| self.error(&error))?;
        for error in answer.get_array("writeErrors").into_iter().flatten() {
            let error = error.as_document().ok_or_else(strange)?;
            if number(error, "code") != DUPLICATE_KEY || write != Write::Insert {
                return Err(Error::Unavailable(complaint(error)));
            }
            let place = usize::try_from(number(error, "index")).map_err(|_| strange())?;
            written.duplicates.push(first + place);
        }
        if let Ok(error) = answer.get_document("writeConcernError") {
            return Err(Error::Unavailable(complaint(error)));
        }
        written.matched += usize::try_from(number(&answer, "n")).unwrap_or(0);
        Ok(())
    }

    fn error(&self, error: &DriverError) -> Error {
        let kind = error.kind.as_ref();
        if let ErrorKind::Command(command) = kind
            && command.code == MAX_TIME_EXPIRED
        {
            return self.timed_out();
        }
        let is_not_understood = matches!(
            kind,
            ErrorKind::Bson(_)
                | ErrorKind::BsonDeserialization(_)
                | ErrorKind::InvalidResponse { .. }
        );
        if is_not_understood {
            return Error::Damaged(error.to_string());
        }
        Error::Unavailable(error.to_string())
    }
}

/// A number in an answer. Servers choose its type.
fn number(document: &Document, name: &str) -> i64 {
    match document.get(name) {
        Some(Bson::Int32(number)) => i64::from(*number),
        Some(Bson::Int64(number)) => *number,
        _ => 0,
    }
}

fn complaint(error: &Document) -> String {
    let text = error.get_str("errmsg").unwrap_or("it does not say why");
    format!("a write failed with code {}: {text}", number(error, "code"))
}

fn strange() -> Error {
    Error::Damaged("MongoDB's answer to a write is not understood".into())
}

fn millis(duration: Duration) -> RawBson {
    RawBson::Int64(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX))
}

/// Bytes of statements in one command. A document may have 16 MiB, and one more statement of the
/// largest size may follow.
const COMMAND_BYTES: usize = 8 * 1024 * 1024;

/// The most documents that one command asks for by their `_id`. Enough for a batch of the front,
/// and few enough for servers that compare each with all.
const IDS_MAX: usize = 1_000;

/// Error code: this `_id` exists already.
const DUPLICATE_KEY: i64 = 11_000;

/// Error code: the command took longer than `maxTimeMS`.
const MAX_TIME_EXPIRED: i32 = 50;
