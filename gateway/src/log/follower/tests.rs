use meridian_base::id::{ConfigVersion, GroupId, Incarnation};
use meridian_base::position::{Generation, LogPoint, Step};
use meridian_base::topology::{Geometry, GroupConfig, SlotConfig, SlotState};
use meridian_storage::hot::Layout;
use meridian_storage::lineage::EpochStart;
use meridian_storage::manifest::{Piece, Place};
use meridian_storage::mutation::Mutations;

use super::aborted_page::page;
use super::*;
use crate::log::{BudgetLimits, LogSettings};
use crate::partition::PartitionLimits;
use crate::peers::Wire;
use crate::runtime::clock::Clock;
use crate::runtime::quic::Channel;

/// Keeps what is sent to other nodes.
#[derive(Default)]
struct Sent(Mutex<Vec<FollowMessage>>);

impl Sent {
    fn take(&self) -> Vec<FollowMessage> {
        std::mem::take(&mut *lock(&self.0))
    }
}

impl Wire for Sent {
    fn send(&self, _: NodeId, _: Channel, parts: Vec<Bytes>) -> bool {
        let frame = Bytes::from(parts.concat()).slice(1..);
        lock(&self.0).push(FollowMessage::decode(frame).expect("only followers send here"));
        true
    }
}

const PARTITION: PartitionId = PartitionId::new(1);
const LEADER: NodeId = NodeId::new(2);

fn ownership(generation: u32) -> Ownership {
    Ownership {
        partition: PARTITION,
        group: GroupId::new(0),
        homes: Arc::from([]),
        generation: Generation::new(generation),
        leader_epoch: LeaderEpoch::new(0),
        datacenter_count_min: 1,
        dedups_sources: false,
        layout: Layout::Copies,
    }
}

/// A node that leads nothing, in a group of one disk that is elsewhere.
fn bystander() -> Arc<Logs> {
    bystander_with(&Arc::default())
}

fn bystander_with(sent: &Arc<Sent>) -> Arc<Logs> {
    let settings = LogSettings {
        node: NodeId::new(1),
        limits: PartitionLimits::default(),
        pending_size_bytes_max: 1 << 20,
        sizes: meridian_storage::limits::SizeLimits::DEFAULT,
        budget: BudgetLimits::default(),
        mutations: Mutations::NONE,
    };
    let logs = Logs::start(settings, Clock::start(), Arc::<Sent>::clone(sent), None);
    logs.on_group(GroupConfig {
        group: GroupId::new(0),
        version: ConfigVersion::new(1),
        geometry: Geometry::None,
        slots: vec![SlotConfig {
            node: LEADER,
            incarnation: Incarnation::new(1),
            state: SlotState::Good,
        }],
    });
    logs
}

fn progress(generation: u32, high_watermark: i64) -> FollowMessage {
    progress_with(generation, high_watermark, page(0, 0, &[], high_watermark), true)
}

fn progress_with(
    generation: u32,
    high_watermark: i64,
    aborted: AbortedPage,
    with_lineage: bool,
) -> FollowMessage {
    let generation = Generation::new(generation);
    let lineage = Lineage {
        past: Vec::new(),
        generation,
        base_offset: Offset::new(0),
        epochs: vec![EpochStart { epoch: LeaderEpoch::new(0), start_offset: Offset::new(0) }],
    };
    FollowMessage::Progress(Box::new(Progress {
        partition: PARTITION,
        mark: CommitMark {
            point: LogPoint::new(generation, Step::new(1)),
            high_watermark: Offset::new(high_watermark),
        },
        log_start_offset: Offset::new(0),
        leader_epoch: LeaderEpoch::new(0),
        aborted,
        manifest: None,
        lineage: with_lineage.then_some(lineage),
    }))
}

/// Whether the bell was rung since it was last looked at.
fn rang(bell: &Notify) -> bool {
    std::pin::pin!(bell.notified()).as_mut().enable()
}

#[tokio::test]
async fn readers_are_woken_by_progress_and_by_a_change_of_leader() {
    let logs = bystander();
    let follower = logs.followed(ownership(3), LEADER).expect("the group is known");
    let bell = Arc::new(Notify::new());
    follower.notify_on_progress(&bell);
    assert!(!rang(&bell));

    logs.on_follow_message(NodeId::new(9), progress(3, 5));
    logs.on_follow_message(LEADER, progress(2, 5));
    assert!(!rang(&bell), "only the leader's word for its own generation counts");
    logs.on_follow_message(LEADER, progress(3, 7));
    assert!(rang(&bell));
    assert_eq!(follower.high_watermark(), Some(Offset::new(7)));

    logs.on_ownership(Vec::new(), &[PARTITION]);
    assert!(rang(&bell), "or readers would wait for a leader that is gone");
    let again = logs.followed(ownership(4), NodeId::new(3)).expect("the group is known");
    assert!(Arc::ptr_eq(&follower, &again));
    assert_eq!(again.high_watermark(), None, "until the new leader has said it");
    logs.on_follow_message(NodeId::new(3), progress(4, 8));
    assert!(rang(&bell));
    assert_eq!(again.high_watermark(), Some(Offset::new(8)));
}

#[test]
fn messages_round_trip() {
    let epoch = LeaderEpoch::new(3);
    let lineage = Lineage {
        past: Vec::new(),
        generation: Generation::new(4),
        base_offset: Offset::new(10),
        epochs: vec![EpochStart { epoch, start_offset: Offset::new(10) }],
    };
    let mark = CommitMark {
        point: LogPoint::new(Generation::new(4), Step::new(9)),
        high_watermark: Offset::new(20),
    };
    let piece = Piece {
        base_offset: Offset::ZERO,
        max_timestamp_ms: 5,
        size_bytes: 9,
        place: Place::Clean(LogPoint::new(Generation::new(3), Step::new(2))),
    };
    let end = Offset::new(7);
    let manifest = Manifest { end, replaced_size_bytes: 1, pieces: vec![piece] };
    let lineages = [None, Some(lineage)].into_iter();
    let both = |lineage: Option<Lineage>| {
        [None, Some(Arc::new(manifest.clone()))].map(|manifest| (lineage.clone(), manifest))
    };
    for (lineage, manifest) in lineages.flat_map(both) {
        let message = FollowMessage::Progress(Box::new(Progress {
            partition: PartitionId::new(1),
            mark,
            log_start_offset: Offset::new(5),
            leader_epoch: epoch,
            aborted: page(3, 9, &[(5, 7), (6, 8)], 8),
            manifest,
            lineage,
        }));
        assert_eq!(FollowMessage::decode(message.encode()), Ok(message));
    }
    let follow = FollowMessage::Follow { partition: PartitionId::new(1), aborted_count: 7 };
    assert_eq!(FollowMessage::decode(follow.encode()), Ok(follow));
}

/// A follower that does not know an aborted transaction must not show what lies behind it.
#[tokio::test]
async fn a_lost_message_holds_the_last_stable_offset_until_it_is_made_good() {
    let sent: Arc<Sent> = Arc::default();
    let logs = bystander_with(&sent);
    let follower = logs.followed(ownership(3), LEADER).expect("the group is known");
    let stable = || follower.view().map(|view| view.last_stable_offset.get());
    let ask = |aborted_count| FollowMessage::Follow { partition: PARTITION, aborted_count };
    assert_eq!(sent.take(), [ask(0)]);

    // The list comes in two pages.
    logs.on_follow_message(LEADER, progress_with(3, 10, page(0, 2, &[(0, 1)], 2), true));
    assert_eq!(stable(), Some(2));
    assert_eq!(sent.take(), [ask(1)]);
    logs.on_follow_message(LEADER, progress_with(3, 10, page(1, 2, &[(2, 3)], 10), true));
    assert_eq!(stable(), Some(10));
    assert_eq!(sent.take(), []);

    // The third is lost, the fourth comes.
    logs.on_follow_message(LEADER, progress_with(3, 20, page(3, 4, &[(14, 15)], 20), false));
    assert_eq!((stable(), follower.high_watermark()), (Some(10), Some(Offset::new(20))));
    assert_eq!(sent.take(), [ask(2)]);
    let missed = page(2, 4, &[(10, 12), (14, 15)], 20);
    logs.on_follow_message(LEADER, progress_with(3, 20, missed, true));
    assert_eq!(stable(), Some(20));
    let view = follower.view().expect("the leader has answered");
    let aborted = follower.aborted_between(&view, Offset::ZERO, Offset::new(20));
    assert_eq!(aborted.map(|found| found.len()), Ok(4));

    // The next leader's list is another one: none of it is known yet.
    logs.followed(ownership(4), LEADER).expect("the group is known");
    assert_eq!(sent.take(), [ask(0)]);
    let stale = follower.aborted_between(&view, Offset::ZERO, Offset::new(20));
    assert_eq!(stale, Err(FetchError::Unavailable));
}
