//! The Weir gateway as a library.

mod handle;

pub use handle::{
    Accepted, Connection, ConnectionCursor, ConnectionQuery, Payload, Publication, PublishError,
    Target, TopicInfo, TopicNameError,
};
