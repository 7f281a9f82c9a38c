//! Methods that compare: `mirror.digest` at a source, `mirror.verify` and `mirror.audits` at a mirror.

use std::time::Duration;

use meridian_admin_api::mirror::{Difference, DigestStretch, StretchDigest, Verify, VerifyReport};
use meridian_base::position::Offset;
use meridian_mirror::digest::Digest;

use super::{AdminCall, of_source};
use crate::admin_api::AdminError;
use crate::client::{Lane, clock};
use crate::mirror::audit::{self, At, AuditError};
use crate::mirror::plan::{self, Target};
use crate::mirror::survey;

/// Time after which a call says where to go on.
const WORK_FOR: Duration = Duration::from_secs(5);
/// More than any stretch that is asked for.
const DIGEST_SIZE_BYTES_MAX: u64 = 4 * audit::STRETCH_SIZE_BYTES;
const LANE: Lane = Lane(3);

fn of_audit(error: AuditError) -> AdminError {
    match error {
        AuditError::Source(error) => of_source(&error),
        error => AdminError::Unavailable(error.to_string()),
    }
}

impl AdminCall {
    /// Digests a stretch of a log that this node leads.
    pub(super) async fn digest(&self, stretch: DigestStretch) -> Result<StretchDigest, AdminError> {
        let DigestStretch { topic, partition, from, to, has_sums } = stretch;
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
        Ok(StretchDigest { start, digest, sums })
    }

    /// Compares a partition that this node leads with its source, for some seconds.
    pub(super) async fn verify(&self, verify: Verify) -> Result<VerifyReport, AdminError> {
        let Verify { topic, partition, from, to } = verify;
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
        let from = from.map_or(bounds.0, Offset::new).max(bounds.0);
        let from = match from < bounds.1 {
            true => audit::batch_base(&target.log, from).await.map_err(of_audit)?,
            false => from,
        };
        let to = to.map_or(bounds.1, Offset::new).min(bounds.1);
        let mut report = VerifyReport {
            topic,
            partition,
            from: from.get(),
            next: from.get(),
            to: to.get(),
            batches: 0,
            bytes: 0,
            differences: Vec::new(),
            is_digested: found.is_meridian,
        };
        let began = clock::now();
        let mut next = from;
        while next < to && began.elapsed() < WORK_FOR {
            let compared = match found.is_meridian {
                true => {
                    let size_bytes = audit::STRETCH_SIZE_BYTES;
                    audit::compare_once(&target, &at, next..to, size_bytes).await
                }
                false => audit::compare_fetched(&target, &at, next, to).await,
            };
            let compared = compared.map_err(of_audit)?;
            next = compared.next;
            report.next = next.get();
            report.batches += compared.digest.batch_count;
            report.bytes += compared.digest.size_bytes;
            report.differences.extend(compared.differences.into_iter().map(Difference::from));
        }
        Ok(report)
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
