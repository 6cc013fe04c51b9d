//! Devices and tokens as documents.

use std::collections::BTreeMap;

use mongodb::bson::raw::{
    CStr, CString, RawArray, RawArrayBuf, RawBson, RawBsonRef, RawDocument, cstr,
};
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, DateTime, RawDocumentBuf, rawdoc};

use crate::contract::Error;
use crate::records::{Device, Hash, Millis, Previous, Serial, State};

/// The stored record of a token.
pub(super) struct TokenRecord<'a> {
    pub(super) token: Hash,
    pub(super) serial: &'a Serial,
    pub(super) expires: Millis,
    pub(super) generation: u64,
}

pub(super) fn binary(hash: &Hash) -> Binary {
    Binary { subtype: BinarySubtype::Generic, bytes: hash.0.to_vec() }
}

pub(super) fn date(millis: Millis) -> DateTime {
    DateTime::from_millis(number(millis))
}

pub(super) fn token(record: &TokenRecord<'_>) -> RawDocumentBuf {
    rawdoc! {
        "_id": binary(&record.token),
        "serial": record.serial.as_str(),
        "expires": date(record.expires),
        "generation": number(record.generation),
    }
}

/// The document with the fingerprint of the secrets.
pub(super) fn secrets(fingerprint: &Hash) -> RawDocumentBuf {
    rawdoc! { "_id": SECRETS_ID, "fingerprint": binary(fingerprint) }
}

/// Reads the fingerprint.
pub(super) fn fingerprint(document: &RawDocument) -> Result<Hash, Error> {
    needed(hash(document, "fingerprint")?, "fingerprint")
}

/// The sentinel. Every look-up finds it too, as long as the collection has not been replaced.
pub(super) fn sentinel() -> RawDocumentBuf {
    rawdoc! { "_id": SENTINEL_ID }
}

pub(super) fn is_sentinel(document: &RawDocument) -> bool {
    document.get_str("_id").is_ok_and(|id| id == SENTINEL_ID)
}

/// A statement that changes nothing that is ever read.
pub(super) fn probe(fingerprint: &Hash) -> RawDocumentBuf {
    rawdoc! {
        "q": { "_id": SECRETS_ID, "fingerprint": binary(fingerprint) },
        "u": { "$inc": { "probes": 1_i64 } },
    }
}

/// A token's hash, and its device.
pub(super) fn owner(document: &RawDocument) -> Result<(Hash, Serial), Error> {
    Ok((needed(hash(document, "_id")?, "_id")?, serial(document, "serial")?))
}

/// The document of a new device.
pub(super) fn inserted(device: &Device) -> RawDocumentBuf {
    let mut document = rawdoc! {
        "_id": device.serial.as_str(),
        "created": date(device.created),
    };
    for (name, value) in fields(device) {
        if let Some(value) = value {
            document.append(name, value);
        }
    }
    document
}

/// The statement that turns `before` into `after` and leaves a mark, if the device has not changed
/// meanwhile. `None` if the two are the same.
pub(super) fn changed(before: &Device, after: &Device, mark: i64) -> Option<RawDocumentBuf> {
    let (mut set, mut unset) = (RawDocumentBuf::new(), RawDocumentBuf::new());
    for ((name, old), (_, new)) in fields(before).into_iter().zip(fields(after)) {
        match new {
            Some(new) if old.as_ref() != Some(&new) => set.append(name, new),
            None if old.is_some() => unset.append(name, ""),
            Some(_) | None => {}
        }
    }
    if set.is_empty() && unset.is_empty() {
        return None;
    }
    let slot = CString::try_from(format!("marks.{}", slot(after))).ok()?;
    set.append(slot, mark);
    let mut update = rawdoc! { "$set": set };
    // Servers refuse an empty `$unset`.
    if !unset.is_empty() {
        update.append(cstr!("$unset"), unset);
    }
    let is_still =
        rawdoc! { "_id": after.serial.as_str(), "generation": number(before.generation) };
    Some(rawdoc! { "q": is_still, "u": update })
}

/// The mark of the writer that made the generation of `device`.
pub(super) fn mark(document: &RawDocument, device: &Device) -> Option<i64> {
    document.get_document("marks").ok()?.get_i64(slot(device).to_string()).ok()
}

/// The place of a generation's mark. [`MARKS`] further changes later another mark takes its place,
/// when nobody needs it any more.
fn slot(device: &Device) -> u64 {
    device.generation % MARKS
}

/// The statement that notes when a device connected last.
pub(super) fn seen(serial: &Serial, at: Millis) -> RawDocumentBuf {
    rawdoc! { "q": { "_id": serial.as_str() }, "u": { "$max": { "seen": date(at) } } }
}

/// Reads a device.
pub(super) fn device(document: &RawDocument) -> Result<Device, Error> {
    let serial = serial(document, "_id")?;
    let token = hash(document, "token")?.zip(time(document, "expires")?);
    let previous = hash(document, "previous")?.zip(time(document, "until")?);
    let state = match text(document, "state")? {
        "new" => State::New,
        "active" => State::Active,
        "revoked" => State::Revoked,
        other => return Err(damaged(&format!("a state {other:?}"))),
    };
    let generation = match get(document, "generation")? {
        Some(RawBsonRef::Int64(generation)) => u64::try_from(generation).ok(),
        _ => None,
    };
    Ok(Device {
        serial,
        key: needed(hash(document, "key")?, "key")?,
        state,
        labels: labels(document)?,
        created: needed(time(document, "created")?, "created")?,
        activated: time(document, "activated")?,
        seen: time(document, "seen")?,
        generation: needed(generation, "generation")?,
        token,
        previous: previous.map(|(token, until)| Previous { token, until }),
    })
}

/// The fields of a device that may change, except the time of its last connection.
fn fields(device: &Device) -> [(&'static CStr, Option<RawBson>); 9] {
    let state = match device.state {
        State::New => "new",
        State::Active => "active",
        State::Revoked => "revoked",
    };
    let hash = |hash: Hash| RawBson::Binary(binary(&hash));
    let time = |at: Millis| RawBson::DateTime(date(at));
    let (token, expires) = device.token.unzip();
    let (previous, until) =
        device.previous.map(|previous| (previous.token, previous.until)).unzip();
    [
        (cstr!("key"), Some(hash(device.key))),
        (cstr!("state"), Some(state.into())),
        (cstr!("labels"), label_list(&device.labels).map(RawBson::Array)),
        (cstr!("activated"), device.activated.map(time)),
        (cstr!("generation"), Some(number(device.generation).into())),
        (cstr!("token"), token.map(hash)),
        (cstr!("expires"), expires.map(time)),
        (cstr!("previous"), previous.map(hash)),
        (cstr!("until"), until.map(time)),
    ]
}

/// Labels as a list, because names of fields must not have every character that names of labels may
/// have.
fn label_list(labels: &BTreeMap<String, String>) -> Option<RawArrayBuf> {
    let mut list = RawArrayBuf::new();
    for (name, value) in labels {
        list.push(rawdoc! { "name": name.as_str(), "value": value.as_str() });
    }
    (!labels.is_empty()).then_some(list)
}

fn labels(document: &RawDocument) -> Result<BTreeMap<String, String>, Error> {
    let list: Option<&RawArray> = match get(document, "labels")? {
        None => None,
        Some(RawBsonRef::Array(list)) => Some(list),
        Some(_) => return Err(damaged("labels")),
    };
    let label = |value| match value {
        Ok(RawBsonRef::Document(label)) => {
            Ok((text(label, "name")?.to_owned(), text(label, "value")?.to_owned()))
        }
        _ => Err(damaged("labels")),
    };
    list.into_iter().flatten().map(label).collect()
}

fn get<'a>(document: &'a RawDocument, name: &str) -> Result<Option<RawBsonRef<'a>>, Error> {
    document.get(name).map_err(|_| damaged(name))
}

fn text<'a>(document: &'a RawDocument, name: &str) -> Result<&'a str, Error> {
    document.get_str(name).map_err(|_| damaged(name))
}

fn serial(document: &RawDocument, name: &str) -> Result<Serial, Error> {
    Serial::new(text(document, name)?).map_err(|_| damaged(name))
}

fn time(document: &RawDocument, name: &str) -> Result<Option<Millis>, Error> {
    match get(document, name)? {
        None => Ok(None),
        Some(RawBsonRef::DateTime(at)) => {
            Millis::try_from(at.timestamp_millis()).map(Some).map_err(|_| damaged(name))
        }
        Some(_) => Err(damaged(name)),
    }
}

fn hash(document: &RawDocument, name: &str) -> Result<Option<Hash>, Error> {
    match get(document, name)? {
        None => Ok(None),
        Some(RawBsonRef::Binary(bytes)) => {
            bytes.bytes.try_into().map(|bytes| Some(Hash(bytes))).map_err(|_| damaged(name))
        }
        Some(_) => Err(damaged(name)),
    }
}

fn needed<T>(value: Option<T>, name: &str) -> Result<T, Error> {
    value.ok_or_else(|| damaged(name))
}

fn damaged(what: &str) -> Error {
    Error::Damaged(format!("a document of MongoDB has no good {what}"))
}

/// Marks that a device keeps. At most this many changes may follow a change before its writer has
/// looked whether it succeeded.
const MARKS: u64 = 16;

/// BSON has no unsigned numbers. A larger number is a time in 290 million years.
fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The `_id` of the one document of its kind.
pub(super) const SECRETS_ID: &str = "secrets";
/// No serial number is empty, and no hash is a text.
pub(super) const SENTINEL_ID: &str = "";
