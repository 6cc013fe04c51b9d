//! What one process of a gateway hands over to another.
//!
//! A shard of many connections is written and read one connection at a time: all of them as messages
//! would fill much new memory, which costs more than the rest (36 of 95 ms for 18,000 connections).

use prost::Message;

use crate::WireError;
use crate::fields::{BYTES, Fields, key};

/// Version 1, generated from `proto/weir/handover/v1.proto`.
#[expect(missing_docs, reason = "generated; the .proto is the document")]
#[expect(clippy::pedantic, reason = "generated")]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/weir.handover.v1.rs"));
}

/// Appends a connection to the bytes of a [`v1::Shard`].
pub fn put_connection(connection: &v1::Connection, shard: &mut Vec<u8>) {
    shard.push(key(CONNECTIONS, BYTES));
    connection.encode_length_delimited(shard).expect("a vector has room");
}

/// Takes the bytes of a [`v1::Shard`] apart: all but its connections, and the bytes of each
/// [`v1::Connection`].
///
/// Errors: bytes that are no such message. Those of the connections are not looked at.
pub fn split_shard(state: &[u8]) -> Result<(v1::Shard, Vec<&[u8]>), WireError> {
    let (mut shard, mut connections) = (v1::Shard::default(), Vec::new());
    let mut fields = Fields::new(state);
    let mut others = state;
    loop {
        let rest = fields.rest();
        let field = fields.next()?;
        let connection = match field {
            Some(field) if field.number == u32::from(CONNECTIONS) => Some(field.bytes()?),
            Some(_) => continue,
            None => None,
        };
        let others_here = &others[..others.len() - rest.len()];
        let malformed = |_| WireError::MessageMalformed("not a shard");
        shard.merge(others_here).map_err(malformed)?;
        others = fields.rest();
        match connection {
            Some(connection) => connections.push(connection),
            None => return Ok((shard, connections)),
        }
    }
}

/// `connections` of [`v1::Shard`].
const CONNECTIONS: u8 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn shard() -> v1::Shard {
        let connection = |id| v1::Connection { id, topics: vec![7, 3], ..Default::default() };
        let message = |number| v1::Message { number, frame: vec![1, 2], ..Default::default() };
        v1::Shard {
            slots: 3,
            messages: (0..3).map(message).collect(),
            connections: (0..3).map(connection).collect(),
            waiting: vec![1, 2],
            ..Default::default()
        }
    }

    /// Fields of every message may come in any order (<https://protobuf.dev/programming-guides/encoding/#order>).
    #[test]
    fn a_shard_is_the_same_one_connection_at_a_time() {
        let whole = shard();
        let mut behind = v1::Shard { connections: Vec::new(), ..whole.clone() }.encode_to_vec();
        whole.connections.iter().for_each(|connection| put_connection(connection, &mut behind));
        assert_eq!(v1::Shard::decode(&*behind), Ok(whole.clone()));
        for bytes in [whole.encode_to_vec(), behind] {
            let (mut split, connections) = split_shard(&bytes).expect("it is a shard");
            assert!(split.connections.is_empty());
            let connections = connections.into_iter().map(v1::Connection::decode);
            split.connections = connections.collect::<Result<_, _>>().expect("they are whole");
            assert_eq!(split, whole);
        }
    }

    #[test]
    fn bytes_that_are_no_shard_are_refused() {
        let bytes = shard().encode_to_vec();
        for length in 0..bytes.len() {
            // A cut between two fields leaves a shard.
            assert_eq!(
                split_shard(&bytes[..length]).is_ok(),
                v1::Shard::decode(&bytes[..length]).is_ok(),
                "{length}"
            );
        }
        assert!(split_shard(&[CONNECTIONS << 3]).is_err(), "a connection that is a number");
    }
}
