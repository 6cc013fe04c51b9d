//! From a request to its answer: the path, the right that it needs, and the answer.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderValue, VARY};
use http::request::Parts;
use http::{Method, Request, StatusCode};
use hyper::body::Body;

use super::guard::Guard;
use super::metrics::{Form, Metrics};
use super::pages::Pages;
use super::stats::Stats;
use super::{closes, debug, device_list, drain, events, openapi, profiles, ready, views};
use crate::base::profiler::Profiler;
use crate::http::web::body::{self, Room, Whole};
use crate::http::web::idempotency::{KeyOwner, RequestKey, key_of};
use crate::http::web::problem::{Kind, Problem};
use crate::http::web::publish;
use crate::http::web::query::Query;
use crate::http::web::reply::{self, Reply};
use crate::{AdminConfig, Handle, Right};

/// The values that all requests share.
pub(super) struct Routes {
    handle: Handle,
    guard: Guard,
    room: Room,
    metrics: Metrics,
    stats: Arc<Stats>,
    pages: Pages,
    profiler: Option<Arc<dyn Profiler>>,
    router: matchit::Router<Route>,
}

/// The path of a request, whatever its method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    Publish,
    Events,
    Connections,
    Connection,
    Closes,
    Topics,
    Presence,
    Devices,
    Export,
    Device,
    Revoke,
    Nodes,
    Drain,
    Stats,
    StatsStream,
    Memory,
    Retention,
    Cpu,
    Heap,
    Health,
    Ready,
    Metrics,
    OpenApi,
}

impl Route {
    pub(super) const ALL: [(&'static str, Route); 23] = [
        ("/v1/publish", Route::Publish),
        ("/v1/events", Route::Events),
        ("/v1/connections", Route::Connections),
        ("/v1/connections/{id}", Route::Connection),
        ("/v1/closes", Route::Closes),
        ("/v1/topics", Route::Topics),
        ("/v1/topics/{topic}/presence", Route::Presence),
        ("/v1/devices", Route::Devices),
        ("/v1/devices/export", Route::Export),
        ("/v1/devices/{id}", Route::Device),
        ("/v1/devices/{id}/revoke", Route::Revoke),
        ("/v1/nodes", Route::Nodes),
        ("/v1/drain", Route::Drain),
        ("/v1/stats", Route::Stats),
        ("/v1/stats/stream", Route::StatsStream),
        ("/v1/debug/memory", Route::Memory),
        ("/v1/debug/retention", Route::Retention),
        ("/v1/debug/cpu", Route::Cpu),
        ("/v1/debug/heap", Route::Heap),
        ("/healthz", Route::Health),
        ("/readyz", Route::Ready),
        ("/metrics", Route::Metrics),
        ("/openapi.json", Route::OpenApi),
    ];

    /// The methods of the path, as `Allow` lists them.
    pub(super) const fn methods(self) -> &'static str {
        match self {
            Route::Publish | Route::Revoke => "POST",
            Route::Events | Route::Export | Route::StatsStream | Route::Cpu | Route::Heap => "GET",
            Route::Devices => "GET, HEAD, POST",
            Route::Connection => "GET, HEAD, DELETE",
            Route::Drain => "GET, HEAD, POST, DELETE",
            Route::Connections
            | Route::Closes
            | Route::Topics
            | Route::Presence
            | Route::Device
            | Route::Nodes
            | Route::Stats
            | Route::Memory
            | Route::Retention
            | Route::Health
            | Route::Ready
            | Route::Metrics
            | Route::OpenApi => "GET, HEAD",
        }
    }

    /// The right that a service needs for it; `None`: no service may ask.
    const fn right(self) -> Option<Right> {
        match self {
            Route::Publish => Some(Right::Publish),
            Route::Events => Some(Right::Events),
            Route::Connections
            | Route::Connection
            | Route::Closes
            | Route::Topics
            | Route::Presence
            | Route::Devices
            | Route::Export
            | Route::Device
            | Route::Revoke
            | Route::Nodes
            | Route::Drain
            | Route::Stats
            | Route::StatsStream
            | Route::Memory
            | Route::Retention
            | Route::Cpu
            | Route::Heap
            | Route::Health
            | Route::Ready
            | Route::Metrics
            | Route::OpenApi => None,
        }
    }

    /// Whether it answers without a token. Probes of an orchestrator have none.
    const fn is_open(self) -> bool {
        matches!(self, Route::Health | Route::Ready)
    }
}

impl Routes {
    pub(super) fn new(
        handle: Handle,
        config: &AdminConfig,
        profiler: Option<Arc<dyn Profiler>>,
    ) -> Self {
        let mut router = matchit::Router::new();
        for (path, route) in Route::ALL {
            router.insert(path, route).expect("the paths differ");
        }
        let budget_bytes = handle.engine().budget().bytes_max();
        Self {
            metrics: Metrics::new(handle.clone()),
            stats: Stats::new(handle.clone()),
            pages: Pages::new(),
            guard: Guard::new(config, &handle.config().auth.services),
            room: Room::new(BODY_BYTES_MAX, BODY_TIMEOUT, budget_bytes),
            profiler,
            handle,
            router,
        }
    }

    /// Ends the streams that do not end with the gateway.
    pub(super) fn close(&self) {
        self.stats.close();
    }

    /// Answers a request that came in on the address `local`.
    pub(super) async fn answer<B>(&self, local: IpAddr, request: Request<B>) -> Reply
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (head, body) = request.into_parts();
        match self.dispatch(local, &head, body).await {
            Ok(reply) => reply,
            Err(problem) => problem.into_response(),
        }
    }

    async fn dispatch<B>(&self, local: IpAddr, head: &Parts, body: B) -> Result<Reply, Problem>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.guard.check_host(head, local)?;
        if !body::is_chunked_alone(&head.headers) {
            let detail = "this server knows only the transfer coding chunked, used once";
            return Err(Problem::new(Kind::UnknownCoding, detail).at_header("Transfer-Encoding"));
        }
        if let Some(page) = self.pages.find(head.uri.path()) {
            return page.answer(head);
        }
        let found = self.router.at(head.uri.path()).ok();
        let route = found.as_ref().map(|found| *found.value);
        let service = match route.is_some_and(Route::is_open) {
            true => None,
            false => self.guard.check_token(&head.headers, route.and_then(Route::right))?,
        };
        let (Some(route), Some(found)) = (route, found) else {
            let detail = format!("there is nothing at {:?}", head.uri.path());
            return Err(Problem::new(Kind::NotFound, detail));
        };
        let method = &head.method;
        if !route.methods().split(", ").any(|known| known == method.as_str()) {
            return Err(Problem::method(route.methods()));
        }
        let id = found.params.get("id").or_else(|| found.params.get("topic"));
        let id = id.unwrap_or_default();
        if route == Route::Ready {
            let is_trusted = self.guard.check_token(&head.headers, None).is_ok();
            return ready::ready(&self.handle, head.uri.query(), is_trusted);
        }
        if method == Method::POST {
            return self.post(route, (service, id), head, body).await;
        }
        if *method == Method::DELETE {
            Query::parse(head.uri.query(), &[])?;
            if route == Route::Drain {
                return drain::cancel(&self.handle).await;
            }
            return views::close(&self.handle, id).await;
        }
        self.look(route, id, head).await
    }

    async fn post<B>(
        &self,
        route: Route,
        (service, id): (Option<&str>, &str),
        head: &Parts,
        body: B,
    ) -> Result<Reply, Problem>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        Query::parse(head.uri.query(), &[])?;
        if route == Route::Devices {
            let format = device_list::format(&head.headers)?;
            let body = self.read(head, body).await?;
            return device_list::import(&self.handle, format, &body.bytes).await;
        }
        body::check_json(&head.headers)?;
        if route == Route::Publish {
            body::check_length(&head.headers)?;
            let owner = service.map_or(KeyOwner::Admin, KeyOwner::Service);
            let key = key_of(&head.headers)?.map(|key| RequestKey::new(owner, key));
            let body = self.read(head, body).await?;
            // The admin API has few connections, and they end when their peers stop reading.
            let reserve = |_| Ok(());
            return publish::publish(&body.bytes, key.as_ref(), reserve, |publication, place| {
                let publishing = self.handle.publish(publication);
                publishing.map(Some).map_err(|error| Problem::publish(error, place))
            })
            .await;
        }
        let body = self.read(head, body).await?;
        if route == Route::Drain {
            return drain::begin(&self.handle, &body.bytes);
        }
        views::revoke(&self.handle, id, &body.bytes).await
    }

    async fn read<B>(&self, head: &Parts, body: B) -> Result<Whole<'_>, Problem>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let announced = self.room.check(&head.headers)?;
        self.room.read(announced, body).await
    }

    async fn look(&self, route: Route, id: &str, head: &Parts) -> Result<Reply, Problem> {
        let query = head.uri.query();
        let is_asked = matches!(
            route,
            Route::Connections
                | Route::Closes
                | Route::Topics
                | Route::Presence
                | Route::Devices
                | Route::Events
                | Route::Retention
                | Route::Cpu
                | Route::Heap
        );
        if !is_asked {
            Query::parse(query, &[])?;
        }
        match route {
            Route::Events => events::stream(&self.handle, query),
            Route::Connections => views::connections(&self.handle, query).await,
            Route::Connection => views::connection(&self.handle, id).await,
            Route::Closes => closes::list(&self.handle, query),
            Route::Topics => views::topics(&self.handle, query),
            Route::Presence => views::presence(&self.handle, id, query).await,
            Route::Devices => device_list::list(&self.handle, query).await,
            Route::Export => device_list::export(&self.handle),
            Route::Nodes => views::nodes(&self.handle).await,
            Route::Drain => Ok(drain::look(&self.handle)),
            Route::Stats => Ok(self.stats.look()),
            Route::StatsStream => self.stats.stream(),
            Route::Memory => debug::memory(&self.handle).await,
            Route::Retention => debug::retention(&self.handle, query).await,
            Route::Cpu => profiles::cpu(self.profiler.as_ref(), query).await,
            Route::Heap => profiles::heap(self.profiler.as_ref(), query).await,
            Route::Device => views::device(&self.handle, id).await,
            Route::Health => Ok(text("ok\n")),
            Route::Metrics => {
                let form = Form::of(&head.headers);
                let text = self.metrics.text_as(form);
                let mut reply = reply::bytes(StatusCode::OK, form.content_type(), text.into());
                reply.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
                Ok(reply)
            }
            Route::OpenApi => {
                Ok(reply::bytes(StatusCode::OK, "application/json", openapi::document()))
            }
            // The check of the head has answered these.
            Route::Ready | Route::Publish | Route::Revoke => Err(Problem::method(route.methods())),
        }
    }
}

fn text(body: &'static str) -> Reply {
    reply::bytes(StatusCode::OK, "text/plain; charset=utf-8", Bytes::from_static(body.as_bytes()))
}

/// A thousand messages of 1 KiB. With many more, the answer would come too late to be useful.
const BODY_BYTES_MAX: usize = 1 << 20;
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
