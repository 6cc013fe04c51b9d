//! Handshakes in memory with certificates made for the tests.

mod authority;
mod certificates;
mod clients;
mod development;
mod reload;
mod sessions;
mod signing;

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{
    ClientConfig, ClientConnection, NoKeyLog, RootCertStore, ServerConfig, ServerConnection,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use super::identity::NoIdentity;
use super::*;
use crate::base::config::{CertificateConfig, Config, TlsVersion};
use crate::base::model::Spoken;
use authority::Authority;

/// Both ends of a handshake that succeeded.
struct Pair {
    server: ServerConnection,
    client: ClientConnection,
}

/// A client's side.
#[derive(Default)]
struct ClientOf<'a> {
    provider: Option<CryptoProvider>,
    version: Option<TlsVersion>,
    alpn: &'a [&'a str],
    identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
}

impl ClientOf<'_> {
    fn config(self, authority: &Authority) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(authority.certificate()).unwrap();
        let provider = Arc::new(self.provider.unwrap_or_else(aws_lc_rs::default_provider));
        let versions: &[_] = match self.version {
            None => rustls::ALL_VERSIONS,
            Some(TlsVersion::Tls12) => &[&rustls::version::TLS12],
            Some(TlsVersion::Tls13) => &[&rustls::version::TLS13],
        };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match self.identity {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => builder.with_client_auth_cert(chain, key).unwrap(),
        };
        config.alpn_protocols = self.alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        config.resumption = Resumption::in_memory_sessions(8);
        Arc::new(config)
    }
}

fn client(authority: &Authority) -> Arc<ClientConfig> {
    ClientOf::default().config(authority)
}

/// A gateway's configuration with these certificates.
fn config(certificates: Vec<CertificateConfig>) -> Config {
    let mut config = Config::default();
    config.tls.certificates = certificates;
    config
}

fn contexts(config: &Config) -> Contexts {
    Contexts::new(config, Arc::new(NoKeyLog {}), None).unwrap()
}

/// The error of an invalid configuration, with file names instead of paths.
fn refused(config: &Config, directory: &Path) -> String {
    let error = Contexts::new(config, Arc::new(NoKeyLog {}), None).err().expect("it is refused");
    error.to_string().replace(&format!("{}/", directory.display()), "")
}

fn shake(
    contexts: &Contexts,
    client: &Arc<ClientConfig>,
    name: &str,
) -> Result<Pair, rustls::Error> {
    shake_with(contexts.current(Spoken::Frames, false, false), client, name)
}

/// Until both sides are done, and the server's output after the handshake has arrived.
fn shake_with(
    server: Arc<ServerConfig>,
    client: &Arc<ClientConfig>,
    name: &str,
) -> Result<Pair, rustls::Error> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut server = ServerConnection::new(server).unwrap();
    let mut client = ClientConnection::new(Arc::clone(client), name).unwrap();
    let mut wire = Vec::new();
    while client.wants_write() || server.wants_write() {
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        take(&mut wire, |bytes| server.read_tls(bytes).unwrap());
        let processed = server.process_new_packets();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        processed?;
        take(&mut wire, |bytes| client.read_tls(bytes).unwrap());
        client.process_new_packets()?;
    }
    assert!(!server.is_handshaking() && !client.is_handshaking());
    // Not only the handshake must succeed: the keys must match.
    client.writer().write_all(b"hello").unwrap();
    client.write_tls(&mut wire).unwrap();
    take(&mut wire, |bytes| server.read_tls(bytes).unwrap());
    server.process_new_packets()?;
    let mut hello = [0; 5];
    server.reader().read_exact(&mut hello).unwrap();
    assert_eq!(&hello, b"hello");
    Ok(Pair { server, client })
}

fn take(wire: &mut Vec<u8>, mut read: impl FnMut(&mut &[u8]) -> usize) {
    let mut bytes = wire.as_slice();
    while !bytes.is_empty() {
        read(&mut bytes);
    }
    wire.clear();
}
