//! A link takes what it is granted, and learns nothing of all else.

use meridian_access::ScramHash;
use meridian_admin_api::Method;
use meridian_admin_api::access::Credentials;
use meridian_admin_api::methods::AccessCredentials;
use meridian_protocol::messages::{
    AclCreation, AddPartitionsToTxnRequest, AddPartitionsToTxnTopic,
    AlterUserScramCredentialsRequest, CreateAclsRequest, DescribeAclsRequest,
    DescribeClientQuotasRequest, DescribeClusterRequest, DescribeConfigsRequest,
    DescribeConfigsResource, DescribeTransactionsRequest, FetchPartition, FetchRequest, FetchTopic,
    FindCoordinatorRequest, InitProducerIdRequest, ListGroupsRequest, ListOffsetsPartition,
    ListOffsetsRequest, ListOffsetsTopic, ListTransactionsRequest, OffsetFetchGroup,
    OffsetFetchRequest, ScramCredentialUpsertion,
};
use meridian_protocol::{RequestMessage, Str, Uuid};

use super::*;
use crate::kafka::access::Rights;
use crate::kafka::dispatch::SERVED;
use crate::kafka::link_rights;
use crate::kafka::testing::TestClient;

const GRANTED: &str = "orders";
const OTHER: &str = "bills";
const MISSING: &str = "nowhere";

/// A source with two topics, and a connection of a link.
struct Linked {
    source: Source,
    connection: Connection,
}

impl Linked {
    async fn start() -> Self {
        let source = Source::of(FakeBroker::single());
        let mut client = TestClient::connect(&source.front);
        client.create_topic(GRANTED, 1).await;
        client.create_topic(OTHER, 1).await;
        let link = source.ca.issue_link("east", validity()).unwrap();
        let connection = source.dial(link).await.unwrap();
        Self { source, connection }
    }

    fn allow(&self, change: impl FnOnce(&mut LinkGrant)) {
        let mut grant = LinkGrant { topics: Some(GRANTED.to_owned()), ..LinkGrant::default() };
        change(&mut grant);
        self.source.grant("east", Some(&grant));
    }

    async fn ask<R: RequestMessage>(&self, request: &R) -> R::Response {
        self.connection.call(request, PATIENCE).await.unwrap()
    }

    /// The names that Metadata of all topics gives.
    async fn seen(&self) -> Vec<String> {
        let topics = self.ask(&MetadataRequest::default()).await.topics;
        topics.into_iter().filter_map(|it| Some(it.name?.to_string())).collect()
    }

    async fn named(&self, name: &str) -> ErrorCode {
        let topic = MetadataRequestTopic { name: Some(name.into()), ..Default::default() };
        let asked = MetadataRequest { topics: Some(vec![topic]), ..Default::default() };
        let answer = self.ask(&asked).await.topics.remove(0);
        if answer.error_code == ErrorCode::TopicAuthorizationFailed {
            assert_eq!((answer.topic_id, answer.partitions.len()), (Uuid::ZERO, 0), "{name}");
        }
        answer.error_code
    }

    async fn fetched(&self, topic: &str) -> ErrorCode {
        let topic_id = self.source.broker.topic_uuid(topic);
        let partition = FetchPartition { partition_max_bytes: 1024, ..Default::default() };
        let wanted = FetchTopic { topic: topic.into(), topic_id, partitions: vec![partition] };
        let request = FetchRequest { topics: vec![wanted], max_wait_ms: 0, ..Default::default() };
        let answer = self.ask(&request).await;
        answer.responses[0].partitions[0].error_code
    }

    async fn listed(&self, topic: &str) -> ErrorCode {
        let partitions = vec![ListOffsetsPartition { timestamp: -2, ..Default::default() }];
        let topics = vec![ListOffsetsTopic { name: topic.into(), partitions }];
        let answer = self.ask(&ListOffsetsRequest { topics, ..Default::default() }).await;
        answer.topics[0].partitions[0].error_code
    }

    async fn configs(&self, resource_type: i8, name: &str) -> ErrorCode {
        let resource_name = Str::from(name);
        let resource =
            DescribeConfigsResource { resource_type, resource_name, ..Default::default() };
        let request = DescribeConfigsRequest { resources: vec![resource], ..Default::default() };
        self.ask(&request).await.results[0].error_code
    }

    async fn committed(&self, group: &str) -> ErrorCode {
        let group = OffsetFetchGroup { group_id: group.into(), ..Default::default() };
        let request = OffsetFetchRequest { groups: vec![group], ..Default::default() };
        self.ask(&request).await.groups[0].error_code
    }

    async fn method(&self, method: &str, body: &str) -> String {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let request = MeridianAdminRequest { method: method.into(), body };
        let answer = self.ask(&request).await;
        answer.error_message.map(|it| it.to_string()).unwrap_or_default()
    }
}

const DENIED: ErrorCode = ErrorCode::TopicAuthorizationFailed;
const TOPIC: i8 = 2;
const BROKER: i8 = 4;

#[tokio::test]
async fn a_link_without_a_grant_sees_nothing() {
    let linked = Linked::start().await;
    assert_eq!(linked.seen().await, [""; 0]);
    for topic in [GRANTED, MISSING] {
        assert_eq!(linked.named(topic).await, DENIED);
        assert_eq!(linked.listed(topic).await, DENIED);
        assert_eq!(linked.configs(TOPIC, topic).await, DENIED);
    }
    assert_eq!(linked.fetched(GRANTED).await, DENIED);
    assert_eq!(linked.committed("g").await, ErrorCode::GroupAuthorizationFailed);
    let quotas = linked.ask(&DescribeClientQuotasRequest::default()).await;
    assert_eq!(quotas.error_code, ErrorCode::ClusterAuthorizationFailed);
    assert_eq!(linked.configs(BROKER, "1").await, ErrorCode::ClusterAuthorizationFailed);
    let listed = linked.ask(&ListGroupsRequest::default()).await;
    assert_eq!((listed.error_code, listed.groups.len()), (ErrorCode::None, 0));
}

#[tokio::test]
async fn a_link_reads_what_it_is_granted_and_can_not_tell_all_else_from_what_is_not_there() {
    let linked = Linked::start().await;
    linked.allow(|grant| grant.groups = Some("g".to_owned()));
    assert_eq!(linked.seen().await, [GRANTED]);
    assert_eq!(linked.named(GRANTED).await, ErrorCode::None);
    assert_eq!(linked.fetched(GRANTED).await, ErrorCode::None);
    assert_eq!(linked.listed(GRANTED).await, ErrorCode::None);
    assert_eq!(linked.configs(TOPIC, GRANTED).await, ErrorCode::None);
    assert_ne!(linked.committed("g").await, ErrorCode::GroupAuthorizationFailed);
    for topic in [OTHER, MISSING, "__consumer_offsets"] {
        assert_eq!(linked.named(topic).await, DENIED, "{topic}");
        assert_eq!(linked.listed(topic).await, DENIED, "{topic}");
        assert_eq!(linked.configs(TOPIC, topic).await, DENIED, "{topic}");
    }
    assert_eq!(linked.fetched(OTHER).await, DENIED);
    assert_eq!(linked.committed("g2").await, ErrorCode::GroupAuthorizationFailed);
}

#[tokio::test]
async fn a_grant_that_is_taken_away_ends_with_the_next_request_of_a_connection() {
    let linked = Linked::start().await;
    linked.allow(|_| ());
    assert_eq!(linked.fetched(GRANTED).await, ErrorCode::None);
    linked.allow(|grant| grant.topics = Some(OTHER.to_owned()));
    assert_eq!(
        (linked.fetched(GRANTED).await, linked.fetched(OTHER).await),
        (DENIED, ErrorCode::None)
    );
    linked.source.grant("east", None);
    assert_eq!((linked.fetched(GRANTED).await, linked.fetched(OTHER).await), (DENIED, DENIED));
}

#[tokio::test]
async fn a_link_takes_over_no_topic_unless_it_is_granted() {
    let linked = Linked::start().await;
    linked.allow(|_| ());
    let of = |topic: &str| format!(r#"{{"topic":"{topic}"}}"#);
    for method in ["mirror.fence", "mirror.release", "mirror.reverse"] {
        for topic in [GRANTED, OTHER, MISSING] {
            let told = linked.method(method, &of(topic)).await;
            let advice = "`meridian link allow east --topics REGEX --switchover`";
            assert!(told.contains("not granted ALTER") && told.contains(advice), "{told}");
        }
    }
    let id = || Some(Str::from("billing"));
    let init = |transactional_id| InitProducerIdRequest {
        transactional_id,
        transaction_timeout_ms: 1000,
        ..Default::default()
    };
    let refused = ErrorCode::TransactionalIdAuthorizationFailed;
    assert_eq!(linked.ask(&init(id())).await.error_code, refused);
    assert_eq!(linked.ask(&init(None)).await.error_code, ErrorCode::ClusterAuthorizationFailed);
    let listed = linked.ask(&ListTransactionsRequest::default()).await;
    assert_eq!(listed.transaction_states.len(), 0);
    let transactional_ids = vec![Str::from("billing")];
    let described = linked.ask(&DescribeTransactionsRequest { transactional_ids }).await;
    assert_eq!(described.transaction_states[0].error_code, refused);
    let find = FindCoordinatorRequest {
        key_type: FindCoordinatorRequest::KEY_TYPE_GROUP,
        coordinator_keys: vec!["g".into()],
        ..Default::default()
    };
    let found = linked.ask(&find).await.coordinators;
    assert_eq!(found[0].error_code, ErrorCode::GroupAuthorizationFailed);

    linked.allow(|grant| grant.switchover = true);
    let told = linked.method("mirror.fence", &of(GRANTED)).await;
    assert!(!told.contains("not granted"), "{told}");
    let told = linked.method("mirror.fence", &of(OTHER)).await;
    assert!(told.contains("not granted ALTER on topic bills"), "{told}");
    // Its transaction is not open in a topic of the link.
    assert_ne!(linked.ask(&init(id())).await.error_code, ErrorCode::None);
}

/// A source's rules as `TYPE NAME`.
async fn rules(linked: &Linked) -> (ErrorCode, Vec<String>) {
    let request = DescribeAclsRequest {
        resource_type_filter: 1,
        pattern_type_filter: 1,
        operation: 1,
        permission_type: 1,
        ..Default::default()
    };
    let told = linked.ask(&request).await;
    let names = told.resources.iter().map(|it| {
        let sort = if it.pattern_type == 4 { "*" } else { "" };
        format!("{} {}{sort}", it.resource_type, it.resource_name)
    });
    (told.error_code, names.collect())
}

#[tokio::test]
async fn a_link_reads_the_rules_about_what_it_is_granted_and_nothing_else_of_the_cluster() {
    let linked = Linked::start().await;
    let mut operator = TestClient::connect(&linked.source.front);
    let creation = |resource_type, name: &str, resource_pattern_type| AclCreation {
        resource_type,
        resource_name: name.into(),
        resource_pattern_type,
        principal: "User:al".into(),
        host: "*".into(),
        operation: 4,
        permission_type: 3,
    };
    const GROUP: i8 = 3;
    let creations = vec![
        creation(TOPIC, GRANTED, 3),
        creation(TOPIC, OTHER, 3),
        creation(TOPIC, "*", 3),
        creation(TOPIC, "ord", 4),
        creation(TOPIC, "bil", 4),
        creation(GROUP, "g", 3),
        creation(5, GRANTED, 3),
    ];
    let created = operator.call(3, CreateAclsRequest { creations }).await;
    assert!(created.results.iter().all(|it| it.error_code == ErrorCode::None), "{created:?}");
    let refused = (ErrorCode::ClusterAuthorizationFailed, vec![]);
    assert_eq!(rules(&linked).await, refused);
    linked.allow(|grant| grant.quotas = true);
    assert_eq!(rules(&linked).await, refused);
    linked.allow(|grant| grant.acls = true);
    let of_topics = ["2 *", "2 orders", "2 ord*"].map(str::to_owned).to_vec();
    assert_eq!(rules(&linked).await, (ErrorCode::None, of_topics.clone()));
    linked.allow(|grant| {
        grant.acls = true;
        grant.groups = Some("g".to_owned());
    });
    let of_groups = vec!["3 g".to_owned()];
    assert_eq!(rules(&linked).await, (ErrorCode::None, [of_topics, of_groups].concat()));
    // Rules are all that it sees of the cluster.
    assert_eq!(linked.configs(BROKER, "1").await, ErrorCode::ClusterAuthorizationFailed);
    let described = linked.ask(&DescribeClusterRequest::default()).await;
    assert_ne!(described.cluster_authorized_operations & 1 << 8, 1 << 8);
    let told = linked.method("access.mode", "{}").await;
    assert!(told.contains("it is for mirrors only"), "{told}");
}

#[tokio::test]
async fn a_link_reads_credentials_only_if_it_is_granted() {
    let linked = Linked::start().await;
    let mut operator = TestClient::connect(&linked.source.front);
    let set = ScramCredentialUpsertion {
        name: "al".into(),
        mechanism: 1,
        iterations: 4096,
        salt: Bytes::from_static(b"salt"),
        salted_password: vec![7; 32].into(),
    };
    let request = AlterUserScramCredentialsRequest { deletions: vec![], upsertions: vec![set] };
    let results = operator.call(0, request).await.results;
    assert_eq!(results[0].error_code, ErrorCode::None, "{results:?}");

    linked.allow(|grant| grant.acls = true);
    let told = linked.method(AccessCredentials::NAME, "{}").await;
    assert!(told.contains("`meridian link allow east --topics REGEX --users`"), "{told}");
    linked.allow(|grant| grant.users = true);
    let body = Bytes::from_static(b"{}");
    let request = MeridianAdminRequest { method: AccessCredentials::NAME.into(), body };
    let told: Credentials = serde_json::from_slice(&linked.ask(&request).await.body).unwrap();
    assert_eq!((told.credentials.len(), told.unopened.len()), (1, 0));
    assert_eq!(told.credentials[0].user, "al");
    let kept = linked.source.front.credential(ScramHash::Sha256, "al").unwrap().credential;
    assert_eq!(told.credentials[0].credential, kept);
    assert!(kept.is_sound() && !format!("{told:?}").contains("salt"), "{told:?}");
}

/// Each method of the private API, and each API: what is not for mirrors is refused, whatever the grant.
#[tokio::test]
async fn the_widest_grant_makes_no_client_and_no_operator() {
    let linked = Linked::start().await;
    linked.allow(|grant| {
        let all = || Some(".*".to_owned());
        let (topics, groups) = (all(), all());
        let (acls, users) = (true, true);
        *grant = LinkGrant { topics, groups, quotas: true, switchover: true, acls, users };
    });
    for method in [
        "cluster.status",
        "node.status",
        "lifecycle.decommission",
        "lifecycle.drain",
        "lifecycle.replace",
        "disk.scrub",
        "link.create",
        "link.delete",
        "link.allow",
        "link.disallow",
        "mirror.create",
        "mirror.promote",
        "mirror.recreate",
        "mirror.rule.put",
        "mirror.give-way",
        "mirror.drop-lease",
        "topic.storage",
    ] {
        let told = linked.method(method, "{}").await;
        assert!(told.contains("it is for mirrors only"), "{method}: {told}");
    }
    let refused: Vec<_> = SERVED.iter().filter(|api| !link_rights::APIS.contains(api)).collect();
    assert_eq!(refused.len(), SERVED.len() - 16, "a new API for links needs a check of its own");
}

/// A grant can't be made yet, and mirrors must not stop for a rolling upgrade.
#[tokio::test]
async fn links_have_what_they_had_until_all_nodes_know_grants() {
    let linked = Linked::start().await;
    assert_eq!(linked.seen().await, [""; 0]);
    linked.source.broker.register(1, FeatureLevel::GROUP_CONFIGS).unwrap();
    let mut seen = linked.seen().await;
    seen.sort();
    assert_eq!(seen, [OTHER, GRANTED]);
    assert_eq!(linked.listed(MISSING).await, ErrorCode::UnknownTopicOrPartition);
}

#[test]
fn a_link_tells_positions_and_leases_of_what_it_is_granted_alone() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let linked = Linked::start().await;
        linked.allow(|_| ());
        let id = |topic: &str| {
            let id = linked.source.broker.topic_uuid(topic);
            format!("{:032x}", u128::from_be_bytes(id.0))
        };
        let part = |topic: &str| format!(r#"{{"topic_id":"{}","partition":0,"end_offset":9}}"#, id(topic));
        let both = format!("[{},{}]", part(GRANTED), part(OTHER));
        let body = format!(
            r#"{{"cluster":"x","positions":{both},"lease":{{"partitions":{both},"length_ms":1,"stamp":null}}}}"#
        );
        let rights = LinkGrant { topics: Some(GRANTED.to_owned()), ..LinkGrant::default() };
        let may_switch = LinkGrant { switchover: true, ..rights.clone() };
        let granted_id = id(GRANTED);
        for (grant, leased_count) in [(rights, 0), (may_switch, 1)] {
            let rights = Rights::Link(Arc::new(grant.compile().unwrap()));
            let metadata = linked.source.broker.state();
            let told = link_rights::granted_positions(&rights, &metadata, body.as_bytes()).unwrap();
            let told: serde_json::Value = serde_json::from_slice(&told).unwrap();
            let positions = told["positions"].as_array().unwrap();
            assert_eq!(positions.len(), 1);
            assert_eq!(positions[0]["topic_id"], granted_id.as_str());
            assert_eq!(told["lease"]["partitions"].as_array().unwrap().len(), leased_count);
        }
    });
}

/// Begins a transaction with a partition of a topic.
async fn begin(client: &mut TestClient, id: &str, topic: &str) {
    let find = FindCoordinatorRequest {
        key_type: FindCoordinatorRequest::KEY_TYPE_TRANSACTION,
        coordinator_keys: vec![id.into()],
        ..Default::default()
    };
    client.call(4, find).await;
    let init = InitProducerIdRequest {
        transactional_id: Some(id.into()),
        transaction_timeout_ms: 60_000,
        ..Default::default()
    };
    let begun = async {
        loop {
            let told = client.call(4, init.clone()).await;
            if told.error_code == ErrorCode::None {
                return told;
            }
            tokio::task::yield_now().await;
        }
    };
    let producer = tokio::time::timeout(PATIENCE, begun).await.expect("in time");
    let add = AddPartitionsToTxnRequest {
        transactional_id: id.into(),
        producer_id: producer.producer_id,
        producer_epoch: producer.producer_epoch,
        topics: vec![AddPartitionsToTxnTopic { name: topic.into(), partitions: vec![0] }],
        ..Default::default()
    };
    let added = client.call(3, add).await.results_by_topic;
    assert_eq!(added[0].results_by_partition[0].partition_error_code, ErrorCode::None);
}

#[tokio::test]
async fn a_link_sees_and_ends_the_transactions_of_topics_that_it_may_take_over_alone() {
    let linked = Linked::start().await;
    let front = &linked.source.front;
    linked.source.broker.serve_transactions(front);
    tokio::spawn(Arc::clone(front).tick_transactions());
    let mut client = TestClient::connect(front);
    begin(&mut client, "of-orders", GRANTED).await;
    begin(&mut client, "of-bills", OTHER).await;
    let listed = async || {
        let listed = linked.ask(&ListTransactionsRequest::default()).await.transaction_states;
        listed.iter().map(|it| it.transactional_id.to_string()).collect::<Vec<_>>()
    };
    linked.allow(|_| ());
    assert_eq!(listed().await, [""; 0]);
    linked.allow(|grant| grant.switchover = true);
    assert_eq!(listed().await, ["of-orders"]);
    let transactional_ids = vec!["of-orders".into(), "of-bills".into()];
    let described = linked.ask(&DescribeTransactionsRequest { transactional_ids }).await;
    let codes: Vec<_> = described.transaction_states.iter().map(|it| it.error_code).collect();
    assert_eq!(codes, [ErrorCode::None, ErrorCode::TransactionalIdNotFound]);
    let end = async |id: &str| {
        let init = InitProducerIdRequest {
            transactional_id: Some(id.into()),
            transaction_timeout_ms: 10_000,
            ..Default::default()
        };
        linked.ask(&init).await.error_code
    };
    assert_eq!(end("of-bills").await, ErrorCode::TransactionalIdAuthorizationFailed);
    assert_ne!(end("of-orders").await, ErrorCode::TransactionalIdAuthorizationFailed);
}
