//! Who may do what with a topic, whichever way the request came.

use std::sync::Arc;

use crate::auth::{Act, Grant};
use crate::base::model::TopicNameError;
use crate::base::pattern::Pattern;
use crate::core::state::SharedState;
use crate::topics::{Class, validate_name};

/// Why an act is not to be: nothing has reached the router.
pub(crate) enum Denied {
    Name(TopicNameError),
    /// The sentence that says so.
    NotPermitted(String),
}

impl SharedState {
    /// The class of the topic, if it permits the act to who has this grant.
    ///
    /// `is_own` tells whether a pattern fits the topic with `{device}` standing for the device that asks; it is asked only
    /// if that decides.
    pub(crate) fn permit(
        &self,
        grant: &Grant,
        act: Act,
        topic: &str,
        is_own: impl Fn(&Pattern) -> bool,
    ) -> Result<Arc<Class>, Denied> {
        validate_name(topic, self.config().limits.topic_bytes_max).map_err(Denied::Name)?;
        let class = self.router.class_of(topic);
        let actors = match act {
            Act::Subscribe => &class.subscribe,
            Act::Publish => &class.publish,
        };
        // Where no device is named it is everybody's.
        let covers = |pattern: &Pattern| match pattern.has_device() {
            true => is_own(pattern),
            false => pattern.matches(topic),
        };
        if !grant.covers(covers) {
            return Err(Denied::NotPermitted(act.not_covered(topic)));
        }
        let is_own = || !class.pattern.has_device() || is_own(&class.pattern);
        if grant.permits(act, actors, is_own) {
            return Ok(class);
        }
        Err(Denied::NotPermitted(grant.refusal(act, topic, class.configured_pattern(), actors)))
    }
}
