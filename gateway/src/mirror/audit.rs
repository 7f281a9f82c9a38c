//! Compares mirrors with their sources, all the time and on demand (rule F9).
//!
//! A meridian source digests its own log, so that comparing costs a question of some hundred bytes for
//! each [`STRETCH_SIZE_BYTES`]; only where digests differ are the batches told one by one. A Kafka
//! source has no such method: its records are fetched, and only when an operator asks for it.
//!
//! Two places of a partition are compared in turn: what was mirrored last, and the rest, from the
//! beginning again and again. A difference is looked at twice before it counts.

mod sums;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use meridian_base::id::PartitionId;
use meridian_base::position::Offset;
use meridian_mirror::digest::{self, BatchSum, Difference, Digest};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

pub(super) use self::sums::{At, DIGEST_METHOD, DigestAnswer, DigestArguments, of_log};
use super::plan::{Plan, Source, Target};
use super::survey;
use crate::client::{Client, ClientError, Lane};
use crate::log::FetchError;

/// How often each partition is looked at.
const AUDIT_EVERY: Duration = Duration::from_secs(5);
/// Bytes of a partition that are compared at once.
pub(super) const STRETCH_SIZE_BYTES: u64 = 16 << 20;
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

/// What comparing a stretch gave.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Compared {
    /// Where to go on.
    pub(super) next: Offset,
    pub(super) digest: Digest,
    pub(super) differences: Vec<Difference>,
}

/// What is known of a partition.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct AuditReport {
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

/// Where the audit of a partition is.
struct Cursor {
    target: Target,
    /// What was mirrored since the audit began is compared from here on.
    head: Offset,
    /// The rest is compared from here on.
    scrub: Offset,
}

/// The audit of a link on this node.
pub(super) struct AuditHandle {
    reports: Arc<Mutex<BTreeMap<PartitionId, AuditReport>>>,
    task: JoinHandle<()>,
}

impl Drop for AuditHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl AuditHandle {
    /// Audits the partitions of the plan, whichever those are.
    pub(super) fn start(plan: tokio::sync::watch::Receiver<Arc<Plan>>) -> Self {
        let reports = Arc::new(Mutex::new(BTreeMap::new()));
        let source = plan.borrow().source.clone();
        let client = source.client();
        let cursors = BTreeMap::new();
        let audit = Audit { plan, source, client, cursors, reports: Arc::clone(&reports) };
        Self { reports, task: tokio::spawn(audit.run()) }
    }

    pub(super) fn reports(&self) -> Vec<AuditReport> {
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        reports.values().cloned().collect()
    }
}

struct Audit {
    plan: tokio::sync::watch::Receiver<Arc<Plan>>,
    source: Source,
    client: Client,
    cursors: BTreeMap<PartitionId, Cursor>,
    reports: Arc<Mutex<BTreeMap<PartitionId, AuditReport>>>,
}

impl Audit {
    async fn run(mut self) {
        let mut interval = tokio::time::interval(AUDIT_EVERY);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            self.adopt();
            let partitions: Vec<PartitionId> = self.cursors.keys().copied().collect();
            for partition in partitions {
                let result = self.look(partition).await;
                let failure = result.err().map(|error| error.to_string());
                self.tell(partition, |report| report.failure = failure);
            }
        }
    }

    fn adopt(&mut self) {
        let plan = Arc::clone(&self.plan.borrow());
        if plan.source != self.source {
            self.source = plan.source.clone();
            self.client = self.source.client();
        }
        self.cursors
            .retain(|partition, cursor| plan.targets.get(partition) == Some(&cursor.target));
        for (partition, target) in &plan.targets {
            self.cursors.entry(*partition).or_insert_with(|| Cursor {
                target: target.clone(),
                head: target.log.high_watermark(),
                scrub: target.log.log_start_offset(),
            });
        }
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        reports.retain(|partition, _| self.cursors.contains_key(partition));
    }

    fn tell(&self, partition: PartitionId, change: impl FnOnce(&mut AuditReport)) {
        let Some(cursor) = self.cursors.get(&partition) else { return };
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        change(reports.entry(partition).or_insert_with(|| AuditReport {
            topic: cursor.target.mirror.name.clone(),
            partition: cursor.target.index,
            ..AuditReport::default()
        }));
    }

    /// Compares a stretch of what is new and a stretch of the rest.
    async fn look(&mut self, partition: PartitionId) -> Result<(), AuditError> {
        let Some(cursor) = self.cursors.get(&partition) else { return Ok(()) };
        let (target, head, scrub) = (cursor.target.clone(), cursor.head, cursor.scrub);
        let Some(at) = locate(&self.client, &target).await? else { return Ok(()) };
        let end = target.log.high_watermark();
        if head < end {
            let compared = compare(&target, &at, head, end).await?;
            self.on_compared(partition, &compared, Place::Head);
        }
        let start = target.log.log_start_offset();
        let from = if scrub >= end { start } else { scrub.max(start) };
        if from < end {
            let compared = compare(&target, &at, from, end).await?;
            self.on_compared(partition, &compared, Place::Scrub { end });
        }
        Ok(())
    }

    fn on_compared(&mut self, partition: PartitionId, compared: &Compared, place: Place) {
        let Some(cursor) = self.cursors.get_mut(&partition) else { return };
        let mut is_pass = false;
        match place {
            Place::Head => cursor.head = compared.next,
            Place::Scrub { end } => {
                cursor.scrub = compared.next;
                is_pass = compared.next >= end;
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
    Scrub { end: Offset },
}

/// The leader of a partition at a source that digests, if the topic is still the one that is
/// mirrored and was not compacted.
async fn locate(client: &Client, target: &Target) -> Result<Option<At>, AuditError> {
    let found = survey::find(client, &target.mirror.source_name, LANE, target.index).await?;
    let comparable = found.filter(|found| {
        found.topic == target.mirror.source_topic && found.is_meridian && !found.is_compacted
    });
    Ok(comparable.map(|found| At {
        connection: found.connection,
        topic: found.topic,
        partition: target.index,
    }))
}

/// Compares a stretch that begins at `from`; what differs is read a second time.
async fn compare(
    target: &Target,
    at: &At,
    from: Offset,
    end: Offset,
) -> Result<Compared, AuditError> {
    let compared = compare_once(target, at, from, end).await?;
    if compared.differences.is_empty() {
        return Ok(compared);
    }
    // Retention and new leaders on either side change what is read: what is different stays so.
    let again = compare_once(target, at, from, compared.next).await?;
    let differences = compared.differences.into_iter().filter(|it| again.differences.contains(it));
    Ok(Compared { differences: differences.collect(), ..again })
}

/// The own side of a stretch that begins at `from`: its batches, where it ends, and its digest.
async fn own_side(
    target: &Target,
    from: Offset,
    end: Offset,
) -> Result<(Vec<BatchSum>, Offset, Digest), AuditError> {
    let own = of_log(&target.log, from, end, STRETCH_SIZE_BYTES).await?;
    let next = if own.end > from { own.end } else { end };
    let digest = Digest::of(&own.sums);
    Ok((own.sums, next, digest))
}

/// Compares a stretch with a source that digests.
pub(super) async fn compare_once(
    target: &Target,
    at: &At,
    from: Offset,
    end: Offset,
) -> Result<Compared, AuditError> {
    let (sums, next, digest) = own_side(target, from, end).await?;
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
    let (sums, next, digest) = own_side(target, from, end).await?;
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
