//! A private key that the gateway never has: another process signs, some milliseconds away.
//!
//! ```text
//! cargo run --release -p weir --example remote_signer -- sign DIRECTORY
//! cargo run --release -p weir --example remote_signer -- serve DIRECTORY
//! ```
//!
//! The signer keeps `key.pem` and makes it, with a certificate for `localhost` in `chain.pem`, if there is none. The
//! gateway reads `chain.pem` and knows the key as `signer.sock`. Both ways a frame is two bytes of length and that many
//! bytes: a message is answered with its signature, an empty one with the public key, and what cannot be answered with
//! the end of the connection.
#![expect(clippy::print_stdout, reason = "whoever starts it wants to know where it listens")]

use std::error::Error;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tracing::error;
use weir::rustls::crypto::aws_lc_rs::sign::any_supported_type;
use weir::rustls::pki_types::pem::PemObject;
use weir::rustls::pki_types::{PrivateKeyDer, SubjectPublicKeyInfoDer};
use weir::rustls::sign::{Signer, SigningKey};
use weir::rustls::{self, OtherError, SignatureAlgorithm, SignatureScheme};
use weir::{CertificateConfig, Config, Gateway, Resources};

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> ExitCode {
    let is_terminal = io::stderr().is_terminal();
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(is_terminal).init();
    let Err(error) = run(std::env::args().skip(1).collect()) else { return ExitCode::SUCCESS };
    error!("{error}");
    ExitCode::FAILURE
}

fn run(mut arguments: Vec<String>) -> Result<(), Failure> {
    if arguments.iter().any(|argument| argument == "--help") {
        println!("{USAGE}");
        return Ok(());
    }
    let listen = option(&mut arguments, "--listen", SocketAddr::from(([127, 0, 0, 1], 7443)))?;
    let admin = option(&mut arguments, "--admin", SocketAddr::from(([127, 0, 0, 1], 7090)))?;
    let threads = option(&mut arguments, "--handshake-threads", 16)?;
    let latency = option(&mut arguments, "--latency-ms", 5)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(Resources::detect().front_threads(&Config::default().threads))
        .on_thread_start(weir::schedule_front_thread)
        .enable_all()
        .build()?;
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["sign", directory] => {
            runtime.block_on(sign(Path::new(directory), Duration::from_millis(latency)))
        }
        ["serve", directory] => {
            let mut config = Config::default();
            config.listen.tcp = Vec::new();
            config.listen.udp = vec![];
            config.listen.http = Vec::new();
            config.listen.tls = vec![listen];
            config.listen.admin = Some(admin);
            // Such a thread waits more than it works.
            config.tls.handshake_threads = threads;
            runtime.block_on(serve(Path::new(directory), config))
        }
        _ => Err(USAGE.into()),
    }
}

/// Takes an option and its value out of the arguments.
fn option<T>(arguments: &mut Vec<String>, name: &str, default: T) -> Result<T, Failure>
where
    T: FromStr<Err: Error>,
{
    let Some(place) = arguments.iter().position(|argument| argument == name) else {
        return Ok(default);
    };
    arguments.remove(place);
    if place == arguments.len() {
        return Err(format!("{name}: its value is missing").into());
    }
    let value = arguments.remove(place);
    value.parse().map_err(|error| format!("{name} {value}: {error}").into())
}

/// The gateway: of the key it knows whom to ask.
async fn serve(directory: &Path, mut config: Config) -> Result<(), Failure> {
    let (certificate, key) = (directory.join("chain.pem"), directory.join("signer.sock"));
    config.tls.certificates = vec![CertificateConfig { certificate, key }];
    let gateway = Gateway::builder()
        .config(config)
        .signing_keys(|certificate| Ok(Some(Arc::new(Remote::connect(&certificate.key)?))))
        .start()
        .await?;
    let admin = gateway.admin_addr().ok_or("the admin API is not there")?;
    println!("TLS on {}, admin API on {admin}", gateway.tls_addrs()[0]);
    tokio::signal::ctrl_c().await?;
    gateway.shutdown().await;
    Ok(())
}

/// A key in another process.
#[derive(Debug, Clone)]
struct Remote(Arc<Signers>);

/// The way to it.
#[derive(Debug)]
struct Signers {
    socket: PathBuf,
    public_key: Vec<u8>,
    /// Connections that nobody uses, at most one for each handshake thread.
    idle: Mutex<Vec<UnixStream>>,
}

impl Remote {
    /// Asks which key it is, so that one that is not the certificate's is noticed now.
    fn connect(socket: &Path) -> Result<Remote, Failure> {
        let (socket, idle) = (socket.to_owned(), Mutex::default());
        let mut signers = Signers { socket, public_key: Vec::new(), idle };
        signers.public_key = signers.ask(&[])?;
        Ok(Remote(Arc::new(signers)))
    }
}

impl SigningKey for Remote {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        offered.contains(&SCHEME).then(|| -> Box<dyn Signer> { Box::new(self.clone()) })
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        Some(self.0.public_key.as_slice().into())
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ECDSA
    }
}

impl Signer for Remote {
    /// On a handshake thread, which waits for the answer.
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        self.0.ask(message).map_err(|error| rustls::Error::Other(OtherError(Arc::new(error))))
    }

    fn scheme(&self) -> SignatureScheme {
        SCHEME
    }
}

impl Signers {
    /// Limits: each wait ends after [`PATIENCE`].
    fn ask(&self, message: &[u8]) -> io::Result<Vec<u8>> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(stream) = idle {
            match self.ask_over(stream, message) {
                // Its signer has ended; there may be another by now.
                Err(error) if error.kind() != ErrorKind::TimedOut => {}
                answered => return answered,
            }
        }
        let stream = self.open().map_err(|error| self.told(&error))?;
        self.ask_over(stream, message)
    }

    /// Unlike the connect of the standard library it does not wait for ever where too many wait already.
    fn open(&self) -> io::Result<UnixStream> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_write_timeout(Some(PATIENCE))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.connect(&SockAddr::unix(&self.socket)?)?;
        Ok(UnixStream::from(OwnedFd::from(socket)))
    }

    fn ask_over(&self, mut stream: UnixStream, message: &[u8]) -> io::Result<Vec<u8>> {
        let answer = exchange(&mut stream, message).map_err(|error| self.told(&error))?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        Ok(answer)
    }

    fn told(&self, error: &io::Error) -> io::Error {
        let socket = self.socket.display();
        #[expect(clippy::wildcard_enum_match_arm, reason = "a foreign enum that grows")]
        match error.kind() {
            ErrorKind::WouldBlock => {
                let what = format!("{socket} has not answered within {PATIENCE:?}");
                io::Error::new(ErrorKind::TimedOut, what)
            }
            ErrorKind::UnexpectedEof => {
                io::Error::new(ErrorKind::UnexpectedEof, format!("{socket} refuses to sign"))
            }
            kind => io::Error::new(kind, format!("{socket}: {error}")),
        }
    }
}

fn exchange(stream: &mut UnixStream, message: &[u8]) -> io::Result<Vec<u8>> {
    stream.write_all(&frame(message)?)?;
    let mut bytes = [0; 2];
    stream.read_exact(&mut bytes)?;
    let mut answer = vec![0; u16::from_be_bytes(bytes).into()];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

fn frame(content: &[u8]) -> io::Result<Vec<u8>> {
    let bytes = u16::try_from(content.len()).map_err(io::Error::other)?;
    Ok([&bytes.to_be_bytes(), content].concat())
}

/// The process that has the key.
async fn sign(directory: &Path, latency: Duration) -> Result<(), Failure> {
    let path = directory.join("key.pem");
    if !path.try_exists()? {
        make_key(directory)?;
    }
    let key = any_supported_type(&PrivateKeyDer::from_pem_file(&path)?)?;
    let socket = directory.join("signer.sock");
    match fs::remove_file(&socket) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(&socket)?;
    // Whoever may connect may sign.
    fs::set_permissions(&socket, Permissions::from_mode(0o600))?;
    println!("signing at {}", socket.display());
    loop {
        let (mut stream, _) = listener.accept().await?;
        let key = Arc::clone(&key);
        tokio::spawn(async move {
            // It ends with the connection.
            while let Ok(bytes) = stream.read_u16().await {
                let mut message = vec![0; bytes.into()];
                stream.read_exact(&mut message).await?;
                tokio::time::sleep(latency).await;
                stream.write_all(&frame(&answer(key.as_ref(), &message)?)?).await?;
            }
            io::Result::Ok(())
        });
    }
}

fn answer(key: &dyn SigningKey, message: &[u8]) -> io::Result<Vec<u8>> {
    if message.is_empty() {
        let public_key = key.public_key().ok_or_else(|| io::Error::other("it is not known"))?;
        return Ok(public_key.to_vec());
    }
    let signer = key.choose_scheme(&[SCHEME]);
    let signer = signer.ok_or_else(|| io::Error::other("the key is not of ECDSA P-256"))?;
    signer.sign(message).map_err(io::Error::other)
}

fn make_key(directory: &Path) -> Result<(), Failure> {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()])?;
    fs::write(directory.join("chain.pem"), cert.pem())?;
    let mut key = OpenOptions::new();
    let mut key = key.write(true).create_new(true).mode(0o600).open(directory.join("key.pem"))?;
    Ok(key.write_all(signing_key.serialize_pem().as_bytes())?)
}

const SCHEME: SignatureScheme = SignatureScheme::ECDSA_NISTP256_SHA256;
/// Clients have more; but while a thread waits for this one it makes no other handshake, resumed ones included.
const PATIENCE: Duration = Duration::from_secs(2);
const USAGE: &str = "\
remote_signer sign DIRECTORY [--latency-ms 5]
remote_signer serve DIRECTORY [--listen 127.0.0.1:7443] [--admin 127.0.0.1:7090] [--handshake-threads 16]";
