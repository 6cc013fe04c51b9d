//! Look-ups by hickory-resolver.

use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::rr::{RData, RecordType};

use super::question::{Answer, LookUp, Looking, NoAnswer, Question, RecordKind, Records, Target};
use crate::settings::{DnsSettings, SettingsError};

/// Asks the servers of the settings, or of `/etc/resolv.conf`.
pub(super) struct Hickory(TokioResolver);

impl Hickory {
    /// Errors: no servers in the settings and no `/etc/resolv.conf` that can be read.
    pub(super) fn new(dns: &DnsSettings) -> Result<Hickory, SettingsError> {
        let provider = TokioRuntimeProvider::default();
        let servers = dns.server_addrs()?;
        let error = |error: NetError| SettingsError {
            key: "dns_servers",
            value: format!("{:?}", dns.servers),
            allowed: format!("at least one server, since names are looked up ({error})"),
        };
        let mut builder = if servers.is_empty() {
            TokioResolver::builder(provider).map_err(error)?
        } else {
            let servers = servers.into_iter().map(|addr| {
                let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
                let connections = connections.map(|mut connection| {
                    connection.port = addr.port();
                    connection
                });
                NameServerConfig::new(addr.ip(), true, connections.into())
            });
            let config = ResolverConfig::from_name_servers(servers.collect());
            TokioResolver::builder_with_config(config, provider)
        };
        let options = builder.options_mut();
        // Ours knows how long to keep an answer, and when an old one is better than none.
        options.cache_size = 0;
        // Two tries, since UDP loses datagrams.
        options.timeout = dns.timeout / 2;
        options.attempts = 1;
        Ok(Hickory(builder.build().map_err(error)?))
    }
}

impl LookUp for Hickory {
    fn look_up(&self, question: &Question) -> Looking {
        let (resolver, question) = (self.0.clone(), question.clone());
        Box::pin(async move {
            let kind = match question.kind {
                RecordKind::A => RecordType::A,
                RecordKind::Aaaa => RecordType::AAAA,
                RecordKind::Srv => RecordType::SRV,
            };
            match resolver.lookup(&*question.name, kind).await {
                Ok(found) => {
                    let ttl = found.answers().iter().map(|record| record.ttl).min();
                    let data = found.answers().iter().map(|record| &record.data);
                    answer(question.kind, data, ttl.unwrap_or_default())
                }
                Err(error) => Err(no_answer(&error)),
            }
        })
    }
}

fn answer<'a>(
    kind: RecordKind,
    data: impl Iterator<Item = &'a RData>,
    ttl: u32,
) -> Result<Answer, NoAnswer> {
    let (mut addresses, mut targets) = (Vec::new(), Vec::new());
    for data in data {
        match (kind, data) {
            (RecordKind::A, RData::A(ip)) => addresses.push(ip.0.into()),
            (RecordKind::Aaaa, RData::AAAA(ip)) => addresses.push(ip.0.into()),
            // A dot alone says that there is no such service (RFC 2782).
            (RecordKind::Srv, RData::SRV(srv)) if !srv.target.is_root() && srv.port != 0 => {
                let name = srv.target.to_ascii();
                let name = if name.ends_with('.') { name } else { format!("{name}.") };
                targets.push(Target { priority: srv.priority, name: name.into(), port: srv.port });
            }
            // An alias on the way, or another record that was not asked for.
            (RecordKind::A | RecordKind::Aaaa | RecordKind::Srv, _) => {}
        }
    }
    let ttl = Duration::from_secs(ttl.into());
    if addresses.is_empty() && targets.is_empty() {
        return Err(NoAnswer::None { ttl: Some(ttl) });
    }
    let records = match kind {
        RecordKind::A | RecordKind::Aaaa => Records::Addresses(addresses),
        RecordKind::Srv => Records::Targets(targets),
    };
    Ok(Answer { records, ttl })
}

fn no_answer(error: &NetError) -> NoAnswer {
    if let NetError::Dns(DnsError::NoRecordsFound(none)) = error {
        let ttl = none.negative_ttl.map(|seconds| Duration::from_secs(seconds.into()));
        return NoAnswer::None { ttl };
    }
    NoAnswer::Failed(error.to_string())
}

/// The resolver of the settings.
pub(super) fn resolver(dns: &DnsSettings) -> Result<Arc<dyn LookUp>, SettingsError> {
    Ok(Arc::new(Hickory::new(dns)?))
}
