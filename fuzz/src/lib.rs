//! The fuzz targets of Weir, as plain functions.
#![forbid(unsafe_code)]

pub mod targets;
pub mod tls;
