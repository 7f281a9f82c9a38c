//! Every message in every version: there and back, against another implementation, and on garbage.

use std::fmt::Debug;

use bytes::{Buf, Bytes};
use kafka_protocol::messages as theirs;
use kafka_protocol::protocol::{Decodable, Encodable, Message};
use proptest::prelude::*;

use crate::api::{ApiKey, for_each_api};
use crate::frame::{decode_request, decode_response, encode_request};
use crate::messages::*;
use crate::testing::Sampler;
use crate::wire::{Encoding, Reader, Wire, Writer};

fn encode<T: Wire>(message: &T, encoding: Encoding) -> Bytes {
    let mut writer = Writer::new();
    message.encode(&mut writer, encoding);
    let size_bytes = writer.len();
    let bytes = writer.finish().into_bytes();
    assert_eq!(bytes.len(), size_bytes);
    bytes
}

fn decode<T: Wire>(bytes: Bytes, encoding: Encoding) -> T {
    let mut reader = Reader::new(bytes);
    let message = T::decode(&mut reader, encoding).unwrap();
    assert_eq!(reader.remaining(), 0, "bytes left over in version {}", encoding.version);
    message
}

fn assert_round_trip<T: Wire + PartialEq + Debug>(api: ApiKey, seed: u64) {
    for version in api.versions() {
        let encoding = api.encoding(version);
        let message: T = Sampler::message(seed, encoding);
        assert_eq!(decode::<T>(encode(&message, encoding), encoding), message, "{api} {version}");
    }
}

/// What we write, the other implementation must read in full, and write again the same way; what
/// it writes, we must read and write again the same way.
fn assert_same_bytes<T, U>(api: ApiKey, seed: u64)
where
    T: Wire,
    U: Encodable + Decodable + Message + Debug,
{
    for version in api.versions().filter(|v| (U::VERSIONS.min..=U::VERSIONS.max).contains(v)) {
        let encoding = api.encoding(version);
        let ours = encode(&Sampler::message::<T>(seed, encoding), encoding);

        let mut unread = ours.clone();
        let read = U::decode(&mut unread, version).unwrap();
        assert_eq!(unread.remaining(), 0, "{api} {version}: they know fewer fields");
        let unknown_tags = format!("{read:?}").replace("unknown_tagged_fields: {}", "");
        assert!(!unknown_tags.contains("unknown_tagged_fields"), "{api} {version}: {unknown_tags}");

        let mut theirs = Vec::new();
        read.encode(&mut theirs, version).unwrap();
        let theirs = Bytes::from(theirs);
        assert_eq!(theirs, ours, "{api} {version}");
        assert_eq!(encode(&decode::<T>(theirs, encoding), encoding), ours, "{api} {version}");
    }
}

/// Arbitrary bytes either decode, or give an error; either way within bounded memory.
fn assert_survives<T: Wire>(api: ApiKey, bytes: &Bytes) {
    for version in api.versions() {
        let _ = T::decode(&mut Reader::new(bytes.clone()), api.encoding(version));
    }
}

/// A message with some of its bytes overwritten.
fn corrupt(mut bytes: Vec<u8>, changes: &[(prop::sample::Index, u8)]) -> Bytes {
    for (index, byte) in changes {
        if !bytes.is_empty() {
            let at = index.index(bytes.len());
            bytes[at] = *byte;
        }
    }
    bytes.into()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_message_survives_a_round_trip(seed: u64) {
        macro_rules! check {
            ($api:ident, $request:ident, $response:ident) => {
                assert_round_trip::<$request>(ApiKey::$api, seed);
                assert_round_trip::<$response>(ApiKey::$api, seed);
            };
        }
        for_each_api!(check);
    }

    #[test]
    fn every_message_has_the_bytes_another_implementation_gives_it(seed: u64) {
        macro_rules! check {
            (MeridianAdmin, $request:ident, $response:ident) => {};
            ($api:ident, $request:ident, $response:ident) => {
                assert_same_bytes::<$request, theirs::$request>(ApiKey::$api, seed);
                assert_same_bytes::<$response, theirs::$response>(ApiKey::$api, seed);
            };
        }
        for_each_api!(check);
    }

    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let bytes = Bytes::from(bytes);
        macro_rules! check {
            ($api:ident, $request:ident, $response:ident) => {
                assert_survives::<$request>(ApiKey::$api, &bytes);
                assert_survives::<$response>(ApiKey::$api, &bytes);
            };
        }
        for_each_api!(check);
    }

    #[test]
    fn damaged_messages_never_panic(
        seed: u64,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        macro_rules! check {
            ($api:ident, $request:ident, $response:ident) => {
                for version in ApiKey::$api.versions() {
                    let request: $request =
                        Sampler::message(seed, ApiKey::$api.encoding(version));
                    let mut frame = encode_request(version, 1, Some("c"), &request).into_bytes();
                    frame.advance(4);
                    let frame = corrupt(frame.into(), &changes);
                    let _ = decode_request(frame.clone());
                    let _ = decode_response::<$request>(version, frame);
                }
            };
        }
        for_each_api!(check);
    }
}

/// Headers also agree with the other implementation.
#[test]
fn request_headers_have_the_bytes_another_implementation_gives_them() {
    for &api in ApiKey::ALL.iter().filter(|&&api| api != ApiKey::MeridianAdmin) {
        for version in api.versions() {
            let key = theirs::ApiKey::try_from(api.key()).unwrap();
            let flexible = api.encoding(version).flexible;
            assert_eq!(key.request_header_version(version), 1 + i16::from(flexible), "{api}");
            assert_eq!(
                key.response_header_version(version),
                i16::from(api.response_header_is_flexible(version)),
                "{api} {version}"
            );
        }
    }
}
