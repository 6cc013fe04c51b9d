//! What the post-quantum key exchange costs: full TLS 1.3 handshakes in memory, both sides on one thread.
//!
//! `cargo run --release -p weir --example key_exchange [HANDSHAKES]`
#![expect(clippy::print_stdout, reason = "it is made to print")]

use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256};
use rustix::time::{ClockId, clock_gettime};
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider, kx_group};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use rustls_pki_types::{PrivateKeyDer, ServerName};

type Failure = Box<dyn std::error::Error>;

/// One kind of handshake.
struct Case {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

/// What handshakes have taken.
#[derive(Default)]
struct Cost {
    server: Duration,
    client: Duration,
    sent: usize,
    received: usize,
}

fn main() -> Result<(), Failure> {
    let count: u32 = std::env::args().nth(1).map_or(Ok(4_000), |count| count.parse())?;
    println!("{count} handshakes each, in turns; microseconds of CPU and bytes for each handshake");
    println!(
        "| certificate | key exchange | server CPU | client CPU | to the client | to the server |"
    );
    println!("|---|---|---|---|---|---|");
    for (certificate, algorithm) in
        [("ECDSA P-256", &PKCS_ECDSA_P256_SHA256), ("RSA-2048", &PKCS_RSA_SHA256)]
    {
        let key = KeyPair::generate_for(algorithm)?;
        let groups: [(&str, &'static dyn SupportedKxGroup); 2] =
            [("X25519", kx_group::X25519), ("X25519MLKEM768", kx_group::X25519MLKEM768)];
        let cases =
            groups.map(|(name, group)| Ok((name, Case::new(&key, group)?, Cost::default())));
        let mut cases = cases.into_iter().collect::<Result<Vec<_>, Failure>>()?;
        for (_, case, _) in &cases {
            for _ in 0..count / 10 {
                case.shake(&mut Cost::default())?;
            }
        }
        // In turns, so that a change of the machine's pace meets all alike.
        for _ in 0..count {
            for (_, case, cost) in &mut cases {
                case.shake(cost)?;
            }
        }
        for (name, _, cost) in &cases {
            let each = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(count);
            let bytes = |sum: usize| sum / count as usize;
            println!(
                "| {certificate} | {name} | {:.1} | {:.1} | {} | {} |",
                each(cost.server),
                each(cost.client),
                bytes(cost.sent),
                bytes(cost.received)
            );
        }
    }
    Ok(())
}

impl Case {
    fn new(key: &KeyPair, group: &'static dyn SupportedKxGroup) -> Result<Case, Failure> {
        let certificate = CertificateParams::new(["gate.example".to_owned()])?.self_signed(key)?;
        let provider = Arc::new(CryptoProvider {
            cipher_suites: vec![cipher_suite::TLS13_AES_128_GCM_SHA256],
            kx_groups: vec![group],
            ..default_provider()
        });
        let chain = vec![certificate.der().clone()];
        let private = PrivateKeyDer::try_from(key.serialize_der())?;
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, private)?;
        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone())?;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.resumption = Resumption::disabled();
        Ok(Case { server: Arc::new(server), client: Arc::new(client) })
    }

    fn shake(&self, cost: &mut Cost) -> Result<(), Failure> {
        let name = ServerName::try_from("gate.example")?;
        let (mut server, mut client, mut wire) = (None, None, Vec::new());
        loop {
            let begun = cpu_time();
            let client = match &mut client {
                Some(client) => client,
                none => none.insert(ClientConnection::new(Arc::clone(&self.client), name.clone())?),
            };
            feed(&mut wire, |bytes| client.read_tls(bytes))?;
            client.process_new_packets()?;
            while client.wants_write() {
                client.write_tls(&mut wire)?;
            }
            cost.client += cpu_time() - begun;
            cost.received += wire.len();
            if wire.is_empty() {
                return Ok(());
            }
            let begun = cpu_time();
            let server = match &mut server {
                Some(server) => server,
                none => none.insert(ServerConnection::new(Arc::clone(&self.server))?),
            };
            feed(&mut wire, |bytes| server.read_tls(bytes))?;
            server.process_new_packets()?;
            while server.wants_write() {
                server.write_tls(&mut wire)?;
            }
            cost.server += cpu_time() - begun;
            cost.sent += wire.len();
        }
    }
}

fn feed(
    wire: &mut Vec<u8>,
    mut read: impl FnMut(&mut &[u8]) -> std::io::Result<usize>,
) -> Result<(), Failure> {
    let mut bytes = wire.as_slice();
    while !bytes.is_empty() {
        read(&mut bytes)?;
    }
    wire.clear();
    Ok(())
}

/// Of this thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
