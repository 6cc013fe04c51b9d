//! The last ends of connections, as another process shows them.

use std::net::SocketAddr;
use std::time::Duration;

use weir_engine::handover::NotUnderstood;
use weir_engine::{ConnId, Transport};
use weir_wire::CloseReason;
use weir_wire::format::Format;
use weir_wire::handover::v1;

use super::{ENDS_MAX, End, Ends, REFUSED_MAX};
use crate::base::handover::{at, count, refused};
use crate::limits::sources::Source;

impl Ends {
    /// The ends so far. Those that come afterwards stay here.
    pub(crate) fn export(&self) -> v1::Ends {
        let kept = self.lock();
        let ends = kept.settled.iter().chain(&kept.refused);
        v1::Ends { ends: ends.map(|(number, end)| end.export(*number)).collect(), next: kept.next }
    }

    /// Goes on with the ends of another process. There were none here so far.
    pub(crate) fn import(&self, ends: v1::Ends) -> Result<(), NotUnderstood> {
        let v1::Ends { ends, next } = ends;
        if ends.len() > ENDS_MAX {
            return Err(refused("ends", ends.len() as u64));
        }
        let mut kept = self.lock();
        kept.next = count("ends.next", next)?;
        for end in ends {
            let number = end.number;
            let end = End::import(end)?;
            let queue = if end.conn.is_some() { &mut kept.settled } else { &mut kept.refused };
            if number >= next || queue.back().is_some_and(|(last, _)| *last >= number) {
                return Err(refused("end.number", number));
            }
            queue.push_back((number, end));
        }
        match kept.refused.len() > REFUSED_MAX {
            true => Err(refused("ends of refused connections", kept.refused.len() as u64)),
            false => Ok(()),
        }
    }
}

impl End {
    fn export(&self, number: u64) -> v1::End {
        let (source_v4, source_v6) = match self.source {
            None => (None, None),
            Some(Source::V4(bits)) => (Some(bits), None),
            Some(Source::V6(bits)) => (None, Some(bits)),
        };
        v1::End {
            at: nanos(self.at),
            conn: self.conn.map(ConnId::to_u64),
            device: self.device.as_deref().map(str::to_owned),
            peer: self.peer.map(|peer| peer.to_string()),
            source_v4,
            source_v6,
            client: self.client.as_deref().map(str::to_owned),
            format: self.protocol as u32,
            transport: self.transport as u32,
            reason: self.reason.code().into(),
            age: nanos(self.age),
            number,
        }
    }

    fn import(end: v1::End) -> Result<End, NotUnderstood> {
        let peer = end.peer.map(|peer| {
            let bytes = peer.len() as u64;
            peer.parse::<SocketAddr>().map_err(|_| refused("end.peer: bytes", bytes))
        });
        let source = end.source_v4.map(Source::V4).or(end.source_v6.map(Source::V6));
        let reason = CloseReason::from_code(end.reason);
        Ok(End {
            at: Duration::from_nanos(end.at),
            conn: end.conn.map(ConnId::from_u64),
            device: end.device.map(Into::into),
            peer: peer.transpose()?,
            source,
            client: end.client.map(Into::into),
            protocol: at("end.format", &Format::ALL, end.format)?,
            transport: at("end.transport", &Transport::ALL, end.transport)?,
            reason: reason.ok_or_else(|| refused("end.reason", end.reason))?,
            age: Duration::from_nanos(end.age),
        })
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use weir_wire::ProstMessage;

    use super::*;

    fn end(number: u64, is_settled: bool) -> End {
        let nth = usize::try_from(number).unwrap();
        let has = |every: u64| !number.is_multiple_of(every);
        End {
            at: Duration::from_millis(1_700_000_000_000 + number),
            conn: is_settled.then(|| ConnId::from_u64(number)),
            device: has(3).then(|| format!("d{number}").into()),
            peer: has(2).then(|| "[2001:db8::1]:7000".parse().unwrap()),
            source: [None, Some(Source::V4(7)), Some(Source::V6(8))][nth % 3],
            client: has(5).then(|| "client".into()),
            protocol: Format::ALL[nth % Format::ALL.len()],
            transport: Transport::ALL[nth % 2],
            reason: CloseReason::PeerClosed,
            age: Duration::from_micros(number),
        }
    }

    #[test]
    fn ends_go_on_in_their_order() {
        let ends = Ends::default();
        (0..1_500).for_each(|number| ends.note(end(number, number % 4 > 0)));
        let bytes = ends.export().encode_to_vec();
        let other = Ends::default();
        other.import(v1::Ends::decode(&*bytes).unwrap()).unwrap();
        let shown = |ends: &Ends| format!("{:?}", ends.newest(ENDS_MAX, |_| true));
        assert_eq!(shown(&ends), shown(&other));
        for number in 1_500..2_200 {
            ends.note(end(number, number % 3 > 0));
            other.note(end(number, number % 3 > 0));
        }
        assert_eq!(shown(&ends), shown(&other));
    }

    #[test]
    fn damaged_ends_are_refused() {
        let ends = Ends::default();
        (0..9).for_each(|number| ends.note(end(number, number % 4 > 0)));
        let exported = ends.export();
        let damages: &[fn(&mut v1::Ends)] = &[
            |ends| ends.next = 3,
            |ends| ends.next = u64::MAX,
            |ends| ends.ends.swap(0, 1),
            |ends| ends.ends[0].format = 99,
            |ends| ends.ends[0].transport = 2,
            |ends| ends.ends[0].reason = 1,
            |ends| ends.ends[0].peer = Some("nowhere".to_owned()),
            |ends| ends.ends = vec![ends.ends[0].clone(); ENDS_MAX + 1],
        ];
        assert!(Ends::default().import(exported.clone()).is_ok());
        for (nth, damage) in damages.iter().enumerate() {
            let mut ends = exported.clone();
            damage(&mut ends);
            assert!(Ends::default().import(ends).is_err(), "damage {nth}");
        }
    }
}
