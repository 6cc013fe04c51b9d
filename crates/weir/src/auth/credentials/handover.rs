//! Configured credentials of another process: connections carry their numbers.

use std::collections::HashMap;
use std::sync::Arc;

use weir_engine::Priority;
use weir_engine::handover::NotUnderstood;
use weir_wire::handover::v1;

use super::{Credentials, FIRST, Grant, OWN_GRANT, Row, Secrets, Who};
use crate::base::handover::{at, narrow, refused};

impl Credentials {
    pub(in crate::auth) fn export(&self) -> v1::Credentials {
        let mut credentials = v1::Credentials {
            version: self.version,
            is_anonymous: self.anonymous,
            bound: self.bound.iter().map(|id| id.to_string()).collect(),
            services: self.services.iter().map(|name| name.to_string()).collect(),
            ..Default::default()
        };
        let mut known = HashMap::<*const Grant, u32>::new();
        for (secret, number) in self.numbers.iter() {
            let Some(row) = self.row(*number) else { continue };
            let grant = *known.entry(Arc::as_ptr(&row.grant)).or_insert_with(|| {
                credentials.grants.push(row.grant.export());
                let last = credentials.grants.len() - 1;
                u32::try_from(last).expect("there are less grants than tokens")
            });
            let (who, name) = match &row.who {
                Who::AnyDevice => (ANY_DEVICE, ""),
                Who::Device(device) => (DEVICE, &**device),
                Who::Service(name) => (SERVICE, &**name),
            };
            credentials.tokens.push(v1::ConfiguredToken {
                number: (*number).into(),
                secret: secret.into(),
                who,
                name: name.to_owned(),
                priority: row.priority as u32,
                grant,
                since: row.since,
            });
        }
        credentials
    }

    /// The credentials of another process, as those from which a reload goes on. What a reload does
    /// not look at is that of `current`.
    pub(in crate::auth) fn restore(
        credentials: v1::Credentials,
        current: &Credentials,
    ) -> Result<Credentials, NotUnderstood> {
        let v1::Credentials { version, is_anonymous, grants, tokens, bound, services } =
            credentials;
        if version > VERSION_MAX {
            return Err(refused("credentials.version", version));
        }
        let grants = grants.iter().map(|grant| Grant::import(grant).map(Arc::new));
        let grants = grants.collect::<Result<Vec<_>, _>>()?;
        let mut restored = Credentials {
            version,
            numbers: Secrets::new(),
            rows: Vec::new(),
            in_use: 0,
            bound: bound.into_iter().map(Into::into).collect(),
            services: services.into_iter().map(Into::into).collect(),
            anonymous: is_anonymous,
            device_id_bytes_max: current.device_id_bytes_max,
            deadline: current.deadline,
            labels: Arc::clone(&current.labels),
            unchecked_ids: current.unchecked_ids.clone(),
            without_token: Arc::clone(&current.without_token),
            nobody: Arc::clone(&current.nobody),
        };
        for token in tokens {
            restored.restore_token(token, &grants)?;
        }
        Ok(restored)
    }

    fn restore_token(
        &mut self,
        token: v1::ConfiguredToken,
        grants: &[Arc<Grant>],
    ) -> Result<(), NotUnderstood> {
        let v1::ConfiguredToken { number, secret, who, name, priority, grant, since } = token;
        let place: u16 = narrow("configured_token.number", number)?;
        let is_free = (FIRST..OWN_GRANT).contains(&place) && self.row(place).is_none();
        if !is_free || self.numbers.find(&secret).is_some() {
            return Err(refused("configured_token.number", number));
        }
        let who = match who {
            ANY_DEVICE => Who::AnyDevice,
            DEVICE => Who::Device(name.into()),
            SERVICE => Who::Service(name.into()),
            who => return Err(refused("configured_token.who", who)),
        };
        let priority = at("configured_token.priority", &Priority::ALL, priority)?;
        let grant = grants.get(grant as usize);
        let grant = Arc::clone(grant.ok_or_else(|| refused("configured_token.grant", number))?);
        if usize::from(place) >= self.rows.len() {
            self.rows.resize_with(usize::from(place) + 1, || None);
        }
        self.rows[usize::from(place)] = Some(Row { who, priority, grant, since });
        self.numbers.insert(&secret, place);
        self.in_use += 1;
        Ok(())
    }
}

const ANY_DEVICE: u32 = 0;
const DEVICE: u32 = 1;
const SERVICE: u32 = 2;
/// Each reload adds one.
const VERSION_MAX: u64 = u64::MAX / 2;
