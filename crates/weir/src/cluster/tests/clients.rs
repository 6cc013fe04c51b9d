//! The simulated clients: what each has heard of each topic, and what they must not hear.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use tokio::time::Instant;
use weir_engine::ConnId;
use weir_wire::v1::Position;

use super::node::is_late;

/// What a client hears of a topic.
#[derive(Debug, Clone)]
pub(super) enum Heard {
    /// The answer to `Subscribe`; as a notice: a loss in a running subscription.
    Subscribed {
        topic: String,
        position: Position,
        recovered: bool,
        is_notice: bool,
    },
    Message {
        topic: String,
        offset: u64,
        text: String,
    },
    Unsubscribed {
        topic: String,
        reason: String,
    },
    Refused {
        topic: String,
        code: String,
    },
    /// Connections have entered, or left.
    Presence {
        topic: String,
        changes: Vec<(u64, bool)>,
        missed: bool,
    },
}

/// A client, as the SDKs are: it counts offsets, and comes back with its last position.
#[derive(Default)]
pub(super) struct Client {
    /// Its node and connection.
    pub(super) conn: Option<(usize, ConnId)>,
    pub(super) views: BTreeMap<String, View>,
}

/// What a client knows of a topic.
#[derive(Default)]
pub(super) struct View {
    pub(super) stage: Stage,
    pub(super) position: Option<Position>,
    pub(super) present: Present,
}

/// What a client knows of who is in a topic.
#[derive(Debug, Default)]
pub(super) struct Present {
    /// Whether it hears of changes.
    pub(super) is_asked: bool,
    /// Whether it has to ask for the list.
    pub(super) needs_list: bool,
    pub(super) connections: BTreeSet<u64>,
    /// What it has heard since it has asked for the list.
    since: Vec<(u64, bool)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Stage {
    #[default]
    Out,
    /// It has asked from this position on, at this time.
    Waiting(Option<Position>, Instant),
    In,
    /// It has asked to leave, at this time.
    Leaving(Instant),
}

/// A message that a client has got: topic, epoch, offset, text.
pub(super) type Delivery = (String, u64, u64, String);

/// Offsets that a client has not got, between two that it has.
pub(super) struct Jump {
    pub(super) client: usize,
    pub(super) topic: String,
    pub(super) epoch: u64,
    pub(super) missing: Range<u64>,
}

/// All clients, and what they have heard.
pub(super) struct Clients {
    pub(super) list: Vec<Client>,
    by_conn: BTreeMap<ConnId, usize>,
    pub(super) delivered: Vec<Delivery>,
    /// What must not be.
    pub(super) findings: Vec<String>,
    /// Offsets that were passed over where nothing may be missed without a notice.
    pub(super) jumps: Vec<Jump>,
    /// No message may be missed, told or not: nothing in the run loses any.
    is_calm: bool,
    started: Instant,
    pub(super) told: Told,
    /// Of everything heard, in order: two runs that differ have different sums.
    pub(super) sum: u64,
    /// The last things heard by each client.
    log: Vec<String>,
}

/// How often clients heard what.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Told {
    pub(super) subscribed: u64,
    pub(super) recovered: u64,
    pub(super) not_recovered: u64,
    pub(super) notices: u64,
    pub(super) gaps: u64,
    pub(super) fell_behind: u64,
    pub(super) refused: u64,
    /// Changes of presence, and how often some may have been missed.
    pub(super) present: u64,
    pub(super) missed: u64,
}

impl Present {
    pub(super) fn new(is_asked: bool) -> Present {
        Present { is_asked, ..Present::default() }
    }

    /// The list is asked for.
    pub(super) fn ask(&mut self) {
        self.since.clear();
    }

    /// The list has come. What was heard meanwhile counts after it.
    pub(super) fn list(&mut self, connections: BTreeSet<u64>) {
        self.connections = connections;
        self.needs_list = false;
        let since = std::mem::take(&mut self.since);
        since.iter().for_each(|change| self.change(*change));
    }

    fn hear(&mut self, changes: &[(u64, bool)], missed: bool) {
        self.since.extend(changes);
        changes.iter().for_each(|change| self.change(*change));
        self.needs_list |= missed;
    }

    fn change(&mut self, (connection, is_in): (u64, bool)) {
        match is_in {
            true => self.connections.insert(connection),
            false => self.connections.remove(&connection),
        };
    }
}

impl Heard {
    pub(super) fn topic(&self) -> &str {
        match self {
            Heard::Subscribed { topic, .. }
            | Heard::Message { topic, .. }
            | Heard::Unsubscribed { topic, .. }
            | Heard::Presence { topic, .. }
            | Heard::Refused { topic, .. } => topic,
        }
    }
}

/// Whether the class of a topic retains messages.
pub(super) fn is_kept(topic: &str) -> bool {
    !topic.starts_with("live")
}

impl Clients {
    pub(super) fn new(count: usize, is_calm: bool) -> Clients {
        Clients {
            list: (0..count).map(|_| Client::default()).collect(),
            by_conn: BTreeMap::new(),
            delivered: Vec::new(),
            findings: Vec::new(),
            jumps: Vec::new(),
            is_calm,
            started: Instant::now(),
            told: Told::default(),
            sum: 0,
            log: Vec::new(),
        }
    }

    pub(super) fn connect(&mut self, client: usize, node: usize, conn: ConnId) {
        self.list[client].conn = Some((node, conn));
        self.by_conn.insert(conn, client);
    }

    /// The connection has ended: the client comes back with its positions.
    pub(super) fn disconnect(&mut self, client: usize) {
        if let Some((_, conn)) = self.list[client].conn.take() {
            self.by_conn.remove(&conn);
        }
        for view in self.list[client].views.values_mut() {
            view.stage = Stage::Out;
        }
    }

    /// Whether the client has waited for too long for the answer that it has left a topic. Every subscription is
    /// answered, so of that it waits for longer, and the end is a finding.
    pub(super) fn is_impatient(&mut self, client: usize) -> bool {
        let views = self.list[client].views.iter();
        let forgotten = views.filter_map(|(topic, view)| match view.stage {
            Stage::Waiting(_, since) if since.elapsed() > ANSWERED_IN => Some(topic.clone()),
            Stage::Waiting(..) | Stage::Leaving(_) | Stage::Out | Stage::In => None,
        });
        for topic in forgotten.collect::<Vec<_>>() {
            self.find(client, &topic, "its subscription has no answer");
        }
        let mut views = self.list[client].views.values();
        views.any(|view| matches!(view.stage, Stage::Leaving(since) if since.elapsed() > PATIENCE))
    }

    pub(super) fn note(&mut self, what: String) {
        self.add(&what);
        self.log.push(format!("{:>6} {what}", self.started.elapsed().as_millis()));
    }

    fn add(&mut self, what: &str) {
        let millis = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(0);
        for byte in what.bytes().chain(millis.to_le_bytes()) {
            self.sum = (self.sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    /// What concerned this client or topic, in order.
    pub(super) fn history(&self, client: usize, topic: &str) -> String {
        let is_meant = |line: &&String| {
            line[7..].starts_with('-')
                || line.contains(&format!("c{client} ")) && line.contains(topic)
        };
        let lines: Vec<&str> = self.log.iter().filter(is_meant).map(String::as_str).collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    fn find(&mut self, client: usize, topic: &str, what: &str) {
        let finding = format!("client {client}, {topic}: {what}\n{}", self.history(client, topic));
        self.findings.push(finding);
    }

    /// A client hears something, if the connection is still open.
    pub(super) fn hear(&mut self, conn: ConnId, heard: Heard) {
        let Some(&client) = self.by_conn.get(&conn) else { return };
        self.note(format!("c{client} {heard:?}"));
        match heard {
            Heard::Subscribed { topic, position, recovered, is_notice } => {
                self.handle_subscribed(client, &topic, position, (recovered, is_notice));
            }
            Heard::Message { topic, offset, text } => {
                self.handle_message(client, topic, offset, text);
            }
            Heard::Presence { topic, changes, missed } => {
                self.told.present += changes.len() as u64;
                self.told.missed += u64::from(missed);
                let view = self.list[client].views.get_mut(&topic);
                let is_in = |view: &&mut View| matches!(view.stage, Stage::In | Stage::Leaving(_));
                match view.filter(|view| view.present.is_asked).filter(is_in) {
                    Some(view) => view.present.hear(&changes, missed),
                    None => self.find(client, &topic, "presence that it has not asked for"),
                }
            }
            Heard::Unsubscribed { topic, reason } => {
                let Some(view) = self.list[client].views.get_mut(&topic) else { return };
                view.stage = Stage::Out;
                if !reason.is_empty() {
                    self.told.fell_behind += 1;
                    if self.is_calm {
                        self.find(client, &topic, "fell behind although nothing was lost");
                    }
                }
            }
            Heard::Refused { topic, code } => {
                self.told.refused += 1;
                if code != "busy" {
                    self.find(client, &topic, &format!("is refused: {code}"));
                }
                let Some(view) = self.list[client].views.get_mut(&topic) else { return };
                if matches!(view.stage, Stage::Waiting(..)) {
                    view.stage = Stage::Out;
                }
            }
        }
    }

    fn handle_subscribed(
        &mut self,
        client: usize,
        topic: &str,
        position: Position,
        (recovered, is_notice): (bool, bool),
    ) {
        let is_calm = self.is_calm && is_kept(topic);
        let Some(view) = self.list[client].views.get_mut(topic) else {
            return self.find(client, topic, "an answer that nobody asked for");
        };
        match view.stage {
            Stage::Leaving(_) => {}
            Stage::In if is_notice && !recovered => {
                view.position = Some(position);
                self.told.notices += 1;
                if is_calm {
                    self.find(client, topic, "is told a loss although nothing was lost");
                }
            }
            Stage::Waiting(asked, _) if !is_notice => {
                view.stage = Stage::In;
                view.position = Some(position);
                view.present.needs_list = view.present.is_asked;
                self.told.subscribed += 1;
                match asked {
                    Some(asked) if recovered && asked != position => {
                        self.find(client, topic, &format!("resumes elsewhere than {asked:?}"));
                    }
                    Some(_) if recovered => self.told.recovered += 1,
                    Some(_) => {
                        self.told.not_recovered += 1;
                        if is_calm {
                            self.find(client, topic, "is not recovered although nothing was lost");
                        }
                    }
                    None if recovered => self.find(client, topic, "has recovered nothing"),
                    None => {}
                }
            }
            stage @ (Stage::In | Stage::Waiting(..) | Stage::Out) => {
                self.find(client, topic, &format!("Subscribed at the wrong time: {stage:?}"));
            }
        }
    }

    fn handle_message(&mut self, client: usize, topic: String, offset: u64, text: String) {
        let (is_calm, is_kept) = (self.is_calm, is_kept(&topic));
        let view = self.list[client].views.get_mut(&topic);
        let Some(view) = view.filter(|view| view.stage != Stage::Out) else {
            return self.find(client, &topic, "a message without a subscription");
        };
        let position = match (view.stage, &mut view.position) {
            (Stage::Leaving(_), _) => return,
            (Stage::In, Some(position)) => position,
            (Stage::In | Stage::Waiting(..) | Stage::Out, _) => {
                return self.find(client, &topic, "a message before the answer");
            }
        };
        let (epoch, before) = (position.epoch, position.offset);
        position.offset = offset;
        if is_late(&text) {
            return self.find(client, &topic, &format!("{text} comes after its time"));
        }
        self.delivered.push((topic.clone(), epoch, offset, text));
        if offset <= before {
            self.find(client, &topic, &format!("{offset} comes after {before}"));
        } else if offset > before + 1 {
            self.told.gaps += 1;
            if is_kept || is_calm {
                self.jumps.push(Jump { client, topic, epoch, missing: before + 1..offset });
            }
        }
    }
}

/// How long a client waits until it has left a topic, before it connects anew.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest time in which a subscription is answered, or refused.
const ANSWERED_IN: Duration = Duration::from_secs(30);
