//! What topics that were deleted have left: copies, parts of stripes and objects. Rule Q1 of `docs/protocol.md`.

use meridian_base::id::PartitionId;

use crate::mutation::{Mutation, Mutations};

/// Whether a partition was, and is no more, for whoever knows of `given_out` partitions. Ids are counted up and never
/// used again: so one that was given out, and has no partition, never will have one. One that was not given out as
/// far as this node knows may be in use, by those who know more.
pub fn is_deleted(
    partition: PartitionId,
    given_out: u64,
    is_there: bool,
    mutations: Mutations,
) -> bool {
    let was_given_out =
        partition.get() <= given_out || Mutation::UnheardIsDeleted.active(mutations);
    was_given_out && !is_there
}
