//! Answers that go on while they are read.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame};

use super::events::EventStream;
use super::roster::Export;

/// A body that is not there as a whole.
pub(crate) enum Stream {
    /// What happens to connections.
    Events(EventStream),
    /// The devices that are kept.
    Export(Export),
}

impl Body for Stream {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Stream::Events(events) => events.poll_frame(cx).map(|frame| frame.map(Ok)),
            Stream::Export(export) => export
                .poll_frame(cx)
                .map(|frame| frame.map(|frame| frame.map_err(io::Error::other))),
        }
    }
}
