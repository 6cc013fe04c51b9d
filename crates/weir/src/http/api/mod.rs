//! The public API.

use bytes::Bytes;
use http::Request;
use hyper::body::Body;

use super::Caller;
use crate::admin::not_found;
use crate::web::reply::Reply;
use crate::{Config, Handle};

/// What answers the requests of the public API.
pub(crate) struct Api {
    _handle: Handle,
}

impl Api {
    pub(crate) fn new(handle: Handle, _config: &Config) -> Api {
        Api { _handle: handle }
    }

    pub(crate) async fn answer<B>(&self, _caller: &Caller, request: Request<B>) -> Reply
    where
        B: Body<Data = Bytes>,
    {
        not_found(request.uri().path())
    }
}
