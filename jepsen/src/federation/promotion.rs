//! Failovers: mirrors are promoted, whatever home does, and idempotent producers go on abroad with what they had under
//! way. Home goes on too, with producers of its own: from then on the two logs are never one again.

use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_base::position::{Generation, LeaderEpoch, Offset};
use meridian_mirror::mutation::Mutation;
use meridian_mirror::rows::Stage;

use super::{ABROAD, Federation, HOME};
use crate::check::{Promise, Verdict, Violation};
use crate::value::Value;
use crate::world::{Abroad, World};

/// A failover falls between these tenths of a run.
const FROM_TENTH: u32 = 3;
const TO_TENTH: u32 = 8;

/// How often home is made to follow then.
const FOLLOWS_PER_MILLE: u32 = 600;

/// How often the leader of a mirror is late to hear that it is promoted, and by how much on average.
const LATE_PER_MILLE: u32 = 400;
const LATE: Duration = Duration::from_millis(1_200);

/// One mirror's.
#[derive(Debug)]
pub(super) struct Promotion {
    partition: PartitionId,
    step: Step,
    /// When home is made to follow abroad, as if it had taken nothing since.
    follows_at: Option<Instant>,
    follows: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// It is to begin at this time.
    Planned(Instant),
    /// Its epochs so far end here, and what is open is to be aborted under later ones.
    Detached(LeaderEpoch),
    /// Clients may write, from here on.
    Promoted { end: Offset, by: Generation },
}

impl Promotion {
    /// Where what was mirrored ends, once it is promoted.
    pub(super) fn end(&self) -> Option<Offset> {
        match self.step {
            Step::Promoted { end, .. } => Some(end),
            Step::Planned(_) | Step::Detached(_) => None,
        }
    }
}

impl Federation {
    pub(super) fn plan_promotions(&mut self, duration: Duration) {
        for partition in self.partitions() {
            let tenth = duration / 10;
            let after = self.chance.between(tenth * FROM_TENTH, tenth * TO_TENTH);
            let at = self.now + after;
            let follows = self.chance.per_mille(FOLLOWS_PER_MILLE);
            let follows_at = follows.then(|| at + tenth + self.chance.around(tenth / 2));
            let step = Step::Planned(at);
            self.promotions.push(Promotion { partition, step, follows_at, follows: false });
        }
    }

    fn promotion(&self, partition: PartitionId) -> Option<&Promotion> {
        self.promotions.iter().find(|it| it.partition == partition)
    }

    pub(super) fn promoted_end(&self, partition: PartitionId) -> Option<Offset> {
        self.promotion(partition)?.end()
    }

    /// Whether a mirror is being promoted, or was.
    pub(super) fn is_leaving(&self, partition: PartitionId) -> bool {
        self.promotion(partition).is_some_and(|it| !matches!(it.step, Step::Planned(_)))
    }

    /// Whether promotions that have begun have come to their end.
    pub(super) fn has_promoted(&self) -> bool {
        self.promotions.iter().all(|it| !matches!(it.step, Step::Detached(_)))
    }

    /// Whoever promotes does the next step, and repeats what was not answered.
    pub(super) fn promote(&mut self) {
        let is_unfenced = self.mutation == Some(Mutation::PromoteUnfenced);
        let world = &mut self.sides[ABROAD].world;
        world.now = world.now.max(self.now);
        for promotion in &mut self.promotions {
            let partition = promotion.partition;
            match promotion.step {
                Step::Planned(at) if at <= self.now => {
                    let owner = world.owner(partition);
                    let Some(latest) = owner.map(|owner| owner.leader_epoch) else { continue };
                    // Its leader may be late to hear of it.
                    if self.chance.per_mille(LATE_PER_MILLE) {
                        let leader = owner.map_or(0, |owner| owner.node.get() as usize);
                        world.metadata_lag[leader] = self.chance.around(LATE);
                    }
                    world.mirror(partition, Stage::Promoting);
                    let epoch_floor = if is_unfenced {
                        LeaderEpoch::new(latest.get() - 1)
                    } else {
                        world.fence_mirror(partition);
                        latest
                    };
                    world.mirror(partition, Stage::Detached { epoch_floor });
                    promotion.step = Step::Detached(epoch_floor);
                    world.ask_to_abort(partition, epoch_floor);
                }
                Step::Detached(epoch_floor) => world.ask_to_abort(partition, epoch_floor),
                Step::Planned(_) | Step::Promoted { .. } => {}
            }
        }
        self.follow();
    }

    /// Home is made to follow abroad: with records of its own it must not, and say so.
    fn follow(&mut self) {
        let world = &mut self.sides[HOME].world;
        world.now = world.now.max(self.now);
        for promotion in &mut self.promotions {
            let is_due = promotion.follows_at.is_some_and(|at| at <= self.now);
            if !is_due || promotion.end().is_none() {
                continue;
            }
            promotion.follows_at = None;
            promotion.follows = true;
            let partition = promotion.partition;
            for client in world.clients.iter_mut().filter(|it| it.partition == partition) {
                client.give_up();
            }
            world.mirror(partition, Stage::Mirroring);
            world.fence_mirror(partition);
        }
    }

    /// Whether home, if it was made to follow, has found out that it must not, or has all that there is.
    pub(super) fn is_apart(&self, partition: PartitionId) -> bool {
        let [home, abroad] = &self.sides;
        let ends = [home, abroad].map(|side| side.world.bounds(partition).map(|(_, end)| end));
        let follows = self.promotion(partition).is_some_and(|it| it.follows);
        let has_stopped = home.world.stopped_mirror(partition).is_some();
        !follows || has_stopped || !self.is_own(partition) && ends[0] == ends[1]
    }

    /// Whether home has shown records, since the promotion, that abroad has not.
    fn is_own(&self, partition: PartitionId) -> bool {
        let [home, abroad] = [HOME, ABROAD].map(|side| &self.sides[side].world.checker);
        let end = self.promoted_end(partition);
        end.is_some_and(|end| !home.agrees_from(partition, abroad, end))
    }

    /// Nothing of abroad comes behind records of home's own.
    pub(super) fn check_rejoined(&mut self, home: &Abroad) -> Verdict {
        let merged = home.mirroring.iter().find(|(_, partition, _)| self.is_own(*partition));
        let Some((node, partition, generation)) = merged else { return Ok(()) };
        let detail =
            format!("{partition:?}: {generation} on N{node} mirrors behind records of its own");
        Err(Violation { promise: Promise::NeverMerged, detail })
    }

    /// What has come of a promotion, and what must not come after it.
    pub(super) fn check_promoted(&mut self, abroad: &Abroad) -> Verdict {
        for (partition, by, above) in &abroad.aborted {
            self.conclude_promotion(*partition, *by, *above);
        }
        for (node, partition, generation) in &abroad.mirroring {
            if let Some(Step::Promoted { by, .. }) = self.promotion(*partition).map(|it| it.step)
                && *generation >= by
            {
                let detail =
                    format!("{partition:?}: {generation} on N{node} mirrors, {by} was promoted");
                return Err(Violation { promise: Promise::OneWriter, detail });
            }
        }
        // Every leader of the promotion has all that was mirrored, and knows whose it is.
        for (partition, first) in &abroad.out_of_order {
            let before = first.sequence.checked_sub(1).map(|sequence| Value { sequence, ..*first });
            let checker = &self.sides[ABROAD].world.checker;
            let end = self.promoted_end(*partition);
            let is_mirrored = |value: Value| {
                let at = checker.offset_of(*partition, value);
                at.zip(end).is_some_and(|(at, end)| at < end)
            };
            if is_mirrored(*first) || before.is_some_and(is_mirrored) {
                let detail = format!(
                    "{partition:?}: the producer of {first}, which or the one before was mirrored, is told to begin anew"
                );
                return Err(Violation { promise: Promise::ExactlyOnce, detail });
            }
        }
        Ok(())
    }

    /// Clients may write, and come.
    fn conclude_promotion(&mut self, partition: PartitionId, by: Generation, above: LeaderEpoch) {
        let promotion = self.promotions.iter_mut().find(|it| it.partition == partition);
        let Some(promotion) = promotion else { return };
        let [home, abroad] = &mut self.sides;
        let end = abroad.world.bounds(partition).map(|(_, end)| end);
        let (Step::Detached(epoch_floor), Some(end)) = (promotion.step, end) else { return };
        if epoch_floor != above {
            return;
        }
        promotion.step = Step::Promoted { end, by };
        abroad.world.mirror(partition, Stage::Promoted { epoch_floor });
        let of_partition = |world: &World| -> Vec<usize> {
            let clients = world.clients.iter().enumerate();
            let producers = clients.filter(|(_, it)| it.partition == partition && it.is_producer());
            producers.map(|(index, _)| index).collect()
        };
        let (here, there) = (of_partition(&abroad.world), of_partition(&home.world));
        for (here, there) in here.into_iter().zip(there) {
            abroad.world.clients[here].take_over(&mut home.world.clients[there]);
            abroad.world.wake_client(here, Duration::from_millis(1));
        }
    }
}
