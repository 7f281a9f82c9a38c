//! What consumers tell each other inside the opaque bytes of the classic group protocol.
//!
//! A server passes them on unread; our client and `describe` commands read them.

use bytes::Bytes;

use crate::wire::{
    DecodeError, EncodeError, EncodedFrame, Encoding, Reader, Str, Wire, Writer, message,
};

message! {
    /// `metadata` of [`JoinGroupProtocol`](super::JoinGroupProtocol): what a consumer wants.
    pub struct ConsumerProtocolSubscription {
        topics: Vec<Str> [0..],
        user_data: Option<Bytes> [0..],
        owned_partitions: Vec<ConsumerProtocolTopic> [1..],
        generation_id: i32 [2..] = -1,
        rack_id: Option<Str> [3..],
    }

    /// `assignment` of [`SyncGroupAssignment`](super::SyncGroupAssignment): what it gets.
    pub struct ConsumerProtocolAssignment {
        assigned_partitions: Vec<ConsumerProtocolTopic> [0..],
        user_data: Option<Bytes> [0..],
    }

    /// Partitions of one topic.
    pub struct ConsumerProtocolTopic {
        topic: Str [0..],
        partitions: Vec<i32> [0..],
    }
}

/// The newest version of both that we know. A newer one only adds fields at the end.
const VERSION_MAX: i16 = 3;

fn encoding(version: i16) -> Encoding {
    Encoding { version: version.min(VERSION_MAX), flexible: false }
}

fn to_bytes(message: &impl Wire, version: i16) -> Result<Bytes, EncodeError> {
    let mut writer = Writer::new();
    version.encode(&mut writer, encoding(version));
    message.encode(&mut writer, encoding(version));
    writer.finish().map(EncodedFrame::into_bytes)
}

fn from_bytes<T: Wire>(bytes: Bytes) -> Result<T, DecodeError> {
    let mut reader = Reader::new(bytes);
    let version = i16::decode(&mut reader, encoding(0))?;
    T::decode(&mut reader, encoding(version))
}

impl ConsumerProtocolSubscription {
    /// The bytes other consumers understand.
    pub fn to_bytes(&self) -> Result<Bytes, EncodeError> {
        to_bytes(self, VERSION_MAX)
    }

    /// Reads what a consumer, of any version, has written.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, DecodeError> {
        from_bytes(bytes)
    }
}

impl ConsumerProtocolAssignment {
    /// The bytes other consumers understand.
    pub fn to_bytes(&self) -> Result<Bytes, EncodeError> {
        to_bytes(self, VERSION_MAX)
    }

    /// Reads what a group leader, of any version, has written.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, DecodeError> {
        from_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages as theirs;
    use kafka_protocol::protocol::{Decodable, Encodable};
    use proptest::prelude::*;

    use super::*;
    use crate::testing::Sampler;

    proptest! {
        #[test]
        fn subscriptions_have_the_bytes_another_implementation_gives_them(
            seed: u64,
            version in 0..=VERSION_MAX,
        ) {
            let ours: ConsumerProtocolSubscription = Sampler::message(seed, encoding(version));
            let bytes = to_bytes(&ours, version).unwrap();
            prop_assert_eq!(ConsumerProtocolSubscription::from_bytes(bytes.clone()), Ok(ours));

            let body = bytes.slice(2..);
            let theirs =
                theirs::ConsumerProtocolSubscription::decode(&mut body.clone(), version).unwrap();
            let mut encoded = Vec::new();
            theirs.encode(&mut encoded, version).unwrap();
            prop_assert_eq!(encoded, body);
        }

        #[test]
        fn assignments_have_the_bytes_another_implementation_gives_them(seed: u64) {
            let ours: ConsumerProtocolAssignment = Sampler::message(seed, encoding(3));
            let bytes = ours.to_bytes().unwrap();
            prop_assert_eq!(ConsumerProtocolAssignment::from_bytes(bytes.clone()), Ok(ours));

            let body = bytes.slice(2..);
            let theirs = theirs::ConsumerProtocolAssignment::decode(&mut body.clone(), 3).unwrap();
            let mut encoded = Vec::new();
            theirs.encode(&mut encoded, 3).unwrap();
            prop_assert_eq!(encoded, body);
        }
    }

    #[test]
    fn newer_versions_are_read_as_far_as_they_are_known() {
        let ours = ConsumerProtocolAssignment::default();
        let mut bytes = to_bytes(&ours, 9).unwrap().to_vec();
        bytes.extend_from_slice(b"more");
        assert_eq!(ConsumerProtocolAssignment::from_bytes(bytes.into()), Ok(ours));
    }
}
