//! The fuzz targets of Weir's decoders, as plain functions.
#![forbid(unsafe_code)]

pub mod targets;
