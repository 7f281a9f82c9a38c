use meridian_protocol::RequestMessage;
use meridian_protocol::messages::{self, ApiVersionsRequest, MetadataRequest};

use super::*;
use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config, versions_request};

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

#[tokio::test(start_paused = true)]
async fn a_full_budget_stops_the_reading_not_the_node() {
    let front = front_of(&FakeBroker::three_datacenters(), quick_config());
    let total = Arc::new(Semaphore::new(100));
    let budgets = Budgets { own: Arc::new(Semaphore::new(1 << 20)), total: Arc::clone(&total) };
    let (mut stream, theirs) = tokio::io::duplex(1 << 16);
    let (_stop, stopped) = watch::channel(false);
    let serving = {
        let front = Arc::clone(&front);
        tokio::spawn(async move {
            let client = Client::new(([127, 0, 0, 1], 1).into());
            serve(&front, theirs, client, budgets, stopped).await
        })
    };
    let held = Arc::clone(&total).acquire_many_owned(100).await.unwrap();
    let ask = frame::encode_request(12, 1, None, &MetadataRequest::default()).unwrap().into_bytes();
    stream.write_all(&ask).await.unwrap();
    let answer = timeout(Duration::from_secs(600), stream.read_i32()).await;
    assert!(answer.is_err(), "answered without budget");
    drop(held);
    assert!(stream.read_i32().await.unwrap() > 0);
    assert_eq!(total.available_permits(), 100, "given back with the answer");
    drop(stream);
    assert_eq!(serving.await.unwrap().reason(), "client");
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

#[tokio::test]
async fn an_empty_request_of_any_api_and_version_is_answered() {
    macro_rules! try_all {
        ($client:ident, $tried:ident, $($request:ident),*) => {
            $(all_versions::<messages::$request>(&mut $client, &mut $tried).await;)*
        };
    }
    for broker in [FakeBroker::three_datacenters(), FakeBroker::single()] {
        let mut client = TestClient::connect(&front_of(&broker, quick_config()));
        client.create_topic("t", 1).await;
        // An empty produce request asks for no acknowledgement, hence for no answer.
        let mut tried = vec![ApiKey::Produce];
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
            DeleteAclsRequest,
            DescribeConfigsRequest,
            AlterConfigsRequest,
            DescribeLogDirsRequest,
            CreatePartitionsRequest,
            DeleteGroupsRequest,
            ElectLeadersRequest,
            IncrementalAlterConfigsRequest,
            AlterPartitionReassignmentsRequest,
            ListPartitionReassignmentsRequest,
            OffsetDeleteRequest,
            DescribeClientQuotasRequest,
            AlterClientQuotasRequest,
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
            MeridianAdminRequest
        );
        assert_eq!(tried, dispatch::SERVED, "all that is served was tried");
    }
}
