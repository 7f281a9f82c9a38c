//! Compares mirrors with their sources, all the time and on demand (rule F9).
//!
//! A meridian source digests its own log, so that comparing costs a question of some hundred bytes for
//! each [`STRETCH_SIZE_BYTES`]; only where digests differ are the batches told one by one. A Kafka
//! source has no such method: its records are fetched, and only when an operator asks for it.
//!
//! Two places of a partition are compared in turn: what was mirrored last, and the rest, from the
//! beginning again and again; how often, what the link carries says. A difference is looked at twice before
//! it counts.

mod sums;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meridian_admin_api::Besides;
use meridian_admin_api::mirror::{self, AuditReport};
use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_base::position::Offset;
use meridian_base::sync::lock;
use meridian_mirror::allowance::Allowance;
use meridian_mirror::digest::{self, BatchSum, Difference, Digest};
use meridian_mirror::rows::MirrorTopic;
use tokio::task::JoinHandle;

pub(super) use self::sums::{At, batch_base, of_log};
use super::plan::{Plan, Source, Target};
use super::survey::{self, Survey};
use super::worker::LinkMetrics;
use crate::client::{Client, ClientError, Lane};
use crate::context::OwnEnd;
use crate::log::FetchError;
use crate::runtime::clock::Clock;

/// How often it is seen which partitions are to be compared.
const AUDIT_EVERY: Duration = Allowance::EVERY_MIN;
/// How often the source's topics are looked at though all is well.
const SURVEY_EVERY: Duration = Duration::from_secs(60);
/// Bytes of a partition that are compared at once ...
pub(super) const STRETCH_SIZE_BYTES: u64 = 16 << 20;
/// ... and of one that had to wait. It must stay below what a source digests at once.
const STRETCH_SIZE_BYTES_MAX: u64 = 3 * STRETCH_SIZE_BYTES;
/// Connections of audits carry nothing else: digesting takes its time.
const LANE: Lane = Lane(3);
/// Differences that are remembered of a partition.
const DIFFERENCE_COUNT_MAX: usize = 20;

/// Why nothing could be compared.
#[derive(Debug, thiserror::Error)]
pub(super) enum AuditError {
    #[error("the own log: {0}")]
    Log(#[from] FetchError),
    #[error(transparent)]
    Source(#[from] ClientError),
    #[error("the source's answer is not of this version: {0}")]
    Malformed(String),
    /// The source has let go of what was to be compared.
    #[error("the source begins at {start} now")]
    Gone { start: Offset },
}

/// What a survey says of a partition that is to be compared.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    LedBy(i32),
    /// Nobody leads it, or it is newer than the survey: a later one may know more.
    NotYet,
    /// Another topic has its name, or its source digests nothing that could be compared.
    NotComparable,
}

fn seen(survey: &Survey, mirror: &MirrorTopic, index: u32) -> Seen {
    let Some(found) = survey.topics.get(&mirror.source_name) else { return Seen::NotYet };
    let is_comparable = found.is_meridian && !found.is_compacted;
    if found.id != mirror.source_topic || found.is_described && !is_comparable {
        return Seen::NotComparable;
    }
    let leader = found.partitions.get(index as usize).and_then(|it| it.leader);
    leader.filter(|_| found.is_described).map_or(Seen::NotYet, Seen::LedBy)
}

/// What comparing a stretch gave.
#[derive(Clone, Debug)]
pub(super) struct Compared {
    /// Where to go on.
    pub(super) next: Offset,
    pub(super) digest: Digest,
    pub(super) differences: Vec<Difference>,
}

/// What is known of a partition.
#[derive(Clone, Debug, Default)]
pub(super) struct Audited {
    pub(super) topic: String,
    pub(super) partition: u32,
    /// Up to where what was mirrored last is equal.
    verified_offset: Option<Offset>,
    /// How often all of the log was found to be equal.
    passes_count: u64,
    compared_bytes: u64,
    pub(super) differences: Vec<Difference>,
    /// Why nothing is compared, if so.
    failure: Option<String>,
}

impl From<Audited> for AuditReport {
    fn from(audited: Audited) -> Self {
        Self {
            topic: audited.topic,
            partition: audited.partition,
            verified_offset: audited.verified_offset.map(Offset::get),
            passes_count: audited.passes_count,
            compared_bytes: audited.compared_bytes,
            differences: audited.differences.into_iter().map(mirror::Difference::from).collect(),
            failure: audited.failure,
            besides: Besides::new(),
        }
    }
}

/// Where the audit of a partition is.
struct Cursor {
    target: Target,
    /// What was mirrored since the audit began is compared from here on.
    head: Offset,
    /// The rest is compared from here on.
    scrub: Offset,
    /// When it was looked at last.
    looked_at: Option<Instant>,
}

/// The audit of a link on this node.
pub(super) struct AuditHandle {
    reports: Arc<Mutex<BTreeMap<PartitionId, Audited>>>,
    task: JoinHandle<()>,
}

impl Drop for AuditHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl AuditHandle {
    /// Audits the partitions of the plan, whichever those are, as often as what the link carries allows.
    pub(super) fn start(
        plan: tokio::sync::watch::Receiver<Arc<Plan>>,
        metrics: Arc<Mutex<LinkMetrics>>,
        own: Arc<OwnEnd>,
    ) -> Self {
        let reports = Arc::new(Mutex::new(BTreeMap::new()));
        let source = plan.borrow().source.clone();
        let client = source.client(&own);
        let audit = Audit {
            plan,
            source,
            client,
            own,
            metrics,
            clock: Clock::start(),
            allowance: Allowance::default(),
            survey: None,
            cursors: BTreeMap::new(),
            reports: Arc::clone(&reports),
        };
        Self { reports, task: tokio::spawn(audit.run()) }
    }

    pub(super) fn reports(&self) -> Vec<Audited> {
        let reports = lock(&self.reports);
        reports.values().cloned().collect()
    }
}

struct Audit {
    plan: tokio::sync::watch::Receiver<Arc<Plan>>,
    source: Source,
    client: Client,
    own: Arc<OwnEnd>,
    metrics: Arc<Mutex<LinkMetrics>>,
    clock: Clock,
    allowance: Allowance,
    /// The source's topics, and when they were looked at.
    survey: Option<(Survey, Instant)>,
    cursors: BTreeMap<PartitionId, Cursor>,
    reports: Arc<Mutex<BTreeMap<PartitionId, Audited>>>,
}

impl Audit {
    async fn run(mut self) {
        let mut interval = crate::background::ticks(AUDIT_EVERY);
        loop {
            interval.tick().await;
            self.adopt();
            for (partition, size_bytes) in self.due() {
                let mut result = self.look(partition, size_bytes).await;
                if result.is_err() {
                    // Another may lead it by now.
                    self.survey = None;
                    // It may also have been too much to digest at once.
                    result = self.look(partition, STRETCH_SIZE_BYTES).await;
                }
                let failure = result.err().map(|error| error.to_string());
                self.tell(partition, |report| report.failure = failure);
            }
        }
    }

    fn adopt(&mut self) {
        let plan = Arc::clone(&self.plan.borrow());
        if plan.source != self.source {
            self.source = plan.source.clone();
            self.client = self.source.client(&self.own);
            self.survey = None;
        }
        self.cursors.retain(|partition, cursor| {
            plan.targets.get(partition).is_some_and(|target| target.is_same_work(&cursor.target))
        });
        for (partition, target) in &plan.targets {
            self.cursors.entry(*partition).or_insert_with(|| Cursor {
                target: target.clone(),
                head: target.log.high_watermark(),
                scrub: target.log.log_start_offset(),
                looked_at: None,
            });
        }
        let mut reports = lock(&self.reports);
        reports.retain(|partition, _| self.cursors.contains_key(partition));
    }

    fn tell(&self, partition: PartitionId, change: impl FnOnce(&mut Audited)) {
        let Some(cursor) = self.cursors.get(&partition) else { return };
        let mut reports = lock(&self.reports);
        change(reports.entry(partition).or_insert_with(|| Audited {
            topic: cursor.target.mirror.name.clone(),
            partition: cursor.target.index,
            ..Audited::default()
        }));
    }

    /// The partitions to look at now, and how much of each: the longer ago, the more.
    fn due(&mut self) -> Vec<(PartitionId, u64)> {
        let now = self.clock.now();
        let metrics = lock(&self.metrics);
        self.allowance.on_carried(metrics.wire_bytes);
        let mut due = Vec::new();
        for (partition, cursor) in &mut self.cursors {
            let since = cursor.looked_at.map(|at| now.since(at));
            if since.is_none_or(|since| self.allowance.grants(since)) {
                cursor.looked_at = Some(now);
                let rounds = since.unwrap_or_default().as_secs() / AUDIT_EVERY.as_secs();
                let size_bytes = STRETCH_SIZE_BYTES * rounds.max(1);
                due.push((*partition, size_bytes.min(STRETCH_SIZE_BYTES_MAX)));
            }
        }
        due
    }

    /// Compares a stretch of what is new and a stretch of the rest, or both at once.
    async fn look(&mut self, partition: PartitionId, size_bytes: u64) -> Result<(), AuditError> {
        let Some(cursor) = self.cursors.get(&partition) else { return Ok(()) };
        let (target, scrub) = (cursor.target.clone(), cursor.scrub);
        let Some(at) = self.locate(&target).await? else { return Ok(()) };
        let (start, end) = (target.log.log_start_offset(), target.log.high_watermark());
        let from = if scrub >= end { start } else { scrub.max(start) };
        if from < end {
            let compared = self.compare(&target, &at, from..end, size_bytes).await?;
            self.on_compared(partition, &compared, Place::Scrub { from, end });
        }
        let head = self.cursors.get(&partition).map_or(end, |cursor| cursor.head);
        if head < end {
            let compared = self.compare(&target, &at, head..end, size_bytes).await?;
            self.on_compared(partition, &compared, Place::Head);
        }
        Ok(())
    }

    /// The leader of a partition at a source that digests, if the topic is still the one that is
    /// mirrored and was not compacted.
    async fn locate(&mut self, target: &Target) -> Result<Option<At>, AuditError> {
        let now = self.clock.now();
        let known = self.survey.take().filter(|(_, at)| now.since(*at) < SURVEY_EVERY);
        let (survey, _) = match known {
            Some(known) => self.survey.insert(known),
            None => {
                let names = self.cursors.values().map(|it| it.target.mirror.source_name.clone());
                let names: BTreeSet<String> = names.collect();
                let names: Vec<String> = names.into_iter().collect();
                let survey = survey::topics(&self.client, &names).await?;
                self.survey.insert((survey, now))
            }
        };
        let topic = target.mirror.source_topic;
        match seen(survey, &target.mirror, target.index) {
            Seen::LedBy(leader) => {
                let connection = self.client.node(leader, LANE).await?;
                Ok(Some(At { connection, topic, partition: target.index }))
            }
            Seen::NotYet => {
                self.survey = None;
                Ok(None)
            }
            Seen::NotComparable => Ok(None),
        }
    }

    /// Compares a stretch at the beginning of a range; what differs is looked at a second time.
    async fn compare(
        &mut self,
        target: &Target,
        at: &At,
        Range { start: from, end }: Range<Offset>,
        size_bytes: u64,
    ) -> Result<Compared, AuditError> {
        let compared = compare_once(target, at, from..end, size_bytes).await?;
        if compared.differences.is_empty() {
            return Ok(compared);
        }
        // The topic may be another by now, or be compacted.
        self.survey = None;
        let Some(at) = self.locate(target).await? else {
            return Ok(Compared { differences: Vec::new(), ..compared });
        };
        // Retention and new leaders on either side change what is read: what is different stays so.
        let again = compare_once(target, &at, from..compared.next, size_bytes).await?;
        let found = compared.differences.into_iter();
        let differences = found.filter(|it| again.differences.contains(it)).collect();
        Ok(Compared { differences, ..again })
    }

    fn on_compared(&mut self, partition: PartitionId, compared: &Compared, place: Place) {
        let Some(cursor) = self.cursors.get_mut(&partition) else { return };
        let mut is_pass = false;
        match place {
            Place::Head => cursor.head = compared.next,
            Place::Scrub { from, end } => {
                cursor.scrub = compared.next;
                is_pass = compared.next >= end;
                if is_pass && from <= cursor.head {
                    cursor.head = cursor.head.max(end);
                }
            }
        }
        let (head, target) = (cursor.head, cursor.target.clone());
        for difference in &compared.differences {
            tracing::error!(?target, %difference, "the mirror differs from its source");
        }
        self.tell(partition, |report| {
            report.verified_offset = Some(head);
            report.compared_bytes += compared.digest.size_bytes;
            report.passes_count += u64::from(is_pass);
            for difference in &compared.differences {
                let is_known = report.differences.contains(difference);
                if !is_known && report.differences.len() < DIFFERENCE_COUNT_MAX {
                    report.differences.push(*difference);
                }
            }
        });
    }
}

/// Which of its two places an audit has looked at.
#[derive(Clone, Copy)]
enum Place {
    Head,
    Scrub { from: Offset, end: Offset },
}

/// The own side of a stretch that begins at `from`: its batches, where it ends, and its digest.
async fn own_side(
    target: &Target,
    from: Offset,
    end: Offset,
    size_bytes: u64,
) -> Result<(Vec<BatchSum>, Offset, Digest), AuditError> {
    let own = of_log(&target.log, from, end, size_bytes).await?;
    let next = if own.end > from { own.end } else { end };
    let digest = Digest::of(&own.sums);
    Ok((own.sums, next, digest))
}

/// Compares a stretch of so many bytes, at the beginning of a range, with a source that digests.
pub(super) async fn compare_once(
    target: &Target,
    at: &At,
    Range { start: from, end }: Range<Offset>,
    size_bytes: u64,
) -> Result<Compared, AuditError> {
    let (sums, next, digest) = own_side(target, from, end, size_bytes).await?;
    let theirs = at.digest(from, next, false).await?;
    if theirs.digest == digest {
        return Ok(Compared { next, digest, differences: Vec::new() });
    }
    let theirs = at.digest(from, next, true).await?;
    let differences = since(theirs.start, digest::compare(&sums, &theirs.sums));
    Ok(Compared { next, digest, differences })
}

/// Compares a stretch with a source whose records must be fetched.
pub(super) async fn compare_fetched(
    target: &Target,
    at: &At,
    from: Offset,
    end: Offset,
) -> Result<Compared, AuditError> {
    let (sums, next, digest) = own_side(target, from, end, STRETCH_SIZE_BYTES).await?;
    match at.fetch(from, next).await {
        Ok(theirs) => {
            let differences = digest::compare(&sums, &theirs.sums);
            Ok(Compared { next, digest, differences })
        }
        Err(AuditError::Gone { start }) if start > from => {
            Ok(Compared { next: start, digest: Digest::default(), differences: Vec::new() })
        }
        Err(error) => Err(error),
    }
}

/// Without what the source has let go of: retention there is no difference.
fn since(start: Offset, differences: Vec<Difference>) -> Vec<Difference> {
    differences.into_iter().filter(|difference| difference.from >= start).collect()
}

#[cfg(test)]
mod tests {
    use meridian_base::id::TopicId;
    use meridian_base::position::LeaderEpoch;
    use meridian_mirror::rows::Stage;

    use super::*;
    use crate::mirror::survey::{SurveyedPartition, SurveyedTopic};
    use crate::mirror::testing::mirror;

    #[test]
    fn what_a_survey_does_not_know_yet_is_looked_for_again() {
        let id = TopicId::new(7);
        let mirror = MirrorTopic { source_topic: id, ..mirror("t", Stage::Mirroring) };
        let partition = |leader| SurveyedPartition { leader, leader_epoch: LeaderEpoch::new(1) };
        let topic = SurveyedTopic {
            id,
            was_compacted: false,
            delete_retention: None,
            is_compacted: false,
            is_described: true,
            is_meridian: true,
            lag_max_ms: None,
            partitions: vec![partition(Some(3)), partition(None)],
        };
        let of = |topics: &[&SurveyedTopic], index| {
            let topics =
                topics.iter().map(|it| ("t".to_owned(), SurveyedTopic::clone(it))).collect();
            seen(
                &Survey {
                    cluster: None,
                    topics,
                    refused: BTreeMap::new(),
                    leaders: BTreeMap::new(),
                },
                &mirror,
                index,
            )
        };
        assert_eq!(of(&[&topic], 0), Seen::LedBy(3));
        assert_eq!(of(&[&topic], 1), Seen::NotYet, "it has no leader");
        assert_eq!(of(&[&topic], 2), Seen::NotYet, "it was added since");
        assert_eq!(of(&[], 0), Seen::NotYet, "it was mirrored since");
        let undescribed = SurveyedTopic { is_described: false, ..topic.clone() };
        assert_eq!(of(&[&undescribed], 0), Seen::NotYet);
        for other in [
            SurveyedTopic { id: TopicId::new(8), ..topic.clone() },
            SurveyedTopic { is_compacted: true, ..topic.clone() },
            SurveyedTopic { is_meridian: false, ..topic },
        ] {
            assert_eq!(of(&[&other], 0), Seen::NotComparable);
        }
    }
}
