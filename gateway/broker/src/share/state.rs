//! What a group's coordinator keeps of one partition that the group shares. Pure.
//!
//! A leader *opens* the state under a number that nobody had before, and writes to it under that number: a write of
//! a leader that was replaced, or of one that gave its window up, is refused. Writes of one opening are numbered, so
//! that one that was sent twice, or comes late, changes nothing.

use meridian_base::position::{LeaderEpoch, Offset};
use serde::{Deserialize, Serialize};

use super::ranges::Ranges;

/// What a record of the window is, as far as that outlives its leader. Persisted: **append only**.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Delivery {
    /// It is to be delivered, and was delivered so often.
    Available(u16),
    /// A member has accepted it.
    Acknowledged,
    /// It is not to be delivered any more, and nobody has accepted it.
    Archived,
}

/// Which opening of the state a leader writes under. Random, never 0 for a leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Opening(pub u128);

/// What has changed in a window since the last delta.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    /// Which of its opening's, from 1 on.
    pub number: u64,
    /// The first offset that is not decided (SPSO).
    pub start: Offset,
    /// What records from there on are: from an offset up to another.
    pub changed: Vec<(Offset, Offset, Delivery)>,
}

/// Why a state was not opened or written. Sent between nodes: **append only**.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ShareError {
    /// A later leader of the partition has opened it.
    #[error("a later leader of the partition keeps the state; ask it")]
    FencedLeader,
    /// The state was opened or set anew; the window is void.
    #[error("the state was opened or set anew; open it again")]
    FencedState,
    /// There is no such share group.
    #[error("there is no such share group; join it first")]
    UnknownGroup,
    /// The group shares too many partitions.
    #[error("the group shares as many partitions as it may; delete the offsets of some topics")]
    TooMany,
    /// The coordinator is not here, or does not serve.
    #[error("the coordinator can't be reached now; ask again")]
    Unavailable,
}

/// The state of one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShareState {
    /// The epoch of the leader that has opened it last.
    leader_epoch: LeaderEpoch,
    opening: Opening,
    /// The last write of that opening.
    number: u64,
    start: Option<Offset>,
    deliveries: Ranges<Delivery>,
}

impl ShareState {
    /// The first offset that is not decided; `None` until a leader has said where the group begins.
    pub fn start(&self) -> Option<Offset> {
        self.start
    }

    /// The epoch of the leader that has opened it last.
    pub fn leader_epoch(&self) -> LeaderEpoch {
        self.leader_epoch
    }

    /// What records from the start on are; those that have none are available, and were never delivered.
    pub fn deliveries(&self) -> &Ranges<Delivery> {
        &self.deliveries
    }

    /// A leader opens it: writes of all others are void from then on.
    pub fn open(&mut self, epoch: LeaderEpoch, opening: Opening) -> Result<(), ShareError> {
        if epoch < self.leader_epoch {
            return Err(ShareError::FencedLeader);
        }
        (self.leader_epoch, self.opening, self.number) = (epoch, opening, 0);
        Ok(())
    }

    /// Its leader writes. Gives whether anything is new.
    pub fn write(&mut self, opening: Opening, delta: &Delta) -> Result<bool, ShareError> {
        if opening != self.opening || opening == Opening::default() {
            return Err(ShareError::FencedState);
        }
        if delta.number == self.number {
            return Ok(false);
        }
        if delta.number != self.number.saturating_add(1) {
            return Err(ShareError::FencedState);
        }
        self.number = delta.number;
        for (start, end, delivery) in &delta.changed {
            self.deliveries.set(*start, *end, *delivery);
        }
        self.start = Some(delta.start);
        self.deliveries.remove_below(delta.start);
        Ok(true)
    }

    /// Sets where the group goes on; the window of a leader that has it open is void.
    pub fn seek(&mut self, start: Offset) {
        self.opening = Opening::default();
        self.start = Some(start);
        self.deliveries = Ranges::default();
    }

    /// As it is recorded, and told a leader that opens it.
    pub fn image(&self) -> ShareImage {
        let mut at = self.start.unwrap_or_default();
        let mut deliveries = Vec::with_capacity(self.deliveries.run_count());
        for found in self.deliveries.iter() {
            let gap = found.start.get().abs_diff(at.get());
            deliveries.push((gap, found.count(), *found.value));
            at = found.end;
        }
        ShareImage {
            leader_epoch: self.leader_epoch,
            opening: self.opening,
            number: self.number,
            start: self.start,
            deliveries,
        }
    }

    /// As it was recorded; what lies beyond the last offset is left out.
    pub fn restore(image: &ShareImage) -> Self {
        let mut deliveries = Ranges::default();
        let mut at = image.start.unwrap_or_default();
        let ahead = |from: Offset, count: u64| {
            let count = i64::try_from(count).ok()?;
            from.get().checked_add(count).map(Offset::new)
        };
        for (gap, count, delivery) in &image.deliveries {
            let Some(start) = ahead(at, *gap) else { break };
            let Some(end) = ahead(start, *count) else { break };
            deliveries.set(start, end, *delivery);
            at = end;
        }
        Self {
            leader_epoch: image.leader_epoch,
            opening: image.opening,
            number: image.number,
            start: image.start,
            deliveries,
        }
    }
}

/// A state as it is recorded and sent. Persisted through postcard: **append only**.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareImage {
    /// The epoch of the leader that has opened it last.
    pub leader_epoch: LeaderEpoch,
    /// Under which opening.
    pub opening: Opening,
    /// The last write of that.
    pub number: u64,
    /// The first offset that is not decided.
    pub start: Option<Offset>,
    /// Runs of records: how many lie between it and the one before, how many it has, and what they are.
    pub deliveries: Vec<(u64, u64, Delivery)>,
}
