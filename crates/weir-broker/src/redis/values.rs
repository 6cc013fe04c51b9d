//! Reading Redis' answers.

use redis::Value;

use crate::contract::Error;

/// A string.
pub(super) fn text(value: &Value) -> Result<&str, String> {
    if let Value::SimpleString(text) | Value::VerbatimString { text, .. } = value {
        return Ok(text);
    }
    let Value::BulkString(bytes) = value else {
        return Err(format!("a string was expected, not {value:?}"));
    };
    str::from_utf8(bytes).map_err(|error| error.to_string())
}

/// A number.
pub(super) fn int(value: &Value) -> Result<i64, String> {
    let Value::Int(number) = value else {
        return Err(format!("a number was expected, not {value:?}"));
    };
    Ok(*number)
}

/// A list.
pub(super) fn array(value: &Value) -> Result<&[Value], String> {
    let Value::Array(values) = value else {
        return Err(format!("a list was expected, not {value:?}"));
    };
    Ok(values)
}

/// A number that a script wrote as a string.
pub(super) fn number(value: &Value) -> Result<u64, String> {
    let text = text(value)?;
    text.parse().map_err(|_| format!("{text:?} is no number"))
}

/// Something that Redis holds is not as it must be.
pub(super) fn damaged(why: impl Into<String>) -> Error {
    Error::Damaged(why.into())
}
