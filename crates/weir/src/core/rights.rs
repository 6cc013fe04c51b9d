//! The rights of a caller to a topic, for connections, requests and datagrams.

use std::net::IpAddr;

use weir_engine::{ConnId, DeviceRef, Origin};

use crate::auth::{Act, Grant};
use crate::base::config::Actor;
use crate::base::model::TopicNameError;
use crate::base::pattern::Pattern;
use crate::core::state::SharedState;
use crate::topics::{Class, Destination, validate_name};

/// The sender of a request, with its grant.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'a> {
    pub(crate) grant: &'a Grant,
    pub(crate) device: CallerDevice<'a>,
    pub(crate) came_by: CameBy,
}

/// The device of a caller.
#[derive(Clone, Copy)]
pub(crate) enum CallerDevice<'a> {
    /// The credentials of a request name this device; `None`: they name no device.
    Named(Option<&'a str>),
    /// The device of a connection. Its id is looked up only if a rule needs it.
    Connected(DeviceRef, ConnId),
}

/// The way on which a caller came.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CameBy {
    Connection(Origin),
    Request(Option<IpAddr>),
    Datagram(IpAddr),
}

/// The reason why an act is not permitted. Nothing has reached the router.
#[derive(Debug)]
pub(crate) enum Denied {
    Name(TopicNameError),
    /// The sentence for the caller.
    NotPermitted(String),
    /// The topic's class has no presence. The sentence for the caller.
    NoPresence(String),
    /// The backend that was asked refuses it. The sentence for the caller.
    Hook(String),
    /// The backend that was asked did not answer. The sentence for the caller.
    HookUnavailable(String),
}

impl SharedState {
    /// Checks that the caller may act on the topic, and finds the topic.
    pub(crate) fn permit(
        &self,
        caller: &Caller<'_>,
        act: Act,
        topic: &str,
    ) -> Result<Destination, Denied> {
        validate_name(topic, self.router.name_bytes_max()).map_err(Denied::Name)?;
        let destination = self.router.destination(topic);
        let permitted = self.permit_class(caller, act, topic, &destination.class());
        permitted.map(|()| destination).map_err(Denied::NotPermitted)
    }

    /// Checks that the caller may subscribe to the topic and see who is in it.
    pub(crate) fn permit_presence(
        &self,
        caller: &Caller<'_>,
        topic: &str,
    ) -> Result<Destination, Denied> {
        self.permit(caller, Act::Subscribe, topic)?;
        let destination = self.check_presence(topic)?;
        let class = destination.class();
        let pattern = class.pattern.as_str();
        let is_own =
            || !class.pattern.has_device() || self.is_own(caller.device, &class.pattern, topic);
        if caller.grant.permits(Act::Subscribe, &class.presence_for, is_own) {
            drop(class);
            return Ok(destination);
        }
        let actors: Vec<String> = class.presence_for.iter().map(Actor::to_string).collect();
        let actors = if actors.is_empty() { "nobody".to_owned() } else { actors.join(" and ") };
        Err(Denied::NotPermitted(format!(
            "to see who is in {topic:?} is not permitted: class {pattern:?} lets {actors} see it \
             (topic_classes, presence_for)"
        )))
    }

    /// Checks that the class of the topic has presence.
    pub(crate) fn check_presence(&self, topic: &str) -> Result<Destination, Denied> {
        validate_name(topic, self.router.name_bytes_max()).map_err(Denied::Name)?;
        let destination = self.router.destination(topic);
        let class = destination.class();
        if !class.presence {
            let pattern = class.pattern.as_str();
            let detail =
                format!("topics of class {pattern:?} have no presence (topic_classes, presence)");
            return Err(Denied::NoPresence(detail));
        }
        drop(class);
        Ok(destination)
    }

    /// Whether a member of a topic may stay. `watches`: it hears who enters and leaves.
    pub(crate) fn permits_member(&self, caller: &Caller<'_>, topic: &str, watches: bool) -> bool {
        let destination = self.router.destination(topic);
        let class = destination.class();
        let is_own =
            || !class.pattern.has_device() || self.is_own(caller.device, &class.pattern, topic);
        self.permit_class(caller, Act::Subscribe, topic, &class).is_ok()
            && (!watches || caller.grant.permits(Act::Subscribe, &class.presence_for, is_own))
    }

    /// Checks the right to act for a topic whose class is known.
    ///
    /// Errors: the sentence that tells the caller why.
    pub(super) fn permit_class(
        &self,
        caller: &Caller<'_>,
        act: Act,
        topic: &str,
        class: &Class,
    ) -> Result<(), String> {
        let grant = caller.grant;
        let actors = match act {
            Act::Subscribe => &class.subscribe,
            Act::Publish => &class.publish,
        };
        let is_own = |pattern: &Pattern| self.is_own(caller.device, pattern, topic);
        // A pattern without `{device}` applies to every device.
        let covers = |pattern: &Pattern| match pattern.has_device() {
            true => is_own(pattern),
            false => pattern.matches(topic),
        };
        if !grant.covers(covers) {
            return Err(act.not_covered(topic));
        }
        let is_own = || !class.pattern.has_device() || is_own(&class.pattern);
        if grant.permits(act, actors, is_own) {
            return Ok(());
        }
        Err(grant.refusal(act, topic, class.configured_pattern(), actors))
    }

    /// Whether the pattern matches the topic when `{device}` stands for this device.
    fn is_own(&self, device: CallerDevice<'_>, pattern: &Pattern, topic: &str) -> bool {
        let fits = |device: &str| pattern.matches_for(topic, device);
        match device {
            CallerDevice::Named(device) => device.is_some_and(fits),
            CallerDevice::Connected(device, conn) => {
                self.devices.with_id_of(device, conn, fits) == Some(true)
            }
        }
    }
}
