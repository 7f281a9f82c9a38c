//! What was refused before it came to a partition: its producer may have sent more, which must not
//! come first (rule P1).

use super::lock;
use super::partition_log::PartitionLog;

impl PartitionLog {
    /// A batch of this producer is not appended.
    pub(crate) fn note_refused(&self, producer_id: i64) {
        lock(&self.inner).replica.note_refused(producer_id);
    }
}
