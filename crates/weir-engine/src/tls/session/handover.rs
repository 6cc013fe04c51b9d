//! A session on its way to another process.

use weir_wire::handover::v1;
use zeroize::Zeroize;

use super::{Cipher, IV_BYTES, KEY_BYTES_MAX, SECRET_BYTES_MAX, Session, State, Version};
use crate::handover::NotUnderstood;

impl Session {
    /// Everything of the session, with its keys. They are wiped here.
    pub(crate) fn encode(mut self) -> v1::Session {
        let state = &self.state;
        let (send, receive) = match state.version {
            Version::Tls13 => {
                let bytes = state.cipher.secret_bytes();
                (state.send_secret[..bytes].to_vec(), state.receive_secret[..bytes].to_vec())
            }
            Version::Tls12 => {
                ([&state.send_key[..], &state.send_iv].concat(), state.receive_secret.to_vec())
            }
        };
        let session = v1::Session {
            version: match state.version {
                Version::Tls12 => TLS12,
                Version::Tls13 => TLS13,
            },
            cipher: match state.cipher {
                Cipher::Aes128Gcm => 1,
                Cipher::Aes256Gcm => 2,
                Cipher::ChaCha20Poly1305 => 3,
            },
            send_sequence: state.send_sequence,
            receive_sequence: state.receive_sequence,
            send,
            receive,
            handshake_left: state.handshake_left.into(),
            handshake_seen: state.handshake_seen.into(),
            idle: state.idle.into(),
            key_changes: state.key_changes.into(),
            records_log2: state.records_log2.into(),
            is_send_closed: state.is_send_closed,
            is_receive_closed: state.is_receive_closed,
            is_update_due: state.is_update_due,
            is_refusal_due: state.is_refusal_due,
        };
        self.wipe();
        session
    }

    /// The session of a message.
    ///
    /// Errors: a version, a cipher, a length or a number that cannot be.
    pub(crate) fn decode(session: &v1::Session) -> Result<Session, NotUnderstood> {
        let unknown = |field, value: u32| NotUnderstood { field, value: value.into() };
        let version = match session.version {
            TLS12 => Version::Tls12,
            TLS13 => Version::Tls13,
            other => return Err(unknown("session.version", other)),
        };
        let cipher = match session.cipher {
            1 => Cipher::Aes128Gcm,
            2 => Cipher::Aes256Gcm,
            3 => Cipher::ChaCha20Poly1305,
            other => return Err(unknown("session.cipher", other)),
        };
        let byte = |field, value: u32| u8::try_from(value).map_err(|_| unknown(field, value));
        let mut state = State {
            send_sequence: session.send_sequence,
            receive_sequence: session.receive_sequence,
            send_secret: [0; SECRET_BYTES_MAX],
            receive_secret: [0; SECRET_BYTES_MAX],
            send_key: [0; KEY_BYTES_MAX],
            send_iv: [0; IV_BYTES],
            handshake_left: u16::try_from(session.handshake_left)
                .map_err(|_| unknown("session.handshake_left", session.handshake_left))?,
            handshake_seen: byte("session.handshake_seen", session.handshake_seen)?,
            idle: byte("session.idle", session.idle)?,
            key_changes: byte("session.key_changes", session.key_changes)?,
            records_log2: byte("session.records_log2", session.records_log2)?,
            version,
            cipher,
            is_send_closed: session.is_send_closed,
            is_receive_closed: session.is_receive_closed,
            is_update_due: session.is_update_due,
            is_refusal_due: session.is_refusal_due,
        };
        let lengths = match version {
            Version::Tls13 => [cipher.secret_bytes(); 2],
            Version::Tls12 => [KEY_BYTES_MAX + IV_BYTES, SECRET_BYTES_MAX],
        };
        for (field, secret, bytes) in [
            ("the length of session.send", &session.send, lengths[0]),
            ("the length of session.receive", &session.receive, lengths[1]),
        ] {
            if secret.len() != bytes {
                return Err(NotUnderstood { field, value: secret.len() as u64 });
            }
        }
        state.receive_secret[..lengths[1]].copy_from_slice(&session.receive);
        match version {
            Version::Tls13 => {
                state.send_secret[..lengths[0]].copy_from_slice(&session.send);
                if !state.is_send_closed {
                    state.derive_send_keys();
                }
            }
            Version::Tls12 => {
                state.send_key.copy_from_slice(&session.send[..KEY_BYTES_MAX]);
                state.send_iv.copy_from_slice(&session.send[KEY_BYTES_MAX..]);
            }
        }
        let decoded = Session { state };
        state.send_secret.zeroize();
        state.receive_secret.zeroize();
        state.send_key.zeroize();
        Ok(decoded)
    }
}

const TLS12: u32 = 0x0303;
const TLS13: u32 = 0x0304;
