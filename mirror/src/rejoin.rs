//! Rejoining after a failover: the old side keeps what only it has, and becomes a mirror of the side
//! that was promoted without it.
//!
//! ```text
//! old side  ... 41 | 42 43 44      only here: 42..45, exported
//! promoted  ... 41 | m  42' 43'    m: aborts what was open; from here on the promoted side's epochs
//!                  ^ where the old side's epochs end at the promoted side
//!
//! Diverged --give way, fence--> GivingWay --export, decide--> deleted --> Following
//! ```
//!
//! Whoever drives it keeps nothing: every look at both sides says what comes next, so that it can be
//! interrupted anywhere and run again, also twice at once. Exported records name the topic's id and
//! their offset, and are there once ([`source_of`]). Nothing is deleted unless all that there will ever
//! be was exported ([`check_replace`]).

use meridian_base::id::{ClusterId, TopicId};
use meridian_base::position::{LeaderEpoch, Offset};

use crate::mutation::Mutation;
use crate::rows::Stage;
use crate::succession::{Act, LinkEpoch, Refusal, Succession};

/// The topic at the side that is to rejoin.
#[derive(Clone, Debug)]
pub struct Here<'a> {
    /// Its id.
    pub topic: TopicId,
    /// How it stands.
    pub row: &'a Succession,
    /// The cluster that it mirrors, or mirrored, and how far that is.
    pub mirrors: Option<(&'a ClusterId, Stage)>,
}

/// The topic as the other side tells of it.
#[derive(Clone, Debug)]
pub struct There {
    /// The other cluster.
    pub cluster: ClusterId,
    /// Whether clients may write to it.
    pub takes_records: bool,
    /// The last promotion that it knows of.
    pub link_epoch: LinkEpoch,
    /// The topic that it mirrors or mirrored.
    pub source_topic: Option<TopicId>,
    /// What it has of that topic is of this leader epoch or an earlier one, if it was promoted.
    pub epoch_floor: Option<LeaderEpoch>,
}

/// How far a rejoin is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Both sides take records.
    Diverged,
    /// This side takes none any more.
    GivingWay,
    /// This side mirrors the other.
    Following,
    /// This side is the writer, and the other mirrors it: a failback has come to its end.
    Writing,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Refuse clients and fence what is in flight.
    GiveWay,
    /// Export what only this side has.
    Export,
    /// Delete the topic and mirror the other side's.
    Replace,
    /// Nothing.
    Done,
}

/// Why this side cannot rejoin the other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// It mirrors somebody else.
    #[error("the topic is a mirror of cluster {of} here: there is nothing to rejoin")]
    Mirrors {
        /// The source.
        of: ClusterId,
    },
    /// The other side is no writer.
    #[error(
        "cluster {cluster} takes no records of the topic: only a side that does can be followed"
    )]
    NoWriter {
        /// The other side.
        cluster: ClusterId,
    },
    /// The other side's records are not this topic's.
    #[error(
        "the topic at cluster {cluster} was not promoted from this one: nobody can tell what both \
         have; keep what is needed of it, delete it, and create a mirror"
    )]
    NotPromotedFromHere {
        /// The other side.
        cluster: ClusterId,
    },
    /// Records were appended, or not exported.
    #[error(
        "only this side has records up to {end} of partition {partition}, exported is {exported}"
    )]
    NotExported {
        /// Index of the partition.
        partition: usize,
        /// Where it ends.
        end: Offset,
        /// Up to where it was exported.
        exported: Offset,
    },
    /// The side does not give way.
    #[error("the topic takes records: what only this side has is not exported for good")]
    NotFenced,
    /// The rows do not allow it.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// Looks how far a rejoin is.
pub fn progress(
    here: &Here<'_>,
    there: &There,
    mutation: Option<Mutation>,
) -> Result<Progress, Obstacle> {
    if let Some((of, stage)) = here.mirrors
        && stage.refuses_clients()
    {
        let of = of.clone();
        return if of == there.cluster {
            Ok(Progress::Following)
        } else {
            Err(Obstacle::Mirrors { of })
        };
    }
    let cluster = there.cluster.clone();
    let comes_from_here = there.source_topic == Some(here.topic);
    if !there.takes_records {
        let is_writer = comes_from_here && !here.row.has_left();
        return if is_writer { Ok(Progress::Writing) } else { Err(Obstacle::NoWriter { cluster }) };
    }
    if !comes_from_here || there.epoch_floor.is_none() {
        return Err(Obstacle::NotPromotedFromHere { cluster });
    }
    let row = here.row.give_way(&there.cluster, there.link_epoch, mutation)?;
    Ok(if row == *here.row { Progress::GivingWay } else { Progress::Diverged })
}

/// Where a partition ends, as its leader says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The leader's epoch.
    pub leader_epoch: LeaderEpoch,
    /// Offset after its last record.
    pub offset: Offset,
}

/// What to do next, given where the partitions end here and up to where each was exported.
pub fn next(
    progress: Progress,
    row: &Succession,
    ends: &[End],
    exported: Option<&[Offset]>,
    mutation: Option<Mutation>,
) -> Action {
    match progress {
        Progress::Diverged => Action::GiveWay,
        Progress::Following | Progress::Writing => Action::Done,
        Progress::GivingWay if is_exported(row) => Action::Replace,
        Progress::GivingWay if !is_fenced(row, ends, mutation) => Action::GiveWay,
        Progress::GivingWay => match exported {
            Some(exported) if uncovered(ends, exported).is_none() => Action::Replace,
            _ => Action::Export,
        },
    }
}

/// Whether it is decided that the topic is deleted.
fn is_exported(row: &Succession) -> bool {
    matches!(row.act, Act::GivingWay { is_exported: true, .. })
}

/// Whether these ends are all there will ever be.
fn is_fenced(row: &Succession, ends: &[End], mutation: Option<Mutation>) -> bool {
    let is_above = |floor| ends.iter().all(|end| end.leader_epoch > floor);
    row.epoch_floor().is_some_and(is_above) || Mutation::ExportUnfenced.active(mutation)
}

/// The first partition that was not exported up to its end.
fn uncovered(ends: &[End], exported: &[Offset]) -> Option<usize> {
    (0..ends.len()).find(|index| exported.get(*index).is_none_or(|it| *it < ends[*index].offset))
}

/// Whether it may be decided that the topic is deleted: it gives way to that cluster, takes nothing any
/// more, and all of it was exported or is at the other side. The row must have been read before the
/// ends, and be the same still when the decision is written: somebody may take the topic back.
pub fn check_replace(
    row: &Succession,
    to: &ClusterId,
    ends: &[End],
    exported: &[Offset],
    mutation: Option<Mutation>,
) -> Result<(), Obstacle> {
    let gives_way = matches!(&row.act, Act::GivingWay { to: known, .. } if known == to);
    if gives_way && is_exported(row) {
        return Ok(());
    }
    if !gives_way || !is_fenced(row, ends, mutation) {
        return Err(Obstacle::NotFenced);
    }
    match uncovered(ends, exported) {
        Some(partition) if !Mutation::ReplaceUnexported.active(mutation) => {
            let exported = exported.get(partition).copied().unwrap_or(Offset::ZERO);
            Err(Obstacle::NotExported { partition, end: ends[partition].offset, exported })
        }
        _ => Ok(()),
    }
}

/// The first offset of a partition that only this side has: `common` is where its epochs end at the
/// promoted side, `end` where it ends here.
pub fn divergence(common: Offset, end: Offset, mutation: Option<Mutation>) -> Offset {
    let late = i64::from(Mutation::DivergeLate.active(mutation));
    Offset::new(common.get() + late).min(end)
}

/// The source that exported records of a partition name (`meridian.dedup=source`); their number is
/// their offset. An offset of a topic's id stands for one record for ever, so that whoever exports it
/// again, in whatever run, changes nothing.
pub fn source_of(topic: TopicId, partition: usize) -> String {
    format!("{:032x}/{partition}", topic.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOPIC: TopicId = TopicId::new(7);
    const FLOOR: LeaderEpoch = LeaderEpoch::new(3);

    fn east() -> ClusterId {
        ClusterId::from_text("east")
    }

    fn promoted() -> There {
        There {
            cluster: east(),
            takes_records: true,
            link_epoch: LinkEpoch::new(1),
            source_topic: Some(TOPIC),
            epoch_floor: Some(FLOOR),
        }
    }

    fn look(row: &Succession, there: &There) -> Result<Progress, Obstacle> {
        progress(&Here { topic: TOPIC, row, mirrors: None }, there, None)
    }

    fn ends(leader_epoch: i32, offset: i64) -> [End; 1] {
        [End { leader_epoch: LeaderEpoch::new(leader_epoch), offset: Offset::new(offset) }]
    }

    #[test]
    fn each_look_says_what_comes_next() {
        let row = Succession::default();
        assert_eq!(look(&row, &promoted()), Ok(Progress::Diverged));
        let way = row.give_way(&east(), LinkEpoch::new(1), None).unwrap();
        assert_eq!(next(Progress::GivingWay, &way, &ends(4, 9), None, None), Action::GiveWay);
        let way = way.fix_floor(FLOOR);
        assert_eq!(look(&way, &promoted()), Ok(Progress::GivingWay));
        let after = |ends: &[End], exported: Option<&[Offset]>| {
            next(Progress::GivingWay, &way, ends, exported, None)
        };
        // The row was written, but its generations were not: they are asked for again.
        assert_eq!(after(&ends(3, 9), None), Action::GiveWay);
        assert_eq!(after(&ends(4, 9), None), Action::Export);
        assert_eq!(after(&ends(4, 9), Some(&[Offset::new(8)])), Action::Export);
        assert_eq!(after(&ends(4, 9), Some(&[Offset::new(9)])), Action::Replace);
        let mirrors = Some((&east(), Stage::Mirroring));
        let here = Here { topic: TOPIC, row: &row, mirrors };
        assert_eq!(progress(&here, &promoted(), None), Ok(Progress::Following));
    }

    #[test]
    fn only_the_side_that_was_promoted_from_here_and_later_is_followed() {
        let row = Succession::default();
        let refused = |there: There| look(&row, &there).unwrap_err();
        let cluster = east();
        let other = There { source_topic: Some(TopicId::new(8)), ..promoted() };
        assert_eq!(refused(other), Obstacle::NotPromotedFromHere { cluster: cluster.clone() });
        let never = There { epoch_floor: None, ..promoted() };
        assert_eq!(refused(never), Obstacle::NotPromotedFromHere { cluster });
        let earlier = There { link_epoch: LinkEpoch::ZERO, ..promoted() };
        assert!(matches!(refused(earlier), Obstacle::Refused(Refusal::NotLater { .. })));
        let mirror = There { takes_records: false, ..promoted() };
        assert_eq!(look(&row, &mirror), Ok(Progress::Writing));
    }

    #[test]
    fn nothing_is_deleted_that_was_not_exported() {
        let way = Succession::default().give_way(&east(), LinkEpoch::new(1), None).unwrap();
        let way = way.fix_floor(FLOOR);
        let check = |row: &Succession, ends: &[End], exported: &[Offset]| {
            check_replace(row, &east(), ends, exported, None)
        };
        let all = [Offset::new(9)];
        assert_eq!(check(&way, &ends(4, 9), &all), Ok(()));
        assert_eq!(check(&way, &ends(3, 9), &all), Err(Obstacle::NotFenced));
        assert_eq!(check(&Succession::default(), &ends(4, 9), &all), Err(Obstacle::NotFenced));
        assert!(matches!(check(&way, &ends(4, 10), &all), Err(Obstacle::NotExported { .. })));
        assert!(matches!(check(&way, &ends(4, 9), &[]), Err(Obstacle::NotExported { .. })));
        // Once it is decided, whoever goes on need not export again.
        assert_eq!(check(&way.export(), &[], &[]), Ok(()));
        let next = next(Progress::GivingWay, &way.export(), &ends(4, 9), None, None);
        assert_eq!(next, Action::Replace);
    }
}
