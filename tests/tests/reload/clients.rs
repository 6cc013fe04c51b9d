//! Real clients that stay connected, and tell everything that is not a message in its turn.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use weir_client::{Client, Event, Options};

/// One client, as the test sees it.
pub(crate) struct Member {
    pub(crate) device: String,
    pub(crate) token: String,
    pub(crate) topics: BTreeSet<String>,
    orders: mpsc::Sender<Order>,
}

/// What a client tells.
#[derive(Debug)]
pub(crate) enum Told {
    Subscribed,
    Unsubscribed(String, String),
    /// The code of its goodbye; 0 if there was none.
    Ended(u32),
    /// The last offset of each topic.
    Seen(HashMap<String, u64>),
    /// A message is missing, or anything else that must not be.
    Wrong(String),
}

enum Order {
    Subscribe(String),
    Tell,
}

/// All clients.
pub(crate) struct Crowd {
    runtime: Runtime,
    addr: SocketAddr,
    pub(crate) members: HashMap<usize, Member>,
    next: usize,
    sender: mpsc::Sender<(usize, Told)>,
    told: mpsc::Receiver<(usize, Told)>,
}

impl Crowd {
    pub(crate) fn new(addr: SocketAddr) -> Result<Crowd> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let (sender, told) = mpsc::channel(1 << 16);
        Ok(Crowd { runtime, addr, members: HashMap::new(), next: 0, sender, told })
    }

    /// The next number of a client.
    pub(crate) fn number(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    /// Connects clients, all at once, and waits until they are in their topics.
    pub(crate) fn enter(
        &mut self,
        joining: Vec<(usize, String, String, BTreeSet<String>)>,
    ) -> Result<()> {
        let mut connecting = Vec::new();
        for (number, device, token, topics) in joining {
            let mut options = Options::device(&device).token(&token);
            for topic in &topics {
                options = options.topic(topic.as_str());
            }
            let (addr, sender) = (self.addr, self.sender.clone());
            let (orders, ordered) = mpsc::channel(16);
            connecting.push(self.runtime.spawn(async move {
                let client = Client::connect(addr, options).await;
                client.map(|client| tokio::spawn(live(client, number, ordered, sender)))
            }));
            self.members.insert(number, Member { device, token, topics, orders });
        }
        let wanted: usize = connecting.len();
        for connecting in connecting {
            self.runtime.block_on(connecting)?.context("a client is refused")?;
        }
        let _ = wanted;
        Ok(())
    }

    /// Subscribes a client to a topic more.
    pub(crate) fn subscribe(&mut self, number: usize, topic: &str) -> Result<()> {
        let member = self.members.get_mut(&number).context("a client")?;
        member.topics.insert(topic.to_owned());
        member.orders.blocking_send(Order::Subscribe(topic.to_owned()))?;
        Ok(())
    }

    /// What some client tells next.
    pub(crate) fn hear(&mut self) -> Result<(usize, Told)> {
        let told = self.told.recv();
        let patience = weir_tests::PATIENCE;
        match self.runtime.block_on(async { tokio::time::timeout(patience, told).await }) {
            Ok(Some((number, Told::Wrong(what)))) => bail!("client {number}: {what}"),
            Ok(Some(told)) => Ok(told),
            Ok(None) | Err(_) => bail!("nothing is heard of the clients"),
        }
    }

    /// What has been told and not been heard yet.
    pub(crate) fn heard(&mut self) -> Vec<(usize, Told)> {
        std::iter::from_fn(|| self.told.try_recv().ok()).collect()
    }

    /// Asks all clients how far they are.
    pub(crate) fn ask(&self) -> Result<()> {
        for member in self.members.values() {
            member.orders.blocking_send(Order::Tell)?;
        }
        Ok(())
    }
}

async fn live(
    mut client: Client,
    number: usize,
    mut orders: mpsc::Receiver<Order>,
    sender: mpsc::Sender<(usize, Told)>,
) {
    let mut seen: HashMap<String, u64> = HashMap::new();
    let mut is_asked = true;
    loop {
        let told = tokio::select! {
            event = client.next() => match event {
                Ok(Some(Event::Push(push))) => {
                    let at = seen.entry(push.topic.clone()).or_default();
                    if push.offset != *at + 1 {
                        Told::Wrong(format!("{} {} follows {at}", push.topic, push.offset))
                    } else {
                        *at = push.offset;
                        continue;
                    }
                }
                Ok(Some(Event::Subscribed(told))) => {
                    seen.insert(told.topic.clone(), told.position.map_or(0, |at| at.offset));
                    Told::Subscribed
                }
                Ok(Some(Event::Unsubscribed(told))) => {
                    seen.remove(&told.topic);
                    Told::Unsubscribed(told.topic, told.reason)
                }
                Ok(Some(Event::Goodbye(goodbye))) => Told::Ended(goodbye.code),
                Ok(None) => return,
                Ok(Some(other)) => Told::Wrong(format!("{other:?}")),
                Err(error) => Told::Wrong(error.to_string()),
            },
            order = orders.recv(), if is_asked => match order {
                Some(Order::Subscribe(topic)) => match client.subscribe(topic.as_str()).await {
                    Ok(()) => continue,
                    Err(error) => Told::Wrong(error.to_string()),
                },
                Some(Order::Tell) => Told::Seen(seen.clone()),
                // It is to go; its end is still told.
                None => {
                    is_asked = false;
                    continue;
                }
            },
        };
        if sender.send((number, told)).await.is_err() {
            return;
        }
    }
}
