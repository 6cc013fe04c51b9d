//! Decodes frames from devices: `Ping` and `Publish`, and the class of all other messages.

use super::*;

/// The content of a frame from a device, as far as the shard needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FromDevice<'a> {
    /// The shard answers it.
    Ping {
        /// The answer returns it unchanged. At most [`crate::PING_BYTES_MAX`] bytes.
        data: &'a [u8],
    },
    /// `Publish`: decode with [`Publish::decode`].
    Publish,
    /// Another kind that `weir.v1` knows: decode with prost.
    Other,
    /// No kind, or one that `weir.v1` does not know.
    Unknown,
}

/// `Publish`, borrowed from the frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Publish<'a> {
    /// Topic name.
    pub topic: &'a str,
    /// Content. If it is absent on the wire: empty data.
    pub payload: Payload<'a>,
    /// Media type, or empty.
    pub content_type: &'a str,
    /// Conflation key, or empty.
    pub key: &'a str,
    /// Number that the answer carries; 0: no answer wanted.
    pub request: u32,
}

impl<'a> FromDevice<'a> {
    /// Classifies the body of a frame.
    ///
    /// For `Ping`, `Publish` and `Unknown` the whole body is well-formed, and [`Publish::decode`]
    /// succeeds. The content of any other kind is not checked.
    /// Errors: [`WireError::PingTooLarge`], and [`WireError::MessageMalformed`] for all else.
    /// Cost: one pass, no allocation.
    pub fn decode(body: &'a [u8]) -> Result<FromDevice<'a>, WireError> {
        match FromDeviceKind::decode(body)? {
            FromDeviceKind::Missing => Ok(FromDevice::Unknown),
            FromDeviceKind::Ping(data) if data.len() > PING_BYTES_MAX => {
                Err(WireError::PingTooLarge(data.len()))
            }
            FromDeviceKind::Ping(data) => Ok(FromDevice::Ping { data }),
            FromDeviceKind::Publish(_) => Ok(FromDevice::Publish),
            FromDeviceKind::Other => Ok(FromDevice::Other),
        }
    }
}

impl<'a> Publish<'a> {
    /// Decodes the body of a frame that holds a `ClientMessage` with `publish`.
    ///
    /// Errors: [`WireError::MessageMalformed`], also for a message of another kind.
    /// Cost: one pass, no allocation.
    pub fn decode(body: &'a [u8]) -> Result<Publish<'a>, WireError> {
        match FromDeviceKind::decode(body)? {
            FromDeviceKind::Publish(publish) => Ok(publish),
            FromDeviceKind::Missing | FromDeviceKind::Ping(_) | FromDeviceKind::Other => {
                Err(WireError::MessageMalformed("not a publish"))
            }
        }
    }

    /// Appends a frame with a `ClientMessage` that holds this `Publish`.
    ///
    /// Cost: grows `out` at most once.
    pub fn encode_frame(&self, out: &mut Vec<u8>) {
        put_frame_head(CLIENT_PUBLISH, self.message_bytes(), out);
        self.content().put(out);
        fields::put_optional_varint(PUBLISH_REQUEST, u64::from(self.request), out);
    }

    fn message_bytes(&self) -> usize {
        self.content().bytes() + fields::optional_varint_bytes(u64::from(self.request))
    }

    /// Merges a later occurrence of the fields into an earlier one.
    fn merge(&mut self, mut fields: Fields<'a>) -> Result<(), WireError> {
        let mut content = self.content();
        while let Some(field) = fields.next()? {
            match u8::try_from(field.number) {
                Ok(PUBLISH_REQUEST) => self.request = field.uint32()?,
                Ok(number) => content.merge(number, &field)?,
                Err(_) => {}
            }
        }
        let Content { topic, payload, content_type, key } = content;
        *self = Publish { topic, payload, content_type, key, ..*self };
        Ok(())
    }

    fn content(&self) -> Content<'a> {
        let Publish { topic, payload, content_type, key, .. } = *self;
        Content { topic, payload, content_type, key }
    }
}

/// A `ClientMessage`, with the kinds decoded that matter here.
enum FromDeviceKind<'a> {
    Missing,
    Ping(&'a [u8]),
    Publish(Publish<'a>),
    Other,
}

impl<'a> FromDeviceKind<'a> {
    fn decode(body: &'a [u8]) -> Result<Self, WireError> {
        let mut kind = FromDeviceKind::Missing;
        let mut fields = Fields::new(body);
        while let Some(field) = fields.next()? {
            kind = match u8::try_from(field.number) {
                Ok(CLIENT_PING) => FromDeviceKind::Ping(kind.merged_ping(field.bytes()?)?),
                Ok(CLIENT_PUBLISH) => FromDeviceKind::Publish(kind.merged_publish(field.bytes()?)?),
                Ok(CLIENT_HELLO..=CLIENT_REFRESH | CLIENT_CALL..=CLIENT_CANCEL) => {
                    field.bytes()?;
                    FromDeviceKind::Other
                }
                Ok(_) | Err(_) => kind,
            };
        }
        Ok(kind)
    }

    fn merged_ping(&self, message: &'a [u8]) -> Result<&'a [u8], WireError> {
        let data: &[u8] = match self {
            FromDeviceKind::Ping(data) => data,
            FromDeviceKind::Missing | FromDeviceKind::Publish(_) => &[],
            FromDeviceKind::Other => return Err(BEHIND_ANOTHER_KIND),
        };
        merged_heartbeat(data, message)
    }

    fn merged_publish(self, message: &'a [u8]) -> Result<Publish<'a>, WireError> {
        let mut publish = match self {
            FromDeviceKind::Publish(publish) => publish,
            FromDeviceKind::Missing | FromDeviceKind::Ping(_) => Publish::default(),
            FromDeviceKind::Other => return Err(BEHIND_ANOTHER_KIND),
        };
        publish.merge(Fields::embedded(message, KIND_DEPTH))?;
        Ok(publish)
    }
}
