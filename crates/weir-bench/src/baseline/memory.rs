//! The baseline of a handshake's cryptography: a rustls server, fed from memory, and its primitives
//! alone.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::time::{ClockId, clock_gettime};
use rustls::crypto::{CryptoProvider, SupportedKxGroup, aws_lc_rs};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::SigningKey;
use rustls::{ClientConnection, ServerConfig, ServerConnection, SignatureScheme};
use serde::{Deserialize, Serialize};

use super::PATIENCE;
use crate::clock::duration;
use crate::peer::Peer;
use crate::peer::lines::Lines;
use crate::process::Cpus;
use crate::tls::{TlsClient, TlsPlan, TlsVersion, agreed, chain_and_key, provider, roots};

/// A handle of the baseline's process.
pub(crate) struct Memory {
    peer: Peer,
}

/// The parameters of the server in memory, and of its clients.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct MemoryPlan {
    /// The server's chain and key, in PEM.
    pub(crate) identity: String,
    /// Whether it demands a certificate of each client, signed by the plan's CA.
    pub(crate) demand_client: bool,
    /// Tickets for each TLS 1.3 client.
    pub(crate) tickets: usize,
    /// The clients: one suite and one group of one version.
    pub(crate) tls: TlsPlan,
}

/// An order to the baseline.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum MemoryOrder {
    /// Prepare such a server; answered with [`MemoryAnswer::Done`].
    Prepare(Box<MemoryPlan>),
    /// Make handshakes; answered with [`MemoryAnswer::Made`].
    Handshakes { count: u64, resume: bool },
    /// Sign and exchange keys; answered with [`MemoryAnswer::Primitives`].
    Primitives { count: u64 },
}

/// An answer of the baseline.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum MemoryAnswer {
    Done,
    Made(Made),
    Primitives(Primitives),
    Failed(String),
}

/// The result of handshakes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Made {
    /// CPU time of the server alone.
    pub(crate) cpu: Duration,
    /// The agreed parameters of the last handshake.
    pub(crate) agreed: String,
}

/// CPU time of one operation of each kind.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Primitives {
    /// A signature with the server's key.
    pub(crate) sign: Duration,
    /// A new key pair and an agreed secret.
    pub(crate) key_exchange: Duration,
}

/// The baseline itself.
struct Server {
    config: Arc<ServerConfig>,
    client: TlsClient,
    key: Arc<dyn SigningKey>,
    group: Option<&'static dyn SupportedKxGroup>,
}

/// The frame in place of `Hello` and `Welcome`.
const FRAME: [u8; 64] = [0; 64];
/// About as long as the signed content of a TLS 1.3 handshake.
const SIGNED: [u8; 146] = [0; 146];

impl Memory {
    /// Starts one.
    pub(crate) fn start(plan: MemoryPlan, cpus: Option<&Cpus>) -> Result<Memory> {
        let peer = Peer::start("memory-process", &[], cpus)?;
        let mut memory = Memory { peer };
        match memory.ask(&MemoryOrder::Prepare(Box::new(plan)))? {
            MemoryAnswer::Done => Ok(memory),
            other @ (MemoryAnswer::Made(_)
            | MemoryAnswer::Primitives(_)
            | MemoryAnswer::Failed(_)) => Err(unexpected(other)),
        }
    }

    /// Makes `count` handshakes.
    pub(crate) fn handshakes(&mut self, count: u64, resume: bool) -> Result<Made> {
        match self.ask(&MemoryOrder::Handshakes { count, resume })? {
            MemoryAnswer::Made(made) => Ok(made),
            other
            @ (MemoryAnswer::Done | MemoryAnswer::Primitives(_) | MemoryAnswer::Failed(_)) => {
                Err(unexpected(other))
            }
        }
    }

    /// Measures the primitives, `count` times each.
    pub(crate) fn primitives(&mut self, count: u64) -> Result<Primitives> {
        match self.ask(&MemoryOrder::Primitives { count })? {
            MemoryAnswer::Primitives(primitives) => Ok(primitives),
            other @ (MemoryAnswer::Done | MemoryAnswer::Made(_) | MemoryAnswer::Failed(_)) => {
                Err(unexpected(other))
            }
        }
    }

    fn ask(&mut self, order: &MemoryOrder) -> Result<MemoryAnswer> {
        self.peer.say(order)?;
        self.peer.hear(PATIENCE)
    }
}

fn unexpected(answer: MemoryAnswer) -> anyhow::Error {
    match answer {
        MemoryAnswer::Failed(why) => anyhow::anyhow!("the baseline in memory: {why}"),
        other @ (MemoryAnswer::Done | MemoryAnswer::Made(_) | MemoryAnswer::Primitives(_)) => {
            anyhow::anyhow!("the baseline in memory said {other:?}")
        }
    }
}

/// Runs the baseline: orders from standard input, answers on standard output.
pub(crate) fn run(input: impl AsFd, mut output: impl Write) -> Result<()> {
    let mut lines = Lines::default();
    let mut server = None;
    while lines.fill(&input)? {
        while let Some(order) = lines.next_order()? {
            let answer = obey(&mut server, order)
                .unwrap_or_else(|error| MemoryAnswer::Failed(format!("{error:#}")));
            super::answer(&mut output, &answer)?;
        }
    }
    Ok(())
}

fn obey(server: &mut Option<Server>, order: MemoryOrder) -> Result<MemoryAnswer> {
    if let MemoryOrder::Prepare(plan) = order {
        *server = Some(Server::new(&plan)?);
        return Ok(MemoryAnswer::Done);
    }
    let server = server.as_mut().context("no server is prepared")?;
    match order {
        MemoryOrder::Handshakes { count, resume } => {
            Ok(MemoryAnswer::Made(server.handshakes(count, resume)?))
        }
        MemoryOrder::Primitives { count } => {
            Ok(MemoryAnswer::Primitives(server.primitives(count)?))
        }
        MemoryOrder::Prepare(_) => bail!("a server is prepared already"),
    }
}

impl Server {
    fn new(plan: &MemoryPlan) -> Result<Server> {
        let tls = &plan.tls;
        let provider = Arc::new(provider(tls.suite.as_deref(), tls.group.as_deref())?);
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&TlsVersion::list(tls.version))?;
        let builder = if plan.demand_client {
            let roots = Arc::new(roots(&tls.ca)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
            builder.with_client_cert_verifier(verifier.build()?)
        } else {
            builder.with_no_client_auth()
        };
        let (chain, key) = chain_and_key(&plan.identity)?;
        let mut config = builder.with_single_cert(chain, key)?;
        config.ticketer = aws_lc_rs::Ticketer::new()?;
        config.send_tls13_tickets = plan.tickets;
        config.alpn_protocols = vec![crate::tls::ALPN.as_bytes().to_vec()];
        let key = PrivateKeyDer::from_pem_slice(plan.identity.as_bytes())?;
        Ok(Server {
            config: Arc::new(config),
            client: TlsClient::new(tls)?,
            key: provider.key_provider.load_private_key(key)?,
            group: group(&provider),
        })
    }

    fn handshakes(&mut self, count: u64, resume: bool) -> Result<Made> {
        self.client.resume(if resume { 1.0 } else { 0.0 });
        let mut made = Made { cpu: Duration::ZERO, agreed: String::new() };
        for number in 0..count {
            let mut client = self.client.connection(number)?;
            made.cpu += handshake(&self.config, &mut client)?;
            made.agreed = agreed(&client).context("a handshake has not ended")?;
        }
        Ok(made)
    }

    fn primitives(&self, count: u64) -> Result<Primitives> {
        let times = u32::try_from(count.max(1))?;
        let schemes = [
            SignatureScheme::ECDSA_NISTP256_SHA256,
            SignatureScheme::RSA_PSS_SHA256,
            SignatureScheme::RSA_PKCS1_SHA256,
        ];
        let before = thread_cpu();
        for _ in 0..times {
            let signer = self.key.choose_scheme(&schemes).context("a key of another kind")?;
            std::hint::black_box(signer.sign(&SIGNED)?);
        }
        let sign = thread_cpu().saturating_sub(before) / times;
        let Some(group) = self.group else {
            return Ok(Primitives { sign, key_exchange: Duration::ZERO });
        };
        let peer = group.start()?;
        let before = thread_cpu();
        for _ in 0..times {
            std::hint::black_box(group.start_and_complete(peer.pub_key())?);
        }
        let key_exchange = thread_cpu().saturating_sub(before) / times;
        Ok(Primitives { sign, key_exchange })
    }
}

/// The provider's preferred group.
fn group(provider: &CryptoProvider) -> Option<&'static dyn SupportedKxGroup> {
    provider.kx_groups.first().copied()
}

/// One handshake with a frame in each direction after it; the CPU time of the server.
fn handshake(config: &Arc<ServerConfig>, client: &mut ClientConnection) -> Result<Duration> {
    client.writer().write_all(&FRAME)?;
    let mut cpu = Duration::ZERO;
    let mut to_client = Vec::new();
    let mut server = None;
    let mut heard = 0;
    for _ in 0..ROUND_TRIPS_MAX {
        let mut to_server = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut to_server)?;
        }
        to_client.clear();
        let before = thread_cpu();
        let server = match &mut server {
            Some(server) => server,
            none => none.insert(ServerConnection::new(config.clone())?),
        };
        answer(server, &to_server, &mut to_client)?;
        cpu += thread_cpu().saturating_sub(before);
        heard += take(client, &to_client)?;
        if heard >= FRAME.len() {
            break;
        }
    }
    if heard < FRAME.len() {
        bail!("a handshake has not ended after {ROUND_TRIPS_MAX} round trips");
    }
    let before = thread_cpu();
    drop(server);
    Ok(cpu + thread_cpu().saturating_sub(before))
}

fn answer(server: &mut ServerConnection, mut from: &[u8], to: &mut Vec<u8>) -> Result<()> {
    while !from.is_empty() {
        server.read_tls(&mut from)?;
        let state = server.process_new_packets()?;
        let mut frame = [0; FRAME.len()];
        if state.plaintext_bytes_to_read() >= FRAME.len() {
            io::Read::read_exact(&mut server.reader(), &mut frame)?;
            server.writer().write_all(&frame)?;
        }
    }
    while server.wants_write() {
        server.write_tls(to)?;
    }
    Ok(())
}

/// Feeds bytes to the client; returns the number of content bytes.
fn take(client: &mut ClientConnection, mut from: &[u8]) -> Result<usize> {
    let mut content = 0;
    while !from.is_empty() {
        client.read_tls(&mut from)?;
        let bytes = client.process_new_packets()?.plaintext_bytes_to_read();
        io::copy(&mut io::Read::take(client.reader(), bytes as u64), &mut io::sink())?;
        content += bytes;
    }
    Ok(content)
}

fn thread_cpu() -> Duration {
    duration(clock_gettime(ClockId::ThreadCPUTime))
}

/// More than any handshake needs.
const ROUND_TRIPS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::credentials::{Credentials, KeyKind};

    fn server(kind: KeyKind, version: TlsVersion) -> Server {
        let made = Credentials::make(kind, "localhost").unwrap();
        let tls = TlsPlan {
            ca: made.ca,
            server_name: "localhost".to_owned(),
            version: Some(version),
            client: Some(made.client),
            ..TlsPlan::default()
        };
        let identity = made.chain + &made.key;
        Server::new(&MemoryPlan { identity, demand_client: true, tickets: 2, tls }).unwrap()
    }

    #[test]
    fn handshakes_are_full_or_resumed_as_asked() {
        for version in [TlsVersion::Tls12, TlsVersion::Tls13] {
            let mut server = server(KeyKind::Ecdsa, version);
            let full = server.handshakes(3, false).unwrap();
            assert!(full.agreed.ends_with(" full") && full.cpu > Duration::ZERO, "{full:?}");
            let resumed = server.handshakes(3, true).unwrap();
            assert!(resumed.agreed.ends_with(" resumed"), "{resumed:?}");
        }
    }

    #[test]
    fn a_signature_with_rsa_takes_longer_than_with_ecdsa() {
        let one = |kind| server(kind, TlsVersion::Tls13).primitives(20).unwrap();
        let (ecdsa, rsa) = (one(KeyKind::Ecdsa), one(KeyKind::Rsa));
        assert!(rsa.sign > ecdsa.sign && ecdsa.sign > Duration::ZERO, "{ecdsa:?} {rsa:?}");
        assert!(ecdsa.key_exchange > Duration::ZERO, "{ecdsa:?}");
    }
}
