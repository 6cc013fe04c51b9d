//! A client's keys of TLS 1.3 after the handshake, for connections that must cost little memory.
//!
//! rustls makes the handshake. A connection that it keeps takes kilobytes; its keys take 120 bytes.

use anyhow::{Context, Result, anyhow, bail};
use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use rustls::{ClientConnection, ConnectionTrafficSecrets};

/// The keys of one connection.
///
/// Shape: 120 bytes.
#[derive(Debug)]
pub(crate) struct HeldKeys {
    sending: Direction,
    receiving: Direction,
}

#[derive(Debug)]
struct Direction {
    cipher: Cipher,
    key: [u8; KEY_BYTES_MAX],
    iv: [u8; NONCE_BYTES],
    /// Number of the next record.
    seq: u64,
}

#[derive(Debug, Clone, Copy)]
enum Cipher {
    Aes128,
    Aes256,
    ChaCha20,
}

/// What one record held.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    /// More bytes must come.
    Incomplete,
    /// A record of this many bytes. If it held data, that was added to the plaintext.
    Record(usize),
    /// The server has ended the connection in good order.
    End,
}

const KEY_BYTES_MAX: usize = 32;
const NONCE_BYTES: usize = 12;
const HEAD_BYTES: usize = 5;
const TAG_BYTES: usize = 16;
/// Content types.
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;

impl HeldKeys {
    /// Takes the keys out of a connection whose handshake has ended, and from which everything was
    /// read.
    pub(crate) fn of(conn: ClientConnection) -> Result<HeldKeys> {
        let secrets = conn.dangerous_extract_secrets().context("cannot take the keys out")?;
        Ok(HeldKeys { sending: Direction::of(secrets.tx)?, receiving: Direction::of(secrets.rx)? })
    }

    /// Makes a record of `plain`.
    pub(crate) fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        let sealed = u16::try_from(plain.len() + 1 + TAG_BYTES).context("too long a record")?;
        out.extend([DATA, 3, 3]);
        out.extend(sealed.to_be_bytes());
        let head = out[start..].to_vec();
        let mut content = plain.to_vec();
        content.push(DATA);
        let (key, nonce) = self.sending.next()?;
        let tag = key.seal_in_place_separate_tag(nonce, Aad::from(head), &mut content);
        out.append(&mut content);
        out.extend(tag.map_err(|_| anyhow!("cannot seal"))?.as_ref());
        Ok(())
    }

    /// Opens the first record of `raw`, and adds its data to `plain`.
    pub(crate) fn open(&mut self, raw: &[u8], plain: &mut Vec<u8>) -> Result<Opened> {
        let Some((head, rest)) = raw.split_first_chunk::<HEAD_BYTES>() else {
            return Ok(Opened::Incomplete);
        };
        let sealed = usize::from(u16::from_be_bytes([head[3], head[4]]));
        let Some(sealed) = rest.get(..sealed) else { return Ok(Opened::Incomplete) };
        let mut content = sealed.to_vec();
        let (key, nonce) = self.receiving.next()?;
        let opened = key.open_in_place(nonce, Aad::from(head), &mut content);
        let opened = opened.map_err(|_| anyhow!("a record that is not the server's"))?;
        let kind_at = opened.iter().rposition(|byte| *byte != 0).context("an empty record")?;
        match opened[kind_at] {
            DATA => plain.extend_from_slice(&opened[..kind_at]),
            // A ticket: nobody resumes here.
            HANDSHAKE => {}
            ALERT => return Ok(Opened::End),
            other => bail!("a record of type {other}"),
        }
        Ok(Opened::Record(HEAD_BYTES + sealed.len()))
    }
}

impl Direction {
    fn of((seq, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Direction> {
        let (cipher, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Cipher::Aes128, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Cipher::Aes256, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (Cipher::ChaCha20, key, iv),
            _ => bail!("a cipher that the bench does not know"),
        };
        let mut held = [0; KEY_BYTES_MAX];
        held[..cipher.algorithm().key_len()].copy_from_slice(key.as_ref());
        let iv = iv.as_ref().try_into().context("an IV has 12 bytes")?;
        Ok(Direction { cipher, key: held, iv, seq })
    }

    /// Key and nonce of the next record (RFC 8446, section 5.3).
    fn next(&mut self) -> Result<(LessSafeKey, Nonce)> {
        let mut nonce = self.iv;
        for (byte, seq) in nonce[4..].iter_mut().zip(self.seq.to_be_bytes()) {
            *byte ^= seq;
        }
        self.seq += 1;
        let algorithm = self.cipher.algorithm();
        let key = UnboundKey::new(algorithm, &self.key[..algorithm.key_len()]);
        let key = key.map_err(|_| anyhow!("a key of another length"))?;
        Ok((LessSafeKey::new(key), Nonce::assume_unique_for_key(nonce)))
    }
}

impl Cipher {
    fn algorithm(self) -> &'static Algorithm {
        match self {
            Cipher::Aes128 => &AES_128_GCM,
            Cipher::Aes256 => &AES_256_GCM,
            Cipher::ChaCha20 => &CHACHA20_POLY1305,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::Arc;

    use rustls::{ServerConfig, ServerConnection};

    use super::*;
    use crate::tls::credentials::{Credentials, KeyKind};
    use crate::tls::{TlsPlan, TlsVersion, chain_and_key, holding_config, provider};

    /// A server after the handshake, and the keys of its client.
    fn pair(suite: &str) -> (ServerConnection, HeldKeys) {
        let made = Credentials::make(KeyKind::Ecdsa, "localhost").unwrap();
        let (chain, key) = chain_and_key(&(made.chain.clone() + &made.key)).unwrap();
        let server = ServerConfig::builder_with_provider(Arc::new(provider(None, None).unwrap()))
            .with_protocol_versions(&TlsVersion::list(Some(TlsVersion::Tls13)))
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let mut server = ServerConnection::new(Arc::new(server)).unwrap();
        let plan = TlsPlan {
            ca: made.ca,
            server_name: "localhost".to_owned(),
            version: Some(TlsVersion::Tls13),
            suite: Some(suite.to_owned()),
            ..TlsPlan::default()
        };
        let (config, name) = holding_config(&plan).unwrap();
        let mut client = ClientConnection::new(config, name).unwrap();
        while client.is_handshaking() || server.is_handshaking() || server.wants_write() {
            let mut bytes = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut bytes).unwrap();
            }
            server.read_tls(&mut &bytes[..]).unwrap();
            server.process_new_packets().unwrap();
            let mut bytes = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut bytes).unwrap();
            }
            client.read_tls(&mut &bytes[..]).unwrap();
            client.process_new_packets().unwrap();
        }
        (server, HeldKeys::of(client).unwrap())
    }

    #[test]
    fn records_go_on_where_the_handshake_has_ended() {
        assert!(size_of::<HeldKeys>() <= 120);
        for suite in [
            "TLS13_AES_128_GCM_SHA256",
            "TLS13_AES_256_GCM_SHA384",
            "TLS13_CHACHA20_POLY1305_SHA256",
        ] {
            let (mut server, mut held) = pair(suite);
            for round in 0..3 {
                let mut sealed = Vec::new();
                held.seal(b"ping", &mut sealed).unwrap();
                server.read_tls(&mut &sealed[..]).unwrap();
                server.process_new_packets().unwrap();
                let mut heard = [0; 4];
                server.reader().read_exact(&mut heard).unwrap();
                assert_eq!(&heard, b"ping", "{suite}, round {round}");
                server.writer().write_all(b"pong").unwrap();
                let mut bytes = Vec::new();
                server.write_tls(&mut bytes).unwrap();
                let mut plain = Vec::new();
                for end in 0..bytes.len() {
                    assert_eq!(held.open(&bytes[..end], &mut plain).unwrap(), Opened::Incomplete);
                }
                assert_eq!(held.open(&bytes, &mut plain).unwrap(), Opened::Record(bytes.len()));
                assert_eq!(plain, b"pong");
            }
            server.send_close_notify();
            let mut bytes = Vec::new();
            server.write_tls(&mut bytes).unwrap();
            assert_eq!(held.open(&bytes, &mut Vec::new()).unwrap(), Opened::End);
            server.writer().write_all(b"more").unwrap();
            let damaged = [DATA, 3, 3, 0, 20].into_iter().chain([7; 20]).collect::<Vec<_>>();
            assert!(held.open(&damaged, &mut Vec::new()).is_err());
        }
    }
}
