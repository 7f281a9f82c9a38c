//! A topic is created, and all nodes but the one that leads it hear of that late (rule Q1).

use std::time::Duration;

use meridian_base::id::PartitionId;
use meridian_storage::mutation::Mutations;

use super::{READ_WITHIN, config, read_all_of, until, world, write};
use crate::check::Verdict;
use crate::world::{World, WorldConfig};

/// Long enough for each node to look several times for what its disk has of deleted topics.
const LATE: Duration = Duration::from_secs(10);

/// Disks hold records of a topic that their nodes have not heard of. Then its leader is gone, and everything must be there.
pub fn late_news(mutations: Mutations) -> Verdict {
    let mut world = world(WorldConfig { recreation_count: 2, ..config(mutations) })?;
    world.metadata_lag[1..].fill(LATE);
    world.recreate();
    let partition = world.recreated().expect("just now");
    lead(&mut world, partition, 0)?;
    write(&mut world)?;
    world.stop_node(0);
    world.metadata_lag.fill(Duration::ZERO);
    lead(&mut world, partition, 1)?;
    read_all_of(&mut world, partition)
}

fn lead(world: &mut World, partition: PartitionId, node: usize) -> Verdict {
    world.assign(partition, node);
    until(world, READ_WITHIN, "the topic is served", |world| world.is_served(partition))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_has_heard_of_is_kept() {
        assert_eq!(late_news(Mutations::NONE), Ok(()));
    }

    #[cfg(feature = "mutations")]
    #[test]
    fn who_takes_what_is_new_for_deleted_shows() {
        use meridian_storage::mutation::Mutation;
        let broken = late_news(Mutations(Some(Mutation::UnheardIsDeleted)));
        broken.expect_err("the broken rule must show");
    }
}
