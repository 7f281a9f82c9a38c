//! A new leader's `Start` reaches a disk, the tail it promises does not, and it dies (rule T3).

use std::time::Duration;

use meridian_storage::mutation::Mutations;

use super::{PARTITION, config, go_on, world};
use crate::check::Verdict;
use crate::net::Weather;
use crate::world::World;

/// How many leaders die that way.
const ROUND_COUNT: usize = 2000;

/// Most puts of a new leader are lost, and then the leader itself; its successor must not take a
/// `Start` without its whole tail for the end of the log.
pub fn half_start(mutations: Mutations) -> Verdict {
    let mut world = world(config(mutations))?;
    for round in 0..ROUND_COUNT {
        let (dying, heir) = (1 + round % 4, 5 + round % 4);
        world.rouse_producers();
        go_on(&mut world, Duration::from_millis(12))?;
        appoint(&mut world, dying);
        // Fences and their answers pass, within milliseconds; then most puts do not.
        let until_fenced =
            world.chance.between(Duration::from_millis(3), Duration::from_millis(12));
        go_on(&mut world, until_fenced)?;
        world.network.set_weather(Weather { drop_per_mille: 700, ..Weather::CALM });
        go_on(&mut world, Duration::from_millis(12))?;
        world.stop_node(dying);
        world.network.set_weather(Weather::CALM);
        appoint(&mut world, heir);
        go_on(&mut world, Duration::from_millis(500))?;
        world.start_node(dying)?;
        go_on(&mut world, Duration::from_millis(300))?;
    }
    Ok(())
}

fn appoint(world: &mut World, node: usize) {
    world.assign(PARTITION, node);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_without_its_tail_is_no_end_of_the_log() {
        assert_eq!(half_start(Mutations::NONE), Ok(()));
    }
}
