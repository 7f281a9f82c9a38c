//! The bound on what the members of this node's groups make it hold
//! (`limits.group_memory_bytes_max`).

use std::sync::{Arc, Mutex};

use meridian_protocol::ErrorCode;

use super::coordinator::GroupCoordinator;
use super::{Front, lock};
use crate::group::memory::{Admission, MemberMemory};

/// What members take, shared by all coordinators of this node.
pub(super) struct GroupsMemory(Mutex<MemberMemory>);

impl GroupsMemory {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self(Mutex::new(MemberMemory::new(limit_bytes)))
    }

    /// Bytes in use, and the limit.
    pub(super) fn usage(&self) -> (usize, usize) {
        let memory = lock(&self.0);
        (memory.used_bytes(), memory.limit_bytes())
    }
}

impl Front {
    /// Charges what a member is about to make this node hold. To be called without a lock of
    /// groups.
    pub(super) fn charge_member(self: &Arc<Self>, size_bytes: usize) -> Result<(), ErrorCode> {
        let admit = || lock(&self.groups_memory.0).admit(self.now(), size_bytes);
        let admission = match admit() {
            Admission::CountFirst => {
                self.count_members();
                admit()
            }
            admission => admission,
        };
        match admission {
            Admission::Taken => Ok(()),
            Admission::CountFirst | Admission::Refused => {
                tracing::debug!(size_bytes, "a member is refused: limits.group_memory_bytes_max");
                Err(ErrorCode::GroupMaxSizeReached)
            }
        }
    }

    /// Charges what members were assigned.
    pub(super) fn note_assigned(&self, size_bytes: usize) {
        lock(&self.groups_memory.0).bring(size_bytes);
    }

    /// Counts all members, if that is due.
    pub(super) fn count_members_when_due(self: &Arc<Self>) {
        if lock(&self.groups_memory.0).is_due(self.now()) {
            self.count_members();
        }
    }

    fn count_members(self: &Arc<Self>) {
        let begun = lock(&self.groups_memory.0).begin_count();
        let coordinators = self.coordinators.serving();
        let size =
            |it: &Arc<GroupCoordinator>| it.state().map_or(0, |groups| groups.members_size_bytes());
        let counted_bytes = coordinators.iter().map(size).sum();
        lock(&self.groups_memory.0).on_counted(self.now(), begun, counted_bytes);
    }
}
