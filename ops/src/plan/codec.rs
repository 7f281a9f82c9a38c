//! How each layout spreads a payload byte over nodes and datacenters.

use clap::ValueEnum;
use serde::Serialize;

/// A disk is full for planning when this share of it is used: compaction and rebuilding need room.
pub(super) const FILL_MAX: f64 = 0.85;

/// How records are laid out on disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Layout {
    /// Three whole copies, one in each datacenter.
    #[value(name = "mirror-3-dc")]
    #[serde(rename = "mirror-3-dc")]
    Mirror3Dc,
    /// Three whole copies when written; then nine parts over three datacenters, any five do.
    #[value(name = "rs-5-4")]
    #[serde(rename = "rs-5-4")]
    Rs54,
    /// Three whole copies when written; then six parts over three datacenters, any four do.
    #[value(name = "block-4-2")]
    #[serde(rename = "block-4-2")]
    Block42,
    /// Six parts on eight racks of one datacenter from the first ack on, any four do.
    #[value(name = "hot-block-4-2")]
    #[serde(rename = "hot-block-4-2")]
    HotBlock42,
    /// Apache Kafka with three replicas, one in each datacenter.
    #[value(skip)]
    #[serde(rename = "kafka-rf-3")]
    KafkaRf3,
}

impl Layout {
    /// All, Kafka last.
    pub(super) const ALL: [Self; 5] =
        [Self::Mirror3Dc, Self::Rs54, Self::Block42, Self::HotBlock42, Self::KafkaRf3];

    /// Its name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mirror3Dc => "mirror-3-dc",
            Self::Rs54 => "rs-5-4",
            Self::Block42 => "block-4-2",
            Self::HotBlock42 => "hot-block-4-2",
            Self::KafkaRf3 => "kafka RF 3",
        }
    }

    /// Nodes of one storage group: one in each of nine racks of three datacenters, or of eight racks of one.
    pub(super) fn group_nodes(self) -> u32 {
        if self == Self::HotBlock42 { 8 } else { 9 }
    }

    /// Nodes that are left of it with the worst lost: a datacenter and a rack of another, or two racks.
    pub(super) fn survivors(self) -> u32 {
        if self == Self::HotBlock42 { 6 } else { 5 }
    }

    /// Bytes kept for each payload byte.
    pub(super) fn overhead(self) -> f64 {
        match self {
            Self::Mirror3Dc | Self::KafkaRf3 => 3.0,
            Self::Rs54 => 9.0 / 5.0,
            Self::Block42 | Self::HotBlock42 => 6.0 / 4.0,
        }
    }

    /// Bytes that all disks write for each payload byte: what becomes stripes is written as three
    /// copies first, and as parts when it is cold.
    pub(super) fn written(self) -> f64 {
        match self {
            Self::Rs54 | Self::Block42 => 3.0 + self.overhead(),
            Self::Mirror3Dc | Self::HotBlock42 | Self::KafkaRf3 => self.overhead(),
        }
    }

    /// Bytes of each that the leader keeps itself: a copy, or a part.
    pub(super) fn leader_keeps(self) -> f64 {
        if self == Self::HotBlock42 { 1.0 / 4.0 } else { 1.0 }
    }

    /// Bytes that the disks write for each payload byte while a datacenter and a rack of another
    /// are lost: two racks in each of the two datacenters left. Of eight racks six are left, with a part on each.
    pub(super) fn written_degraded(self) -> f64 {
        match self {
            Self::Mirror3Dc | Self::Rs54 | Self::Block42 => 4.0,
            Self::HotBlock42 => self.overhead(),
            // Two of three replicas are left where they did not share the lost rack.
            Self::KafkaRf3 => 2.0,
        }
    }

    /// The busiest survivor's share of what the disks write for a payload byte then, in a group
    /// that gets all of it: both racks left in the broken datacenter take everything.
    pub(super) fn busiest_degraded(self) -> f64 {
        match self {
            Self::Mirror3Dc | Self::Rs54 | Self::Block42 => 1.0,
            Self::HotBlock42 => 1.0 / 4.0,
            // Two replicas over five brokers, were they spread evenly.
            Self::KafkaRf3 => 2.0 / 5.0,
        }
    }

    /// Bytes that go to other datacenters for each payload byte. Leaders are where the producers
    /// are, and consumers read in their own datacenter, as Kafka's can, too.
    pub(super) fn wan(self) -> f64 {
        match self {
            Self::Mirror3Dc | Self::KafkaRf3 => 2.0,
            // Two copies, then six of nine parts, each a fifth.
            Self::Rs54 => 2.0 + 6.0 / 5.0,
            // Two copies, then four of six parts, each a quarter.
            Self::Block42 => 3.0,
            Self::HotBlock42 => 0.0,
        }
    }

    /// What may be lost while it keeps taking writes and loses none, what is cold included.
    pub(super) fn survives(self) -> &'static str {
        match self {
            Self::Mirror3Dc | Self::Rs54 => "DC + rack",
            Self::Block42 => "DC or 2 racks",
            Self::HotBlock42 => "2 racks",
            Self::KafkaRf3 => "DC; power loss only with fsync",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_kept_are_those_of_the_design() {
        let kept: Vec<f64> = Layout::ALL.iter().map(|layout| layout.overhead()).collect();
        assert_eq!(kept, [3.0, 1.8, 1.5, 1.5, 3.0]);
    }

    #[test]
    fn the_busiest_survivor_takes_no_less_than_the_average_one() {
        for layout in Layout::ALL {
            let average = layout.written_degraded() / f64::from(layout.survivors());
            assert!(layout.busiest_degraded() >= average - 1e-9, "{}", layout.name());
        }
    }
}
