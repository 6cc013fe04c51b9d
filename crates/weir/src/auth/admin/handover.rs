//! Sessions of the admin API that go on in another process. Its configuration may be another one:
//! then a session ends whose token was removed or has other scopes, as after a reload.

use std::time::Duration;

use weir_engine::handover::NotUnderstood;
use weir_wire::handover::v1;

use super::sessions::{Opened, SESSIONS_MAX};
use super::{AdminAccess, Caller, Role, now};
use crate::base::clock::millis;
use crate::base::config::AdminScope;
use crate::base::handover::{at, refused};

impl AdminAccess {
    /// The sessions, and the sources of failed sign-ins. What changes here afterwards stays here.
    pub(crate) fn export(&self) -> v1::AdminSessions {
        let session = |opened: Opened<'_>| {
            let caller = opened.caller;
            v1::AdminSession {
                digest: opened.digest.into(),
                token: caller.identity.digest.into(),
                is_admin: caller.is_admin(),
                name: caller.name().to_owned(),
                scopes: caller.scopes().iter().map(|scope| *scope as u32).collect(),
                began: nanos(opened.began),
                used_ms: opened.used_ms,
            }
        };
        let failures = Some(self.failures.export());
        v1::AdminSessions { sessions: self.sessions.export(session), failures }
    }

    /// Goes on with the sessions of another process. There were none here so far.
    pub(crate) fn import(&self, sessions: v1::AdminSessions) -> Result<(), NotUnderstood> {
        let v1::AdminSessions { sessions, failures } = sessions;
        if let Some(failures) = failures {
            self.failures.import(failures)?;
        }
        let callers = self.callers.load_full();
        for session in sessions {
            let scopes = session.scopes.iter();
            let scopes = scopes.map(|scope| at("admin_session.scopes", &AdminScope::ALL, *scope));
            let scopes = scopes.collect::<Result<Vec<_>, _>>()?;
            let digest = <[u8; 32]>::try_from(&*session.digest)
                .map_err(|_| refused("admin_session.digest: bytes", session.digest.len() as u64))?;
            let is_same = |caller: &Caller| match &caller.identity.role {
                Role::Admin => session.is_admin,
                Role::Token { name, may } => {
                    !session.is_admin && **name == session.name && **may == scopes
                }
                Role::Service { .. } => false,
            };
            let caller =
                callers.as_ref().and_then(|callers| callers.by_digest.find(&session.token));
            let Some(caller) = caller.filter(|caller| is_same(caller)) else { continue };
            let began = Duration::from_nanos(session.began);
            if began > now() || session.used_ms > millis(now()) {
                return Err(refused("admin_session.used_ms", session.used_ms));
            }
            let opened = Opened { digest, caller, began, used_ms: session.used_ms };
            if !self.sessions.import(opened) {
                return Err(refused("admin_sessions", SESSIONS_MAX as u64 + 1));
            }
        }
        Ok(())
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use weir_wire::ProstMessage;

    use super::*;
    use crate::auth::admin::SignIn;
    use crate::base::config::{AdminConfig, AdminTokenConfig};
    use crate::base::token_hash::token_hash;

    fn config(scopes: &[AdminScope]) -> AdminConfig {
        let named = AdminTokenConfig {
            name: "ci".to_owned(),
            hash: token_hash("seldom"),
            may: scopes.to_vec(),
        };
        AdminConfig { token: "all".to_owned(), tokens: vec![named], ..AdminConfig::default() }
    }

    fn open(access: &AdminAccess, token: &str) -> String {
        match access.sign_in(token).unwrap() {
            SignIn::Session { id, .. } => id,
            SignIn::Needless | SignIn::Service(_) | SignIn::WrongToken => panic!("no session"),
        }
    }

    #[test]
    fn a_session_goes_on_while_its_token_opens_the_same() {
        use AdminScope::{Operate, Read};
        let access = AdminAccess::new(&config(&[Read, Operate]), &[]);
        let [all, seldom] = ["all", "seldom"].map(|token| open(&access, token));
        let from: IpAddr = [192, 0, 2, 1].into();
        while access.begin_attempt(from).is_ok() {}
        let bytes = access.export().encode_to_vec();
        let moved = |scopes: &[AdminScope]| {
            let other = AdminAccess::new(&config(scopes), &[]);
            other.import(v1::AdminSessions::decode(&*bytes).unwrap()).unwrap();
            other
        };
        let same = moved(&[Read, Operate]);
        assert!(same.begin_attempt(from).is_err());
        for id in [&all, &seldom] {
            let (here, there) = (access.session(id).unwrap(), same.session(id).unwrap());
            assert_eq!(here.caller().name(), there.caller().name());
            assert!(here.left().abs_diff(there.left()) < Duration::from_secs(60));
        }
        same.sign_out(&same.session(&all).unwrap());
        assert!(same.session(&all).is_none() && same.session("unknown").is_none());
        let less = moved(&[Read]);
        assert!(less.session(&all).is_some() && less.session(&seldom).is_none());
    }

    #[test]
    fn damaged_sessions_are_refused() {
        let access = AdminAccess::new(&config(&[AdminScope::Read]), &[]);
        open(&access, "all");
        let exported = access.export();
        let damages: &[fn(&mut v1::AdminSessions)] = &[
            |sessions| sessions.sessions[0].digest.clear(),
            |sessions| sessions.sessions[0].scopes.push(99),
            |sessions| sessions.sessions = vec![sessions.sessions[0].clone(); 1_000],
            |sessions| drop(sessions.failures.as_mut().unwrap().stripes.pop()),
        ];
        for (nth, damage) in damages.iter().enumerate() {
            let mut sessions = exported.clone();
            damage(&mut sessions);
            let other = AdminAccess::new(&config(&[AdminScope::Read]), &[]);
            assert!(other.import(sessions).is_err(), "damage {nth}");
        }
        let mut eternal = exported;
        (eternal.sessions[0].began, eternal.sessions[0].used_ms) = (u64::MAX, u64::MAX);
        let other = AdminAccess::new(&config(&[AdminScope::Read]), &[]);
        assert!(other.import(eternal).is_err(), "it would never end");
    }
}
