//! Answers to messages that the broker decides about.

use std::sync::Arc;

use weir_engine::{Command, Item};
use weir_wire::hot;

use super::{Asker, Dispatcher, published_frame};
use crate::base::{frames, mailboxes};
use crate::core::handle::Refusal;
use crate::core::publishing::Publishing;
use crate::observe::traces::{Span, note_failure};

impl Dispatcher {
    /// Answers when the broker has. The number of such tasks is bounded by what may wait for it.
    pub(super) fn answer_later(
        &self,
        asker: Asker,
        (publishing, mut span): (Publishing, Option<Span>),
        publish: &hot::Publish<'_>,
    ) {
        let (conn, request, topic) = (asker.conn, publish.request, publish.topic.to_owned());
        let mailboxes = Arc::clone(self.shared.mailboxes());
        // A hand-over to another process waits for it.
        let answering = self.shared.pauses.answer();
        tokio::spawn(async move {
            let published = publishing.await.map_err(Refusal::from);
            note_failure(&mut span, published.as_ref().err().map(|refusal| refusal.code.name()));
            let frame = match published {
                Ok(_) if request == 0 => return,
                Ok(accepted) => published_frame(request, Some(accepted)),
                Err(Refusal { code, message }) => frames::error(code, message, &topic, request),
            };
            let send = Command::Send(conn, Item::Frame(frame));
            mailboxes::push(&mailboxes[conn.shard()], send).await;
            drop(answering);
        });
    }
}
