//! The activation requests of a run, and the check of their answers.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

/// Activation requests of devices, one after the other. A share of them is invalid.
///
/// Each request follows from its number alone, and all have the same length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Activations {
    /// Devices that activate in turn.
    pub(crate) devices: u64,
    /// Share of the requests with a wrong key or an unknown serial number.
    pub(crate) misses: f64,
    /// Number of the first request.
    pub(crate) first: u64,
}

/// The device of a request.
struct Who {
    device: u64,
    /// The first part of the serial number.
    name: &'static str,
    /// The seed of the key.
    seed: u64,
    is_hit: bool,
}

/// The tokens of a run.
#[derive(Debug, Default)]
pub(crate) struct Tokens(Vec<u128>);

impl Activations {
    /// Appends the two members of request `number`, without braces. Returns whether the request
    /// must get a token.
    pub(crate) fn write(&self, number: u64, out: &mut Vec<u8>) -> bool {
        let who = self.who(number);
        out.extend_from_slice(b"\"devSn\":\"");
        out.extend_from_slice(who.name.as_bytes());
        digits(who.device, out);
        out.extend_from_slice(b"\",\"devKey\":\"");
        key(who.device, who.seed, out);
        out.push(b'"');
        who.is_hit
    }

    fn who(&self, number: u64) -> Who {
        let number = self.first + number;
        let missed = share_of(number, self.misses);
        let is_hit = share_of(number + 1, self.misses) == missed;
        let device = (number - missed) % self.devices;
        match (is_hit, missed % 2) {
            (true, _) => Who { device, name: KNOWN, seed: SEED, is_hit },
            (false, 0) => Who { device, name: KNOWN, seed: !SEED, is_hit },
            (false, _) => Who { device, name: UNKNOWN, seed: SEED, is_hit },
        }
    }

    /// Writes all devices as a file to be imported.
    pub(crate) fn write_csv(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(b"devSn,devKey\n")?;
        for (serial, key) in self.devices() {
            writeln!(out, "{serial},{key}")?;
        }
        out.flush()
    }

    /// Serial numbers and keys of all devices.
    pub(crate) fn devices(&self) -> impl Iterator<Item = (String, String)> {
        (0..self.devices).map(|device| {
            let (mut serial, mut secret) = (KNOWN.as_bytes().to_vec(), Vec::new());
            digits(device, &mut serial);
            key(device, SEED, &mut secret);
            [serial, secret].map(|text| text.into_iter().map(char::from).collect()).into()
        })
    }
}

impl Tokens {
    /// Reads the token of an answer. Returns whether there is one of the right form.
    pub(crate) fn take(&mut self, answer: &[u8]) -> bool {
        // Datagrams are marked as answers.
        let answer = answer.strip_prefix(ANSWER_MARK).or_else(|| answer.strip_prefix(b"{"));
        let token = answer.and_then(|answer| answer.strip_prefix(b"\"pt\":\""));
        let token = token.and_then(<[u8]>::split_first_chunk);
        let token = token.filter(|(_, rest)| rest.starts_with(b"\",\"expiresAt\":"));
        let Some(token) = token.and_then(|(token, _)| value(token)) else { return false };
        self.0.push(token);
        true
    }

    /// The number of tokens that came more than once.
    pub(crate) fn repeated(mut self) -> u64 {
        self.0.sort_unstable();
        let all = self.0.len();
        self.0.dedup();
        (all - self.0.len()) as u64
    }
}

/// The 128 bits of a token; `None` if the text is not a token.
fn value(token: &[u8; TOKEN_CHARS]) -> Option<u128> {
    let mut value = 0_u128;
    for char in token {
        let digit = match char {
            b'A'..=b'Z' => char - b'A',
            b'a'..=b'z' => char - b'a' + 26,
            b'0'..=b'9' => char - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            _ => return None,
        };
        // The text has 132 bits, and the last four are 0, so the rotation loses nothing.
        value = value.rotate_left(6) ^ u128::from(digit);
    }
    Some(value)
}

/// The whole number below `share` of `number`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "numbers of requests are far below 2^53"
)]
fn share_of(number: u64, share: f64) -> u64 {
    (number as f64 * share) as u64
}

fn digits(number: u64, out: &mut Vec<u8>) {
    let mut rest = number;
    let at = out.len();
    out.resize(at + DIGITS, b'0');
    for digit in out[at..].iter_mut().rev() {
        *digit = b"0123456789"[(rest % 10) as usize];
        rest /= 10;
    }
}

/// A key of 128 pseudorandom bits.
fn key(device: u64, seed: u64, out: &mut Vec<u8>) {
    for half in [seed, seed.rotate_left(32)] {
        let mut bits = device.wrapping_add(half).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        for place in 0..16 {
            out.push(b"0123456789abcdef"[(bits >> (4 * place) & 15) as usize]);
        }
    }
}

/// The beginning of each answer of a gateway.
pub(crate) const ANSWER_MARK: &[u8] = b"{\"answer\":true,";

const KNOWN: &str = "bench-";
const UNKNOWN: &str = "other-";
const SEED: u64 = 0x5765_6972_2062_656e;
const DIGITS: usize = 10;
/// 128 bits in base64url.
const TOKEN_CHARS: usize = 22;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn asked(activations: &Activations, number: u64) -> (String, bool) {
        let mut out = Vec::new();
        let is_hit = activations.write(number, &mut out);
        (String::from_utf8(out).unwrap(), is_hit)
    }

    #[test]
    fn devices_take_turns_and_strangers_their_share() {
        let activations = Activations { devices: 8, misses: 0.2, first: 5 };
        let all: Vec<(String, bool)> = (0..100).map(|number| asked(&activations, number)).collect();
        assert_eq!(all.iter().filter(|(_, is_hit)| !is_hit).count(), 20);
        let hits: Vec<&String> = all.iter().filter(|(_, hit)| *hit).map(|(text, _)| text).collect();
        assert!(hits.windows(8).all(|eight| eight.iter().collect::<HashSet<_>>().len() == 8));
        assert_eq!(hits.iter().collect::<HashSet<_>>().len(), 8);
        let known: HashSet<&str> = hits.iter().map(|text| &text[..26]).collect();
        let misses = all.iter().filter(|(_, is_hit)| !is_hit);
        let wrong_keys = misses.filter(|(text, _)| known.contains(&text[..26])).count();
        assert_eq!(wrong_keys, 10);
        assert!(all.iter().all(|(text, _)| text.len() == all[0].0.len()));
        let on = Activations { first: 15, ..activations.clone() };
        assert_eq!(asked(&on, 0), all[10]);
    }

    #[test]
    fn the_file_has_what_is_asked_for() {
        let activations = Activations { devices: 3, misses: 0.0, first: 0 };
        let mut file = Vec::new();
        activations.write_csv(&mut file).unwrap();
        let file = String::from_utf8(file).unwrap();
        let rows: Vec<&str> = file.lines().collect();
        assert_eq!((rows.len(), rows[0]), (4, "devSn,devKey"));
        for (number, row) in rows[1..].iter().enumerate() {
            let (serial, key) = row.split_once(',').unwrap();
            let expected = format!("\"devSn\":\"{serial}\",\"devKey\":\"{key}\"");
            assert_eq!(asked(&activations, number as u64), (expected, true));
        }
    }

    #[test]
    fn tokens_are_known_by_their_shape_and_come_once() {
        let answer =
            |token: &str| format!("{{\"pt\":\"{token}\",\"expiresAt\":1,\"gateways\":[]}}");
        let mut tokens = Tokens::default();
        for token in ["AAAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAQ", "-_zZ09AAAAAAAAAAAAAAAA"]
        {
            assert!(tokens.take(answer(token).as_bytes()), "{token}");
        }
        for wrong in ["AAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAA+A"]
        {
            assert!(!tokens.take(answer(wrong).as_bytes()), "{wrong}");
        }
        assert!(!tokens.take(b"{\"error\":\"unauthorized\"}"));
        assert!(tokens.take(answer("AAAAAAAAAAAAAAAAAAAAAQ").as_bytes()));
        assert_eq!(tokens.repeated(), 1);
    }
}
