//! Devices that activate: their store, their keys, and lists of them.

pub(crate) mod activation;
pub(crate) mod device_store;
pub(crate) mod import;
