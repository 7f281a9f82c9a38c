//! A member of a share group that remembers which records it was told are accepted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use meridian_client::{Client, Lane};
use meridian_protocol::messages::{
    AcknowledgementBatch, FindCoordinatorRequest, IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource, IncrementalAlterableConfig, ShareAcknowledgePartition,
    ShareAcknowledgeRequest, ShareAcknowledgeTopic, ShareFetchPartition, ShareFetchRequest,
    ShareFetchTopic, ShareGroupHeartbeatRequest,
};
use meridian_protocol::{ErrorCode, Uuid};
use tokio::runtime::Runtime;

const CALL_TIMEOUT: Duration = Duration::from_secs(30);
const READ_WITHIN: Duration = Duration::from_secs(90);
const GROUP: u8 = 32;
const ACCEPT: i8 = 1;

/// The only member: it fetches from all partitions, and accepts what it gets.
pub(crate) struct Sharer {
    runtime: Runtime,
    client: Client,
    group: String,
    topic: String,
    topic_id: Uuid,
    /// Of each partition the leader of its session, and the epoch of the next request.
    sessions: BTreeMap<i32, (i32, i32)>,
    /// By partition.
    pub(crate) accepted: BTreeMap<i32, BTreeSet<i64>>,
}

impl Sharer {
    /// Joins a group that begins at the start of the topic.
    pub(crate) fn join(bootstrap: &str, group: &str, topic: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(Client::connect(bootstrap)).unwrap();
        let topic_id = runtime.block_on(client.topic(topic)).unwrap().id;
        let (group, topic) = (group.to_owned(), topic.to_owned());
        let (sessions, accepted) = Default::default();
        let sharer = Self { runtime, client, group, topic, topic_id, sessions, accepted };
        let deadline = Instant::now() + READ_WITHIN;
        while let Err(why) = sharer.runtime.block_on(sharer.try_join()) {
            assert!(Instant::now() < deadline, "the group takes nobody in: {why}");
        }
        sharer
    }

    async fn try_join(&self) -> Result<(), String> {
        let config = IncrementalAlterableConfig {
            name: "share.auto.offset.reset".into(),
            config_operation: 0,
            value: Some("earliest".into()),
        };
        let resource = IncrementalAlterConfigsResource {
            resource_type: GROUP.cast_signed(),
            resource_name: self.group.as_str().into(),
            configs: vec![config],
        };
        let request =
            IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
        let altered = self.client.query(&request).await.map_err(|error| error.to_string())?;
        assert_eq!(altered.responses[0].error_code, ErrorCode::None);
        let request = FindCoordinatorRequest {
            key: self.group.as_str().into(),
            coordinator_keys: vec![self.group.as_str().into()],
            ..Default::default()
        };
        let found = self.client.query(&request).await.map_err(|error| error.to_string())?;
        let coordinator = found.coordinators[0].clone();
        let node = self.client.node(coordinator.node_id, Lane::CONTROL).await;
        let node = node.map_err(|error| error.to_string())?;
        let request = ShareGroupHeartbeatRequest {
            group_id: self.group.as_str().into(),
            member_id: "sharer".into(),
            subscribed_topic_names: Some(vec![self.topic.as_str().into()]),
            ..Default::default()
        };
        let joined = node.call(&request, CALL_TIMEOUT).await.map_err(|error| error.to_string())?;
        match joined.error_code {
            ErrorCode::None => Ok(()),
            code => Err(code.to_string()),
        }
    }

    /// Accepts records until it has accepted so many in all.
    pub(crate) fn accept(&mut self, count: usize, partitions: &[i32]) {
        let deadline = Instant::now() + READ_WITHIN;
        while self.accepted.values().map(BTreeSet::len).sum::<usize>() < count {
            assert!(Instant::now() < deadline, "the group gets nothing for {READ_WITHIN:?}");
            for partition in partitions {
                self.poll(*partition);
            }
        }
    }

    /// Fetches from a partition once, and accepts what it gets; what fails is tried again from the beginning.
    pub(crate) fn poll(&mut self, partition: i32) {
        let acquired = self.fetch(partition).unwrap_or_else(|| {
            self.sessions.remove(&partition);
            let moved = self.client.leader_moved(&self.topic);
            self.runtime.block_on(moved);
            Vec::new()
        });
        for (first, last) in acquired {
            let accepted = self.accepted.entry(partition).or_default();
            for offset in first..=last {
                assert!(!accepted.contains(&offset), "{offset} was accepted, and comes again");
            }
            if self.acknowledge(partition, first, last) {
                self.accepted.entry(partition).or_default().extend(first..=last);
            } else {
                self.sessions.remove(&partition);
            }
        }
    }

    fn fetch(&mut self, partition: i32) -> Option<Vec<(i64, i64)>> {
        let (leader, epoch) = match self.sessions.get(&partition) {
            Some(session) => *session,
            None => (self.runtime.block_on(self.client.leader(&self.topic, partition)).ok()?, 0),
        };
        let wanted = ShareFetchPartition { partition_index: partition, ..Default::default() };
        let topic = ShareFetchTopic { topic_id: self.topic_id, partitions: vec![wanted] };
        let request = ShareFetchRequest {
            group_id: Some(self.group.as_str().into()),
            member_id: Some(Self::name(partition).into()),
            share_session_epoch: epoch,
            max_wait_ms: 200,
            max_records: 500,
            batch_size: 500,
            topics: vec![topic],
            ..Default::default()
        };
        let answer = self.runtime.block_on(async {
            let node = self.client.node(leader, Lane::CONTROL).await.ok()?;
            node.call(&request, CALL_TIMEOUT).await.ok()
        })?;
        if !answer.error_code.is_none() {
            return None;
        }
        self.sessions.insert(partition, (leader, epoch + 1));
        let Some(topic) = answer.responses.first() else { return Some(Vec::new()) };
        let told = topic.partitions.first()?;
        let acquired = told.acquired_records.iter().map(|it| (it.first_offset, it.last_offset));
        told.error_code.is_none().then(|| acquired.collect())
    }

    fn acknowledge(&mut self, partition: i32, first_offset: i64, last_offset: i64) -> bool {
        let Some((leader, epoch)) = self.sessions.get_mut(&partition) else { return false };
        let batch =
            AcknowledgementBatch { first_offset, last_offset, acknowledge_types: vec![ACCEPT] };
        let said = ShareAcknowledgePartition {
            partition_index: partition,
            acknowledgement_batches: vec![batch],
        };
        let request = ShareAcknowledgeRequest {
            group_id: Some(self.group.as_str().into()),
            member_id: Some(Self::name(partition).into()),
            share_session_epoch: *epoch,
            topics: vec![ShareAcknowledgeTopic { topic_id: self.topic_id, partitions: vec![said] }],
            ..Default::default()
        };
        *epoch += 1;
        let (client, leader) = (&self.client, *leader);
        let answer = self.runtime.block_on(async {
            let node = client.node(leader, Lane::CONTROL).await.ok()?;
            node.call(&request, CALL_TIMEOUT).await.ok()
        });
        let told = answer.filter(|it| it.error_code.is_none());
        let topics = told.map(|it| it.responses).unwrap_or_default();
        let partitions = topics.first().map(|topic| topic.partitions.as_slice());
        matches!(partitions, Some([told]) if told.error_code.is_none())
    }

    /// One session for each partition: partitions of one leader would share it otherwise.
    fn name(partition: i32) -> String {
        format!("sharer-{partition}")
    }
}
