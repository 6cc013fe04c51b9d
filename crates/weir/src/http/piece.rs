//! The pieces of an answer that hyper holds, and the things that end with a piece.

use std::sync::Arc;

use bytes::{Buf, Bytes};

use super::connection::HttpConnection;
use super::leaving::Leaving;
use crate::limits::http_ledger::{NoShare, Stage};

/// A request over HTTP/2 whose answer has not left yet.
///
/// It moves from the request to the answer, and from there into the answer's last piece. So it is
/// dropped when hyper has written that piece, or when the stream is reset.
pub(super) struct Open {
    connection: Arc<HttpConnection>,
    stage: Stage,
}

/// A piece of an answer. hyper drops it when it is written.
pub(crate) struct Piece {
    data: Bytes,
    held: Held,
}

/// The things that end with a piece.
#[derive(Default)]
pub(super) struct Held {
    #[expect(dead_code, reason = "its drop has an effect")]
    pub(super) open: Option<Open>,
    pub(super) leaving: Option<Arc<Leaving>>,
    #[expect(dead_code, reason = "its drop has an effect")]
    pub(super) charge: Option<Arc<dyn Send + Sync>>,
}

impl Open {
    pub(super) fn begin(connection: &Arc<HttpConnection>) -> Result<Open, NoShare> {
        connection.caller.ledger.open()?;
        Ok(Open { connection: Arc::clone(connection), stage: Stage::Begun })
    }

    /// Notes that hyper gets the last piece.
    pub(super) fn hand(&mut self) {
        if self.stage == Stage::Begun {
            self.stage = self.connection.caller.ledger.hand();
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.connection.caller.ledger.close(self.stage);
        self.connection.touch();
    }
}

impl Piece {
    pub(super) fn new(data: Bytes, held: Held) -> Piece {
        if let Some(leaving) = &held.leaving {
            leaving.handed();
        }
        Piece { data, held }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Some(leaving) = &self.held.leaving {
            leaving.left();
        }
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.data.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.data.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.data.advance(count);
    }
}
