//! Directed schedules, for rules whose breaking chance alone would hardly ever show.

mod bit_rot;
mod half_start;
mod late_end;
mod late_news;
mod one_partition;
mod oversize;
mod parked;
mod power_cut;
mod quota_shares;
mod replaced_disk;
mod replaced_racks;
mod shared_generation;

pub use bit_rot::bit_rot;
pub use half_start::half_start;
pub use late_end::late_end;
pub use late_news::late_news;
pub use one_partition::{forgotten_producer, late_coordinator, wrapped_epoch, wrapped_sequence};
pub use oversize::oversize;
pub use parked::parked;
pub use power_cut::power_cut;
pub use quota_shares::quota_shares;
pub use replaced_disk::{moved_slot, replaced_disk, slot_that_comes_back};
pub use replaced_racks::replaced_racks;
pub use shared_generation::shared_generation;

use std::time::Duration;

use meridian_base::id::{ConfigVersion, GroupId, Incarnation, NodeId, PartitionId};
use meridian_base::position::Generation;
use meridian_base::topology::{Geometry, GroupConfig, Slot, SlotConfig, SlotState};
use meridian_storage::hot::Layout;
use meridian_storage::leader::LeaderConfig;
use meridian_storage::limits::SizeLimits;
use meridian_storage::mutation::Mutations;

use crate::check::{Promise, Verdict, Violation};
use crate::cost::Bounds;
use crate::trace::Detail;
use crate::world::{Event, World, WorldConfig};

/// The only partition of a scenario.
const PARTITION: PartitionId = PartitionId::new(1);
/// How long a partition may take to be served, and the whole log to be read.
const READ_WITHIN: Duration = Duration::from_secs(30);

/// The disk of a leader that is alone.
const INCARNATION: Incarnation = Incarnation::new(7);

/// A leader whose group is the one disk of its node.
fn alone(blob_size_bytes_max: usize, mutations: Mutations) -> LeaderConfig {
    let slot =
        SlotConfig { node: NodeId::new(1), incarnation: INCARNATION, state: SlotState::Good };
    LeaderConfig {
        partition: PARTITION,
        generation: Generation::FIRST,
        group: GroupConfig {
            group: GroupId::new(1),
            version: ConfigVersion::new(1),
            geometry: Geometry::None,
            slots: vec![slot],
        },
        own_slot: Some(Slot::new(0)),
        datacenter_count_min: 1,
        layout: Layout::Copies,
        pending_size_bytes_max: 1 << 20,
        blob_size_bytes_max,
        mutations,
    }
}

/// What scenarios begin with, but for what they say.
fn config(mutations: Mutations) -> WorldConfig {
    WorldConfig {
        seed: 1,
        geometry: Geometry::Mirror3Dc,
        spare_count: 0,
        is_tiered: false,
        classes: &[],
        datacenter_count_min: 1,
        mutations,
        bounds: Bounds::USUAL,
        sizes: SizeLimits::SMALL,
        partition_count: 1,
        producer_count: 1,
        source_count: 0,
        transactor_count: 0,
        keyed_count: 0,
        recreation_count: 0,
        has_applications: false,
        client_id_min: 0,
        is_asleep: false,
        foreign_count: 0,
        kept_count_min: 0,
        metadata_mutation: None,
        mirror_mutation: None,
        detail: Detail::Count,
    }
}

/// A world without nemesis, in which `PARTITION` is led by node 0.
fn world(config: WorldConfig) -> Result<World, Violation> {
    let mut world = World::new(config)?;
    go_on(&mut world, Duration::from_secs(1))?;
    world.assign(PARTITION, 0);
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

/// Some seconds of bursts; then all is answered.
fn write(world: &mut World) -> Verdict {
    for _ in 0..20 {
        world.rouse_producers();
        go_on(world, Duration::from_millis(200))?;
    }
    world.clients.iter_mut().for_each(crate::workload::Client::stop);
    go_on(world, Duration::from_secs(3))
}

/// All nodes restart, and another one leads.
fn restart_all(world: &mut World) -> Verdict {
    for node in 0..world.nodes.len() {
        world.stop_node(node);
    }
    for node in 0..world.nodes.len() {
        world.start_node(node)?;
    }
    go_on(world, Duration::from_secs(2))?;
    world.assign(PARTITION, 1);
    until(world, READ_WITHIN, "the partition is served", |world| world.is_served(PARTITION))
}

/// Reads the whole log, from the disks if all nodes have restarted.
fn read_all(world: &mut World) -> Verdict {
    read_all_of(world, PARTITION)
}

/// Reads all of another partition.
fn read_all_of(world: &mut World, partition: PartitionId) -> Verdict {
    let is_reader = |client: &crate::workload::Client| client.partition == partition;
    for client in 0..world.clients.len() {
        if is_reader(&world.clients[client]) {
            let until = world.checker.visible_end(partition);
            world.clients[client].begin_final_read(until);
            world.wake_client(client, Duration::ZERO);
        }
    }
    until(world, READ_WITHIN, "the log is read to its end", |world| {
        world.clients.iter().any(|client| is_reader(client) && client.final_log().is_some())
    })?;
    let World { clients, checker, .. } = world;
    clients
        .iter()
        .filter(|client| is_reader(client))
        .filter_map(|client| client.final_log())
        .try_for_each(|(start, log)| checker.final_log(partition, start, log))
}

/// Goes on until `done`.
fn until(
    world: &mut World,
    within: Duration,
    what: &str,
    done: impl Fn(&World) -> bool,
) -> Verdict {
    let deadline = world.now + within;
    while !done(world) {
        if world.now >= deadline {
            let disks: Vec<_> = world.nodes.iter().map(|node| node.seat.as_ref()).collect();
            let disks: Vec<_> =
                disks.into_iter().map(|seat| seat.map(crate::seat::Seat::scrub_status)).collect();
            let detail = format!("not within {within:?}: {what}; {disks:?}");
            return Err(Violation { promise: Promise::ServesAgain, detail });
        }
        go_on(world, Duration::from_millis(100))?;
    }
    Ok(())
}
