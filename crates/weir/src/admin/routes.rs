//! The paths, what they need of a caller, and their answers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderValue, VARY};
use http::request::Parts;
use http::{Method, StatusCode};
use hyper::body::Body;
use tokio::time::Instant;

use super::added_pages::AddedPages;
use super::audit::{Operator, Published};
use super::calls::CallPlaces;
use super::guard::{Need, Sender};
use super::metrics::{Form, Metrics};
use super::pages::Pages;
use super::stats::Stats;
use super::{
    OfProgram, audit, calls, closes, debug, device_list, drain, events, notices, openapi, profiles,
    ready, reload, session, views,
};
use crate::core::state::SharedState;
use crate::http::web::body::{self, Room, Whole};
use crate::http::web::idempotency::{KeyOwner, RequestKey, key_of};
use crate::http::web::problem::{Kind, Problem};
use crate::http::web::publish;
use crate::http::web::query::Query;
use crate::http::web::reply::{self, Reply};
use crate::observe::access::ids::place_of;
use crate::observe::audit::Act;
use crate::observe::traces::{Span, note, note_failure};
use crate::{AdminScope, Handle, Right};

/// The values that all requests share.
pub(super) struct Routes {
    handle: Handle,
    room: Room,
    /// The room for the bodies of requests to sign in.
    pub(super) sign_in_room: Room,
    call_places: CallPlaces,
    metrics: Metrics,
    stats: Arc<Stats>,
    pages: Pages,
    of_program: OfProgram,
    added_pages: AddedPages,
    router: matchit::Router<Route>,
}

/// A request without its body.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) head: &'a Parts,
    /// `None`: there is no such path.
    pub(super) route: Option<Route>,
    /// The part of the path that names something.
    pub(super) id: &'a str,
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
    Call,
    Nodes,
    Drain,
    Reload,
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
    Session,
    Audit,
    Notices,
}

impl Route {
    pub(super) const ALL: [(&'static str, Route); 28] = [
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
        ("/v1/devices/{id}/call", Route::Call),
        ("/v1/nodes", Route::Nodes),
        ("/v1/drain", Route::Drain),
        ("/v1/reload", Route::Reload),
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
        ("/v1/session", Route::Session),
        ("/v1/audit", Route::Audit),
        ("/v1/hooks/{id}/notices", Route::Notices),
    ];

    /// The methods of the path, as `Allow` lists them.
    pub(super) const fn methods(self) -> &'static str {
        match self {
            Route::Publish | Route::Revoke | Route::Call | Route::Reload => "POST",
            Route::Events | Route::Export | Route::StatsStream | Route::Cpu | Route::Heap => "GET",
            Route::Devices => "GET, HEAD, POST",
            Route::Connection => "GET, HEAD, DELETE",
            Route::Drain | Route::Session => "GET, HEAD, POST, DELETE",
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
            | Route::OpenApi
            | Route::Audit
            | Route::Notices => "GET, HEAD",
        }
    }

    fn has(self, method: &Method) -> bool {
        self.methods().split(", ").any(|known| known == method.as_str())
    }

    /// The scope that a token needs for a method of it; `None`: each token of the admin API will do.
    pub(super) fn scope(self, method: &Method) -> Option<AdminScope> {
        let is_change = !matches!(*method, Method::GET | Method::HEAD);
        Some(match self {
            Route::Session | Route::Health | Route::Ready => return None,
            Route::Publish | Route::Call => AdminScope::Publish,
            Route::Export | Route::Revoke => AdminScope::Devices,
            Route::Cpu | Route::Heap | Route::Audit | Route::Notices => AdminScope::Operate,
            Route::Devices if is_change => AdminScope::Devices,
            Route::Connection | Route::Drain if is_change => AdminScope::Operate,
            Route::Reload => AdminScope::Operate,
            Route::Events
            | Route::Connections
            | Route::Connection
            | Route::Closes
            | Route::Topics
            | Route::Presence
            | Route::Devices
            | Route::Device
            | Route::Nodes
            | Route::Drain
            | Route::Stats
            | Route::StatsStream
            | Route::Memory
            | Route::Retention
            | Route::Metrics
            | Route::OpenApi => AdminScope::Read,
        })
    }

    /// What a method of it does, for the audit log.
    fn act(self, method: &Method) -> Act {
        let is_look = matches!(*method, Method::GET | Method::HEAD);
        match (self, method) {
            (Route::Publish, &Method::POST) => Act::Publish,
            (Route::Session, &Method::POST) => Act::SignIn,
            (Route::Session, &Method::DELETE) => Act::SignOut,
            (Route::Connection, &Method::DELETE) => Act::Close,
            (Route::Revoke, &Method::POST) => Act::Revoke,
            (Route::Call, &Method::POST) => Act::Call,
            (Route::Devices, &Method::POST) => Act::Import,
            (Route::Export, &Method::GET) => Act::Export,
            (Route::Reload, &Method::POST) => Act::Reload,
            (Route::Drain, &Method::POST) => Act::Drain,
            (Route::Drain, &Method::DELETE) => Act::CancelDrain,
            (Route::Cpu | Route::Heap, &Method::GET) => Act::Profile,
            _ if is_look => Act::Read,
            _ => Act::Other,
        }
    }

    /// The right that a service needs for it; `None`: no service may ask.
    const fn right(self) -> Option<Right> {
        match self {
            Route::Publish => Some(Right::Publish),
            Route::Events | Route::Notices => Some(Right::Events),
            Route::Call => Some(Right::Call),
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
            | Route::Reload
            | Route::Stats
            | Route::StatsStream
            | Route::Memory
            | Route::Retention
            | Route::Cpu
            | Route::Heap
            | Route::Health
            | Route::Ready
            | Route::Metrics
            | Route::OpenApi
            | Route::Session
            | Route::Audit => None,
        }
    }

    /// Whether it answers without a token. Probes of an orchestrator have none.
    pub(super) const fn is_open(self) -> bool {
        matches!(self, Route::Health | Route::Ready)
    }
}

impl Routes {
    pub(super) fn new(handle: Handle, of_program: OfProgram, added_pages: AddedPages) -> Self {
        let mut router = matchit::Router::new();
        for (path, route) in Route::ALL {
            router.insert(path, route).expect("the paths differ");
        }
        let budget_bytes = handle.engine().budget().bytes_max();
        Self {
            metrics: Metrics::new(handle.clone()),
            stats: Stats::new(handle.clone()),
            pages: Pages::new(),
            room: Room::new(BODY_BYTES_MAX, BODY_TIMEOUT, budget_bytes),
            sign_in_room: session::room(),
            call_places: CallPlaces::default(),
            of_program,
            added_pages,
            handle,
            router,
        }
    }

    /// Ends the streams that do not end with the gateway.
    pub(super) fn close(&self) {
        self.stats.close();
    }

    /// A request at its path.
    pub(super) fn find<'a>(&'a self, head: &'a Parts) -> Asked<'a> {
        let Ok(found) = self.router.at(head.uri.path()) else {
            return Asked { head, route: None, id: "" };
        };
        let id = found.params.get("id").or_else(|| found.params.get("topic"));
        Asked { head, route: Some(*found.value), id: id.unwrap_or_default() }
    }

    /// The answer to a request for a page, which needs no token; `None`: there is no page at its
    /// path.
    pub(super) fn page(&self, head: &Parts) -> Option<Result<Reply, Problem>> {
        let path = head.uri.path();
        let own = self.pages.find(path).map(|page| page.answer(head));
        own.or_else(|| self.added_pages.answer(&head.method, path))
    }

    pub(super) fn shared(&self) -> &SharedState {
        self.handle.shared()
    }

    /// Answers an admitted request.
    pub(super) async fn carry_out<B>(
        &self,
        asked: &Asked<'_>,
        (sender, is_own_host): (&Sender, bool),
        body: B,
        published: &Published,
    ) -> Result<Reply, Problem>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let Asked { head, id, .. } = *asked;
        let Some(route) = asked.route else {
            let detail = format!("there is nothing at {:?}", head.uri.path());
            return Err(Problem::new(Kind::NotFound, detail));
        };
        let method = &head.method;
        if !route.has(method) {
            return Err(Problem::method(route.methods()));
        }
        if route == Route::Ready {
            let is_trusted = sender.scopes().contains(&AdminScope::Read);
            return ready::ready(&self.handle, head.uri.query(), (is_own_host, is_trusted));
        }
        if method == Method::POST {
            return self.post(route, (sender, id), head, body, published).await;
        }
        if *method == Method::DELETE {
            Query::parse(head.uri.query(), &[])?;
            if route == Route::Drain {
                return drain::cancel(&self.handle).await;
            }
            if route == Route::Session {
                return Ok(session::sign_out(&self.shared().admin_access, sender));
            }
            return views::close(&self.handle, id).await;
        }
        if route == Route::Session {
            Query::parse(head.uri.query(), &[])?;
            return Ok(session::look(sender));
        }
        self.look(route, id, head).await
    }

    async fn post<B>(
        &self,
        route: Route,
        (sender, id): (&Sender, &str),
        head: &Parts,
        body: B,
        published: &Published,
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
        if route == Route::Call {
            let mut span =
                self.handle.shared().tracer.begin("call_device", place_of(&head.headers));
            let answer = self.call(id, head, body, &mut span).await;
            let status = answer.as_ref().err().map(Problem::status);
            note_failure(&mut span, status.as_ref().map(StatusCode::as_str));
            return answer;
        }
        if route == Route::Publish {
            body::check_length(&head.headers)?;
            let owner = key_owner(sender);
            let key = key_of(&head.headers)?.map(|key| RequestKey::new(owner, key));
            let body = self.read(head, body).await?;
            // The admin API has few connections, and they end when their peers stop reading.
            let reserve = |_| Ok(());
            let mut span = self.handle.shared().tracer.begin("publish", place_of(&head.headers));
            let publisher = Operator { handle: &self.handle, published };
            let answer = publish::publish(&body.bytes, key.as_ref(), reserve, &publisher).await;
            let status = answer.as_ref().err().map(Problem::status);
            note_failure(&mut span, status.as_ref().map(StatusCode::as_str));
            return answer;
        }
        let body = self.read(head, body).await?;
        if route == Route::Drain {
            return drain::begin(&self.handle, &body.bytes);
        }
        if route == Route::Reload {
            let reloader = self.of_program.reloader.as_ref();
            return reload::reload(reloader, &self.shared().door, &body.bytes).await;
        }
        views::revoke(&self.handle, id, &body.bytes).await
    }

    async fn call<B>(
        &self,
        id: &str,
        head: &Parts,
        body: B,
        span: &mut Option<Span>,
    ) -> Result<Reply, Problem>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let came = Instant::now();
        let call = {
            let body = self.read(head, body).await?;
            calls::read(&self.handle, &body.bytes, came)?
        };
        note(span, "rpc.method", &call.method);
        calls::call(&self.handle, &self.call_places, id, call).await
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
                | Route::Audit
                | Route::Notices
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
            Route::Cpu => profiles::cpu(self.of_program.profiler.as_ref(), query).await,
            Route::Heap => profiles::heap(self.of_program.profiler.as_ref(), query).await,
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
            Route::Audit => audit::look(&self.handle, query),
            Route::Notices => notices::list(&self.handle, id, query).await,
            // The check of the head has answered these.
            Route::Ready
            | Route::Publish
            | Route::Revoke
            | Route::Call
            | Route::Reload
            | Route::Session => Err(Problem::method(route.methods())),
        }
    }
}

impl Asked<'_> {
    pub(super) fn is_sign_in(&self) -> bool {
        self.route == Some(Route::Session) && self.head.method == Method::POST
    }

    pub(super) fn act(&self) -> Act {
        self.route.map_or(Act::Other, |route| route.act(&self.head.method))
    }

    /// Nothing more than a token is needed to learn that there is no such path or method.
    pub(super) fn need(&self) -> Need {
        let method = &self.head.method;
        let scope =
            self.route.filter(|route| route.has(method)).and_then(|route| route.scope(method));
        Need { scope, right: self.route.and_then(Route::right) }
    }
}

/// Whose idempotency keys those of a request are.
fn key_owner(sender: &Sender) -> KeyOwner<'_> {
    match sender.caller() {
        Some(caller) if caller.is_service() => KeyOwner::Service(caller.name()),
        Some(caller) if !caller.is_admin() => KeyOwner::Token(caller.name()),
        Some(_) | None => KeyOwner::Admin,
    }
}

fn text(body: &'static str) -> Reply {
    reply::bytes(StatusCode::OK, "text/plain; charset=utf-8", Bytes::from_static(body.as_bytes()))
}

/// A thousand messages of 1 KiB. With many more, the answer would come too late to be useful.
const BODY_BYTES_MAX: usize = 1 << 20;
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
