//! The socket on which the running process waits for `weir upgrade`.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::geteuid;
use tokio::io::{
    AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, copy, sink,
};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;
use weir::Stage;

use super::lines::{Line, Request};

/// Orders to upgrade: from the socket, and by SIGUSR2.
pub(crate) struct Control {
    signal: Signal,
    orders: mpsc::Receiver<Order>,
    to: mpsc::Sender<Order>,
    /// One upgrade at a time.
    turn: Arc<Semaphore>,
    socket: Option<Socket>,
}

/// An order to upgrade.
pub(crate) struct Order {
    pub(super) request: Request,
    /// Absent: a signal has given it.
    answers: Option<mpsc::Sender<Line>>,
    _turn: Option<OwnedSemaphorePermit>,
}

/// The socket in the file system.
struct Socket {
    path: PathBuf,
    /// Device and number of the file, so that nobody else's is removed.
    file: (u64, u64),
    task: JoinHandle<()>,
}

impl Control {
    /// Catches SIGUSR2 from now on.
    pub(crate) fn catch() -> Result<Control> {
        let signal = signal(SignalKind::user_defined2()).context("cannot catch signals")?;
        let (to, orders) = mpsc::channel(1);
        Ok(Control { signal, orders, to, turn: Arc::new(Semaphore::new(1)), socket: None })
    }

    /// Listens on the socket too. A gateway serves without it: `weir upgrade` cannot reach it then.
    /// `takes_over` says whether the socket of a running process is replaced.
    pub(crate) fn listen(&mut self, path: Option<PathBuf>, takes_over: bool) {
        let Some(path) = path else {
            warn!("no socket for weir upgrade: set upgrade.socket, or the home of the user");
            return;
        };
        match open(&path, takes_over) {
            Ok((listener, file)) => {
                let task = tokio::spawn(accept(listener, self.to.clone(), Arc::clone(&self.turn)));
                self.socket = Some(Socket { path, file, task });
            }
            Err(error) => {
                warn!(path = %path.display(), %error, "no socket for weir upgrade: see upgrade.socket");
            }
        }
    }

    /// Waits for the next order.
    pub(crate) async fn next(&mut self) -> Order {
        loop {
            tokio::select! {
                Some(order) = self.orders.recv() => return order,
                _ = self.signal.recv() => {
                    match Arc::clone(&self.turn).try_acquire_owned() {
                        Ok(turn) => return Order::by_signal(turn),
                        // An order is on its way to us.
                        Err(_) => continue,
                    }
                }
            }
        }
    }

    /// Takes no further orders.
    pub(crate) fn close(&mut self) {
        self.socket = None;
        self.turn.close();
    }
}

impl Order {
    fn by_signal(turn: OwnedSemaphorePermit) -> Order {
        Order { request: Request::default(), answers: None, _turn: Some(turn) }
    }

    /// Whether a signal has given it.
    pub(super) fn is_by_signal(&self) -> bool {
        self.answers.is_none()
    }

    /// Writes lines to `weir upgrade`.
    pub(super) fn teller(&self) -> Teller {
        Teller { answers: self.answers.clone(), began: Instant::now() }
    }

    /// Waits until `weir upgrade` has the last line, [`Line::Left`].
    pub(crate) async fn finish(self) {
        if let Some(answers) = self.answers {
            // One that does not read is not waited for.
            let _ = timeout(ANSWER_PATIENCE, answers.closed()).await;
        }
    }
}

/// Writes lines to `weir upgrade`. If that has gone, the upgrade goes on.
#[derive(Clone)]
pub(crate) struct Teller {
    answers: Option<mpsc::Sender<Line>>,
    began: Instant,
}

impl Teller {
    pub(super) fn tell(&self, line: Line) {
        if let Some(answers) = &self.answers {
            // It is full only if nobody reads.
            let _ = answers.try_send(line);
        }
    }

    pub(super) fn tell_stage(&self, stage: &Stage) {
        let after = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.tell(Line::stage(stage, after));
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.task.abort();
        let is_ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.file);
        if is_ours {
            // One that stays is replaced by the next process.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Opens the socket under another name, lets nobody else use it, and then gives it its name.
fn open(path: &Path, takes_over: bool) -> Result<(UnixListener, (u64, u64))> {
    if let Some(directory) = path.parent().filter(|parent| !parent.as_os_str().is_empty())
        && !directory.exists()
    {
        weir::make_private_directory(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
    }
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
        Ok(metadata) if !std::os::unix::fs::FileTypeExt::is_socket(&metadata.file_type()) => {
            bail!("the file is there, and is no socket");
        }
        Ok(_) if !takes_over && std::os::unix::net::UnixStream::connect(path).is_ok() => {
            bail!("another process uses it");
        }
        Ok(_) => {}
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let before = PathBuf::from(name);
    // Of a process with the same number, long ago.
    let _ = fs::remove_file(&before);
    let listener = UnixListener::bind(&before)?;
    let named = fs::set_permissions(&before, fs::Permissions::from_mode(0o600))
        .and_then(|()| fs::symlink_metadata(&before))
        .and_then(|metadata| {
            fs::rename(&before, path)?;
            Ok((metadata.dev(), metadata.ino()))
        });
    match named {
        Ok(file) => Ok((listener, file)),
        Err(error) => {
            let _ = fs::remove_file(&before);
            Err(error.into())
        }
    }
}

async fn accept(listener: UnixListener, to: mpsc::Sender<Order>, turn: Arc<Semaphore>) {
    let peers = Arc::new(Semaphore::new(PEERS_MAX));
    loop {
        let Ok(place) = Arc::clone(&peers).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (to, turn) = (to.clone(), Arc::clone(&turn));
                tokio::spawn(async move {
                    // A peer that goes away early is not our trouble.
                    let _ = serve(stream, to, turn).await;
                    drop(place);
                });
            }
            Err(error) => {
                warn!(%error, "cannot accept weir upgrade");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves one `weir upgrade`: one request, and the lines of its answer.
async fn serve(
    mut stream: UnixStream,
    to: mpsc::Sender<Order>,
    turn: Arc<Semaphore>,
) -> io::Result<()> {
    let uid = stream.peer_cred()?.uid();
    if !may_order(uid, geteuid().as_raw()) {
        warn!(uid, "weir upgrade refused: another user");
        return refuse(&mut stream, "only the gateway's own user and root may upgrade it").await;
    }
    let request = match timeout(REQUEST_PATIENCE, read(&mut stream)).await {
        Ok(Ok(request)) => request,
        Ok(Err(why)) => return refuse(&mut stream, &why).await,
        Err(_) => return refuse(&mut stream, "the request did not come in time").await,
    };
    let Ok(turn) = turn.try_acquire_owned() else {
        return refuse(&mut stream, "an upgrade is under way already").await;
    };
    let (answers, mut lines) = mpsc::channel(LINES_MAX);
    let order = Order { request, answers: Some(answers), _turn: Some(turn) };
    if to.send(order).await.is_err() {
        return refuse(&mut stream, "the gateway is stopping").await;
    }
    while let Some(line) = lines.recv().await {
        let is_left = matches!(line, Line::Left { .. });
        write(&mut stream, &line).await?;
        if is_left {
            // Its end tells `weir upgrade` that this process has ended.
            std::mem::forget(stream);
            return Ok(());
        }
    }
    Ok(())
}

/// The same user, and root, who can do it anyway.
fn may_order(uid: u32, own: u32) -> bool {
    uid == own || uid == 0
}

async fn read(stream: &mut UnixStream) -> Result<Request, String> {
    let mut text = Vec::new();
    let mut limited = BufReader::new(stream).take(REQUEST_BYTES_MAX);
    limited.read_until(b'\n', &mut text).await.map_err(|error| error.to_string())?;
    serde_json::from_slice(&text).map_err(|error| format!("the request is malformed: {error}"))
}

async fn refuse(stream: &mut UnixStream, why: &str) -> io::Result<()> {
    write(stream, &Line::Refused { why: why.to_owned() }).await?;
    // With something unread, the kernel would tell the peer of a reset before it gives the line.
    stream.shutdown().await?;
    let mut rest = stream.take(REQUEST_BYTES_MAX);
    timeout(ANSWER_PATIENCE, copy(&mut rest, &mut sink())).await??;
    Ok(())
}

async fn write(stream: &mut UnixStream, line: &Line) -> io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    timeout(ANSWER_PATIENCE, stream.write_all(&text)).await?
}

/// Peers at a time: one is served, and the others are told so.
const PEERS_MAX: usize = 8;
/// Paths have at most 4,096 bytes each, which JSON may write as six.
const REQUEST_BYTES_MAX: u64 = 64 << 10;
const REQUEST_PATIENCE: Duration = Duration::from_secs(5);
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// An upgrade has fewer lines.
const LINES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(path: &Path, request: &str) -> String {
        let mut stream = UnixStream::connect(path).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    fn place() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state/upgrade.sock");
        (directory, path)
    }

    #[tokio::test]
    async fn a_request_becomes_an_order_and_lines_its_answer() {
        let (_directory, path) = place();
        let mut control = Control::catch().unwrap();
        control.listen(Some(path.clone()), false);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let asked = tokio::spawn({
            let path = path.clone();
            async move { ask(&path, "{\"program\":\"/p\",\"dry_run\":true}\n").await }
        });
        let order = control.next().await;
        let expected = Request { program: Some("/p".into()), dry_run: true, ..Request::default() };
        assert_eq!(order.request, expected);
        assert!(!order.is_by_signal());
        let busy = ask(&path, "{}\n").await;
        assert_eq!(busy, "{\"refused\":{\"why\":\"an upgrade is under way already\"}}\n");
        order.teller().tell(Line::Refused { why: "no".to_owned() });
        drop(order);
        assert_eq!(asked.await.unwrap(), "{\"refused\":{\"why\":\"no\"}}\n");
        control.close();
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn what_is_no_request_is_refused_and_the_next_is_served() {
        let (_directory, path) = place();
        let mut control = Control::catch().unwrap();
        control.listen(Some(path.clone()), false);
        let long = format!("{{\"program\":\"{}\"}}\n", "x".repeat(70_000));
        for request in ["\n", "GET / HTTP/1.1\r\n", "[]\n", "{\"dry_run\":1}\n", &long] {
            let answer = ask(&path, request).await;
            assert!(answer.contains("the request is malformed"), "{request}: {answer}");
        }
        let asked = tokio::spawn(async move { ask(&path, "{}\n").await });
        drop(control.next().await);
        assert_eq!(asked.await.unwrap(), "");
    }

    #[tokio::test]
    async fn a_running_process_keeps_its_socket_and_a_stale_one_is_replaced() {
        let (_directory, path) = place();
        let mut first = Control::catch().unwrap();
        first.listen(Some(path.clone()), false);
        let refused = open(&path, false).unwrap_err();
        assert_eq!(refused.to_string(), "another process uses it");
        // The one that takes over replaces it, and the old one leaves that in place.
        let (_listener, _) = open(&path, true).unwrap();
        first.close();
        assert!(path.exists());
        drop(_listener);
        let (_listener, _) = open(&path, false).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "a file of somebody").unwrap();
        let refused = open(&path, true).unwrap_err();
        assert_eq!(refused.to_string(), "the file is there, and is no socket");
    }

    #[test]
    fn only_the_same_user_and_root_may_order() {
        assert!(may_order(0, 1_000) && may_order(1_000, 1_000) && may_order(0, 0));
        assert!(!may_order(1_001, 1_000) && !may_order(1_000, 0));
    }
}
