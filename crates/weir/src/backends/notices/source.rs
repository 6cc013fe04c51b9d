//! The notices that the file makes itself: of losses, and of ends that nobody could tell.

use std::sync::{Arc, Weak};

use weir_engine::ConnId;
use weir_store::{Change, Loss, Millis, NewNotice, NoticeSource, Standing};

use super::body::{Body, StandingConn};
use super::{CONN, Notices, Stands, TOPIC, standing_topic};
use crate::base::clock::unix_millis;
use crate::base::config::NoticeEvent;

/// It must not hold the notices: they hold the file, whose thread holds this.
pub(super) struct Source(Weak<Notices>);

impl Source {
    pub(super) fn new(notices: &Arc<Notices>) -> Source {
        Source(Arc::downgrade(notices))
    }
}

impl NoticeSource for Source {
    fn now(&self) -> Millis {
        unix_millis()
    }

    fn lost(&self, loss: Loss) -> Box<str> {
        let node = self.0.upgrade().map_or(0, |notices| notices.own.number());
        lost(node, loss)
    }

    fn ended(&self, standing: &Standing, is_crash: bool) -> NewNotice {
        let gone = NewNotice {
            at: unix_millis(),
            queues: [].into(),
            body: "".into(),
            change: Change::None,
        };
        let Some(notices) = self.0.upgrade() else { return gone };
        let reason = Some(if is_crash { GATEWAY_LOST } else { UNKNOWN });
        let made = if let Some(topic) = standing.key.strip_prefix(TOPIC) {
            notices.notice(NoticeEvent::Vacated, Some(topic), Change::None, |body| {
                body.reason = reason;
            })
        } else {
            notices.notice(NoticeEvent::Disconnected, None, Change::None, |body| {
                body.reason = reason;
                let conn: Option<ConnId> =
                    standing.key.strip_prefix(CONN).and_then(|id| id.parse().ok());
                body.node = conn.map_or(0, ConnId::node);
                body.connection = conn.map(|conn| conn.to_string());
                if let Ok(StandingConn { device, claim }) = serde_json::from_str(&standing.detail) {
                    (body.device, body.claim) = (Some(device), Some(claim));
                }
            })
        };
        made.unwrap_or(gone)
    }

    fn standing(&self) -> Vec<NewNotice> {
        let Some(notices) = self.0.upgrade() else { return Vec::new() };
        let Some(present) = notices.present.get() else { return Vec::new() };
        let mut standing = Vec::new();
        present(&mut |stands| {
            standing.extend(match stands {
                Stands::Connection(who) => {
                    let change = Change::Begins(notices.standing_conn(who));
                    let fill = |body: &mut Body| notices.by(who, body);
                    notices.notice(NoticeEvent::Connected, None, change, fill)
                }
                Stands::Topic(topic) => {
                    let change = Change::Begins(standing_topic(topic));
                    notices.notice(NoticeEvent::Occupied, Some(topic), change, |_| ())
                }
            });
        });
        standing
    }
}

/// The text that tells of missing notices.
pub(super) fn lost(node: u16, loss: Loss) -> Box<str> {
    let mut body = Body::new("lost", unix_millis(), node);
    (body.reason, body.count) = match loss {
        Loss::Crash => (Some("crash"), None),
        Loss::Buffer(count) => (Some("buffer_full"), Some(count)),
    };
    body.text()
}

/// The text for notices that their queue had no room for.
pub(super) fn dropped(node: u16, count: u64) -> Box<str> {
    let mut body = Body::new("lost", unix_millis(), node);
    (body.reason, body.count) = (Some("queue_full"), Some(count));
    body.text()
}

/// The gateway that had the connection has ended without closing it.
const GATEWAY_LOST: &str = "gateway_lost";
/// The notice of the end was lost.
const UNKNOWN: &str = "unknown";
