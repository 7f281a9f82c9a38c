use bytes::Bytes;
use meridian_base::id::{ConfigVersion, GroupId, Incarnation};
use meridian_base::position::{Generation, LogPoint, Step};
use meridian_base::topology::{Geometry, GroupConfig, SlotConfig, SlotState};
use meridian_broker::replica::follow::AbortedPage;
use meridian_storage::hot::Layout;
use meridian_storage::lineage::{EpochStart, Lineage};
use meridian_storage::message::CommitMark;
use meridian_storage::mutation::Mutations;

use super::*;
use crate::log::{BudgetLimits, LogSettings};
use crate::partition::PartitionLimits;
use crate::peers::Wire;
use crate::runtime::clock::Clock;
use crate::runtime::quic::Channel;

/// Drops what is sent to other nodes.
struct Nowhere;

impl Wire for Nowhere {
    fn send(&self, _: NodeId, _: Channel, _: Vec<Bytes>) -> bool {
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
    let settings = LogSettings {
        node: NodeId::new(1),
        limits: PartitionLimits::default(),
        pending_size_bytes_max: 1 << 20,
        sizes: meridian_storage::limits::SizeLimits::DEFAULT,
        budget: BudgetLimits::default(),
        mutations: Mutations::NONE,
    };
    let logs = Logs::start(settings, Clock::start(), Arc::new(Nowhere), None);
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
        aborted: AbortedPage::default(),
        manifest: None,
        lineage: Some(lineage),
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
