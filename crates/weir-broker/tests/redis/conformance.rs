//! What every broker promises.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use tokio::time::Duration;
use weir_broker::conformance::{Cluster, HELD_BACK};
use weir_broker::{Answer, Broker, EventHandler, RedisBroker, RedisOptions};
use weir_tests::{Proxy, Redis};

use crate::common::{ask, is_replicated, start_quick, until};

weir_broker::conformance!(pair);

/// A primary and a replica, which takes over.
struct Pair {
    servers: Mutex<Servers>,
    late: Mutex<Late>,
}

/// What is between the servers and the node that can be held back.
#[derive(Default)]
struct Late {
    proxies: Vec<Proxy>,
    /// Connections of its requests, as the primary knows them, that were held back.
    held: BTreeSet<String>,
}

struct Servers {
    redis: [Redis; 2],
    primary: usize,
}

async fn pair() -> Arc<dyn Cluster> {
    let redis = [start_quick(), start_quick()];
    let replicate = format!("REPLICAOF 127.0.0.1 {}", redis[0].addr.port());
    redis[1].command(&replicate).expect("a replica");
    let (servers, late) = (Mutex::new(Servers { redis, primary: 0 }), Mutex::default());
    let pair = Pair { servers, late };
    pair.replicated().await.expect("replicated");
    Arc::new(pair)
}

impl Pair {
    /// Waits until the replica has everything.
    async fn replicated(&self) -> Result<(), weir_broker::Error> {
        until("the replica has everything", || {
            let servers = self.servers.lock().expect("no panic");
            is_replicated(&servers.redis[1 - servers.primary])
        })
        .await;
        Ok(())
    }

    /// The connections on which the node that can be held back sends requests.
    fn of_late(&self) -> BTreeSet<String> {
        let servers = self.servers.lock().expect("no panic");
        let clients = servers.redis[servers.primary].command("CLIENT LIST TYPE normal");
        let clients = clients.expect("an answer");
        let named = format!(" name=weir:{HELD_BACK} ");
        let own = clients.lines().filter(|client| client.contains(&named));
        own.filter_map(|client| client.split(' ').next()).map(str::to_owned).collect()
    }
}

impl Cluster for Pair {
    fn open<'a>(
        &'a self,
        name: &'a str,
        connections_per_device_max: usize,
        handler: Arc<dyn EventHandler>,
    ) -> Answer<'a, Arc<dyn Broker>> {
        let mut urls = self.servers.lock().expect("no panic").redis.each_ref().map(Redis::url);
        if name == HELD_BACK {
            let addrs = self.servers.lock().expect("no panic").redis.each_ref().map(|it| it.addr);
            let proxies = addrs.map(|addr| Proxy::start(addr).expect("a proxy"));
            urls = proxies.each_ref().map(|proxy| format!("redis://{}", proxy.addr));
            self.late.lock().expect("no panic").proxies = proxies.into();
        }
        Box::pin(async move {
            let mut options = RedisOptions::new(&urls[0], "test", name);
            options.urls = urls.to_vec();
            options.connections_per_device_max = connections_per_device_max;
            options.node_kept = Duration::from_secs(2);
            options.presence_kept = self.presence_kept();
            if name == HELD_BACK {
                // What is held back keeps no other request from leaving, and does not end the node.
                options.pipelines_max = 16;
                options.timeout = Duration::from_secs(1);
                options.node_kept = Duration::from_secs(30);
            }
            Ok(Arc::new(RedisBroker::open(options, handler).await?) as Arc<dyn Broker>)
        })
    }

    fn presence_kept(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn break_connections(&self) -> Answer<'_, ()> {
        let servers = self.servers.lock().expect("no panic");
        for kind in ["pubsub", "normal"] {
            let kill = format!("CLIENT KILL TYPE {kind}");
            servers.redis[servers.primary].command(&kill).expect("an answer");
        }
        Box::pin(async { Ok(()) })
    }

    fn hold_back<'a>(&'a self, call: Answer<'a, ()>) -> Answer<'a, ()> {
        Box::pin(async {
            self.late.lock().expect("no panic").proxies.iter().for_each(Proxy::freeze);
            let answer = call.await;
            let of_late = self.of_late();
            let mut late = self.late.lock().expect("no panic");
            late.held.extend(of_late);
            late.proxies.iter().for_each(Proxy::heal_but_forget);
            answer
        })
    }

    fn deliver(&self) -> Answer<'_, ()> {
        Box::pin(async {
            self.late.lock().expect("no panic").proxies.iter().for_each(Proxy::remember);
            // The node has given these connections up. They end behind what they still carry.
            until("what was held back arrives", || {
                self.late.lock().expect("no panic").held.is_disjoint(&self.of_late())
            })
            .await;
            Ok(())
        })
    }

    fn fail_over(&self, _lost_max: u64) -> Answer<'_, ()> {
        let mut servers = self.servers.lock().expect("no panic");
        let old = servers.primary;
        servers.redis[old].kill().expect("killed");
        servers.primary = 1 - old;
        let primary = &servers.redis[servers.primary];
        // As a replica is that has not got the last message of each topic.
        ask(primary, redis::cmd("REPLICAOF").arg("NO").arg("ONE"));
        ask(primary, redis::cmd("EVAL").arg(CUT).arg(0));
        servers.redis[old].restart().expect("restarted");
        let port = servers.redis[servers.primary].addr.port();
        let replicate = format!("REPLICAOF 127.0.0.1 {port}");
        servers.redis[old].command(&replicate).expect("a replica");
        drop(servers);
        Box::pin(self.replicated())
    }
}

/// Takes back the last message of each topic, and what is known of the batch that it was in.
const CUT: &str = "
for _, key in ipairs(redis.call('KEYS', '*}t:*')) do
  local top = redis.call('HINCRBY', key, 'o', -1)
  local stream = string.gsub(key, '}t:', '}s:')
  local last = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
  if last then
    redis.call('XDEL', stream, last[1])
    redis.call('XSETID', stream, top .. '-' .. string.match(last[1], '%d+$'))
  end
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.sub(field, 1, 1) == 'b' then
      redis.call('HDEL', key, field)
    end
  end
end";
