//! How far the times of records may be from the leader's (KIP-937).

use std::ops::RangeInclusive;

use meridian_consensus::state::{Metadata, Topic};

use crate::kafka::lookup;
use crate::topic_config::{
    MESSAGE_TIMESTAMP_AFTER_MAX_MS, MESSAGE_TIMESTAMP_AFTER_MAX_MS_DEFAULT,
    MESSAGE_TIMESTAMP_BEFORE_MAX_MS,
};

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

    /// The times that a record may have now; those before 1970 too, if the past has no bound.
    pub(super) fn range(&self, now_ms: i64) -> RangeInclusive<i64> {
        let earliest_ms = match self.before_ms_max {
            i64::MAX => i64::MIN,
            before_ms_max => now_ms.saturating_sub(before_ms_max),
        };
        earliest_ms..=now_ms.saturating_add(self.after_ms_max)
    }
}

#[cfg(test)]
mod tests {
    use meridian_protocol::records::{Batch, BatchBuilder, Compression, NO_TIMESTAMP, RecordRules};

    use super::*;

    const NOW_MS: i64 = 1_000_000;

    fn refused(bounds: TimestampBounds, timestamps: &[i64]) -> bool {
        let mut builder = BatchBuilder::new();
        for timestamp in timestamps {
            builder.append(*timestamp, None, None, &[]);
        }
        let batch = Batch::produced(builder.build_compressed(Compression::Snappy).ok()).unwrap();
        let rules = RecordRules { timestamps_ms: Some(bounds.range(NOW_MS)), ..Default::default() };
        !batch.examine(&rules, 1 << 20).unwrap().refused.is_empty()
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
