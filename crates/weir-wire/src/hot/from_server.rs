//! Decodes frames from the server: `Push`, `Batch` and `Pong`, and the class of all other messages.

use std::ops::Range;

use super::*;

/// The content of a frame from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FromServer<'a> {
    /// One message.
    Push(Push<'a>),
    /// The messages of a tick.
    Batch(Batch<'a>),
    /// The answer to a `Ping`.
    Pong {
        /// The data of the ping.
        data: &'a [u8],
    },
    /// Another kind that `weir.v1` knows: decode with prost.
    Other,
    /// No kind, or one that `weir.v1` does not know.
    Unknown,
}

/// `Push`, borrowed.
///
/// Shape: the default has no content and no numbers. Code that needs only some fields takes the
/// others from it (`Push { topic, payload, ..Push::default() }`), so a new field concerns only the
/// code that uses it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Push<'a> {
    /// Topic name; empty for a message to a device or to all.
    pub topic: &'a str,
    /// Content.
    pub payload: Payload<'a>,
    /// Media type, or empty.
    pub content_type: &'a str,
    /// Conflation key, or empty.
    pub key: &'a str,
    /// Id of the message, unique for a server.
    pub message_id: u64,
    /// Offset in the topic's epoch; 0 without a topic.
    pub offset: u64,
    /// Connection that published it; 0 for a backend.
    pub sender: u64,
}

/// `Batch`, borrowed.
///
/// Shape: the messages stay encoded until [`Batch::messages`] reads them, one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch<'a> {
    /// Topic name of all its messages.
    pub topic: &'a str,
    /// Offset of the first message.
    pub first_offset: u64,
    /// Offset of the last message.
    pub last_offset: u64,
    message_count: usize,
    /// The whole message that holds it. Several occurrences of the batch are merged.
    body: &'a [u8],
}

/// The messages of a [`Batch`], in order.
///
/// Shape: an iterator of [`Push`], each with the batch's topic; an error is the last item.
#[derive(Debug)]
pub struct Messages<'a> {
    topic: &'a str,
    /// The fields after `batch` in the whole message.
    rest: Fields<'a>,
    /// The unread fields of one occurrence of the batch.
    batch: Fields<'a>,
}

impl<'a> FromServer<'a> {
    /// Decodes the body of a frame, if its kind is one of those here.
    ///
    /// For `Push`, `Pong` and `Unknown` the whole body is well-formed. The messages of a `Batch`
    /// are checked when they are read. The content of any other kind is not checked.
    /// Errors: [`WireError::MessageMalformed`]. Cost: one pass, no allocation.
    pub fn decode(body: &'a [u8]) -> Result<FromServer<'a>, WireError> {
        let mut kind = FromServer::Unknown;
        let mut fields = Fields::new(body);
        while let Some(field) = fields.next()? {
            kind = match u8::try_from(field.number) {
                Ok(SERVER_PUSH) => FromServer::Push(kind.merged_push(field.bytes()?)?),
                Ok(SERVER_BATCH) => FromServer::Batch(kind.merged_batch(body, field.bytes()?)?),
                Ok(SERVER_PONG) => FromServer::Pong { data: kind.merged_pong(field.bytes()?)? },
                Ok(SERVER_WELCOME..=SERVER_CANCEL) => {
                    field.bytes()?;
                    FromServer::Other
                }
                Ok(_) | Err(_) => kind,
            };
        }
        Ok(kind)
    }

    fn merged_push(self, message: &'a [u8]) -> Result<Push<'a>, WireError> {
        let mut push = match self {
            FromServer::Push(push) => push,
            FromServer::Pong { .. } | FromServer::Unknown => Push::default(),
            FromServer::Batch(_) | FromServer::Other => return Err(BEHIND_ANOTHER_KIND),
        };
        push.merge(Fields::embedded(message, KIND_DEPTH))?;
        Ok(push)
    }

    /// All parts of a batch in `body` belong to this batch. Only another batch may stand before it.
    fn merged_batch(self, body: &'a [u8], message: &'a [u8]) -> Result<Batch<'a>, WireError> {
        let mut batch = match self {
            FromServer::Batch(batch) => batch,
            FromServer::Push(_) | FromServer::Pong { .. } | FromServer::Unknown => {
                Batch::empty(body)
            }
            FromServer::Other => return Err(BEHIND_ANOTHER_KIND),
        };
        batch.merge(Fields::embedded(message, KIND_DEPTH))?;
        Ok(batch)
    }

    fn merged_pong(self, message: &'a [u8]) -> Result<&'a [u8], WireError> {
        match self {
            FromServer::Pong { data } => merged_heartbeat(data, message),
            FromServer::Push(_) | FromServer::Unknown => merged_heartbeat(&[], message),
            FromServer::Batch(_) | FromServer::Other => Err(BEHIND_ANOTHER_KIND),
        }
    }
}

impl<'a> Push<'a> {
    /// Decodes the body of a frame; `None` if the `ServerMessage` is of another kind.
    ///
    /// Errors: [`WireError::MessageMalformed`]. Cost: one pass, no allocation.
    pub fn decode(body: &'a [u8]) -> Result<Option<Push<'a>>, WireError> {
        match FromServer::decode(body)? {
            FromServer::Push(push) => Ok(Some(push)),
            FromServer::Batch(_)
            | FromServer::Pong { .. }
            | FromServer::Other
            | FromServer::Unknown => Ok(None),
        }
    }

    /// Bytes of the frame that [`Push::encode_frame`] appends.
    pub fn frame_bytes(&self) -> usize {
        frame_bytes(self.message_bytes())
    }

    /// Appends a frame with a `ServerMessage` that holds this `Push`. Returns the range of its key
    /// in `out`.
    ///
    /// Shape: the range is empty if there is no key.
    /// Cost: grows `out` at most once.
    pub fn encode_frame(&self, out: &mut Vec<u8>) -> Range<usize> {
        put_frame_head(SERVER_PUSH, self.message_bytes(), out);
        self.content().put(out);
        let key = out.len() - self.key.len()..out.len();
        fields::put_optional_fixed64(PUSH_MESSAGE_ID, self.message_id, out);
        fields::put_optional_varint(PUSH_OFFSET, self.offset, out);
        fields::put_optional_fixed64(PUSH_SENDER, self.sender, out);
        key
    }

    fn message_bytes(&self) -> usize {
        self.content().bytes()
            + fields::optional_fixed64_bytes(self.message_id)
            + fields::optional_varint_bytes(self.offset)
            + fields::optional_fixed64_bytes(self.sender)
    }

    /// Merges a later occurrence of the fields into an earlier one.
    fn merge(&mut self, mut fields: Fields<'a>) -> Result<(), WireError> {
        let mut content = self.content();
        while let Some(field) = fields.next()? {
            match u8::try_from(field.number) {
                Ok(PUSH_MESSAGE_ID) => self.message_id = field.fixed64()?,
                Ok(PUSH_OFFSET) => self.offset = field.uint64()?,
                Ok(PUSH_SENDER) => self.sender = field.fixed64()?,
                Ok(number) => content.merge(number, &field)?,
                Err(_) => {}
            }
        }
        let Content { topic, payload, content_type, key } = content;
        *self = Push { topic, payload, content_type, key, ..*self };
        Ok(())
    }

    fn content(&self) -> Content<'a> {
        let Push { topic, payload, content_type, key, .. } = *self;
        Content { topic, payload, content_type, key }
    }
}

impl<'a> Batch<'a> {
    /// Decodes the body of a frame; `None` if the `ServerMessage` is of another kind.
    ///
    /// Counts the messages, but does not read them: [`Batch::messages`] does that.
    /// Errors: [`WireError::MessageMalformed`]. Cost: one pass over the fields outside the
    /// messages, no allocation.
    pub fn decode(body: &'a [u8]) -> Result<Option<Batch<'a>>, WireError> {
        match FromServer::decode(body)? {
            FromServer::Batch(batch) => Ok(Some(batch)),
            FromServer::Push(_)
            | FromServer::Pong { .. }
            | FromServer::Other
            | FromServer::Unknown => Ok(None),
        }
    }

    /// The number of its messages.
    pub fn message_count(&self) -> usize {
        self.message_count
    }

    /// The messages, each decoded when it is read. Each gets the batch's topic, even if it names
    /// another one.
    ///
    /// Errors: [`WireError::MessageMalformed`] for a message, and nothing after it.
    /// Cost: one pass, no allocation.
    pub fn messages(&self) -> Messages<'a> {
        Messages { topic: self.topic, rest: Fields::new(self.body), batch: Fields::new(&[]) }
    }

    /// A batch in `body` with nothing read yet.
    fn empty(body: &'a [u8]) -> Batch<'a> {
        Batch { topic: "", first_offset: 0, last_offset: 0, message_count: 0, body }
    }

    /// Merges a later occurrence of the fields into an earlier one.
    fn merge(&mut self, mut fields: Fields<'a>) -> Result<(), WireError> {
        while let Some(field) = fields.next()? {
            match u8::try_from(field.number) {
                Ok(BATCH_TOPIC) => self.topic = field.text()?,
                Ok(BATCH_FIRST_OFFSET) => self.first_offset = field.uint64()?,
                Ok(BATCH_LAST_OFFSET) => self.last_offset = field.uint64()?,
                Ok(BATCH_MESSAGES) => {
                    field.bytes()?;
                    self.message_count += 1;
                }
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }
}

impl<'a> Messages<'a> {
    fn next_message(&mut self) -> Result<Option<Push<'a>>, WireError> {
        loop {
            while let Some(field) = self.batch.next()? {
                if field.number == u32::from(BATCH_MESSAGES) {
                    let mut push = Push::default();
                    push.merge(Fields::embedded(field.bytes()?, MESSAGE_DEPTH))?;
                    return Ok(Some(Push { topic: self.topic, ..push }));
                }
            }
            match self.rest.next()? {
                None => return Ok(None),
                Some(field) if field.number == u32::from(SERVER_BATCH) => {
                    self.batch = Fields::embedded(field.bytes()?, KIND_DEPTH);
                }
                Some(_) => {}
            }
        }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Push<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_message();
        if next.is_err() {
            self.rest = Fields::new(&[]);
            self.batch = Fields::new(&[]);
        }
        next.transpose()
    }
}
