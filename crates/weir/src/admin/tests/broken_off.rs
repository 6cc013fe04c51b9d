//! A caller asks for a change and goes away before it is done.

use std::sync::Arc;

use tokio::sync::{Notify, Semaphore};
use weir_store::conformance::Memory;
use weir_store::{
    Answer as StoreAnswer, BatchLimits, Device as Stored, DeviceEntry, Error, Hash, Holder, Issue,
    Issued, Millis, Page, Put, Refusal, Revoked, Secrets, Serial, Store,
};

use super::*;
use crate::DeviceStore;

/// A store that makes a change at once, and answers later.
struct Slow {
    memory: Memory,
    has_changed: Notify,
    gate: Semaphore,
}

impl Slow {
    async fn tell<T>(&self, done: StoreAnswer<'_, T>) -> Result<T, Error> {
        let done = done.await;
        self.has_changed.notify_one();
        self.gate.acquire().await.expect("nobody closes it").forget();
        done
    }
}

impl Store for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn put(&self, entries: Vec<DeviceEntry>, now: Millis) -> StoreAnswer<'_, Vec<Put>> {
        Box::pin(self.tell(self.memory.put(entries, now)))
    }

    fn issue(&self, issues: Vec<Issue>) -> StoreAnswer<'_, Vec<Result<Issued, Refusal>>> {
        self.memory.issue(issues)
    }

    fn check(&self, tokens: Vec<Hash>, now: Millis) -> StoreAnswer<'_, Vec<Option<Holder>>> {
        self.memory.check(tokens, now)
    }

    fn revoke(&self, serials: Vec<Serial>) -> StoreAnswer<'_, Vec<Revoked>> {
        Box::pin(self.tell(self.memory.revoke(serials)))
    }

    fn find(&self, serials: Vec<Serial>) -> StoreAnswer<'_, Vec<Option<Stored>>> {
        self.memory.find(serials)
    }

    fn list(&self, page: Page) -> StoreAnswer<'_, Vec<Stored>> {
        self.memory.list(page)
    }

    fn seen(&self, seen: Vec<(Serial, Millis)>) -> StoreAnswer<'_, ()> {
        self.memory.seen(seen)
    }

    fn sweep(&self, now: Millis, limit: usize) -> StoreAnswer<'_, usize> {
        self.memory.sweep(now, limit)
    }

    fn count(&self) -> StoreAnswer<'_, u64> {
        self.memory.count()
    }

    fn probe(&self) -> StoreAnswer<'_, ()> {
        self.memory.probe()
    }
}

#[tokio::test]
async fn what_has_begun_is_carried_out_to_its_end() {
    let store = Arc::new(Slow {
        memory: Memory::new(),
        has_changed: Notify::new(),
        gate: Semaphore::new(0),
    });
    let secrets = Secrets::new(&[1; 32]);
    let entry = |serial: &str| {
        let serial = Serial::new(serial).unwrap();
        let key = secrets.key_hash(&serial, "old");
        DeviceEntry { serial, key, labels: Default::default() }
    };
    store.memory.put(vec![entry("a"), entry("b")], 1).await.unwrap();
    let limits = BatchLimits::default();
    let shared: Arc<dyn Store> = store.clone();
    let devices = DeviceStore::new(shared, &limits, Secrets::new(&[1; 32]));
    let mut config = Config::default();
    config.auth.unchecked_ids = vec![crate::AuthKind::Anonymous];
    let server =
        Box::pin(Server::start_with(config, |builder| builder.devices(Arc::new(devices)))).await;
    let import = "POST /v1/devices\nContent-Type: text/csv";
    for (device, request, body) in
        [("a", post("/v1/devices/a/revoke"), ""), ("b", import.to_owned(), "devSn,devKey\nb,new\n")]
    {
        let mut connected = Device::connect(server.device_addr(), device, &[]).await;
        tokio::select! {
            answer = server.ask(&request, body) => panic!("the gate is shut: {answer:?}"),
            () = store.has_changed.notified() => {}
        }
        // The caller's connection has gone. The gateway has seen that when it has answered another
        // one.
        check(&server, "GET /healthz", "", 200, &[]).await;
        store.gate.add_permits(1);
        assert_eq!(connected.goodbye().await, "revoked");
    }
    // The audit log tells of both, although nobody was there to be answered.
    let audit = check(&server, "GET /v1/audit", "", 200, &[]).await.json();
    let entries = audit["entries"].as_array().unwrap();
    let shown = entries.iter().map(|entry| (entry["act"].clone(), entry["outcome"].clone()));
    let expected = ["import", "revoke"].map(|act| (json!(act), json!("broken_off")));
    assert_eq!(shown.collect::<Vec<_>>(), expected);
    server.stop().await;
}
