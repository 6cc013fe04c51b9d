//! Where a message goes: to a topic that exists, or to one that may have to begin.

use std::ops::Deref;
use std::sync::Arc;

use super::{Class, Topic};

/// The destination of a message: a topic that exists, or the class of a topic that may have to
/// begin.
pub(crate) enum Destination {
    Topic(Arc<Topic>),
    Class(Arc<Class>),
}

/// A class, as it is at this moment.
pub(crate) enum HeldClass<'a> {
    OfTopic(arc_swap::Guard<Arc<Class>>),
    Itself(&'a Class),
}

impl Deref for HeldClass<'_> {
    type Target = Class;

    fn deref(&self) -> &Class {
        match self {
            HeldClass::OfTopic(class) => class,
            HeldClass::Itself(class) => class,
        }
    }
}

impl Destination {
    /// The class of the topic.
    pub(crate) fn class(&self) -> HeldClass<'_> {
        match self {
            Destination::Topic(topic) => HeldClass::OfTopic(topic.class()),
            Destination::Class(class) => HeldClass::Itself(class),
        }
    }
}
