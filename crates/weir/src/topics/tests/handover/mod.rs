//! Tests of a router that is handed over to another process.

#![expect(clippy::wildcard_enum_match_arm, reason = "whatever else comes is a failure")]

mod player;
mod twin;

use super::*;
use crate::base::model::TopicInfo;
use player::Player;
