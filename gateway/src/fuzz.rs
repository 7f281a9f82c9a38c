//! Fuzz targets of this crate and of the Kafka protocol: what clients, peers and operators send,
//! and what the log gives back. See [`meridian_base::fuzz`].

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use bytes::Bytes;
use meridian_base::fuzz::Target;
use meridian_base::id::{ClusterId, NodeId, TopicId};
use meridian_base::position::Offset;
use meridian_consensus::membership::RaftId;
use meridian_protocol::frame::{decode_request, decode_response_to, encode_request};
use meridian_protocol::messages::{
    ConsumerProtocolAssignment, ConsumerProtocolSubscription, ConsumerProtocolTopic,
    MetadataRequest, ProducePartition, ProduceRequest, ProduceTopic,
};
use meridian_protocol::records::{
    Batch, BatchBuilder, BatchHeader, Compression, NO_TIMESTAMP, RecordRules, Stamp, batches, pack,
    stamp, unpack,
};
use meridian_protocol::{ApiKey, Records, Request, RequestMessage};
use meridian_storage::blob::{BlobHeader, BlobKind, Payload};
use meridian_storage::lineage::Start;
use meridian_storage::mutation::Mutations;
use rustls::pki_types::CertificateDer;

use crate::admin::http;
use crate::broker::{Quorum, QuorumMember};
use crate::cleaner::{Aborted, Cleaned, KeyOffsets, Round};
use crate::config::NodeConfig;
use crate::coordination::group_record::{self, ClassicRecord};
use crate::coordination::offset_record::{self, Committed, OffsetKey};
use crate::log::follower::FollowMessage;
use crate::meta::MetaFrame;
use crate::partition::{BatchSlice, PartitionState, batches_in};
use crate::runtime::quic::framing::FrameReader;
use crate::runtime::tls;
use crate::transaction;
use crate::transaction::wire::{CallId, MarkerOutcome, PeerMessage, PeerReply};

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "kafka_request", run: kafka_request, seeds: kafka_request_seeds },
    Target { name: "kafka_response", run: kafka_response, seeds: kafka_response_seeds },
    Target { name: "record_batch", run: record_batch, seeds: record_batch_seeds },
    Target { name: "packed_records", run: packed_records, seeds: packed_records_seeds },
    Target { name: "cleaner", run: cleaner, seeds: record_batch_seeds },
    Target { name: "consumer_protocol", run: consumer_protocol, seeds: consumer_protocol_seeds },
    Target { name: "records_blob", run: records_blob, seeds: record_batch_seeds },
    Target { name: "partition_checkpoint", run: checkpoint, seeds: checkpoint_seeds },
    Target { name: "group_offset", run: group_offset, seeds: group_offset_seeds },
    Target { name: "group_record", run: group_record, seeds: group_record_seeds },
    Target {
        name: "transaction_record",
        run: transaction::fuzz_record,
        seeds: transaction::fuzz_record_seeds,
    },
    Target { name: "peer_message", run: peer_message, seeds: peer_message_seeds },
    Target { name: "follow_message", run: follow_message, seeds: follow_message_seeds },
    Target { name: "metadata_frame", run: metadata_frame, seeds: metadata_frame_seeds },
    Target { name: "quic_frames", run: quic_frames, seeds: quic_frames_seeds },
    Target { name: "certificate_name", run: certificate_name, seeds: certificate_seeds },
    Target { name: "http_request", run: http_request, seeds: http_request_seeds },
    Target { name: "config_toml", run: config_toml, seeds: config_toml_seeds },
];

/// What a batch may decompress to.
const DECOMPRESSED_SIZE_BYTES_MAX: usize = 1 << 20;

/// A request from a client we do not trust.
fn kafka_request(data: &[u8]) {
    let Ok((header, request)) = decode_request(Bytes::copy_from_slice(data)) else { return };
    assert_eq!(header.api, request.api());
    if let Request::Produce(request) = request {
        for partition in request.topic_data.into_iter().flat_map(|topic| topic.partition_data) {
            let _ = Batch::produced(partition.records);
        }
    }
}

fn frame_of<R: RequestMessage>(version: i16, request: &R) -> Vec<u8> {
    let frame = encode_request(version, 7, Some("fuzz"), request).expect("a small request encodes");
    frame.into_bytes().split_off(4).to_vec()
}

fn kafka_request_seeds() -> Vec<Vec<u8>> {
    let partition = ProducePartition { index: 0, records: Some(a_batch(Compression::None)) };
    let topic = ProduceTopic {
        name: "orders".into(),
        partition_data: vec![partition],
        ..Default::default()
    };
    let produce = ProduceRequest { topic_data: vec![topic], ..Default::default() };
    let mut seeds = vec![frame_of(3, &produce), frame_of(12, &produce)];
    seeds.extend([1, 9, 12].map(|version| frame_of(version, &MetadataRequest::default())));
    // A header of each API in its oldest and newest version: the body decodes as far as it can.
    for api in ApiKey::ALL {
        for version in [*api.versions().start(), *api.versions().end()] {
            let mut seed = [api.key().to_be_bytes(), version.to_be_bytes()].concat();
            seed.extend_from_slice(&[0, 0, 0, 1, 0xff, 0xff]);
            seed.resize(80, 0);
            seeds.push(seed);
        }
    }
    seeds
}

/// A response from a server that our own client talks to: `api 2 | version 1 | frame`.
fn kafka_response(data: &[u8]) {
    let Some(([high, low, version], frame)) = data.split_first_chunk() else { return };
    let Some(api) = ApiKey::from_key(i16::from_be_bytes([*high, *low])) else { return };
    let version = i16::from(*version);
    if api.supports(version)
        && let Ok(response) = decode_response_to(api, version, Bytes::copy_from_slice(frame))
    {
        assert_eq!(response.api(), api);
    }
}

fn kafka_response_seeds() -> Vec<Vec<u8>> {
    let seed = |api: &ApiKey, version: i16| {
        let mut seed = api.key().to_be_bytes().to_vec();
        seed.push(version as u8);
        seed.resize(100, 0);
        seed
    };
    ApiKey::ALL
        .iter()
        .flat_map(|api| [*api.versions().start(), *api.versions().end()].map(|it| seed(api, it)))
        .collect()
}

/// Record batches as a client sends or fetches them, and as the cleaner rewrites them.
fn record_batch(data: &[u8]) {
    for batch in batches(Bytes::copy_from_slice(data)).flatten() {
        let _ = batch.check_produced();
        let rules = RecordRules { timestamps_ms: Some(0..=7), needs_key: true };
        if let Ok(examined) = batch.examine(&rules, DECOMPRESSED_SIZE_BYTES_MAX) {
            let records = batch.raw_records(DECOMPRESSED_SIZE_BYTES_MAX);
            assert!(records.is_ok_and(|it| it.iter().all(|record| record.is_ok())));
            assert!(examined.max_timestamp_ms >= NO_TIMESTAMP);
        }
        if let Ok(records) = batch.records(DECOMPRESSED_SIZE_BYTES_MAX) {
            for record in records.flatten() {
                let size_bytes = record.value.map_or(0, |value| value.len());
                assert!(size_bytes <= DECOMPRESSED_SIZE_BYTES_MAX);
            }
        }
        let values =
            Stamp { base_offset: 7, partition_leader_epoch: 1, log_append_time_ms: Some(5) };
        let mut stamped = batch.bytes().to_vec();
        assert_eq!(stamp(&mut stamped, &values), Ok(()));
        assert_eq!(BatchHeader::parse(&stamped).map(|header| header.base_offset), Ok(7));
        assert_eq!(batch.stamped(&values).into_bytes(), stamped);
    }
}

/// What a source sends to a link.
fn packed_records(data: &[u8]) {
    if let Ok(unpacked) = unpack(Bytes::copy_from_slice(data), DECOMPRESSED_SIZE_BYTES_MAX) {
        assert!(unpacked.len() <= DECOMPRESSED_SIZE_BYTES_MAX);
    }
    let records = Records::from(Bytes::copy_from_slice(data));
    if let Some(packed) = pack(&records) {
        assert_eq!(unpack(packed.into_bytes(), data.len()), Ok(records.into_bytes()));
    }
}

fn packed_records_seeds() -> Vec<Vec<u8>> {
    let packed = record_batch_seeds().into_iter().filter_map(|batches| {
        let many: Records = (0..20).map(|_| Bytes::from(batches.clone())).collect();
        Some(pack(&many)?.into_bytes().to_vec())
    });
    packed.chain(record_batch_seeds()).collect()
}

/// What the cleaner makes of batches that a leader took: their records may still be nonsense.
fn cleaner(data: &[u8]) {
    let mut keys = KeyOffsets::new(Offset::ZERO, 1 << 16);
    let values = Stamp { base_offset: 7, partition_leader_epoch: 1, log_append_time_ms: Some(5) };
    let taken = batches(Bytes::copy_from_slice(data)).flatten().filter_map(|batch| {
        let stamped = batches(batch.stamped(&values).into_bytes()).next()?.ok()?;
        stamped.check_produced().is_ok().then_some(stamped)
    });
    let taken: Vec<Batch> = taken.collect();
    for batch in &taken {
        let _full = keys.note(batch, true, DECOMPRESSED_SIZE_BYTES_MAX);
    }
    let last_batches = BTreeMap::from([(9, Offset::new(7))]);
    let round = Round {
        keys: &keys,
        last_batches: &last_batches,
        now_ms: 10,
        delete_retention_ms: 0,
        aborted: &Aborted::default(),
        batch_size_bytes_max: DECOMPRESSED_SIZE_BYTES_MAX,
        mutations: Mutations::NONE,
    };
    for batch in &taken {
        if let Ok(Cleaned::Smaller(bytes)) = round.clean(batch) {
            let header = BatchHeader::parse(&bytes);
            assert_eq!(header.map(|header| header.last_offset()), Ok(batch.header().last_offset()));
        }
    }
}

fn a_batch(compression: Compression) -> Bytes {
    let mut builder = BatchBuilder::new().producer(9, 1, 0);
    for value in ["one", "two", "two", "three three three three"] {
        builder.append(1_700_000_000_000, Some(b"key"), Some(value.as_bytes()), &[]);
    }
    builder.build_compressed(compression).expect("a small batch compresses")
}

fn record_batch_seeds() -> Vec<Vec<u8>> {
    use Compression::{Gzip, Lz4, None, Snappy, Zstd};
    let all = [None, Gzip, Snappy, Lz4, Zstd];
    let mut seeds: Vec<Vec<u8>> =
        all.into_iter().map(|compression| a_batch(compression).to_vec()).collect();
    seeds.push(seeds.concat());
    seeds
}

fn consumer_protocol(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    if let Ok(subscription) = ConsumerProtocolSubscription::from_bytes(bytes.clone()) {
        let _ = subscription.to_bytes();
    }
    if let Ok(assignment) = ConsumerProtocolAssignment::from_bytes(bytes) {
        let _ = assignment.to_bytes();
    }
}

fn consumer_protocol_seeds() -> Vec<Vec<u8>> {
    let topic = ConsumerProtocolTopic { topic: "orders".into(), partitions: vec![0, 1, 2] };
    let subscription = ConsumerProtocolSubscription {
        topics: vec!["orders".into()],
        owned_partitions: vec![topic.clone()],
        ..Default::default()
    };
    let assignment =
        ConsumerProtocolAssignment { assigned_partitions: vec![topic], ..Default::default() };
    [subscription.to_bytes(), assignment.to_bytes()].into_iter().flatten().map(Into::into).collect()
}

/// The payload of a records blob, as replay and readers cut it.
fn records_blob(data: &[u8]) {
    let payload = Bytes::copy_from_slice(data);
    let base_offset = Offset::ZERO;
    if let Ok(slices) = batches_in(base_offset, payload.clone()) {
        let size_bytes: usize = slices.iter().map(BatchSlice::size_bytes).sum();
        assert_eq!(size_bytes, data.len());
    }
    let described = Payload::from(payload.clone());
    let header = BlobHeader::describe(BlobKind::Records, base_offset, 1, 0, &described);
    let mut state = PartitionState::default();
    if state.apply_blob(&header, payload).is_ok() {
        assert_eq!(PartitionState::decode(state.encode()), Ok(state));
    }
}

fn checkpoint(data: &[u8]) {
    let Ok(state) = PartitionState::decode(Bytes::copy_from_slice(data)) else { return };
    assert_eq!(PartitionState::decode(state.encode()), Ok(state.clone()));
    let _ = (state.size_bytes(), state.seek_timestamp(0, Offset::ZERO), state.producers.count());
}

fn checkpoint_seeds() -> Vec<Vec<u8>> {
    let mut state = PartitionState::default();
    let payload = a_batch(Compression::None);
    let described = Payload::from(payload.clone());
    let header = BlobHeader::describe(BlobKind::Records, Offset::ZERO, 4, 0, &described);
    let empty = state.encode().to_vec();
    state.apply_blob(&header, payload).expect("a good batch is replayed");
    vec![empty, state.encode().to_vec()]
}

/// A record of `__consumer_offsets`: the same bytes as its key and as its value.
fn group_offset(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    if let Ok((group, key)) = offset_record::decode_key(bytes.clone()) {
        assert_eq!(offset_record::encode_key(&group, key), bytes);
    }
    if let Ok(committed) = offset_record::decode_value(bytes.clone()) {
        assert_eq!(offset_record::encode_value(&committed), bytes);
    }
}

/// A record about a group: the same bytes as its key and as its value.
fn group_record(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let _ = group_record::decode_key(bytes.clone());
    if let Ok(record) = group_record::decode_value::<ClassicRecord>(bytes) {
        let encoded = group_record::encode_value(&record);
        assert_eq!(group_record::decode_value(encoded), Ok(record));
    }
}

/// What nodes ask each other about transactions.
fn peer_message(data: &[u8]) {
    let Ok(message) = PeerMessage::decode(Bytes::copy_from_slice(data)) else { return };
    assert_eq!(PeerMessage::decode(message.encode()), Ok(message));
}

fn peer_message_seeds() -> Vec<Vec<u8>> {
    let written = PeerReply::MarkersWritten(vec![MarkerOutcome::Written, MarkerOutcome::Retry]);
    let member = QuorumMember { member: RaftId::first(NodeId::new(3)), last_index: 9 };
    let quorum = Quorum { term: 2, voters: vec![member], ..Quorum::default() };
    let leading = PeerReply::Leading(vec![true, false]);
    let applied = PeerReply::HasApplied(true);
    let findings = PeerReply::Health(Bytes::from_static(b"[]"));
    let quorum = PeerReply::Quorum(Some(quorum));
    let verified = PeerReply::Verified(Ok(()));
    let replies = [written, leading, verified, quorum, applied, findings];
    replies.map(|reply| PeerMessage::Reply(CallId(7), reply).encode().to_vec()).into()
}

fn group_record_seeds() -> Vec<Vec<u8>> {
    let head = [1, 14, 1, b't', 1, b'p', 0, 1];
    let member = [1, b'm', 1, 1, b'i', 1, b'c', 1, b'h', 1, 2, 1, 3, 2, 4, 5, 2];
    let mut seeds = group_offset_seeds();
    seeds.extend([group_record::classic_key("g").to_vec(), [&head[..], &member].concat()]);
    seeds
}

fn group_offset_seeds() -> Vec<Vec<u8>> {
    let key = OffsetKey { topic: TopicId::new(77), index: 3 };
    let committed = Committed {
        offset: 5,
        leader_epoch: 1,
        metadata: "from here".to_owned(),
        committed_at_ms: 9,
    };
    vec![
        offset_record::encode_key("group", key).into(),
        offset_record::encode_value(&committed).into(),
    ]
}

fn follow_message(data: &[u8]) {
    let Ok(message) = FollowMessage::decode(Bytes::copy_from_slice(data)) else { return };
    assert_eq!(FollowMessage::decode(message.encode()), Ok(message));
}

fn follow_message_seeds() -> Vec<Vec<u8>> {
    let numbers = |numbers: &[u64]| -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
    };
    let (partition, step, high_watermark, log_start_offset) = (3, 1, 7, 0);
    let follow = [vec![0], numbers(&[partition, 5])].concat();
    let mut progress = [vec![1], numbers(&[partition])].concat();
    progress.extend(2u32.to_be_bytes()); // generation
    progress.extend(numbers(&[step, high_watermark, log_start_offset]));
    progress.extend(1i32.to_be_bytes()); // leader epoch
    progress.extend(numbers(&[0, 1, 7])); // aborted transactions: first, count, last stable offset
    progress.extend(1u32.to_be_bytes());
    progress.extend(numbers(&[9, 2, 3, 4]));
    let lineage = Start {
        previous: None,
        base_offset: Offset::ZERO,
        tail_length: 0,
        log_start_offset: Offset::ZERO,
        past: Vec::new(),
        epochs: Vec::new(),
        checkpoint: None,
    };
    let whole = [progress.clone(), lineage.encode().to_vec()].concat();
    vec![follow, progress, whole]
}

fn metadata_frame(data: &[u8]) {
    let frame = Bytes::copy_from_slice(data);
    if let Some(decoded) = MetaFrame::decode(&frame) {
        assert_eq!(decoded.encode().concat(), data);
    }
}

fn metadata_frame_seeds() -> Vec<Vec<u8>> {
    (MetaFrame::KIND_MIN..=MetaFrame::KIND_MAX)
        .flat_map(|kind| [0, 1, 4, 16].map(|size| [vec![kind], vec![1; size]].concat()))
        .collect()
}

/// The bytes of a stream, in chunks as large as the first byte says.
fn quic_frames(data: &[u8]) {
    const FRAME_BYTES_MAX: usize = 1000;
    let Some((chunk_size, stream)) = data.split_first() else { return };
    let mut reader = FrameReader::new(FRAME_BYTES_MAX);
    let mut bytes_read = 0;
    for chunk in stream.chunks(usize::from(*chunk_size).max(1)) {
        let pushed = reader.push(Bytes::copy_from_slice(chunk), &mut |frame| {
            assert!(frame.len() <= FRAME_BYTES_MAX);
            bytes_read += frame.len() + 4;
        });
        if pushed.is_err() {
            break;
        }
    }
    assert!(bytes_read <= stream.len(), "no byte comes from nowhere");
}

fn quic_frames_seeds() -> Vec<Vec<u8>> {
    let frames = [0_u8, 0, 0, 3, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 1, 9];
    [1, 5, 255].map(|chunk_size| [&[chunk_size], frames.as_slice()].concat()).into()
}

fn certificate_name(data: &[u8]) {
    let _ = tls::node_of(&CertificateDer::from(data), &a_cluster());
}

fn a_cluster() -> ClusterId {
    ClusterId::from_entropy(5)
}

fn certificate_seeds() -> Vec<Vec<u8>> {
    let name = tls::node_name(NodeId::new(3), &a_cluster()).expect("a short cluster id");
    let names = [vec![name.clone()], vec![name.clone(), name], vec!["ca.meridian".to_owned()]];
    let made = names.into_iter().filter_map(|names| {
        let key = rcgen::KeyPair::generate().ok()?;
        let parameters = rcgen::CertificateParams::new(names).ok()?;
        Some(parameters.self_signed(&key).ok()?.der().to_vec())
    });
    made.collect()
}

fn http_request(data: &[u8]) {
    if let Ok(path) = http::path_of(data) {
        assert!(path.starts_with('/') && !path.contains('?'));
    }
}

fn http_request_seeds() -> Vec<Vec<u8>> {
    let heads = ["GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n", "POST / HTTP/1.0\r\n\r\n"];
    heads.map(|head| head.as_bytes().to_vec()).into()
}

fn config_toml(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // A fuzzer asks no name server.
    let names_a_host = toml::from_str(text).is_ok_and(|value| names_a_host(&value));
    if names_a_host {
        return;
    }
    if let Err(error) = NodeConfig::from_toml(text, Path::new("/etc/meridian")) {
        assert!(!error.to_string().is_empty());
    }
}

/// Whether a string in it is an address that would have to be resolved.
fn names_a_host(value: &toml::Value) -> bool {
    match value {
        toml::Value::String(text) => text.contains(':') && text.parse::<SocketAddr>().is_err(),
        toml::Value::Array(values) => values.iter().any(names_a_host),
        toml::Value::Table(table) => table.values().any(names_a_host),
        _ => false,
    }
}

fn config_toml_seeds() -> Vec<Vec<u8>> {
    let member = r#"
        data = "node-1"
        [node]
        id = 1
        datacenter = "A"
        rack = "A1"
        [listen]
        kafka = "127.0.0.1:9092"
        peer = "127.0.0.1:19092"
        [cluster]
        id = "abcdefghijklmnopqrstuv"
        geometry = "none"
        [[cluster.nodes]]
        id = 1
        datacenter = "A"
        rack = "A1"
        peer = "127.0.0.1:19092"
        [kafka]
        auto_create_topics = false
        [limits]
        connection_count_max = 100
        [tls]
        folder = "tls"
    "#;
    vec![member.as_bytes().to_vec()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_bears_any_bytes() {
        meridian_base::fuzz::exercise_all(TARGETS, 1500);
    }
}
