//! What all parts of the front share: the shards, the router, the devices, the counters.

use weir_engine::{ConnId, Engine};

use crate::counters::Counters;
use crate::handle::{
    Accepted, Connection, ConnectionCursor, ConnectionQuery, Gauges, Publication, PublishError,
    TopicInfo,
};

pub(crate) struct Hub {
    engine: Engine,
    counters: Counters,
}

impl Hub {
    pub(crate) fn publish(&self, _: &Publication<'_>) -> Result<Accepted, PublishError> {
        Ok(Accepted { id: 0, offset: None, connections: 0 })
    }
    pub(crate) async fn connections(
        &self,
        _: &ConnectionQuery,
    ) -> (Vec<Connection>, Option<ConnectionCursor>) {
        (Vec::new(), None)
    }
    pub(crate) async fn connection(&self, _: ConnId) -> Option<Connection> {
        None
    }
    pub(crate) async fn close(&self, _: ConnId) -> bool {
        false
    }
    pub(crate) async fn device(&self, _: &str) -> Option<Vec<Connection>> {
        None
    }
    pub(crate) async fn revoke(&self, _: &str) -> bool {
        false
    }
    pub(crate) fn topics(&self, _: &str, _: Option<&str>, _: usize) -> Vec<TopicInfo> {
        Vec::new()
    }
    pub(crate) fn is_ready(&self) -> bool {
        false
    }
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }
    pub(crate) fn gauges(&self) -> Gauges {
        Gauges { devices: 0, topics: 0 }
    }
}
