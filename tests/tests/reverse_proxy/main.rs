//! The reverse proxy: requests of `[[http.routes]]` reach services, and nothing reaches them that a client could not
//! have said plainly.

mod backend;
mod clients;
mod restarts;
mod rules;
mod smuggling;
mod streams;
