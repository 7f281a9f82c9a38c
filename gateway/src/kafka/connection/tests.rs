use std::time::Duration;

use meridian_protocol::messages::{self, ApiVersionsRequest, MetadataRequest};
use meridian_protocol::{RequestMessage, frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::config::FrontConfig;
use crate::kafka::dispatch;
use crate::kafka::memory::Kind;
use crate::kafka::testing::{
    FakeBroker, TestClient, batch_of, front_of, quick_config, versions_request,
};

fn client() -> TestClient {
    TestClient::connect(&front_of(&FakeBroker::three_datacenters(), quick_config()))
}

fn frame_of(body: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(body.len()).unwrap().to_be_bytes().to_vec();
    frame.extend_from_slice(body);
    frame
}

#[tokio::test]
async fn bad_input_closes_the_connection_with_its_reason() {
    let metadata_with_huge_array =
        frame_of(&[0, 3, 0, 1, 0, 0, 0, 1, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff]);
    let cases: [(&str, Vec<u8>, &str); 8] = [
        ("garbage", b"GET / HTTP/1.1\r\n\r\n".to_vec(), "oversized"),
        ("a negative size", vec![0xff; 8], "oversized"),
        ("one byte over the limit", vec![0, 0x20, 0, 1], "oversized"),
        ("nothing in the frame", vec![0; 4], "malformed"),
        ("an unknown API", frame_of(&[0, 99, 0, 0, 0, 0, 0, 1, 0xff, 0xff]), "unsupported"),
        ("an API between brokers", frame_of(&[0, 4, 0, 0, 0, 0, 0, 1, 0xff, 0xff]), "unsupported"),
        ("produce of old", frame_of(&[0, 0, 0, 2, 0, 0, 0, 1, 0xff, 0xff]), "unsupported"),
        ("an array longer than its frame", metadata_with_huge_array, "malformed"),
    ];
    for (what, bytes, reason) in cases {
        let front = front_of(&FakeBroker::three_datacenters(), quick_config());
        let mut client = TestClient::connect(&front);
        client.write(&bytes).await;
        let close = client.closed().await;
        assert_eq!(close.reason(), reason, "{what}: {close}");
        assert!(Close::REASONS.contains(&close.reason()));
    }
}

#[tokio::test]
async fn every_api_we_announce_is_decoded_and_announced_as_decoded() {
    let mut client = client();
    for version in 0..=4 {
        let response = client.call(version, versions_request()).await;
        assert_eq!(response.error_code, ErrorCode::None);
        assert_eq!(response.api_keys.len(), dispatch::SERVED.len() - 1, "all but our private one");
        let produce = response.api_keys.iter().find(|api| api.api_key == 0).unwrap();
        assert_eq!((produce.min_version, produce.max_version), (0, 13));
    }
}

#[tokio::test]
async fn who_does_not_say_who_it_is_is_refused_as_kafka_refuses_it() {
    let mut client = client();
    let (none, invalid) = (ErrorCode::None, ErrorCode::InvalidRequest);
    for (what, version, name, number, code) in [
        ("well", 4, "apache-kafka-java", "4.1.0", none),
        ("one letter", 3, "k", "1", none),
        ("no name", 4, "", "1.0", invalid),
        ("no version", 3, "kafka", "", invalid),
        ("no name, before there were names", 2, "", "", none),
        ("a blank", 3, "my client", "1.0", invalid),
        ("an underline", 3, "my_client", "1.0", invalid),
        ("a dash at its start", 3, "-kafka", "1.0", invalid),
        ("a dot at its end", 3, "kafka", "1.0.", invalid),
        ("a letter of another alphabet", 3, "k\u{e4}fka", "1.0", invalid),
        ("a line of a log", 3, "kafka\nERROR", "1.0", invalid),
    ] {
        let request = ApiVersionsRequest {
            client_software_name: name.into(),
            client_software_version: number.into(),
        };
        let told = client.call(version, request).await;
        assert_eq!((told.error_code, told.api_keys.is_empty()), (code, code != none), "{what}");
    }
}

#[tokio::test]
async fn a_client_from_the_future_is_told_our_versions_in_version_0() {
    let mut client = client();
    client.write(&frame_of(&[0, 18, 0, 99, 0, 0, 0, 7, 0xff, 0xff, 0, 1, 2, 3])).await;
    let response = client.receive::<ApiVersionsRequest>(0, 7).await;
    assert_eq!(response.error_code, ErrorCode::UnsupportedVersion);
    assert!(!response.api_keys.is_empty());
    let again = client.call(4, versions_request()).await;
    assert_eq!(again.error_code, ErrorCode::None, "the connection goes on");
}

#[tokio::test]
async fn requests_in_one_write_or_byte_by_byte_are_answered_in_order() {
    let mut client = client();
    let encode = |id| {
        let request = MetadataRequest { topics: Some(Vec::new()), ..Default::default() };
        frame::encode_request(12, id, None, &request).unwrap().into_bytes()
    };
    let mut pipelined = Vec::new();
    for id in 100..200 {
        pipelined.extend_from_slice(&encode(id));
    }
    client.write(&pipelined).await;
    for id in 100..200 {
        client.receive::<MetadataRequest>(12, id).await;
    }
    for byte in encode(5) {
        client.write(&[byte]).await;
    }
    client.receive::<MetadataRequest>(12, 5).await;
}

#[tokio::test]
async fn answers_that_are_due_are_sent_after_the_client_has_said_all() {
    let mut client = client();
    let id = client.send(12, &MetadataRequest::default()).await;
    client.stream.shutdown().await.unwrap();
    client.receive::<MetadataRequest>(12, id).await;
    assert_eq!(client.closed().await.reason(), "client");
}

#[tokio::test]
async fn a_node_that_stops_answers_what_is_due_and_closes() {
    let mut client = client();
    let id = client.send(12, &MetadataRequest::default()).await;
    client.receive::<MetadataRequest>(12, id).await;
    client.stop.send_replace(true);
    assert_eq!(client.closed().await.reason(), "shutdown");
}

#[tokio::test(start_paused = true)]
async fn slow_and_silent_clients_are_cut_off() {
    // Half open: connected, and nothing comes.
    let silent = client();
    assert_eq!(silent.closed().await.reason(), "silent");

    // One request, then nothing.
    let mut idle = client();
    idle.call(12, MetadataRequest::default()).await;
    assert_eq!(idle.closed().await.reason(), "idle");

    // A request that never ends, one byte in a while.
    let mut slow = client();
    slow.write(&[0, 0, 1, 0]).await;
    let trickle = async {
        while slow.stream.write_all(&[0]).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    timeout(Duration::from_secs(120), trickle).await.unwrap();
    assert_eq!(slow.closed().await.reason(), "slow-request");

    // One that asks on and on, and never reads.
    let mut deaf = client();
    let ask = frame::encode_request(12, 1, None, &MetadataRequest::default()).unwrap().into_bytes();
    while deaf.stream.write_all(&ask).await.is_ok() {}
    assert_eq!(deaf.closed.await.unwrap().reason(), "slow-reader");
}

/// A Metadata request of this many bytes, or a few more.
fn metadata_request(size_bytes: usize) -> Vec<u8> {
    let name = "n".repeat(200);
    let topic = |number| messages::MetadataRequestTopic {
        name: Some(format!("{name}{number}").into()),
        ..Default::default()
    };
    let topics = Some((0..size_bytes.div_ceil(200)).map(topic).collect());
    let request = MetadataRequest { topics, ..Default::default() };
    frame::encode_request(8, 1, None, &request).unwrap().into_bytes().to_vec()
}

#[tokio::test(start_paused = true)]
async fn a_full_account_stops_the_reading_not_the_node() {
    let config = FrontConfig { memory_size_bytes_max: 160 << 10, ..quick_config() };
    let front = front_of(&FakeBroker::three_datacenters(), config);
    let mut client = TestClient::connect(&front);
    let other = front.memory.holder();
    let mut charge = other.charge(Kind::Small);
    charge.take(10 << 10).await;
    client.write(&metadata_request(4 << 10)).await;
    let answer = timeout(Duration::from_secs(600), client.stream.read_i32()).await;
    assert!(answer.is_err(), "answered without memory");
    drop(charge);
    let size = client.stream.read_i32().await.unwrap();
    client.stream.read_exact(&mut vec![0; size as usize]).await.unwrap();
    // What is small goes by meanwhile.
    let mut charge = other.charge(Kind::Small);
    charge.take(10 << 10).await;
    client.call(12, MetadataRequest { topics: Some(Vec::new()), ..Default::default() }).await;
    drop((charge, other));
    assert_eq!(front.memory.usage().map(|(_, used, _)| used), [0; 4], "given back");
    drop(client.stream);
    assert_eq!(client.closed.await.unwrap().reason(), "client");
}

/// Little memory, and so much patience with clients that they end only by giving way.
fn patient_config() -> FrontConfig {
    FrontConfig {
        memory_size_bytes_max: 4 << 20,
        request_timeout: Duration::from_secs(600),
        write_stall_timeout: Duration::from_secs(600),
        ..quick_config()
    }
}

fn produce_request(value_bytes: usize) -> messages::ProduceRequest {
    let records = Some(batch_of(&["x".repeat(value_bytes).as_str()]));
    let topic = messages::ProduceTopic {
        name: "t".into(),
        partition_data: vec![messages::ProducePartition { index: 0, records }],
        ..Default::default()
    };
    let topic_data = vec![topic];
    messages::ProduceRequest { acks: -1, timeout_ms: 10_000, topic_data, ..Default::default() }
}

fn fetch_request() -> messages::FetchRequest {
    let partition = messages::FetchPartition { partition_max_bytes: 1 << 20, ..Default::default() };
    let topic = messages::FetchTopic {
        topic: "t".into(),
        partitions: vec![partition],
        ..Default::default()
    };
    let topics = vec![topic];
    messages::FetchRequest { topics, session_epoch: -1, max_bytes: 1 << 20, ..Default::default() }
}

/// Six clients announce a request of the largest size, send almost all of it at once, and then little by
/// little: another one is served all the same.
#[tokio::test]
async fn requests_that_never_end_give_way_to_those_that_do() {
    let front = front_of(&FakeBroker::single(), patient_config());
    let mut honest = TestClient::connect(&front);
    honest.create_topic("t", 1).await;
    let mut hostile = Vec::new();
    for _ in 0..6 {
        let mut client = TestClient::connect(&front);
        let size: u32 = 2 << 20;
        client.write(&size.to_be_bytes()).await;
        client.write(&[0, 0, 0, 9]).await;
        hostile.push(tokio::spawn(async move {
            let mut client = client;
            let mut sent = client.stream.write_all(&vec![0; (2 << 20) - 4096]).await;
            while sent.is_ok() {
                tokio::time::sleep(Duration::from_millis(10)).await;
                sent = client.stream.write_all(&[0]).await;
            }
            client.closed.await.unwrap().reason()
        }));
    }
    while front.memory.usage()[Kind::Records as usize].1 < 1 << 20 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let told = honest.call(9, produce_request(100_000)).await;
    assert_eq!(told.responses[0].partition_responses[0].error_code, ErrorCode::None);
    let mut gave_way = 0;
    for sending in hostile {
        if sending.is_finished() {
            assert_eq!(sending.await.unwrap(), "gave-way");
            gave_way += 1;
        } else {
            sending.abort();
        }
    }
    assert!(gave_way > 0);
}

/// Requests that wait behind a fetch that waits for ever are not decoded, and are few.
#[tokio::test]
async fn requests_behind_one_that_waits_take_little() {
    let front = front_of(&FakeBroker::single(), quick_config());
    let mut client = TestClient::connect(&front);
    client.create_topic("t", 1).await;
    let fetch = messages::FetchRequest { min_bytes: 1, max_wait_ms: i32::MAX, ..fetch_request() };
    client.send(12, &fetch).await;
    // Empty names: an array of them takes many times what they take in a request.
    let mut names = vec![0, 3, 0, 1, 0, 0, 0, 2, 0xff, 0xff];
    let name_count = 100_000u32;
    names.extend_from_slice(&name_count.to_be_bytes());
    names.resize(names.len() + 2 * name_count as usize, 0);
    let names = frame_of(&names);
    let sending = async {
        loop {
            client.stream.write_all(&names).await.unwrap();
        }
    };
    assert!(timeout(Duration::from_millis(500), sending).await.is_err(), "it is not read any more");
    let used: usize = front.memory.usage().iter().map(|(_, used, _)| used).sum();
    assert!(used > 100_000 && used <= reader::OTHERS_IN_FLIGHT_BYTES_MAX, "{used}");
}

/// Clients that never read what they have asked for give way to those that do.
#[tokio::test]
async fn answers_that_nobody_reads_give_way_to_those_that_are_read() {
    let front = front_of(&FakeBroker::single(), patient_config());
    let mut honest = TestClient::connect(&front);
    honest.create_topic("t", 1).await;
    honest.call(9, produce_request(900_000)).await;
    let mut deaf = Vec::new();
    for _ in 0..6 {
        let mut client = TestClient::connect(&front);
        client.send(12, &fetch_request()).await;
        deaf.push(client);
    }
    let used = || front.memory.usage()[Kind::Answers as usize];
    while used().1 < 900_000 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let told = honest.call(12, fetch_request()).await;
    assert_eq!(told.responses[0].partitions[0].error_code, ErrorCode::None);
    assert!(used().1 <= used().2);
    let mut gave_way = 0;
    for client in deaf {
        if client.closed.is_finished() {
            assert_eq!(client.closed.await.unwrap().reason(), "gave-way");
            gave_way += 1;
        }
    }
    assert!(gave_way > 0);
}

/// Sends an empty request in each version and expects an answer to each.
async fn all_versions<R: RequestMessage + Default>(
    client: &mut TestClient,
    tried: &mut Vec<ApiKey>,
) {
    for version in R::API.versions() {
        client.call(version, R::default()).await;
    }
    tried.push(R::API);
}

macro_rules! try_all {
    ($client:ident, $tried:ident, $($request:ident),*) => {
        $(all_versions::<messages::$request>($client, $tried).await;)*
    };
}

async fn try_configs_and_later(client: &mut TestClient, tried: &mut Vec<ApiKey>) {
    try_all!(
        client,
        tried,
        DescribeConfigsRequest,
        AlterConfigsRequest,
        AlterReplicaLogDirsRequest,
        DescribeLogDirsRequest,
        SaslAuthenticateRequest,
        CreatePartitionsRequest,
        CreateDelegationTokenRequest,
        RenewDelegationTokenRequest,
        ExpireDelegationTokenRequest,
        DescribeDelegationTokenRequest,
        DeleteGroupsRequest,
        ElectLeadersRequest,
        IncrementalAlterConfigsRequest,
        AlterPartitionReassignmentsRequest,
        ListPartitionReassignmentsRequest,
        OffsetDeleteRequest,
        DescribeClientQuotasRequest,
        AlterClientQuotasRequest,
        DescribeUserScramCredentialsRequest,
        AlterUserScramCredentialsRequest,
        DescribeQuorumRequest,
        UpdateFeaturesRequest,
        DescribeClusterRequest,
        DescribeProducersRequest,
        UnregisterBrokerRequest,
        DescribeTransactionsRequest,
        ListTransactionsRequest,
        ConsumerGroupHeartbeatRequest,
        ConsumerGroupDescribeRequest,
        GetTelemetrySubscriptionsRequest,
        PushTelemetryRequest,
        ListConfigResourcesRequest,
        DescribeTopicPartitionsRequest,
        ShareGroupHeartbeatRequest,
        ShareGroupDescribeRequest,
        ShareFetchRequest,
        ShareAcknowledgeRequest,
        DescribeShareGroupOffsetsRequest,
        AlterShareGroupOffsetsRequest,
        DeleteShareGroupOffsetsRequest,
        MeridianAdminRequest
    );
}

#[tokio::test]
async fn an_empty_request_of_any_api_and_version_is_answered() {
    for broker in [FakeBroker::three_datacenters(), FakeBroker::single()] {
        let mut client = TestClient::connect(&front_of(&broker, quick_config()));
        client.create_topic("t", 1).await;
        // An empty produce request asks for no acknowledgement, hence for no answer.
        let mut tried = vec![ApiKey::Produce];
        let (client, tried) = (&mut client, &mut tried);
        try_all!(
            client,
            tried,
            FetchRequest,
            ListOffsetsRequest,
            MetadataRequest,
            OffsetCommitRequest,
            OffsetFetchRequest,
            FindCoordinatorRequest,
            JoinGroupRequest,
            HeartbeatRequest,
            LeaveGroupRequest,
            SyncGroupRequest,
            DescribeGroupsRequest,
            ListGroupsRequest,
            SaslHandshakeRequest,
            ApiVersionsRequest,
            CreateTopicsRequest,
            DeleteTopicsRequest,
            DeleteRecordsRequest,
            InitProducerIdRequest,
            OffsetForLeaderEpochRequest,
            AddPartitionsToTxnRequest,
            AddOffsetsToTxnRequest,
            EndTxnRequest,
            WriteTxnMarkersRequest,
            TxnOffsetCommitRequest,
            DescribeAclsRequest,
            CreateAclsRequest,
            DeleteAclsRequest
        );
        try_configs_and_later(client, tried).await;
        assert_eq!(*tried, dispatch::SERVED, "all that is served was tried");
    }
}
