//! The order of things between router and shard, paragraph by paragraph: each test fails when its order is broken.
//!
//! The tests name the change to the shard that was made to see them fail.

mod answers;
mod drain;
mod ends;
mod fanout;
mod formats;
mod priority;
mod queue;
mod rate;
mod resume;
mod slow;
mod stage;
mod survey;
