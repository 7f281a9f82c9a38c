//! Follower fetching (KIP-392): a node near a reader hears the high watermark from the leader and reads the blobs
//! from disks nearby.
//!
//! A follower serves only what its leader said is committed, by the lineage of that very generation (rule 56): what it
//! serves is always a committed prefix, at worst an old one.

mod aborted_page;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use meridian_base::env::Instant;
use meridian_base::id::{NodeId, PartitionId};
use meridian_base::position::{Generation, LeaderEpoch, Offset, Step};
use meridian_storage::codec::{DecodeError, Source};
use meridian_storage::lineage::{Lineage, Start};
use meridian_storage::manifest::Manifest;
use meridian_storage::message::CommitMark;
use meridian_storage::mutation::{Mutation, Mutations};

pub use self::aborted_page::AbortedPage;
use super::view::ReadView;
use crate::partition::{AbortedTransaction, AbortedTransactions, Partition};

/// A leader forgets a follower that has not asked for this long.
const FOLLOW_LEASE: Duration = Duration::from_secs(15);
/// A follower asks anew this often.
const RENEW_EVERY: Duration = Duration::from_secs(5);
/// Before the leader has answered, this often.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// A follower that no reader used for this long goes.
const IDLE_AFTER: Duration = Duration::from_secs(60);

/// What a leader and a reader in another datacenter tell each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FollowMessage {
    /// Asks a leader for its partition's progress, from now on.
    Follow {
        /// The partition.
        partition: PartitionId,
        /// How many of its aborted transactions the asking node knows.
        aborted_count: u64,
    },
    /// How far the partition is; with the lineage if it was asked for.
    Progress(Box<Progress>),
}

/// How far a partition is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The partition.
    pub partition: PartitionId,
    /// What is committed.
    pub mark: CommitMark,
    /// First offset that can be read.
    pub log_start_offset: Offset,
    /// The leader's epoch.
    pub leader_epoch: LeaderEpoch,
    /// Aborted transactions that are new to the follower.
    pub aborted: AbortedPage,
    /// If there is one, and it is new or comes with the lineage.
    pub manifest: Option<Arc<Manifest>>,
    /// In the answer to [`FollowMessage::Follow`].
    pub lineage: Option<Lineage>,
}

impl FollowMessage {
    fn progress(
        partition: PartitionId,
        view: &ReadView,
        aborted: AbortedPage,
        with_manifest: bool,
        with_lineage: bool,
    ) -> Self {
        Self::Progress(Box::new(Progress {
            partition,
            mark: view.mark,
            log_start_offset: view.log_start_offset,
            leader_epoch: view.leader_epoch,
            // Of use to who asked, and goes along with the lineage.
            aborted: if with_lineage { aborted } else { aborted.with_forgotten_count(None) },
            manifest: view.manifest.clone().filter(|_| with_manifest || with_lineage),
            lineage: with_lineage.then(|| view.lineage.clone()),
        }))
    }

    /// The message's bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(64);
        match self {
            Self::Follow { partition, aborted_count } => {
                out.put_u8(0);
                out.put_u64(partition.get());
                out.put_u64(*aborted_count);
            }
            Self::Progress(progress) => {
                let Progress { partition, mark, log_start_offset, leader_epoch, .. } = &**progress;
                let Progress { aborted, manifest, lineage, .. } = &**progress;
                out.put_u8(if manifest.is_some() { 2 } else { 1 });
                out.put_u64(partition.get());
                out.put_u32(mark.point.generation.get());
                out.put_u64(mark.point.step.get());
                out.put_i64(mark.high_watermark.get());
                out.put_i64(log_start_offset.get());
                out.put_i32(leader_epoch.get());
                aborted.encode(&mut out);
                if let Some(manifest) = manifest {
                    let manifest = manifest.encode();
                    out.put_u32(manifest.len() as u32);
                    out.put_slice(&manifest);
                }
                if let Some(lineage) = lineage {
                    // A lineage is what a `Start` of the same generation would say. An older follower
                    // passes over the length of a tail, which it has no use for.
                    let start = Start {
                        previous: None,
                        base_offset: lineage.base_offset,
                        tail_length: aborted.forgotten_count().map_or(0, |count| count + 1),
                        log_start_offset: *log_start_offset,
                        past: lineage.past.clone(),
                        epochs: lineage.epochs.clone(),
                        checkpoint: None,
                    };
                    out.put_slice(&start.encode());
                }
            }
        }
        out.freeze()
    }

    /// Reads a message from its bytes.
    pub fn decode(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut source = Source::new(bytes, "follow message");
        let kind = source.u8()?;
        let partition = PartitionId::new(source.u64()?);
        match kind {
            0 => {
                let aborted_count = source.u64()?;
                source.finish()?;
                Ok(Self::Follow { partition, aborted_count })
            }
            // 1: without a manifest.
            1 | 2 => {
                let point = source.point()?;
                let high_watermark = Offset::new(source.i64()?);
                let log_start_offset = Offset::new(source.i64()?);
                let leader_epoch = LeaderEpoch::new(source.i32()?);
                let aborted = AbortedPage::decode(&mut source)?;
                let manifest = if kind == 2 {
                    Some(Arc::new(Manifest::decode(source.sized()?)?))
                } else {
                    None
                };
                let rest = source.rest();
                let start = if rest.is_empty() { None } else { Some(Start::decode(rest)?) };
                let forgotten_count = start.as_ref().and_then(|it| it.tail_length.checked_sub(1));
                let aborted = aborted.with_forgotten_count(forgotten_count);
                let lineage = start.map(|start| Lineage::from_start(point.generation, &start));
                let mark = CommitMark { point, high_watermark };
                Ok(Self::Progress(Box::new(Progress {
                    partition,
                    mark,
                    log_start_offset,
                    leader_epoch,
                    aborted,
                    manifest,
                    lineage,
                })))
            }
            _ => Err(source.invalid("kind", u64::from(kind))),
        }
    }
}

/// The followers of one partition, as its leader knows them.
#[derive(Debug, Default)]
pub struct FollowerSet {
    asked_at: BTreeMap<NodeId, Instant>,
    /// How many aborted transactions all of them were sent, if nothing was lost on its way.
    sent_count: u64,
    /// The end of the manifest that they were sent, likewise.
    sent_end: Offset,
    mutations: Mutations,
}

impl FollowerSet {
    /// No followers. `mutations` are the rules that are broken, in tests.
    pub fn new(mutations: Mutations) -> Self {
        Self { mutations, ..Self::default() }
    }

    /// A node asks to follow, and knows the first `aborted_count` aborted transactions; the answer, once the
    /// partition serves.
    pub fn add<W>(
        &mut self,
        now: Instant,
        partition: (PartitionId, &Partition<W>),
        follower: NodeId,
        aborted_count: u64,
    ) -> Option<FollowMessage> {
        let view = self.view_of(partition.1)?;
        let page = AbortedPage::of(partition.1, aborted_count);
        self.asked_at.insert(follower, now);
        Some(FollowMessage::progress(partition.0, &view, page, true, true))
    }

    /// What to send to those that asked lately, when the partition has made progress.
    pub fn progress<W>(
        &mut self,
        now: Instant,
        partition: (PartitionId, &Partition<W>),
    ) -> Option<(Vec<NodeId>, FollowMessage)> {
        self.asked_at.retain(|_, asked| now.since(*asked) < FOLLOW_LEASE);
        if self.asked_at.is_empty() {
            return None;
        }
        let view = self.view_of(partition.1)?;
        let page = AbortedPage::of(partition.1, self.sent_count);
        self.sent_count = page.end();
        let clean_end = view.manifest.as_ref().map_or(Offset::ZERO, |manifest| manifest.end);
        let is_news = std::mem::replace(&mut self.sent_end, clean_end) != clean_end;
        let message = FollowMessage::progress(partition.0, &view, page, is_news, false);
        Some((self.asked_at.keys().copied().collect(), message))
    }

    fn view_of<W>(&self, partition: &Partition<W>) -> Option<ReadView> {
        let mut view = ReadView::of(partition)?;
        if Mutation::FollowersSeeTheEnd.active(self.mutations) {
            view.mark.point.step = Step::new(u64::MAX);
            view.mark.high_watermark = partition.leader().next_offset();
        }
        Some(view)
    }
}

/// What a follower does now.
#[derive(Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Nothing.
    Current,
    /// Sends this to the leader.
    Ask(NodeId, FollowMessage),
    /// Goes: no reader has come for long.
    Idle,
}

/// A partition that is led elsewhere, as a node that serves its readers nearby knows it.
#[derive(Debug)]
pub struct Follower {
    partition: PartitionId,
    generation: Generation,
    leader: NodeId,
    view: Option<ReadView>,
    aborted: AbortedTransactions,
    asked_at: Option<Instant>,
    used_at: Instant,
    mutations: Mutations,
}

impl Follower {
    /// Begins to follow `leader`, of this generation.
    pub fn new(
        now: Instant,
        partition: PartitionId,
        generation: Generation,
        leader: NodeId,
    ) -> Self {
        Self {
            partition,
            generation,
            leader,
            view: None,
            aborted: AbortedTransactions::default(),
            asked_at: None,
            used_at: now,
            mutations: Mutations::NONE,
        }
    }

    /// Breaks rules, in tests.
    pub fn break_rules(&mut self, mutations: Mutations) {
        self.mutations = mutations;
    }

    /// Follows another leader from now on, if its generation is newer; whether it is.
    pub fn follow(&mut self, generation: Generation, leader: NodeId) -> bool {
        let is_newer = generation > self.generation;
        if is_newer {
            (self.generation, self.leader) = (generation, leader);
            self.asked_at = None;
            if !Mutation::LineagesMixed.active(self.mutations) {
                self.view = None;
            }
        }
        is_newer
    }

    /// A reader comes.
    pub fn on_used(&mut self, now: Instant) {
        self.used_at = now;
    }

    /// What may be read; `None` before the leader has answered.
    pub fn view(&self) -> Option<&ReadView> {
        self.view.as_ref()
    }

    /// Whether no reader has come for long.
    pub fn is_idle(&self, now: Instant) -> bool {
        now.since(self.used_at) > IDLE_AFTER
    }

    /// Asks the leader, if it is time to.
    pub fn renew(&mut self, now: Instant) -> Renewal {
        if self.is_idle(now) {
            return Renewal::Idle;
        }
        let every = if self.view.is_some() { RENEW_EVERY } else { ASK_EVERY };
        if self.asked_at.is_none_or(|asked| now.since(asked) >= every) {
            self.ask(now)
        } else {
            Renewal::Current
        }
    }

    fn ask(&mut self, now: Instant) -> Renewal {
        self.asked_at = Some(now);
        let aborted_count = if self.view.is_some() { self.aborted.count() } else { 0 };
        let message = FollowMessage::Follow { partition: self.partition, aborted_count };
        Renewal::Ask(self.leader, message)
    }

    /// Takes what a leader says; `None` if it is not the one that is followed. Readers may see more now.
    pub fn on_progress(
        &mut self,
        now: Instant,
        from: NodeId,
        progress: Progress,
    ) -> Option<Renewal> {
        let Progress { mark, log_start_offset, leader_epoch, aborted, .. } = progress;
        let Progress { manifest, lineage, .. } = progress;
        if from != self.leader || mark.point.generation != self.generation {
            return None;
        }
        let aborted = match Mutation::LateAnswerBegins.active(self.mutations) {
            true => aborted.with_forgotten_count(None),
            false => aborted,
        };
        let is_answer = lineage.is_some();
        let known = self.view.take();
        let known_lineage = known.as_ref().map(|view| view.lineage.clone());
        let lineage = if Mutation::LineagesMixed.active(self.mutations) {
            known_lineage.or(lineage)?
        } else {
            lineage.or(known_lineage)?
        };
        let known_manifest = known.as_ref().and_then(|view| view.manifest.clone());
        let manifest = manifest.or(known_manifest);
        if known.is_none() {
            self.aborted = AbortedTransactions::default();
        }
        let heard = aborted.add_to(&mut self.aborted, is_answer);
        let last_stable_offset = heard.unwrap_or(log_start_offset);
        let (mark, last_stable_offset) = match known {
            Some(known) => (known.mark.max(mark), known.last_stable_offset.max(last_stable_offset)),
            None => (mark, last_stable_offset),
        };
        self.view = Some(ReadView {
            lineage,
            manifest,
            mark,
            last_stable_offset,
            log_start_offset,
            leader_epoch,
        });
        let is_behind = self.aborted.count() < aborted.total_count();
        Some(if is_behind { self.ask(now) } else { Renewal::Current })
    }

    /// The aborted transactions with records in `from..until`; `None` if those known are of another leader than
    /// `view`, or some of them are forgotten.
    pub fn aborted_between(
        &self,
        view: &ReadView,
        from: Offset,
        until: Offset,
    ) -> Option<Vec<AbortedTransaction>> {
        let generation = self.view.as_ref().map(|known| known.mark.point.generation);
        if generation != Some(view.mark.point.generation) {
            return None;
        }
        self.aborted.between(from, until)
    }
}

#[cfg(test)]
mod tests;
