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
    let bytes = writer.finish().unwrap().into_bytes();
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
                    let frame = encode_request(version, 1, Some("c"), &request);
                    let mut frame = frame.unwrap().into_bytes();
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

/// Whoever does not know our own tags passes over them, and reads the rest.
#[test]
fn own_tags_are_read_by_us_and_passed_over_by_others() {
    let version = 13;
    let partition =
        FetchPartitionResponse { packing: PACKING_ZSTD, read_from: 3, ..Default::default() };
    let topic = FetchTopicResponse { partitions: vec![partition], ..Default::default() };
    let response = FetchResponse { responses: vec![topic], session_id: 5, ..Default::default() };
    let asked = FetchPartition { run: RUN_GOES_ON, ..Default::default() };
    let asked = FetchTopic { partitions: vec![asked], ..Default::default() };
    let topics = vec![asked];
    let request =
        FetchRequest { packing: PACKING_ZSTD, max_bytes: 7, topics, ..Default::default() };
    let encoding = ApiKey::Fetch.encoding(version);
    assert_eq!(decode::<FetchResponse>(encode(&response, encoding), encoding), response);
    assert_eq!(decode::<FetchRequest>(encode(&request, encoding), encoding), request);

    let mut bytes = encode(&request, encoding);
    assert_eq!(theirs::FetchRequest::decode(&mut bytes, version).unwrap().max_bytes, 7);
    let mut bytes = encode(&response, encoding);
    assert_eq!(theirs::FetchResponse::decode(&mut bytes, version).unwrap().session_id, 5);
    assert!(bytes.is_empty());
    let older = encode(&request, ApiKey::Fetch.encoding(11));
    assert_eq!(decode::<FetchRequest>(older, ApiKey::Fetch.encoding(11)).packing, 0);
}

/// The bytes of versions that the other implementation lacks, by the protocol guide.
mod by_hand {
    use super::*;
    use crate::{ErrorCode, Uuid};

    fn assert_bytes<T: Wire + PartialEq + Debug>(
        api: ApiKey,
        version: i16,
        message: &T,
        parts: &[&[u8]],
    ) {
        let encoding = api.encoding(version);
        assert_eq!(encode(message, encoding), parts.concat(), "{api} {version}");
        assert_eq!(&decode::<T>(parts.concat().into(), encoding), message, "{api} {version}");
    }

    #[test]
    fn list_offsets_0_asks_for_a_number_of_offsets() {
        let partition = ListOffsetsPartition {
            partition_index: 3,
            timestamp: ListOffsetsPartition::TIMESTAMP_LATEST,
            max_num_offsets: 5,
            ..Default::default()
        };
        let topic = ListOffsetsTopic { name: "t".into(), partitions: vec![partition] };
        let request = ListOffsetsRequest { topics: vec![topic], ..Default::default() };
        assert_bytes(
            ApiKey::ListOffsets,
            0,
            &request,
            &[
                &[0xff; 4], // replica
                &[0, 0, 0, 1, 0, 1, b't'],
                &[0, 0, 0, 1, 0, 0, 0, 3],
                &[0xff; 8], // timestamp
                &[0, 0, 0, 5],
            ],
        );
        let partition = ListOffsetsPartitionResponse {
            partition_index: 3,
            old_style_offsets: vec![9],
            ..Default::default()
        };
        let topic = ListOffsetsTopicResponse { name: "t".into(), partitions: vec![partition] };
        let response = ListOffsetsResponse { topics: vec![topic], ..Default::default() };
        assert_bytes(
            ApiKey::ListOffsets,
            0,
            &response,
            &[
                &[0, 0, 0, 1, 0, 1, b't'],
                &[0, 0, 0, 1, 0, 0, 0, 3, 0, 0],
                &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9],
            ],
        );
    }

    #[test]
    fn list_offsets_11_is_like_10() {
        let seeded = |version| {
            let encoding = ApiKey::ListOffsets.encoding(version);
            encode(&Sampler::message::<ListOffsetsRequest>(4, encoding), encoding)
        };
        assert_eq!(seeded(11), seeded(10));
    }

    #[test]
    fn create_topics_0_has_neither_validation_nor_messages() {
        let topic = CreatableTopic {
            name: "t".into(),
            num_partitions: 2,
            replication_factor: 3,
            ..Default::default()
        };
        let request =
            CreateTopicsRequest { topics: vec![topic], timeout_ms: 1, ..Default::default() };
        let topic: &[u8] = &[0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 2, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_bytes(ApiKey::CreateTopics, 0, &request, &[topic, &[0, 0, 0, 1]]);
        assert_bytes(ApiKey::CreateTopics, 1, &request, &[topic, &[0, 0, 0, 1], &[0]]);

        let topic = CreatableTopicResult {
            name: "t".into(),
            error_code: ErrorCode::TopicAlreadyExists,
            ..Default::default()
        };
        let response = CreateTopicsResponse { topics: vec![topic], ..Default::default() };
        let topic: &[u8] = &[0, 0, 0, 1, 0, 1, b't', 0, 36];
        assert_bytes(ApiKey::CreateTopics, 0, &response, &[topic]);
        assert_bytes(ApiKey::CreateTopics, 1, &response, &[topic, &[0xff, 0xff]]);
        assert_bytes(ApiKey::CreateTopics, 2, &response, &[&[0; 4], topic, &[0xff, 0xff]]);
    }

    #[test]
    fn delete_topics_0_has_no_throttle_time() {
        let request = DeleteTopicsRequest {
            topic_names: vec!["t".into()],
            timeout_ms: 7,
            ..Default::default()
        };
        let bytes: &[u8] = &[0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 7];
        assert_bytes(ApiKey::DeleteTopics, 0, &request, &[bytes]);
        let topic = DeletableTopicResult { name: Some("t".into()), ..Default::default() };
        let response = DeleteTopicsResponse { responses: vec![topic], ..Default::default() };
        assert_bytes(ApiKey::DeleteTopics, 0, &response, &[&[0, 0, 0, 1, 0, 1, b't', 0, 0]]);
    }

    #[test]
    fn describe_configs_0_says_default_instead_of_source() {
        let resource = DescribeConfigsResource {
            resource_type: 2,
            resource_name: "t".into(),
            configuration_keys: None,
        };
        let request = DescribeConfigsRequest { resources: vec![resource], ..Default::default() };
        let bytes: &[u8] = &[0, 0, 0, 1, 2, 0, 1, b't', 0xff, 0xff, 0xff, 0xff];
        assert_bytes(ApiKey::DescribeConfigs, 0, &request, &[bytes]);

        let config = DescribedConfig {
            name: "k".into(),
            value: Some("v".into()),
            is_default: true,
            ..Default::default()
        };
        let result = DescribeConfigsResult {
            resource_type: 2,
            resource_name: "t".into(),
            configs: vec![config],
            ..Default::default()
        };
        let response = DescribeConfigsResponse { results: vec![result], ..Default::default() };
        assert_bytes(
            ApiKey::DescribeConfigs,
            0,
            &response,
            &[
                &[0, 0, 0, 0, 0, 0, 0, 1],
                &[0, 0, 0xff, 0xff, 2, 0, 1, b't'],
                &[0, 0, 0, 1, 0, 1, b'k', 0, 1, b'v'],
                &[0, 1, 0], // read only, default, sensitive
            ],
        );
    }

    #[test]
    fn offsets_10_have_topic_ids() {
        let topic_id = Uuid([6; 16]);
        let partition = OffsetCommitPartition {
            partition_index: 1,
            committed_offset: 2,
            committed_metadata: Some("m".into()),
            ..Default::default()
        };
        let topic =
            OffsetCommitTopic { topic_id, partitions: vec![partition], ..Default::default() };
        let request =
            OffsetCommitRequest { group_id: "g".into(), topics: vec![topic], ..Default::default() };
        assert_bytes(
            ApiKey::OffsetCommit,
            10,
            &request,
            &[
                &[2, b'g', 0xff, 0xff, 0xff, 0xff, 1, 0], // group, epoch, member, instance
                &[2],
                &[6; 16],
                &[2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2],
                &[0xff, 0xff, 0xff, 0xff, 2, b'm', 0],
                &[0, 0],
            ],
        );

        let topic = OffsetFetchTopic { topic_id, partition_indexes: vec![1], ..Default::default() };
        let group = OffsetFetchGroup {
            group_id: "g".into(),
            topics: Some(vec![topic]),
            ..Default::default()
        };
        let request = OffsetFetchRequest { groups: vec![group], ..Default::default() };
        assert_bytes(
            ApiKey::OffsetFetch,
            10,
            &request,
            &[
                &[2, 2, b'g', 0, 0xff, 0xff, 0xff, 0xff], // group, member, epoch
                &[2],
                &[6; 16],
                &[2, 0, 0, 0, 1, 0],
                &[0, 0, 0],
            ],
        );
    }
}
