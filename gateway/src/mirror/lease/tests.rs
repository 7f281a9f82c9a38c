//! What the rows of both sides say of leases, with the real metadata.

use meridian_consensus::command::{Command, LeaderAssignment};
use meridian_mirror::options::LEASE_MS;
use meridian_mirror::rows::Stage;

use super::super::promotion::{self, Cause};
use super::super::succession::change_mirror;
use super::super::testing::{self, SOURCE};
use super::*;
use crate::broker::Broker;
use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};
use crate::peers::PeerService as _;
use crate::peers::wire::PeerReply;

const FLOOR: LeaderEpoch = LeaderEpoch::new(6);

fn mirror(stage: Stage) -> MirrorTopic {
    testing::mirror("t", stage)
}

async fn put(broker: &FakeBroker, changes: Vec<RowChange>) -> Result<(), String> {
    let put = broker.propose(Command::PutRows(changes)).await;
    put.map(drop).map_err(|error| error.to_string())
}

async fn set(broker: &FakeBroker, kind: RowKind, key: &[u8], value: Vec<u8>) {
    let (key, value, expected) = (key.to_vec(), Some(value), ExpectedVersion::Any);
    put(broker, vec![RowChange { kind, key, value, expected }]).await.expect("no condition");
}

/// A broker with topic `t`.
async fn served() -> (Arc<FakeBroker>, TopicId, PartitionId) {
    let broker = FakeBroker::single();
    TestClient::connect(&front_of(&broker, quick_config())).create_topic("t", 1).await;
    let topic = broker.state().topic_named("t").expect("there").clone();
    (broker, topic.id, topic.partitions[0])
}

#[tokio::test]
async fn a_mirror_hears_of_a_need_when_no_leader_is_left_that_may_know_nothing_of_it() {
    let (broker, topic, partition) = served().await;
    let east = ClusterId::from_text("east");
    let leased = [Leased { topic_id: topic.into(), partition: 0 }];
    let sorted = || sort(&broker.state(), &east, &leased);
    assert_eq!(sorted().unfenced, [topic].into());
    let mut need = Need::new(east.clone());
    let found = *broker.state().partition(partition).expect("there");
    for floor in [LeaderEpoch::UNKNOWN, found.leader_epoch] {
        need.epoch_floor = floor;
        set(&broker, RowKind::WriterLease, &Need::key(topic), need.encode()).await;
        // The leader may have come before the row.
        let sorted = sorted();
        assert!(sorted.needs.is_empty());
        assert_eq!((sorted.led, sorted.unfenced), (vec![partition], [topic].into()));
    }
    let (expected, leader, epoch_floor) = (found.generation, found.leader, need.epoch_floor);
    let raise = vec![LeaderAssignment { partition, expected, leader, epoch_floor }];
    broker.propose(Command::AssignLeaders(raise)).await.expect("as it was");
    // The metadata names a leader that came after it, which may not have taken over.
    assert!(sorted().needs.is_empty());
    assert_eq!(sorted().unfenced, [topic].into());
    need.is_fenced = true;
    set(&broker, RowKind::WriterLease, &Need::key(topic), need.encode()).await;
    assert!(sorted().unfenced.is_empty());
    assert_eq!(sorted().needs[0].of, "east");
    // Another cluster's grants count for nothing, and it hears so.
    let sorted = sort(&broker.state(), &ClusterId::from_text("north"), &leased);
    assert!(sorted.led.is_empty() && sorted.unfenced.is_empty());
    assert_eq!(sorted.needs[0].of, "east");
    // Nor do anybody's, where a newer binary wrote whose lease it is.
    set(&broker, RowKind::WriterLease, &Need::key(topic), vec![99]).await;
    let Sorted { led, needs, unfenced } = sort(&broker.state(), &east, &leased);
    assert!(led.is_empty() && needs.is_empty() && unfenced.is_empty());
}

#[tokio::test]
async fn who_has_taken_over_under_a_later_epoch_says_so() {
    let (broker, _, partition) = served().await;
    let front = front_of(&broker, quick_config());
    let epoch = broker.state().partition(partition).expect("there").leader_epoch;
    let before = LeaderEpoch::new(epoch.get() - 1);
    for (above, leads) in [(before, true), (epoch, false)] {
        let partitions = vec![partition, PartitionId::new(99)];
        let reply = Arc::clone(&front).answer(PeerRequest::Leads { above, partitions }).await;
        assert_eq!(reply, PeerReply::Leading(vec![leads, false]));
    }
}

#[tokio::test]
async fn only_what_is_news_is_written_down_and_only_over_what_was_read() {
    let (broker, ..) = served().await;
    let news = |news| noted(&broker.state(), SOURCE, news);
    let first = news(News::Length(Duration::from_secs(4))).expect("news");
    let other = news(News::IsNamed(true)).expect("news");
    put(&broker, vec![first]).await.expect("there was none");
    assert!(put(&broker, vec![other]).await.is_err(), "somebody else was faster");
    put(&broker, vec![news(News::IsNamed(true)).expect("news")]).await.expect("as it was read");
    let known = grant(&broker.state(), SOURCE);
    assert_eq!(known, Ok(Some(Grant { longest_ms: 4000, is_named: true })));
    for old in [News::Length(Duration::from_secs(2)), News::IsNamed(true)] {
        assert!(news(old).is_none(), "{old:?}");
    }
}

#[tokio::test]
async fn what_was_granted_is_forgotten_with_the_last_mirror_and_only_if_anything_was() {
    let (broker, ..) = served().await;
    let (one, other) = (TopicId::new(1), TopicId::new(2));
    for topic in [one, other] {
        set(
            &broker,
            RowKind::MirrorTopic,
            &MirrorTopic::key(topic),
            mirror(Stage::Mirroring).encode(),
        )
        .await;
    }
    let forget = async |topic| {
        let forget = crate::linked_topics::forget(&broker.state(), topic).expect("a mirror");
        let Command::PutRows(changes) = forget.clone() else { panic!("rows") };
        broker.propose(forget).await.expect("no condition");
        changes.iter().any(|change| change.kind == RowKind::LeaseGrant)
    };
    let granted = noted(&broker.state(), SOURCE, News::Length(Duration::from_secs(15)));
    put(&broker, vec![granted.expect("news")]).await.expect("there was none");
    assert!(!forget(one).await, "the other's source still counts on it");
    assert!(forget(other).await);
    assert_eq!(grant(&broker.state(), SOURCE), Ok(None));
    // A binary that knows no such row is not told to forget one.
    set(&broker, RowKind::MirrorTopic, &MirrorTopic::key(one), mirror(Stage::Mirroring).encode())
        .await;
    assert!(!forget(one).await);
}

#[tokio::test]
async fn what_cannot_be_read_keeps_a_mirror_from_being_promoted_before_its_source_has_ended() {
    let (broker, ..) = served().await;
    let mirror = mirror(Stage::Mirroring);
    let wait = |is_forced| wait(&broker.state(), &mirror, is_forced);
    assert_eq!(wait(false).ok(), Some(Duration::ZERO), "a link without leases");

    let values = [(LEASE_MS.to_owned(), "4000".to_owned())].into();
    let options = LinkOptions { values }.rows("west");
    let [(key, Some(value)), ..] = options.as_slice() else { panic!("one row at least") };
    set(&broker, RowKind::LinkOptions, key, value.clone()).await;
    let longest = wait_before_promotion(Duration::from_secs(4), None);
    let told = wait(false).expect_err("it was never named").to_string();
    assert!(told.contains("mirror status t") && told.contains("--force"), "{told}");
    assert_eq!(wait(true).ok(), Some(longest));
    let named = noted(&broker.state(), SOURCE, News::IsNamed(true)).expect("news");
    put(&broker, vec![named]).await.expect("there was none");
    assert_eq!(wait(false).ok(), Some(longest));

    // A newer binary wrote the options.
    set(&broker, RowKind::LinkOptions, key, vec![99]).await;
    let told = wait(false).expect_err("they can't be read").to_string();
    assert!(told.contains("newer binary") && told.contains("link alter west"), "{told}");
    let longest = wait_before_promotion(LENGTH_MAX, None);
    assert_eq!(wait(true).ok(), Some(longest));
    // Or what was granted.
    set(&broker, RowKind::LinkOptions, key, value.clone()).await;
    set(&broker, RowKind::LeaseGrant, &Grant::key(SOURCE), vec![99]).await;
    assert!(wait(false).is_err());
    assert_eq!(wait(true).ok(), Some(longest));
}

#[tokio::test]
async fn a_promotion_ends_only_what_is_still_as_it_left_it() {
    let (broker, topic, _) = served().await;
    let detached = Stage::Detached { epoch_floor: FLOOR };
    let set = async |stage| {
        let change = change_mirror(topic, &mirror(stage), ExpectedVersion::Any);
        put(&broker, vec![change]).await.expect("no condition");
    };
    let cause = Cause::Operator { is_forced: false };
    let conclusion = || promotion::conclusion(&broker.state(), topic, FLOOR, cause);
    set(detached).await;
    let last = conclusion().expect("as it was left");
    // It was promoted by another, and made a mirror again, while this one waited.
    set(Stage::Mirroring).await;
    assert!(put(&broker, last).await.is_err());
    assert!(conclusion().is_err());
    // Another promotion of it is none of this one's either.
    set(Stage::Detached { epoch_floor: LeaderEpoch::new(9) }).await;
    assert!(conclusion().is_err());
    set(Stage::Promoted { epoch_floor: FLOOR }).await;
    assert_eq!(conclusion().map(|last| last.len()).ok(), Some(0));
    set(detached).await;
    put(&broker, conclusion().expect("as it was left")).await.expect("as it was read");
    // It was deleted.
    let forget = crate::linked_topics::forget(&broker.state(), topic).expect("a mirror");
    broker.propose(forget).await.expect("no condition");
    assert!(conclusion().is_err());
}
