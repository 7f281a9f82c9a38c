//! Fuzz targets of this crate and of the Kafka protocol: what clients, peers and operators send. See
//! [`meridian_base::fuzz`].

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use meridian_access::{
    Claim, Credential, Mechanism, NameRules, ScramFirst, ScramHash, TokenKeys, TokenRules,
    UserName, holder_of,
};
use meridian_base::fuzz::Target;
use meridian_base::id::{ClusterId, NodeId};
use meridian_base::position::Offset;
use meridian_consensus::membership::RaftId;
use meridian_protocol::frame::{decode_request, decode_response_to, encode_request};
use meridian_protocol::messages::{
    MetadataRequest, ProducePartition, ProduceRequest, ProduceTopic,
};
use meridian_protocol::records::Batch;
use meridian_protocol::{ApiKey, Request, RequestMessage};
use meridian_storage::lineage::Start;
use rustls::pki_types::CertificateDer;

use crate::admin::http;
use crate::config::NodeConfig;
use crate::log::follower::FollowMessage;
use crate::meta::MetaFrame;
use crate::peers::wire::{CallId, MarkerOutcome, PeerMessage, PeerReply};
use crate::peers::wire::{Quorum, QuorumMember};
use crate::runtime::quic::framing::FrameReader;
use crate::runtime::tls;

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "kafka_request", run: kafka_request, seeds: kafka_request_seeds },
    Target { name: "kafka_response", run: kafka_response, seeds: kafka_response_seeds },
    Target { name: "peer_message", run: peer_message, seeds: peer_message_seeds },
    Target { name: "follow_message", run: follow_message, seeds: follow_message_seeds },
    Target { name: "metadata_frame", run: metadata_frame, seeds: metadata_frame_seeds },
    Target { name: "quic_frames", run: quic_frames, seeds: quic_frames_seeds },
    Target { name: "certificate_name", run: certificate_name, seeds: certificate_seeds },
    Target { name: "user_of_certificate", run: user_of_certificate, seeds: certificate_seeds },
    Target { name: "login", run: login, seeds: login_seeds },
    Target { name: "scram_exchange", run: scram_exchange, seeds: scram_exchange_seeds },
    Target { name: "token", run: token, seeds: token_seeds },
    Target { name: "http_request", run: http_request, seeds: http_request_seeds },
    Target { name: "config_toml", run: config_toml, seeds: config_toml_seeds },
];

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
    let partition = ProducePartition {
        index: 0,
        records: Some(meridian_broker::fuzz::a_batch(
            meridian_protocol::records::Compression::None,
        )),
    };
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

/// The user that a client's certificate names.
fn user_of_certificate(data: &[u8]) {
    for name in [UserName::Dn, UserName::Cn, UserName::Spiffe, UserName::Dns] {
        if let Ok(user) = meridian_access::user_of(data, name, &NameRules::default()) {
            assert!(!user.name.is_empty());
        }
    }
}

/// The first message of a client that logs in.
fn login(data: &[u8]) {
    for mechanism in Mechanism::ALL {
        let _ = Claim::begin(mechanism, data);
    }
}

fn login_seeds() -> Vec<Vec<u8>> {
    let messages = ["\0al\0hush", "n,,n=al,r=nonce", "n,a=al,n=al,r=nonce,tokenauth=true"];
    let mut seeds: Vec<Vec<u8>> = messages.iter().map(|it| it.as_bytes().to_vec()).collect();
    seeds.push(b"n,a=al,\x01auth=Bearer a.b.c\x01key=value\x01\x01".to_vec());
    seeds
}

/// Both messages of a client of SCRAM, a zero between them: nobody proves to be a user that there is not.
fn scram_exchange(data: &[u8]) {
    let at = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    let (first, last) = data.split_at(at);
    let Ok(first) = ScramFirst::parse(first) else { return };
    let nobody = Credential::of_nobody(ScramHash::Sha256, "al", b"secret", &[]);
    let (_, server) = first.challenge(nobody, "ours");
    assert!(server.finish(last.get(1..).unwrap_or_default()).is_err());
}

fn scram_exchange_seeds() -> Vec<Vec<u8>> {
    let proof = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    vec![format!("n,,n=al,r=a\0c=biws,r=aours,p={proof}").into_bytes()]
}

/// The public key of RFC 7515, A.3, and a token that it has not signed.
const TOKEN_KEY: &str = r#"{"keys":[{"kty":"EC","crv":"P-256",
    "x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#;
const TOKEN: &str = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLCJhdWQiOiJrYWZrYSIsImV4cCI6MTMwMDgxOTM4MH0.\
    DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";

/// A token that nobody has signed makes nobody a user.
fn token(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(keys) = TokenKeys::parse(TOKEN_KEY) else { return };
    let rules = TokenRules {
        issuer: "joe".to_owned(),
        audiences: vec!["kafka".to_owned()],
        user_claim: "iss".to_owned(),
        clock_skew: Duration::ZERO,
    };
    assert!(holder_of(text, &keys, &rules, Duration::ZERO).is_err());
    let _ = TokenKeys::parse(text);
}

fn token_seeds() -> Vec<Vec<u8>> {
    vec![TOKEN.as_bytes().to_vec(), TOKEN_KEY.as_bytes().to_vec()]
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
    if let Ok(asked) = http::asked(data) {
        assert!(asked.path.starts_with('/') && !asked.path.contains('?'));
    }
}

fn http_request_seeds() -> Vec<Vec<u8>> {
    let heads = [
        "GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\nAuthorization: Basic YWw6aHVzaA==\r\n\r\n",
        "POST / HTTP/1.0\r\n\r\n",
    ];
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
