//! A partition's log as that of a writer that needs a lease (`lease.ms` of its mirror's link).

use std::time::Duration;

use meridian_mirror::lease::{Life, Stamp, Standing};

use super::lock;
use super::partition_log::PartitionLog;

impl PartitionLog {
    /// A lease was granted for what this node stamped in `life`.
    pub(crate) fn on_lease(&self, life: Life, stamp: Stamp, length: Duration) {
        lock(&self.lease).on_grant(self.time(), life, stamp, length, None);
    }

    /// How long ago it became this node's.
    pub(crate) fn led_for(&self) -> Duration {
        self.time().since(self.begun_at)
    }

    /// Whether records may be taken that need a lease.
    pub(crate) fn lease(&self) -> Standing {
        lock(&self.lease).standing(self.time())
    }
}
