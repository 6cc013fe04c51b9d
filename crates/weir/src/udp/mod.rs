//! Datagrams: calls, activations and small publishes.
//!
//! Each thread has its own socket and answers calls itself. It hands look-ups, activations and
//! publishes to the front, and sends the answers when they come.

mod backend;
mod handler;
mod handover;
mod own;
mod thread;
mod tokens;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use tokio::runtime;
use tracing::warn;
use weir_engine::Nanos;
use weir_engine::datagrams::{DatagramBuffers, DatagramOptions, DatagramSocket};

pub(crate) use backend::{Backend, Front};
pub(crate) use handover::{Remembered, Suspended, Threads, import};

use crate::base::config::{Config, UdpConfig};
use crate::base::threads::{Resources, schedule_edge_thread};
use crate::core::handle::Handle;
use crate::limits::rates::Rates;
use crate::observe::counters::Counters;
use handler::Shared;
pub(crate) use handler::TellEnded;
use handover::Way;
use own::OwnAddrs;

/// The sockets of an address.
pub(crate) struct Bound {
    pub(crate) addr: SocketAddr,
    sockets: Vec<Arc<DatagramSocket>>,
}

/// The threads that answer datagrams. When this is dropped, they end without waiting for the front.
pub(crate) struct Running {
    threads: Arc<Threads>,
    handles: Vec<JoinHandle<()>>,
}

impl Bound {
    /// Binds the sockets of one address of `listen.udp`, unless an old process has `passed` them.
    pub(crate) fn new(
        addr: SocketAddr,
        config: &Config,
        resources: &Resources,
        passed: Vec<OwnedFd>,
    ) -> io::Result<Bound> {
        let udp = &config.udp;
        let options = DatagramOptions {
            recv_buffer_bytes: udp.recv_buffer_bytes,
            send_buffer_bytes: udp.send_buffer_bytes,
            only_v6: !crate::connection::listener::takes_both(addr, &config.listen.udp),
        };
        let threads = resources.udp_threads(udp.threads);
        let sockets = if passed.is_empty() {
            DatagramSocket::bind(addr, threads, &options)?
        } else if passed.len() == threads {
            let sockets = passed.into_iter().map(|fd| DatagramSocket::adopt(fd, &options));
            sockets.collect::<io::Result<_>>()?
        } else {
            return Err(io::Error::other(format!(
                "the old process has {} sockets, and this one {threads} threads for datagrams",
                passed.len()
            )));
        };
        let addr = sockets[0].local_addr()?;
        Ok(Bound { addr, sockets: sockets.into_iter().map(Arc::new).collect() })
    }

    /// The buffers that the kernel has granted each socket.
    pub(crate) fn buffers(&self) -> io::Result<DatagramBuffers> {
        self.sockets[0].buffers()
    }
}

/// Binds all addresses of `listen.udp`. `passed` takes the sockets of an address that an old process
/// has passed.
///
/// Errors: the address, and why the gateway cannot listen on it.
pub(crate) fn bind(
    config: &Config,
    resources: &Resources,
    mut passed: impl FnMut(SocketAddr) -> Vec<OwnedFd>,
) -> Result<Vec<Bound>, (SocketAddr, io::Error)> {
    let bind = |addr: &SocketAddr| {
        let bound = Bound::new(*addr, config, resources, passed(*addr));
        bound.map_err(|source| (*addr, source))
    };
    config.listen.udp.iter().map(bind).collect()
}

/// Starts the threads for the bound sockets, with the gateway as their backend. They know what the
/// threads of an old process remembered.
pub(crate) fn start(
    handle: &Handle,
    bound: Vec<Bound>,
    remembered: Remembered,
) -> io::Result<Option<Running>> {
    if bound.is_empty() {
        return Ok(None);
    }
    let shared = handle.shared();
    let backend = Arc::new(Front::new(handle.clone()));
    let counters = Arc::clone(shared.counters());
    let runtime = runtime::Handle::current();
    let rates = Arc::clone(&shared.datagram_rates);
    let bound = (bound, remembered);
    Running::start(bound, (&shared.config().udp, rates), backend, counters, &runtime).map(Some)
}

/// Logs each buffer that the kernel granted only in part, and how to get it.
pub(crate) fn log_buffers(granted: DatagramBuffers, config: &UdpConfig) {
    let DatagramBuffers { recv_bytes, send_bytes } = granted;
    for (key, sysctl, asked, granted) in [
        ("udp.recv_buffer_bytes", "net.core.rmem_max", config.recv_buffer_bytes, recv_bytes),
        ("udp.send_buffer_bytes", "net.core.wmem_max", config.send_buffer_bytes, send_bytes),
    ] {
        // The kernel doubles the granted size for its own book-keeping.
        let granted = granted / 2;
        if granted < asked {
            warn!(
                asked,
                granted,
                "the kernel grants UDP sockets less than {key}: raise the sysctl {sysctl} to {asked}"
            );
        }
    }
}

impl Running {
    /// Starts a thread for each socket. Requests to the front are tasks on the runtime.
    pub(crate) fn start(
        (bound, mut remembered): (Vec<Bound>, Remembered),
        (config, rates): (&UdpConfig, Arc<Rates>),
        backend: Arc<dyn Backend>,
        counters: Arc<Counters>,
        runtime: &runtime::Handle,
    ) -> io::Result<Running> {
        let own = OwnAddrs::new(bound.iter().map(|bound| bound.addr));
        let of_bound = |Bound { addr, sockets }| sockets.into_iter().map(move |of| (addr, of));
        let (addrs, sockets): (Vec<_>, Vec<_>) = bound.into_iter().flat_map(of_bound).unzip();
        counters.udp.set_sockets(&sockets);
        let stop = Arc::<AtomicBool>::default();
        let shared = Arc::new(Shared {
            config: config.clone(),
            backend,
            counters,
            runtime: runtime.clone(),
            rates,
            own,
        });
        let (mut ways, mut begins) = (Vec::new(), Vec::new());
        for (addr, socket) in addrs.into_iter().zip(sockets) {
            let (sender, orders) = sync_channel(handover::ORDERS_MAX);
            begins.push((Arc::clone(&socket), orders, remembered.take(addr)));
            ways.push(Way { addr, socket, sender });
        }
        let threads = Arc::new(Threads { stop, ways });
        let mut running = Running { threads, handles: Vec::new() };
        for (socket, orders, memory) in begins {
            let (stop, shared) = (Arc::clone(&running.threads.stop), Arc::clone(&shared));
            let watch = Watch { stop: Arc::clone(&stop), counters: Arc::clone(&shared.counters) };
            let builder = std::thread::Builder::new().name("weir-udp".to_owned());
            running.handles.push(builder.spawn(move || {
                let _watch = watch;
                schedule_edge_thread();
                thread::run(&socket, (shared, memory), (&stop, &orders));
            })?);
        }
        Ok(running)
    }

    /// The threads, to suspend them.
    pub(crate) fn threads(&self) -> &Arc<Threads> {
        &self.threads
    }

    /// Ends the threads after they have answered the datagrams that they received. This blocks
    /// until all have ended.
    pub(crate) fn finish(mut self) {
        self.tell();
        for thread in self.handles.drain(..) {
            if thread.join().is_err() {
                warn!("a UDP thread ended by itself");
            }
        }
    }

    /// The same, but at that time they wait for no more answers of the front.
    pub(crate) fn finish_by(self, until: Nanos) {
        self.threads.end_by(until);
        self.finish();
    }

    fn tell(&self) {
        self.threads.stop();
    }
}

/// Notices that a thread has ended by itself.
struct Watch {
    stop: Arc<AtomicBool>,
    counters: Arc<Counters>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.stop.load(Ordering::Relaxed) {
            self.counters.udp.count_thread_ended();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tell();
    }
}

#[cfg(test)]
mod tests;
