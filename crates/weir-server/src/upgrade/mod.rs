//! The upgrade: `weir upgrade` and SIGUSR2 make the running process start a new one, which takes its
//! place.
//!
//! `weir upgrade` speaks to the running process over a unix socket, never over HTTP: who can name a
//! program to start can run anything.

mod carry_out;
mod command;
mod control;
mod lines;

pub(crate) use carry_out::{Handed, Program, hand_over, leave, start};
pub(crate) use command::run;
pub(crate) use control::Control;
