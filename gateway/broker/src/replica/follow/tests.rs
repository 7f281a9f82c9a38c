use meridian_base::position::LogPoint;
use meridian_storage::lineage::EpochStart;
use meridian_storage::manifest::{Piece, Place};

use super::aborted_page::page;
use super::*;

const PARTITION: PartitionId = PartitionId::new(1);
const LEADER: NodeId = NodeId::new(2);
const NOW: Instant = Instant::ZERO;

fn progress(
    generation: u32,
    high_watermark: i64,
    aborted: AbortedPage,
    with_lineage: bool,
) -> Progress {
    let generation = Generation::new(generation);
    let lineage = Lineage {
        past: Vec::new(),
        generation,
        base_offset: Offset::new(0),
        epochs: vec![EpochStart { epoch: LeaderEpoch::new(0), start_offset: Offset::new(0) }],
    };
    Progress {
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
    }
}

fn ask(aborted_count: u64) -> Renewal {
    Renewal::Ask(LEADER, FollowMessage::Follow { partition: PARTITION, aborted_count })
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
            aborted: page(3, 9, &[(5, 7), (6, 8)], 8)
                .with_forgotten_count(lineage.is_some().then_some(3)),
            manifest,
            lineage,
        }));
        assert_eq!(FollowMessage::decode(message.encode()), Ok(message));
    }
    let follow = FollowMessage::Follow { partition: PartitionId::new(1), aborted_count: 7 };
    assert_eq!(FollowMessage::decode(follow.encode()), Ok(follow));
}

#[test]
fn only_the_leader_speaks_for_its_own_generation() {
    let mut follower = Follower::new(NOW, PARTITION, Generation::new(3), LEADER);
    let heard = |generation| progress(generation, 5, page(0, 0, &[], 5), true);
    assert_eq!(follower.on_progress(NOW, NodeId::new(9), heard(3)), None);
    assert_eq!(follower.on_progress(NOW, LEADER, heard(2)), None);
    assert_eq!(follower.view(), None);
    assert_eq!(follower.on_progress(NOW, LEADER, heard(3)), Some(Renewal::Current));
    assert_eq!(follower.view().map(|view| view.mark.high_watermark), Some(Offset::new(5)));
    assert!(!follower.follow(Generation::new(2), NodeId::new(7)), "an older one");
    assert!(follower.follow(Generation::new(4), NodeId::new(7)));
    assert_eq!(follower.view(), None, "until the new leader has said it");
}

#[test]
fn a_follower_asks_until_it_is_answered_and_goes_when_no_reader_comes() {
    let at = |seconds| NOW + Duration::from_secs(seconds);
    let mut follower = Follower::new(NOW, PARTITION, Generation::new(3), LEADER);
    assert_eq!(follower.renew(NOW), ask(0));
    assert_eq!(follower.renew(NOW), Renewal::Current);
    assert_eq!(follower.renew(NOW + ASK_EVERY), ask(0));
    follower.on_progress(at(1), LEADER, progress(3, 5, page(0, 0, &[], 5), true));
    assert_eq!(follower.renew(at(2)), Renewal::Current);
    assert_eq!(follower.renew(at(8)), ask(0));
    assert_eq!(follower.renew(at(61)), Renewal::Idle);
    follower.on_used(at(61));
    assert_eq!(follower.renew(at(61)), ask(0));
}

/// A follower that does not know an aborted transaction must not show what lies behind it.
#[test]
fn a_lost_message_holds_the_last_stable_offset_until_it_is_made_good() {
    let mut follower = Follower::new(NOW, PARTITION, Generation::new(3), LEADER);
    let stable = |it: &Follower| it.view().map(|view| view.last_stable_offset.get());
    assert_eq!(follower.renew(NOW), ask(0));

    // The list comes in two pages.
    let heard = progress(3, 10, page(0, 2, &[(0, 1)], 2), true);
    assert_eq!(follower.on_progress(NOW, LEADER, heard), Some(ask(1)));
    assert_eq!(stable(&follower), Some(2));
    let heard = progress(3, 10, page(1, 2, &[(2, 3)], 10), true);
    assert_eq!(follower.on_progress(NOW, LEADER, heard), Some(Renewal::Current));
    assert_eq!(stable(&follower), Some(10));

    // The third is lost, the fourth comes.
    let heard = progress(3, 20, page(3, 4, &[(14, 15)], 20), false);
    assert_eq!(follower.on_progress(NOW, LEADER, heard), Some(ask(2)));
    assert_eq!(stable(&follower), Some(10));
    let high_watermark = follower.view().map(|view| view.mark.high_watermark);
    assert_eq!(high_watermark, Some(Offset::new(20)));
    let missed = progress(3, 20, page(2, 4, &[(10, 12), (14, 15)], 20), true);
    assert_eq!(follower.on_progress(NOW, LEADER, missed), Some(Renewal::Current));
    assert_eq!(stable(&follower), Some(20));
    let view = follower.view().cloned().expect("the leader has answered");
    let aborted = follower.aborted_between(&view, Offset::ZERO, Offset::new(20));
    assert_eq!(aborted.map(|found| found.len()), Some(4));

    // The next leader's list is another one: none of it is known yet.
    assert!(follower.follow(Generation::new(4), LEADER));
    assert_eq!(follower.renew(NOW), ask(0));
    assert_eq!(follower.aborted_between(&view, Offset::ZERO, Offset::new(20)), None);
}
