//! A small asynchronous client for the Weir gateway.
