//! Figures of an upstream, for metrics and views.

/// An upstream as it is now.
#[derive(Debug, Clone, Default)]
pub struct Status {
    /// Requests that were begun.
    pub requests: u64,
    /// Requests that ended without an answer.
    pub failures: u64,
    /// By endpoint.
    pub endpoints: Vec<EndpointStatus>,
}

/// An endpoint as it is now.
#[derive(Debug, Clone, Default)]
pub struct EndpointStatus {
    /// Address and port, or path.
    pub address: String,
}
