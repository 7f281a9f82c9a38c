//! Directed schedules, for rules whose breaking chance alone would hardly ever show.

mod bit_rot;
mod half_start;
mod late_end;
mod one_partition;
mod power_cut;
mod replaced_disk;
mod shared_generation;

pub use bit_rot::bit_rot;
pub use half_start::half_start;
pub use late_end::late_end;
pub use one_partition::{late_coordinator, wrapped_epoch, wrapped_sequence};
pub use power_cut::power_cut;
pub use replaced_disk::replaced_disk;
pub use shared_generation::shared_generation;

use std::time::Duration;

use meridian_base::id::PartitionId;
use meridian_storage::mutation::Mutations;

use crate::check::{Verdict, Violation};
use crate::trace::Detail;
use crate::world::{Event, World, WorldConfig};

/// The only partition of a scenario.
const PARTITION: PartitionId = PartitionId::new(1);

/// A world without nemesis, in which `PARTITION` is led by node 0.
fn world(mutations: Mutations) -> Result<World, Violation> {
    let mut world = World::new(WorldConfig {
        seed: 1,
        mutations,
        partition_count: 1,
        producer_count: 1,
        source_count: 0,
        transactor_count: 0,
        keyed_count: 0,
        has_applications: false,
        detail: Detail::Count,
    })?;
    go_on(&mut world, Duration::from_secs(1))?;
    world.metadata.appoint(PARTITION, world.nodes[0].id);
    world.announce_metadata();
    go_on(&mut world, Duration::from_secs(2))?;
    assert!(world.is_served(PARTITION), "a calm cluster serves");
    Ok(world)
}

/// Lets the world go on for `duration`.
fn go_on(world: &mut World, duration: Duration) -> Verdict {
    let end = world.now + duration;
    world.schedule(duration, Event::Controller);
    while world.now < end {
        world.next_event()?;
    }
    Ok(())
}
