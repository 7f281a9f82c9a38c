//! How far the times of records may be from the leader's (KIP-937).

use meridian_consensus::state::{Metadata, Topic};
use meridian_protocol::ErrorCode;
use meridian_protocol::records::Batch;

use crate::kafka::error::{self, ApiError};
use crate::kafka::lookup;
use crate::kafka::topic_config::{
    MESSAGE_TIMESTAMP_AFTER_MAX_MS, MESSAGE_TIMESTAMP_AFTER_MAX_MS_DEFAULT,
    MESSAGE_TIMESTAMP_BEFORE_MAX_MS,
};
use crate::partition::source::BATCH_SIZE_BYTES_MAX;

/// The time of a record without one.
const NO_TIMESTAMP: i64 = -1;

/// What a topic allows.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimestampBounds {
    before_ms_max: i64,
    after_ms_max: i64,
}

impl TimestampBounds {
    pub(super) fn of(metadata: &Metadata, topic: &Topic) -> Self {
        let bound = |name| lookup::topic_config(metadata, topic.id, name);
        let after_ms_max = bound(MESSAGE_TIMESTAMP_AFTER_MAX_MS);
        Self {
            before_ms_max: bound(MESSAGE_TIMESTAMP_BEFORE_MAX_MS).unwrap_or(i64::MAX),
            after_ms_max: after_ms_max.unwrap_or(MESSAGE_TIMESTAMP_AFTER_MAX_MS_DEFAULT),
        }
    }

    /// Judges the producer's times. The latest is in the header; the earliest is not, so that
    /// records are read if the topic bounds it.
    pub(super) fn check(&self, batch: &Batch, now_ms: i64) -> Result<(), ApiError> {
        let header = batch.header();
        self.check_one(header.max_timestamp_ms, now_ms)?;
        if self.before_ms_max == i64::MAX {
            return Ok(());
        }
        let unreadable = |cause| ApiError::new(error::of_batch(&cause), cause.to_string());
        for record in batch.raw_records(BATCH_SIZE_BYTES_MAX).map_err(unreadable)?.iter() {
            let delta_ms = record.map_err(unreadable)?.timestamp_delta_ms;
            self.check_one(header.base_timestamp_ms.saturating_add(delta_ms), now_ms)?;
        }
        Ok(())
    }

    fn check_one(&self, timestamp_ms: i64, now_ms: i64) -> Result<(), ApiError> {
        let earliest_ms = now_ms.saturating_sub(self.before_ms_max);
        let latest_ms = now_ms.saturating_add(self.after_ms_max);
        if timestamp_ms == NO_TIMESTAMP || (earliest_ms..=latest_ms).contains(&timestamp_ms) {
            return Ok(());
        }
        let message = format!(
            "timestamp {timestamp_ms} is out of range: it must be from {earliest_ms} to \
             {latest_ms}, as message.timestamp.before.max.ms and message.timestamp.after.max.ms say"
        );
        Err(ApiError::new(ErrorCode::InvalidTimestamp, message))
    }
}

#[cfg(test)]
mod tests {
    use meridian_protocol::records::{BatchBuilder, Compression};

    use super::*;

    const NOW_MS: i64 = 1_000_000;

    fn refused(bounds: TimestampBounds, timestamps: &[i64]) -> bool {
        let mut builder = BatchBuilder::new();
        for timestamp in timestamps {
            builder.append(*timestamp, None, None, &[]);
        }
        let batch = Batch::produced(builder.build_compressed(Compression::Snappy).ok()).unwrap();
        let checked = bounds.check(&batch, NOW_MS);
        assert!(
            checked.as_ref().is_err_and(|it| it.code == ErrorCode::InvalidTimestamp)
                || checked.is_ok()
        );
        checked.is_err()
    }

    #[test]
    fn times_have_bounds_on_both_sides() {
        let both = TimestampBounds { before_ms_max: 1000, after_ms_max: 50 };
        for (timestamps, is_refused) in [
            (&[NOW_MS][..], false),
            (&[NOW_MS - 1000, NOW_MS + 50], false),
            (&[NOW_MS + 51], true),
            (&[NOW_MS - 1001], true),
            (&[NOW_MS, NOW_MS - 1001, NOW_MS], true),
            (&[NOW_MS, NOW_MS + 51, NOW_MS], true),
            (&[NO_TIMESTAMP], false),
            (&[0], true),
            (&[i64::MAX], true),
        ] {
            assert_eq!(refused(both, timestamps), is_refused, "{timestamps:?}");
        }
        let after = TimestampBounds { before_ms_max: i64::MAX, after_ms_max: 50 };
        assert!(!refused(after, &[0, -5, NOW_MS]));
        assert!(refused(after, &[0, NOW_MS + 51]));
    }
}
