//! Functions for tests: keys that expire soon, and records that no honest peer seals.

use super::super::protocol::Version;
use super::super::record::{ContentType, RECORD_BYTES_MAX, nonce};
use super::{Aead, Session};
use crate::sys::aead::TAG_BYTES;

/// For tests.
impl Session {
    /// Permits fewer records under one key: `1 << log2`, at least 32. Tests have no time for
    /// millions.
    pub fn set_records_log2(&mut self, log2: u8) {
        self.state.records_log2 = log2.clamp(5, self.state.records_log2);
    }

    /// Seals a record of any type with any content, in TLS 1.3 with padding. Whatever rule it
    /// breaks, its tag is right.
    ///
    /// Limits: a body of more than 65,535 bytes is cut.
    pub fn forge(&mut self, kind: u8, content: &[u8], padding: usize, out: &mut Vec<u8>) {
        let state = &mut self.state;
        let form = state.form();
        let sequence = state.send_sequence;
        state.send_sequence += 1;
        let nonce = nonce(&state.send_iv, sequence);
        let room = usize::from(u16::MAX) - (RECORD_BYTES_MAX - (1 << 14));
        let mut text = content[..content.len().min(room)].to_vec();
        let plain_bytes = text.len();
        let mut outer = kind;
        if state.version == Version::Tls13 {
            text.push(kind);
            text.resize((text.len() + padding).min(room + 1), 0);
            outer = ContentType::ApplicationData as u8;
        }
        let explicit = &nonce[nonce.len() - form.explicit_bytes()..];
        let body = u16::try_from(explicit.len() + text.len() + TAG_BYTES).unwrap_or(u16::MAX);
        let [high, low] = body.to_be_bytes();
        let header = [outer, 3, 3, high, low];
        let mut tag = [0; TAG_BYTES];
        let key = &state.send_key[..state.cipher.key_bytes()];
        let additional = form.additional(&header, sequence, plain_bytes);
        Aead::with(state.cipher.algorithm(), key, |aead| {
            aead.seal(&nonce, additional.as_slice(), &mut text, &mut tag);
        });
        for part in [header.as_slice(), explicit, &text, &tag] {
            out.extend_from_slice(part);
        }
    }

    /// Changes the sealing key, as after a `KeyUpdate`.
    pub fn forge_new_keys(&mut self) {
        self.state.next_send_keys();
    }

    /// Gives the next record the number of the last one.
    pub(crate) fn forge_number_again(&mut self) {
        self.state.send_sequence -= 1;
    }

    /// Whether any byte of a secret, a key or an IV is not zero.
    pub fn holds_secrets(&self) -> bool {
        let state = &self.state;
        let all = [&state.send_secret[..], &state.receive_secret, &state.send_key, &state.send_iv];
        all.into_iter().flatten().any(|byte| *byte != 0)
    }
}
