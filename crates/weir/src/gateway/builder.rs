//! What a gateway is given before it runs.

use std::sync::Arc;

use rustls::sign::SigningKey;
use weir_engine::{Budget, Transport};

use super::{
    Gateway, OWN_DESCRIPTORS, Settling, StartError, Started, addrs, bind_admin, bind_all, launch,
    start_shards,
};
use crate::auth::jwt::Jwt;
use crate::auth::{Authenticator, TokenSource};
use crate::base::config::{CertificateConfig, Config};
use crate::base::model::Accepted;
use crate::base::model::Spoken;
use crate::base::threads::{Resources, raise_open_files};
use crate::core::handle::{FromDevice, Handle, OnPublish, Refusal};
use crate::core::state::{Doorkeepers, SharedState};
use crate::observe::access::AccessLog;
use crate::observe::counters::Counters;
use crate::provisioning::device_store::DeviceStore;
use crate::tls::{NoKey, SigningKeys};
use crate::{admin, limits::admission, tls, udp};

/// A gateway before it runs.
#[derive(Default)]
pub struct GatewayBuilder {
    /// Apart, or each future that has a builder would be as large as all of it.
    config: Box<Config>,
    on_publish: Option<OnPublish>,
    allocated_bytes: Option<fn() -> u64>,
    signing_keys: Option<Box<SigningKeys>>,
    tokens: Option<Arc<dyn TokenSource>>,
    device_store: Option<Arc<DeviceStore>>,
    pub(super) depths: Depths,
}

/// How many commands and reports may be on their way to and from one shard.
#[derive(Debug, Clone, Copy)]
pub(super) struct Depths {
    pub(super) messages: usize,
    pub(super) control: usize,
    pub(super) reports: usize,
}

impl GatewayBuilder {
    /// Takes this configuration instead of the default one.
    pub fn config(mut self, config: Config) -> Self {
        *self.config = config;
        self
    }

    /// Gives what devices publish to `on_publish`, and its answer to them: it alone decides. Without it the classes of
    /// the topics say who may publish.
    ///
    /// It runs on a front thread, in each connection's order, and must not block: later frames from a whole shard's
    /// devices wait for it. To pass a message on to its topic, answer `Ok(Some(message.publish()?))`.
    pub fn on_publish(
        mut self,
        on_publish: impl Fn(&FromDevice<'_>) -> Result<Option<Accepted>, Refusal>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.on_publish = Some(Arc::new(on_publish));
        self
    }

    /// Has each shard tell in its statistics how many bytes its thread has allocated: `allocated_bytes` answers that for
    /// the thread that calls it, which only the program's allocator knows. It is called once a turn.
    pub fn allocated_bytes(mut self, allocated_bytes: fn() -> u64) -> Self {
        self.allocated_bytes = Some(allocated_bytes);
        self
    }

    /// Has handshakes signed elsewhere: by other hardware, or by a service that alone has the keys.
    ///
    /// `signing_key` is asked for the key of each of `[[tls.certificates]]`; `Ok(None)`: it is in its file. Of a key that
    /// it answers with the gateway does not open `key`, which may be any name; [`SigningKey::public_key`], if it knows
    /// one, must be the certificate's. It may block: at the start it holds up [`GatewayBuilder::start`], later a thread
    /// for blocking work.
    ///
    /// It is asked again, for all of them, whenever certificates are reloaded. New handshakes use what it answers then;
    /// those that have begun end with the key they began with. If it fails, or the public key is another, all stays as
    /// it was, with a line in the log: keys that were handed over are used until a reload succeeds.
    ///
    /// [`rustls::sign::Signer::sign`] may block too, but not without end: it has a thread of `tls.handshake_threads` to
    /// itself, and the gateway cannot take that back. Choose as many as handshakes a second times seconds a signature
    /// takes, and one for each processor. Whoever is connected does not wait for them; `tls.handshake_queue_max` of those
    /// who connect do. What it fails with ends the handshake with the alert `internal_error`, is counted in
    /// `weir_tls_handshakes_failed_total{cause="signer"}`, and logged every ten seconds at the most.
    pub fn signing_keys(
        mut self,
        signing_key: impl Fn(&CertificateConfig) -> Result<Option<Arc<dyn SigningKey>>, NoKey>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.signing_keys = Some(Box::new(signing_key));
        self
    }

    /// Has tokens that the configuration does not know looked up there: those of activated devices.
    ///
    /// It is asked for what could be such a token, of 22 characters, and nobody waits for it longer than `Hello` may take;
    /// how many wait, [`crate::LimitsConfig`] bounds. What it fails with has the device come back later.
    pub fn tokens(mut self, tokens: Arc<dyn TokenSource>) -> Self {
        self.tokens = Some(tokens);
        self
    }

    /// Has devices kept in this store: they activate there (`[activation]`), the admin API imports, lists and revokes
    /// them, and unless [`GatewayBuilder::tokens`] names another place their tokens are looked up there.
    pub fn devices(mut self, device_store: Arc<DeviceStore>) -> Self {
        self.device_store = Some(device_store);
        self
    }

    /// Starts the gateway on the current tokio runtime, which needs its time and network drivers.
    ///
    /// Errors: a configuration that cannot be, an address in use, no threads.
    pub async fn start(self) -> Result<Gateway, StartError> {
        // Apart, or the future of whoever starts a gateway would be as large as all that is held meanwhile.
        Box::pin(self.start_now()).await
    }

    async fn start_now(self) -> Result<Gateway, StartError> {
        self.config.validate()?;
        if self.tokens.is_none() && self.device_store.is_none() {
            self.config.check_admits()?;
        }
        let admin = bind_admin(self.config.listen.admin).await?;
        let GatewayBuilder {
            config,
            on_publish,
            allocated_bytes,
            signing_keys,
            tokens,
            device_store,
            depths,
        } = self;
        let open_files = raise_open_files();
        let resources = Resources::detect();
        let shards = resources.pins(&config.threads, resources.shards(&config.threads));
        let budget_bytes = resources.budget_bytes(&config.memory);
        let settling = Settling::start(&config, &resources).map_err(StartError::Settling)?;
        let (listeners, buffers) = bind_all(&config, &settling)?;
        let udp = udp::bind(&config, &resources).map_err(StartError::listen_udp)?;
        let counters = Arc::<Counters>::default();
        let tls = match &settling.tls {
            Some(workers) => {
                Some(tls::Service::start(&config, workers, signing_keys, Arc::clone(&counters))?)
            }
            None => None,
        };
        let jwt = Jwt::new(&config)?;
        let own_tokens = device_store.clone().map(|devices| devices as Arc<dyn TokenSource>);
        let tokens = tokens.or(own_tokens);
        let verifier = settling.verify.as_ref().map(|workers| workers.handle().clone());
        let auth = Authenticator::new(&config, tokens, jwt, verifier, Arc::clone(&counters));
        // Front and settling threads record.
        let recording = resources.front_threads(&config.threads) + resources.settling_threads();
        let access_log = AccessLog::start(&config.access_log, recording)?;
        let retention_bytes = config.retention_bytes(&resources);
        let budget = Budget::with_retention(budget_bytes, retention_bytes);
        let (engine, queues) = start_shards(&config, depths, allocated_bytes, budget, &shards)?;
        let own = admin::open_fds().unwrap_or(OWN_DESCRIPTORS);
        let sockets_max = admission::sockets_max(open_files.soft, own);
        let started = Started {
            tcp: addrs(&listeners, Transport::Tcp, Spoken::Frames),
            tls: addrs(&listeners, Transport::Tls, Spoken::Frames),
            http: addrs(&listeners, Transport::Tcp, Spoken::Http),
            https: addrs(&listeners, Transport::Tls, Spoken::Http),
            udp: udp.iter().map(|bound| bound.addr).collect(),
            udp_buffers: udp.first().and_then(|bound| bound.buffers().ok()),
            development: tls.as_ref().and_then(|tls| tls.contexts().development().cloned()),
            admin: admin.as_ref().map(|(addr, _)| *addr),
            resources,
            shards,
            budget_bytes,
            open_files,
            connections_max: admission::connections_max(&config.limits, sockets_max),
            buffers,
        };
        started.log(&config);
        let doors = Doorkeepers { tls, auth, device_store };
        let shared = SharedState::new(*config, engine, doors, access_log, counters, sockets_max);
        let handle = Handle::new(shared, on_publish);
        let udp = udp::start(&handle, udp).map_err(StartError::Udp)?;
        let mut gateway = launch(handle, settling, queues, listeners, admin, started);
        gateway.udp = udp;
        Ok(gateway)
    }
}

impl Default for Depths {
    fn default() -> Self {
        // A burst of publishes, of subscriptions or of closes; behind it is refused or kept.
        Self { messages: 3072, control: 1024, reports: 4096 }
    }
}
