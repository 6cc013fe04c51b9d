//! Devices that activate: their store, their activation, and lists for import.

pub(crate) mod activation;
pub(crate) mod device_store;
pub(crate) mod import;
