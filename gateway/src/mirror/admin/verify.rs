//! Methods that compare: `mirror.digest` at a source, `mirror.verify` and `mirror.audits` at a mirror.

use std::time::Duration;

use bytes::Bytes;
use meridian_base::position::Offset;
use meridian_mirror::digest::{Difference, Digest};
use serde::{Deserialize, Serialize};

use super::{AdminCall, json, of_source};
use crate::admin_api::AdminError;
use crate::client::{Lane, clock};
use crate::mirror::audit::{self, At, AuditError, DigestAnswer, DigestArguments};
use crate::mirror::plan::{self, Target};
use crate::mirror::survey;

/// Time after which a call says where to go on.
const WORK_FOR: Duration = Duration::from_secs(5);
/// More than any stretch that is asked for.
const DIGEST_SIZE_BYTES_MAX: u64 = 4 * audit::STRETCH_SIZE_BYTES;
const LANE: Lane = Lane(3);

#[derive(Deserialize)]
struct Verify {
    topic: String,
    partition: u32,
    /// Where to begin, and where to end: the log's own bounds if not said.
    from: Option<Offset>,
    to: Option<Offset>,
}

/// What was compared.
#[derive(Serialize)]
struct VerifyReport {
    topic: String,
    partition: u32,
    from: Offset,
    /// Where to go on, unless it is `to`.
    next: Offset,
    to: Offset,
    batches: u64,
    bytes: u64,
    differences: Vec<Difference>,
    /// Whether the source digested its records itself, and they did not cross the link.
    is_digested: bool,
}

fn of_audit(error: AuditError) -> AdminError {
    match error {
        AuditError::Source(error) => of_source(&error),
        error => AdminError::Unavailable(error.to_string()),
    }
}

impl AdminCall {
    /// Digests a stretch of a log that this node leads.
    pub(super) async fn digest(&self) -> Result<Bytes, AdminError> {
        let DigestArguments { topic, partition, from, to, has_sums } = self.arguments()?;
        let id = {
            let metadata = self.node.meta.metadata();
            metadata.partition_at(topic, partition).map(|(id, _)| id)
        };
        let log = id.and_then(|id| self.node.logs.led(id));
        let log = log.ok_or_else(|| AdminError::Unavailable("not the leader".to_owned()))?;
        let start = log.log_start_offset();
        let read = audit::of_log(&log, from.max(start), to, DIGEST_SIZE_BYTES_MAX);
        let stretch = read.await.map_err(of_audit)?;
        let digest = Digest::of(&stretch.sums);
        let sums = if has_sums { stretch.sums } else { Vec::new() };
        json(&DigestAnswer { start, digest, sums })
    }

    /// Compares a partition that this node leads with its source, for some seconds.
    pub(super) async fn verify(&self) -> Result<Bytes, AdminError> {
        let Verify { topic, partition, from, to } = self.arguments()?;
        let target = self.target(&topic, partition)?;
        let source = self.found_source(&target.mirror.link)?;
        let client = source.client(&self.node.own_end);
        let found = survey::find(&client, &target.mirror.source_name, LANE, partition).await;
        let found = found.map_err(|error| of_source(&error))?;
        let found = found.filter(|found| found.topic == target.mirror.source_topic);
        let gone = || AdminError::Failed("the source has not this topic any more".to_owned());
        let found = found.ok_or_else(gone)?;
        let at = At { connection: found.connection, topic: found.topic, partition };
        let bounds = (target.log.log_start_offset(), target.log.high_watermark());
        let from = from.unwrap_or(bounds.0).max(bounds.0);
        let from = match from < bounds.1 {
            true => audit::batch_base(&target.log, from).await.map_err(of_audit)?,
            false => from,
        };
        let to = to.unwrap_or(bounds.1).min(bounds.1);
        let mut report = VerifyReport {
            topic,
            partition,
            from,
            next: from,
            to,
            batches: 0,
            bytes: 0,
            differences: Vec::new(),
            is_digested: found.is_meridian,
        };
        let began = clock::now();
        while report.next < to && began.elapsed() < WORK_FOR {
            let compared = match found.is_meridian {
                true => {
                    let size_bytes = audit::STRETCH_SIZE_BYTES;
                    audit::compare_once(&target, &at, report.next..to, size_bytes).await
                }
                false => audit::compare_fetched(&target, &at, report.next, to).await,
            };
            let compared = compared.map_err(of_audit)?;
            report.next = compared.next;
            report.batches += compared.digest.batch_count;
            report.bytes += compared.digest.size_bytes;
            report.differences.extend(compared.differences);
        }
        json(&report)
    }

    /// What the audits on this node have found.
    pub(super) fn audits(&self) -> Result<Bytes, AdminError> {
        json(&self.mirrors.audits())
    }

    /// A mirrored partition that this node leads.
    fn target(&self, topic: &str, index: u32) -> Result<Target, AdminError> {
        let metadata = self.node.meta.metadata();
        let (id, mirror, _) = plan::mirror_named(&metadata, topic).ok_or_else(|| {
            AdminError::Failed(format!(
                "topic {topic} is no mirror; `meridian mirror list` shows which are"
            ))
        })?;
        let count = metadata.topic(id).map_or(0, |topic| topic.partitions.len());
        let found = metadata.partition_at(id, index).map(|(id, _)| id);
        let unknown = || AdminError::InvalidArguments(format!("{topic} has {count} partitions"));
        let partition = found.ok_or_else(unknown)?;
        drop(metadata);
        let log = self.node.logs.led(partition);
        let log = log.ok_or_else(|| AdminError::Unavailable("not the leader".to_owned()))?;
        Ok(Target {
            topic: id,
            mirror: mirror.into(),
            index,
            partition_count: u32::try_from(count).unwrap_or(u32::MAX),
            seed: None,
            log,
        })
    }
}
