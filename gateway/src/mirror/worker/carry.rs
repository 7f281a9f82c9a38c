//! Carries out what a machine decided: questions to the source, appends to the own log.

use std::sync::Arc;

use meridian_base::id::PartitionId;
use meridian_base::position::{LeaderEpoch, Offset};
use meridian_consensus::command::{Command, LeaderAssignment};
use meridian_mirror::partition::{Failure, Input, Output, Question, SourceBatch, Token};

use tokio::sync::oneshot;

use super::lane::FetchLane;
use super::{Event, LinkWorker};
use crate::mirror::question::{self, Asker, At, Want};
use crate::partition::{Appended, MirrorError, ProduceError};

impl LinkWorker {
    pub(super) fn carry_out(&mut self, partition: PartitionId, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Refresh => self.is_survey_wanted = true,
                Output::Ask { token, leader_epoch, question } => {
                    self.ask(partition, token, leader_epoch, question);
                }
                Output::Begin(at) => {
                    let Some(mirrored) = self.partitions.get(&partition) else { return };
                    match mirrored.target.log.begin_at(at) {
                        Ok(committed) => self.await_committed(partition, at, 0, committed),
                        Err(error) => return self.on_refused(partition, &error),
                    }
                }
                Output::Append { expected, batches } => {
                    if let Err(error) = self.append(partition, expected, batches) {
                        return self.on_refused(partition, &error);
                    }
                }
                Output::Trim(before) => self.trim(partition, before),
                Output::RaiseEpoch(epoch) => self.raise_epoch(partition, epoch),
            }
        }
    }

    fn ask(
        &mut self,
        partition: PartitionId,
        token: Token,
        leader_epoch: LeaderEpoch,
        question: Question,
    ) {
        let Some(mirrored) = self.partitions.get(&partition) else { return };
        let asker = Asker { partition, life: mirrored.life, token };
        let open = mirrored.connection.as_ref().filter(|connection| !connection.is_closed());
        let Some(connection) = open.cloned() else {
            let failure = Failure::Unreachable("the connection to the source was lost".to_owned());
            return self.answer_later(asker, failure);
        };
        let mirror = &mirrored.target.mirror;
        let at = At {
            topic: mirror.source_name.as_str().into(),
            topic_id: mirror.source_topic,
            index: i32::try_from(mirrored.target.index).unwrap_or(i32::MAX),
            leader_epoch,
        };
        let (events, asked_at) = (self.events.clone(), self.clock.now());
        match question {
            Question::Fetch { from } => {
                let want = Want { asker, at, from, goes_on: false };
                let same = |lane: &FetchLane| Arc::ptr_eq(&lane.connection, &connection);
                let index = self.lanes.iter().position(same).unwrap_or_else(|| {
                    self.lanes.push(FetchLane::new(connection, events));
                    self.lanes.len() - 1
                });
                self.lanes[index].wants.push(want);
            }
            Question::EpochEnd { epoch } => {
                tokio::spawn(async move {
                    let answer = question::epoch_end(&connection, &at, epoch).await;
                    let _gone = events.send(Event::Answered { asker, asked_at, answer }).await;
                });
            }
            Question::Bounds => {
                tokio::spawn(async move {
                    let answer = question::bounds(&connection, &at).await;
                    let _gone = events.send(Event::Answered { asker, asked_at, answer }).await;
                });
            }
        }
    }

    fn answer_later(&self, asker: Asker, failure: Failure) {
        let (events, asked_at) = (self.events.clone(), self.clock.now());
        tokio::spawn(async move {
            let answer = Err(failure);
            let _worker_is_gone = events.send(Event::Answered { asker, asked_at, answer }).await;
        });
    }

    /// Sends what is wanted over each connection that may have one more fetch under way.
    pub(super) fn send_fetches(&mut self) {
        self.lanes.retain(|lane| !lane.is_over());
        let now = self.clock.now();
        if !self.throttle.wait(now).is_zero() {
            return;
        }
        let packs = self.packs && self.plan.source.options.compresses();
        let partitions = &self.partitions;
        let goes_on_from = |asker: &Asker| {
            let mirrored = partitions.get(&asker.partition).filter(|it| it.life == asker.life)?;
            mirrored.machine.as_ref()?.fetches_from(asker.token)
        };
        for lane in self.lanes.iter_mut().filter(|lane| lane.next_at().is_some_and(|at| at <= now))
        {
            lane.send(now, &self.portion, packs, goes_on_from);
        }
    }

    fn append(
        &mut self,
        partition: PartitionId,
        expected: Offset,
        batches: Vec<SourceBatch>,
    ) -> Result<(), MirrorError> {
        let Some(mirrored) = self.partitions.get(&partition) else { return Ok(()) };
        let Some(last) = batches.last() else { return Ok(()) };
        let end = last.id.last_offset.advance(1);
        let size_bytes = batches.iter().map(|batch| batch.bytes.len() as u64).sum();
        let committed = mirrored.target.log.append_mirrored(expected, batches)?;
        self.await_committed(partition, end, size_bytes, committed);
        Ok(())
    }

    /// Has the machine hear when what it wrote is durable up to `end`.
    fn await_committed(
        &self,
        partition: PartitionId,
        end: Offset,
        size_bytes: u64,
        committed: oneshot::Receiver<Result<Appended, ProduceError>>,
    ) {
        let Some(mirrored) = self.partitions.get(&partition) else { return };
        let (life, events) = (mirrored.life, self.events.clone());
        tokio::spawn(async move {
            let event = match committed.await {
                Ok(Ok(_)) => Event::Committed { partition, life, end, size_bytes },
                Ok(Err(_)) | Err(_) => Event::Lost { partition, life },
            };
            let _worker_is_gone = events.send(event).await;
        });
    }

    /// The own log did not take what the machine decided.
    fn on_refused(&mut self, partition: PartitionId, error: &MirrorError) {
        match error {
            MirrorError::Refused(_) | MirrorError::NotAtEnd { .. } => {
                tracing::info!(?partition, %error, "nothing appended; the partition starts over");
                self.restart(partition);
            }
            MirrorError::GapTooLarge { .. }
            | MirrorError::BeginsTooFar { .. }
            | MirrorError::BatchTooLarge { .. }
            | MirrorError::NoRoom(_)
            | MirrorError::Replay(_) => {
                let Some(life) = self.partitions.get(&partition).map(|it| it.life) else { return };
                self.step(partition, life, Input::Refused(error.to_string()));
            }
        }
    }

    fn trim(&self, partition: PartitionId, before: Offset) {
        let Some(mirrored) = self.partitions.get(&partition) else { return };
        let log = Arc::clone(&mirrored.target.log);
        tokio::spawn(async move {
            if let Err(error) = log.delete_records(before).await {
                tracing::debug!(?partition, %error, "records the source let go of stay for now");
            }
        });
    }

    /// Has the metadata log give the partition the source's leader epoch.
    fn raise_epoch(&self, partition: PartitionId, epoch: LeaderEpoch) {
        let Some(mirrored) = self.partitions.get(&partition) else { return };
        let assignment = LeaderAssignment {
            partition,
            expected: mirrored.target.ownership().generation,
            leader: self.node.config.node,
            // The new epoch is the one above the floor.
            epoch_floor: LeaderEpoch::new(epoch.get() - 1),
        };
        let node = Arc::clone(&self.node);
        tokio::spawn(async move {
            let command = Command::AssignLeaders(vec![assignment]);
            if let Err(error) = node.meta.propose(command).await {
                tracing::warn!(?partition, %error, "the source's leader epoch not taken on yet");
            }
        });
    }
}
