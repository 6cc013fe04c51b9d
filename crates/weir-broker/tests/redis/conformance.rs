//! What every broker promises.

use std::sync::{Arc, Mutex};

use tokio::time::Duration;
use weir_broker::conformance::Cluster;
use weir_broker::{Answer, Broker, EventHandler, RedisBroker, RedisOptions};
use weir_tests::Redis;

use crate::common::{ask, is_replicated, start_quick, until};

weir_broker::conformance!(pair);

/// A primary and a replica, which takes over.
struct Pair {
    servers: Mutex<Servers>,
}

struct Servers {
    redis: [Redis; 2],
    primary: usize,
}

async fn pair() -> Arc<dyn Cluster> {
    let redis = [start_quick(), start_quick()];
    let replicate = format!("REPLICAOF 127.0.0.1 {}", redis[0].addr.port());
    redis[1].command(&replicate).expect("a replica");
    let pair = Pair { servers: Mutex::new(Servers { redis, primary: 0 }) };
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
}

impl Cluster for Pair {
    fn open<'a>(
        &'a self,
        name: &'a str,
        connections_per_device_max: usize,
        handler: Arc<dyn EventHandler>,
    ) -> Answer<'a, Arc<dyn Broker>> {
        let urls = self.servers.lock().expect("no panic").redis.each_ref().map(Redis::url);
        Box::pin(async move {
            let mut options = RedisOptions::new(&urls[0], "test", name);
            options.urls = urls.to_vec();
            options.connections_per_device_max = connections_per_device_max;
            options.node_kept = Duration::from_secs(2);
            options.presence_kept = self.presence_kept();
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
