//! The encoding of a holder in the cache.
//!
//! It begins with a version, then come generation and end with 64 bits each. Texts follow, each
//! after its length in 32 bits: the serial number, and name and value of each label. Numbers are
//! little-endian.

use std::collections::BTreeMap;

use crate::records::{Holder, Serial};

pub(super) fn encode(holder: &Holder) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    out.push(VERSION);
    out.extend(holder.generation.to_le_bytes());
    out.extend(holder.expires.to_le_bytes());
    put(&mut out, holder.serial.as_str());
    for (name, value) in &holder.labels {
        put(&mut out, name);
        put(&mut out, value);
    }
    out
}

/// `None` if the bytes are no entry, or one of another version. Then the cache has no entry for the
/// token.
pub(super) fn decode(bytes: &[u8]) -> Option<Holder> {
    let (version, rest) = bytes.split_first()?;
    let (generation, rest) = rest.split_first_chunk()?;
    let (expires, mut rest) = rest.split_first_chunk()?;
    if *version != VERSION {
        return None;
    }
    let serial = Serial::new(take(&mut rest)?).ok()?;
    let mut labels = BTreeMap::new();
    while !rest.is_empty() {
        labels.insert(take(&mut rest)?.to_owned(), take(&mut rest)?.to_owned());
    }
    let generation = u64::from_le_bytes(*generation);
    Some(Holder { serial, labels, generation, expires: u64::from_le_bytes(*expires) })
}

fn put(out: &mut Vec<u8>, text: &str) {
    let bytes = u32::try_from(text.len()).expect("a text of 4 GiB has come through no import");
    out.extend(bytes.to_le_bytes());
    out.extend(text.as_bytes());
}

fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let (bytes, behind) = rest.split_first_chunk()?;
    let bytes = usize::try_from(u32::from_le_bytes(*bytes)).ok()?;
    let (text, behind) = behind.split_at_checked(bytes)?;
    *rest = behind;
    std::str::from_utf8(text).ok()
}

/// Changes with the layout, because gateways of two versions may share a Redis.
const VERSION: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(labels: &[(&str, &str)]) -> Holder {
        let labels = labels.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        Holder {
            serial: Serial::new("añb").unwrap(),
            labels: labels.collect(),
            generation: 7,
            expires: 1 << 60,
        }
    }

    #[test]
    fn what_goes_in_comes_out() {
        for labels in [&[][..], &[("", "")], &[("a.$\0", "ü"), ("b", &"x".repeat(1000))]] {
            let holder = holder(labels);
            assert_eq!(decode(&encode(&holder)), Some(holder));
        }
    }

    #[test]
    fn what_is_cut_or_of_another_version_is_none() {
        let whole = encode(&holder(&[("name", "value")]));
        // The bytes before the first label are also a whole holder.
        let without = encode(&holder(&[])).len();
        for cut in (0..whole.len()).filter(|cut| *cut != without) {
            assert_eq!(decode(&whole[..cut]), None, "cut at {cut}");
        }
        assert_eq!(decode(&[&[2], &whole[1..]].concat()), None);
        assert_eq!(decode(b"whatever else somebody wrote there"), None);
    }
}
