//! Answers that are held until there is news: a link hears at once of what has changed at its source, and asks seldom.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use meridian_access::{Operation, Resource};
use meridian_consensus::command::ConfigResource;
use meridian_consensus::state::{Metadata, Topic};
use meridian_protocol::messages::{MetadataRequest, MetadataRequestTopic};

use super::is_by_id;
use crate::kafka::dispatch::Call;
use crate::kafka::lookup::{self, TopicKey};

/// Longest that an answer is held, whatever was asked for.
const HOLD_MAX: Duration = Duration::from_secs(5);
/// Shortest time between two looks: each goes through all topics that were asked for.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// Waits until something is other than it was when the client was last answered, or time is up.
pub(super) async fn wait_for_news(call: &Call, request: &MetadataRequest) {
    let hold = Duration::from_millis(u64::try_from(request.hold_ms).unwrap_or(0)).min(HOLD_MAX);
    let mut applied = call.front.broker.applied();
    let news = async {
        loop {
            applied.mark_unchanged();
            if stamp(call, &call.front.broker.metadata(), request) != request.seen_stamp {
                return;
            }
            if applied.changed().await.is_err() {
                return std::future::pending().await;
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    };
    let _all_is_as_it_was = tokio::time::timeout(hold, news).await;
}

/// Tells what a client is told of its topics, and how they are configured, from what it would be told otherwise. Never 0.
pub(super) fn stamp(call: &Call, metadata: &Metadata, request: &MetadataRequest) -> i64 {
    let mut hasher = DefaultHasher::new();
    for (id, _) in lookup::brokers(metadata) {
        let endpoint = lookup::endpoint(metadata, id, call.client.listener_name());
        endpoint.map(|it| (it.node_id, it.host, it.port)).hash(&mut hasher);
    }
    metadata.configs(&ConfigResource::Cluster).for_each(|config| config.hash(&mut hasher));
    match &request.topics {
        None => {
            let is_seen = |it: &&Topic| call.sees(Operation::Describe, Resource::topic(&it.name));
            metadata.topics().filter(is_seen).for_each(|it| hash(metadata, Some(it), &mut hasher));
        }
        Some(wanted) => {
            let find = |it| hash(metadata, find(call, metadata, it), &mut hasher);
            wanted.iter().for_each(find);
        }
    }
    hasher.finish().max(1).cast_signed()
}

fn find<'m>(
    call: &Call,
    metadata: &'m Metadata,
    wanted: &MetadataRequestTopic,
) -> Option<&'m Topic> {
    let name = wanted.name.clone().unwrap_or_default();
    let key = TopicKey::new(is_by_id(call.version, wanted), &name, wanted.topic_id);
    call.find(metadata, &key, Operation::Describe).ok()
}

fn hash(metadata: &Metadata, topic: Option<&Topic>, hasher: &mut DefaultHasher) {
    let Some(topic) = topic else { return false.hash(hasher) };
    (topic.id.get(), &topic.name, topic.partitions.len()).hash(hasher);
    for partition in topic.partitions.iter().filter_map(|id| metadata.partition(*id)) {
        let is_led = lookup::is_serving(metadata, partition.leader);
        (partition.leader.get(), partition.leader_epoch.get(), is_led).hash(hasher);
    }
    let resource = ConfigResource::Topic(topic.id);
    metadata.configs(&resource).for_each(|config| config.hash(hasher));
}

#[cfg(test)]
mod tests {
    use meridian_base::env::Instant;
    use meridian_base::id::NodeId;
    use meridian_consensus::command::{Command, ConfigChange, Liveness};
    use meridian_protocol::messages::MetadataResponse;

    use super::*;
    use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};
    use crate::runtime::clock::Clock;

    const VERSION: i16 = 12;
    const SHORT: Duration = Duration::from_millis(50);

    fn ask(topic: Option<&'static str>, seen_stamp: i64, hold: Duration) -> MetadataRequest {
        let named = |name: &'static str| MetadataRequestTopic {
            name: Some(name.into()),
            ..Default::default()
        };
        MetadataRequest {
            topics: topic.map(|name| vec![named(name)]),
            allow_auto_topic_creation: false,
            seen_stamp,
            hold_ms: i32::try_from(hold.as_millis()).expect("not ages"),
            ..Default::default()
        }
    }

    /// Asks, and has something change while the answer is held; gives it and the time that it took.
    async fn held(
        client: &mut TestClient,
        request: MetadataRequest,
        change: impl AsyncFnOnce(),
    ) -> (MetadataResponse, Duration) {
        let clock = Clock::start();
        let id = client.send(VERSION, &request).await;
        change().await;
        let answer = client.receive::<MetadataRequest>(VERSION, id).await;
        (answer, clock.now().since(Instant::ZERO))
    }

    #[tokio::test]
    async fn an_answer_is_held_until_something_changes() {
        let broker = FakeBroker::three_datacenters();
        let front = front_of(&broker, quick_config());
        let (mut link, mut operator) = (TestClient::connect(&front), TestClient::connect(&front));
        operator.create_topic("orders", 1).await;
        let first = link.call(VERSION, ask(Some("orders"), 0, HOLD_MAX)).await;
        assert_eq!(first.topics.len(), 1);
        assert_ne!(first.stamp, 0);

        let topic = broker.state().topic_named("orders").expect("exists").id;
        let leader = NodeId::new(1);
        let add = Command::CreatePartitions { topic, expected_count: 1, leaders: vec![leader] };
        let change = ConfigChange { name: "cleanup.policy".into(), value: Some("compact".into()) };
        let set =
            Command::SetConfigs { resource: ConfigResource::Topic(topic), changes: vec![change] };
        let epoch = broker.state().node(leader).expect("registered").epoch;
        let die = Command::MarkNode { node: leader, epoch, liveness: Liveness::Dead };
        let mut stamp = first.stamp;
        for change in [add, set, die] {
            let request = ask(Some("orders"), stamp, HOLD_MAX);
            let (answer, took) = held(&mut link, request, async || {
                broker.decide(change);
            })
            .await;
            assert_ne!(answer.stamp, stamp);
            assert_eq!(answer.topics.len(), 1);
            assert!(took < HOLD_MAX, "{took:?}");
            stamp = answer.stamp;
        }
    }

    #[tokio::test]
    async fn a_new_topic_is_news_to_whoever_asks_for_all_and_to_nobody_else() {
        let front = front_of(&FakeBroker::three_datacenters(), quick_config());
        let (mut link, mut operator) = (TestClient::connect(&front), TestClient::connect(&front));
        operator.create_topic("orders", 1).await;
        let all = link.call(VERSION, ask(None, 0, SHORT)).await.stamp;
        let one = link.call(VERSION, ask(Some("orders"), 0, SHORT)).await.stamp;

        let request = ask(None, all, HOLD_MAX);
        let (answer, _) =
            held(&mut link, request, async || operator.create_topic("bills", 1).await).await;
        assert_eq!(answer.topics.len(), 2);

        let answer = link.call(VERSION, ask(Some("orders"), one, SHORT)).await;
        assert_eq!((answer.stamp, answer.topics.len()), (one, 0));
    }

    #[tokio::test]
    async fn whoever_does_not_ask_for_it_gets_no_stamp() {
        let front = front_of(&FakeBroker::three_datacenters(), quick_config());
        let mut client = TestClient::connect(&front);
        let answer = client.call(VERSION, ask(None, 0, Duration::ZERO)).await;
        assert_eq!(answer.stamp, 0);
    }
}
