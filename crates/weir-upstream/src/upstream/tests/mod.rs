//! Each rule, under virtual time, with peers that do as a test says.

mod balancing;
mod peer;
mod pools;
mod retries;
mod shared;
mod sockets;
mod uploads;

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tokio::sync::mpsc;

use super::{SendOptions, Upstream};
use crate::error::SendError;
use crate::incoming::Incoming;
use crate::outgoing::Outgoing;
use crate::settings::Settings;
use peer::{Act, Peers};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn settings() -> Settings {
    Settings::new("service", &["10.0.0.0:80"])
}

fn get() -> Request<Outgoing> {
    request("GET")
}

fn post() -> Request<Outgoing> {
    request("POST")
}

fn request(method: &str) -> Request<Outgoing> {
    let body = if method == "POST" { Bytes::from_static(b"body") } else { Bytes::new() };
    Request::builder().method(method).uri("/path").body(Outgoing::Whole(body)).unwrap()
}

/// A body that comes from a channel.
struct Pieces(mpsc::Receiver<Bytes>);

fn streamed() -> (mpsc::Sender<Bytes>, Outgoing) {
    let (send, receive) = mpsc::channel(1);
    (send, Outgoing::Streamed(Pieces(receive).boxed_unsync()))
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

impl Upstream {
    async fn try_send(&self, request: Request<Outgoing>) -> Result<u16, SendError> {
        let answer = self.send(request, SendOptions::default()).await?;
        let status = answer.status().as_u16();
        answer.into_body().collect().await?;
        Ok(status)
    }

    async fn head(&self, request: Request<Outgoing>) -> Response<Incoming> {
        self.send(request, SendOptions::default()).await.unwrap()
    }
}

/// Lets all tasks do what they can do now.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

fn header<'a>(head: &'a HeaderMap, name: &str) -> &'a str {
    head.get(name).map_or("", |value| value.to_str().unwrap())
}
