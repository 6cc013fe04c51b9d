//! JSON objects in requests, and the problems of malformed ones.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_path_to_error::Segment;

use super::problem::{Kind, Problem};

/// A JSON object. A derived reader of a struct would also take an array, as the members in their
/// order.
#[derive(Debug)]
pub(crate) struct Object<T>(pub(crate) T);

/// A string that is copied only if it contains escapes.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct Members<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(members))
            }
        }

        input.deserialize_map(Members(PhantomData)).map(Self)
    }
}

/// Parses a JSON object. An error names the path of the field, if it is known.
///
/// Cost: a wrong body is parsed twice. Only the second pass notes paths, which takes an allocation
/// for each name.
pub(crate) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    let parsed = serde_json::from_slice(body).map(|Object(value)| value);
    // If the second pass finds no fault in the object, there is something behind it.
    let behind = |error: serde_json::Error| Problem::new(Kind::InvalidRequest, error.to_string());
    parsed.map_err(|error| fault::<T>(body).unwrap_or_else(|| behind(error)))
}

/// The fault in the object, with its path; `None`: the object has no fault.
fn fault<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Option<Problem> {
    let mut input = serde_json::Deserializer::from_slice(body);
    let error = serde_path_to_error::deserialize::<_, Object<T>>(&mut input).err()?;
    let path = error.path();
    // In a body that is cut off, the path ends in an unknown part.
    let is_known = path.iter().next().is_some()
        && !path.iter().any(|segment| matches!(segment, Segment::Unknown));
    let field = is_known.then(|| path.to_string());
    let detail = error.into_inner().to_string();
    Some(match field {
        Some(field) => Problem::field(field, detail),
        None => Problem::new(Kind::InvalidRequest, detail),
    })
}
