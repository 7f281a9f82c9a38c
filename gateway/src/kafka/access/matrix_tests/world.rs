//! A node that enforces rules, a user, and a super user who prepares what the user asks about.

use std::sync::Arc;

use meridian_access::{Pattern, PatternType, Permission, Principal, Rule};
use meridian_base::env::SplitMix;
use meridian_consensus::command::{Command, ExpectedVersion, FeatureLevel, RowChange, RowKind};
use meridian_protocol::messages::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnTopic, ConsumerGroupHeartbeatRequest,
    CreatableTopic, CreateDelegationTokenRequest, CreateTopicsRequest, DeleteTopicState,
    DeleteTopicsRequest, FindCoordinatorRequest, InitProducerIdRequest, OffsetCommitPartition,
    OffsetCommitRequest, OffsetCommitTopic, ShareFetchRequest, ShareGroupHeartbeatRequest,
};
use meridian_protocol::{ApiKey, ErrorCode};

use super::{BOB, GROUP, MISSING, OTHER, QUEUE, Right, SHARERS, TOPIC, TRANSACTION, WORKERS};
use crate::admin_api::AdminHandler;
use crate::broker::Broker;
use crate::config::FrontConfig;
use crate::kafka::Front;
use crate::kafka::access::rules::Authorization;
use crate::kafka::testing::{FakeBroker, PATIENCE, TestClient, quick_config};

/// The node.
pub(super) struct World {
    pub(super) broker: Arc<FakeBroker>,
    pub(super) front: Arc<Front>,
    pub(super) alice: TestClient,
    root: TestClient,
    allowed: Vec<Rule>,
}

fn put(broker: &FakeBroker, kind: RowKind, key: Vec<u8>, value: Option<Vec<u8>>) {
    let change = RowChange { kind, key, value, expected: ExpectedVersion::Any };
    broker.decide(Command::PutRows(vec![change]));
}

fn rule((operation, resource): &Right) -> Rule {
    Rule {
        pattern: Pattern {
            kind: resource.kind,
            pattern_type: PatternType::Literal,
            name: resource.name.to_owned(),
        },
        principal: Principal::user("alice"),
        host: "*".to_owned(),
        operation: *operation,
        permission: Permission::Allow,
    }
}

impl World {
    pub(super) async fn start() -> Self {
        Self::start_with(None).await
    }

    /// One that answers the methods of the private API.
    pub(super) async fn start_with(admin: Option<Arc<dyn AdminHandler>>) -> Self {
        let mut world = Self::new(admin);
        world.broker.register(1, FeatureLevel::LATEST).expect("a binary of now");
        let mut bob = TestClient::connect_as(&world.front, &Principal::user(BOB));
        let token = bob.call(3, CreateDelegationTokenRequest::default()).await;
        assert_eq!(token.error_code, ErrorCode::None);
        world.create(OTHER).await;
        world.find(FindCoordinatorRequest::KEY_TYPE_GROUP, GROUP).await;
        world.find(FindCoordinatorRequest::KEY_TYPE_TRANSACTION, TRANSACTION).await;
        world
    }

    /// One where nothing is there yet.
    pub(super) fn new(admin: Option<Arc<dyn AdminHandler>>) -> Self {
        let broker = FakeBroker::single();
        let config = FrontConfig { super_users: vec![Principal::user("root")], ..quick_config() };
        let served = Arc::clone(&broker) as Arc<dyn Broker>;
        let front = Front::new(served, config, Box::new(SplitMix::new(1)), admin);
        broker.serve_transactions(&front);
        tokio::spawn(Arc::clone(&front).tick_transactions());
        let connect = |name| TestClient::connect_as(&front, &Principal::user(name));
        let (alice, root) = (connect("alice"), connect("root"));
        let world = Self { broker, front, alice, root, allowed: Vec::new() };
        world.set_mode(Authorization::Enforce);
        world
    }

    pub(super) fn set_mode(&self, mode: Authorization) {
        let key = Authorization::KEY.to_vec();
        put(&self.broker, RowKind::Authorization, key, Some(mode.encode()));
    }

    /// The user may do this and nothing else.
    pub(super) fn allow(&mut self, rights: &[Right]) {
        for rule in std::mem::take(&mut self.allowed) {
            put(&self.broker, RowKind::Acl, rule.encode(), None);
        }
        self.allowed = rights.iter().map(rule).collect();
        for rule in &self.allowed {
            put(&self.broker, RowKind::Acl, rule.encode(), Some(Vec::new()));
        }
    }

    /// Has everything there that a request of the API may be about.
    pub(super) async fn prepare(&mut self, api: ApiKey) {
        self.create(TOPIC).await;
        match api {
            ApiKey::Metadata => self.delete(MISSING).await,
            ApiKey::ConsumerGroupDescribe => self.join_workers().await,
            ApiKey::ShareGroupHeartbeat | ApiKey::ShareGroupDescribe => {
                self.share(SHARERS, 0).await
            }
            ApiKey::DescribeShareGroupOffsets
            | ApiKey::AlterShareGroupOffsets
            | ApiKey::DeleteShareGroupOffsets => {
                self.share(QUEUE, 0).await;
                self.share(QUEUE, -1).await;
            }
            ApiKey::ShareFetch | ApiKey::ShareAcknowledge => self.begin_session().await,
            ApiKey::DescribeTransactions | ApiKey::ListTransactions => {
                self.begin_transaction().await;
            }
            _ => self.commit().await,
        }
    }

    async fn create(&mut self, name: &str) {
        let topic = CreatableTopic {
            name: name.into(),
            num_partitions: 1,
            replication_factor: -1,
            ..Default::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], ..Default::default() };
        let code = self.root.call(7, request).await.topics[0].error_code;
        assert!(matches!(code, ErrorCode::None | ErrorCode::TopicAlreadyExists), "{code:?}");
    }

    /// Deletes what the last request may have created.
    async fn delete(&mut self, name: &str) {
        let topic = DeleteTopicState { name: Some(name.into()), ..Default::default() };
        let request =
            DeleteTopicsRequest { topics: vec![topic], timeout_ms: 5000, ..Default::default() };
        let code = self.root.call(6, request).await.responses[0].error_code;
        let is_gone = matches!(code, ErrorCode::None | ErrorCode::UnknownTopicOrPartition);
        assert!(is_gone, "{code:?}");
    }

    async fn find(&mut self, key_type: i8, key: &str) {
        let coordinator_keys = vec![key.into()];
        let request = FindCoordinatorRequest { key_type, coordinator_keys, ..Default::default() };
        let code = self.root.call(4, request).await.coordinators[0].error_code;
        assert_eq!(code, ErrorCode::None);
    }

    async fn commit(&mut self) {
        let partitions = vec![OffsetCommitPartition::default()];
        let topic = OffsetCommitTopic { name: TOPIC.into(), partitions, ..Default::default() };
        let request = OffsetCommitRequest {
            group_id: GROUP.into(),
            topics: vec![topic],
            ..Default::default()
        };
        let committed = self.root.call(9, request).await;
        assert_eq!(committed.topics[0].partitions[0].error_code, ErrorCode::None);
    }

    async fn join_workers(&mut self) {
        let request = ConsumerGroupHeartbeatRequest {
            group_id: WORKERS.into(),
            member_id: "worker".into(),
            rebalance_timeout_ms: 60_000,
            subscribed_topic_names: Some(vec![TOPIC.into()]),
            topic_partitions: Some(Vec::new()),
            ..Default::default()
        };
        assert_eq!(self.root.call(1, request).await.error_code, ErrorCode::None);
    }

    /// Has a member of a share group join, or leave.
    async fn share(&mut self, group: &str, member_epoch: i32) {
        let request = ShareGroupHeartbeatRequest {
            group_id: group.into(),
            member_id: "sharer".into(),
            member_epoch,
            subscribed_topic_names: Some(vec![TOPIC.into()]),
            ..Default::default()
        };
        assert_eq!(self.root.call(1, request).await.error_code, ErrorCode::None);
    }

    /// Begins the share session that the user goes on with.
    async fn begin_session(&mut self) {
        let request = ShareFetchRequest {
            group_id: Some(QUEUE.into()),
            member_id: Some("alice".into()),
            ..Default::default()
        };
        assert_eq!(self.root.call(2, request).await.error_code, ErrorCode::None);
    }

    async fn begin_transaction(&mut self) {
        let init = InitProducerIdRequest {
            transactional_id: Some(TRANSACTION.into()),
            transaction_timeout_ms: 60_000,
            ..Default::default()
        };
        let root = &mut self.root;
        let begun = async {
            loop {
                let told = root.call(4, init.clone()).await;
                if told.error_code == ErrorCode::None {
                    return told;
                }
                tokio::task::yield_now().await;
            }
        };
        let producer = tokio::time::timeout(PATIENCE, begun).await.expect("in time");
        let add = AddPartitionsToTxnRequest {
            transactional_id: TRANSACTION.into(),
            producer_id: producer.producer_id,
            producer_epoch: producer.producer_epoch,
            topics: vec![AddPartitionsToTxnTopic { name: TOPIC.into(), partitions: vec![0] }],
            ..Default::default()
        };
        let added = self.root.call(3, add).await.results_by_topic;
        assert_eq!(added[0].results_by_partition[0].partition_error_code, ErrorCode::None);
    }
}
