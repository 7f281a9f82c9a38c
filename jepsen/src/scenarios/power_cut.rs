//! Every node loses power while its disk is busy (rule S2).

use std::time::Duration;

use meridian_storage::mutation::Mutations;

use super::{PARTITION, config, go_on, world};
use crate::check::Verdict;

/// How often the power fails.
const ROUND_COUNT: usize = 50;
/// How much slower than usual the disks are: time enough for an ack that does not wait for them.
const SLOWDOWN: u32 = 40;

/// Records are written while the disks are slow, and the power fails everywhere at once. What was acknowledged must
/// be there when it is back.
pub fn power_cut(mutations: Mutations) -> Verdict {
    let mut world = world(config(mutations))?;
    let node_count = world.nodes.len();
    for round in 0..ROUND_COUNT {
        for node in &mut world.nodes {
            node.disk.set_slowdown(SLOWDOWN);
        }
        world.rouse_producers();
        let until_dark =
            world.chance.between(Duration::from_millis(20), Duration::from_millis(200));
        go_on(&mut world, until_dark)?;
        for node in 0..node_count {
            world.stop_node(node);
            world.nodes[node].disk.set_slowdown(1);
        }
        for node in 0..node_count {
            world.start_node(node)?;
        }
        go_on(&mut world, Duration::from_secs(1))?;
        world.assign(PARTITION, round % node_count);
        go_on(&mut world, Duration::from_secs(3))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_acknowledged_survives_a_power_cut_everywhere() {
        assert_eq!(power_cut(Mutations::NONE), Ok(()));
    }
}
