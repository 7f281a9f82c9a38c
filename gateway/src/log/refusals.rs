//! What was refused before it came to a partition: its producer may have sent more, which must not
//! come first (rule P1).

use super::lock;
use super::partition_log::{PartitionLog, Role};

impl PartitionLog {
    /// A batch of this producer is not appended.
    pub(crate) fn note_refused(&self, producer_id: i64) {
        let mut inner = lock(&self.inner);
        match &mut inner.role {
            Role::Leading(partition) if partition.is_serving() => {
                partition.note_refused_before(producer_id);
            }
            _ => inner.parked.note_refused(),
        }
    }
}
