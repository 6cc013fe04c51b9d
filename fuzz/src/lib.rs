//! The fuzz targets of Weir, as plain functions.
#![forbid(unsafe_code)]

pub mod client_hello;
pub mod targets;
pub mod tls;
