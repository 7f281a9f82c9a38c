//! The states that stop or threaten writes. Each is one [`Condition`]: its name, what it says, and the
//! command that mends it.
//!
//! ```text
//! metadata --> cluster::conditions --+                  +--> Monitor --> log: WARN when it begins, INFO when it ends
//!                                    +--> [Condition] --+--> /health, the metric
//! this node -> own::conditions ------+                  +--> Finding --> `cluster status` of any node
//! ```
//!
//! Nothing here does I/O: `node::health` observes and carries out.

pub(crate) mod cluster;
mod finding;
mod monitor;
pub(crate) mod own;
#[cfg(test)]
mod tests;
pub(crate) mod tolerance;

use std::fmt;

use meridian_admin_api::cluster::{About, Tolerance};
use meridian_base::id::{GroupId, NodeId, PartitionId};
use meridian_base::topology::Slot;
use meridian_consensus::state::Metadata;

pub(crate) use self::finding::{Finding, finding_of, merge, opening};
pub(crate) use self::monitor::{Change, Monitor};

/// How bad a condition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    /// Some records are not taken, or not acknowledged, now.
    Stops,
    /// Records are taken; one more loss, or time alone, will stop them.
    Threatens,
    /// As it is meant to be for a while, such as amid an upgrade.
    Notes,
}

impl Severity {
    /// As operators and programs see it; stable.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Stops => "stops",
            Self::Threatens => "threatens",
            Self::Notes => "notes",
        }
    }
}

/// Why produce requests are refused at once, by partitions that are led and served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RefusedFor {
    /// Too few datacenters answer for a quorum, or for `min.insync.datacenters`.
    TooFewDatacenters,
    /// Too many bytes wait for slow disks.
    Busy,
    /// No mirror is as near as `mirror.max.lag.ms` asks for.
    MirrorsTooFarBehind,
    /// The takeover did not end in time.
    NotServing,
}

impl fmt::Display for RefusedFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooFewDatacenters => "too few datacenters answer",
            Self::Busy => "too many bytes wait for slow disks",
            Self::MirrorsTooFarBehind => "no mirror is as near as mirror.max.lag.ms asks for",
            Self::NotServing => "their takeover did not end in time",
        })
    }
}

/// Some partitions, and one of them by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Partitions {
    pub(crate) count: usize,
    /// Such as `orders-3`.
    pub(crate) example: String,
}

impl Partitions {
    /// `None` if there are none.
    pub(crate) fn of(metadata: &Metadata, ids: &[PartitionId]) -> Option<Self> {
        let example = name_of(metadata, *ids.first()?);
        Some(Self { count: ids.len(), example })
    }
}

impl fmt::Display for Partitions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            0 | 1 => write!(f, "partition {}", self.example),
            count => write!(f, "{count} partitions ({} among them)", self.example),
        }
    }
}

/// A partition as operators know it, such as `orders-3`.
pub(crate) fn name_of(metadata: &Metadata, id: PartitionId) -> String {
    let found = metadata.partition(id);
    let name = found.and_then(|it| Some((&metadata.topic(it.topic)?.name, it.index)));
    name.map_or_else(|| format!("partition {id}"), |(topic, index)| format!("{topic}-{index}"))
}

/// A state that stops or threatens writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// No leader of the metadata log is known.
    NoMetadataLeader,
    /// A storage group has no quorum of good slots.
    GroupNotServing { group: GroupId },
    /// So many disks of a group are full that the others are no put quorum.
    GroupFull { group: GroupId },
    /// Less of a group can be lost than it was built for.
    GroupShort { group: GroupId, tolerates: Tolerance, built_for: Tolerance },
    /// The leaders of these partitions are dead, or gone.
    Leaderless { partitions: Partitions },
    /// A node is taken for dead.
    NodeDead { node: NodeId },
    /// A node rests, or leaves.
    NodeDraining { node: NodeId },
    /// A disk is filled from its peers and counts for nothing until then.
    SlotSyncing { group: GroupId, slot: Slot, node: NodeId },
    /// A node's binary is older than another's.
    NodeOutdated { node: NodeId, level: u16, newest: u16 },
    /// A node that is alive did not say how it is.
    NodeSilent { node: NodeId },
    /// The disk takes no records.
    DiskFull { used_bytes: u64, usable_bytes: u64 },
    /// The disk will soon take no records.
    DiskNearlyFull { left_bytes: u64, usable_bytes: u64 },
    /// Blobs on the disk can't be read, and are not mended yet.
    DiskDamaged { unreadable: u64 },
    /// A node that the cluster takes for alive can't be reached from here.
    PeerUnreachable { peer: NodeId },
    /// Blobs were put and are not committed.
    NotCommitting {
        partitions: Partitions,
        seconds: u64,
        refused: Vec<NodeId>,
        silent: Vec<NodeId>,
    },
    /// A takeover does not end.
    NotServing { partitions: Partitions, seconds: u64 },
    /// Produce requests are refused at once.
    WritesRefused { reason: RefusedFor, partitions: Partitions },
    /// Topics that are written under a lease only have none.
    LeaseMissing { partitions: Partitions, cluster: String },
    /// Partitions of a mirror have stopped until an operator decides.
    MirrorStopped {
        link: String,
        state: &'static str,
        partitions: Partitions,
        why: String,
        mend: String,
    },
    /// The source of a link does not answer.
    LinkDown { link: String, why: String },
    /// The source of a link has more groups than are carried.
    GroupsLeftOut { link: String, left_out: usize, count_max: usize },
    /// This node can't open the secrets of a link.
    SecretsUnopened { link: String, why: String },
    /// Secrets of links lie in clear in the metadata log.
    SecretsInClear { links: String },
    /// Requests to the object store fail.
    ObjectStoreAway { seconds: u64, why: String },
    /// The file system has less room than the journal has yet to take.
    DiskTaken { free_bytes: u64, wanted_bytes: u64 },
    /// Partitions are taken over or rebuilt, and clients that ask for them wait.
    Opening { partitions: Partitions },
    /// Several clusters use the certificate of one link to this cluster.
    LinkKeyShared { link: String, clusters: Vec<String> },
    /// A link's certificate ends soon, or has ended.
    LinkCertificateEnds { link: String, hours_left: i64 },
    /// The node's certificate ends soon, or has ended.
    CertificateEnds { hours_left: i64 },
    /// The certificate that a listener shows its clients ends soon, or has ended.
    ListenerCertificateEnds { listener: String, hours_left: i64 },
    /// The host's clock is not the cluster's.
    ClockApart { ahead_ms: i64 },
}

impl Condition {
    /// The name of [`Condition::DiskFull`], by which full disks of other nodes are counted.
    pub(crate) const DISK_FULL: &'static str = "disk_full";

    /// All names, for the metric: those that are not there are shown as 0.
    pub(crate) const NAMES: [(&'static str, Severity); 33] = [
        ("no_metadata_leader", Severity::Stops),
        ("group_not_serving", Severity::Stops),
        ("group_full", Severity::Stops),
        ("group_short", Severity::Threatens),
        ("leaderless", Severity::Stops),
        ("node_dead", Severity::Threatens),
        ("node_draining", Severity::Threatens),
        ("slot_syncing", Severity::Threatens),
        ("node_outdated", Severity::Notes),
        ("node_silent", Severity::Threatens),
        (Self::DISK_FULL, Severity::Threatens),
        ("disk_nearly_full", Severity::Threatens),
        ("disk_damaged", Severity::Threatens),
        ("peer_unreachable", Severity::Threatens),
        ("not_committing", Severity::Stops),
        ("not_serving", Severity::Stops),
        ("writes_refused", Severity::Stops),
        ("lease_missing", Severity::Stops),
        ("mirror_stopped", Severity::Threatens),
        ("link_down", Severity::Threatens),
        ("groups_left_out", Severity::Threatens),
        ("certificate_ends", Severity::Threatens),
        ("certificate_ended", Severity::Stops),
        ("clock_apart", Severity::Threatens),
        ("secrets_unopened", Severity::Threatens),
        ("secrets_in_clear", Severity::Threatens),
        ("object_store_away", Severity::Threatens),
        ("disk_taken", Severity::Threatens),
        ("opening", Severity::Stops),
        ("link_certificate_ends", Severity::Threatens),
        ("link_key_shared", Severity::Threatens),
        ("listener_certificate_ends", Severity::Threatens),
        ("listener_certificate_ended", Severity::Stops),
    ];

    fn entry(&self) -> (&'static str, Severity) {
        let index = match self {
            Self::NoMetadataLeader => 0,
            Self::GroupNotServing { .. } => 1,
            Self::GroupFull { .. } => 2,
            Self::GroupShort { .. } => 3,
            Self::Leaderless { .. } => 4,
            Self::NodeDead { .. } => 5,
            Self::NodeDraining { .. } => 6,
            Self::SlotSyncing { .. } => 7,
            Self::NodeOutdated { .. } => 8,
            Self::NodeSilent { .. } => 9,
            Self::DiskFull { .. } => 10,
            Self::DiskNearlyFull { .. } => 11,
            Self::DiskDamaged { .. } => 12,
            Self::PeerUnreachable { .. } => 13,
            Self::NotCommitting { .. } => 14,
            Self::NotServing { .. } => 15,
            Self::WritesRefused { .. } => 16,
            Self::LeaseMissing { .. } => 17,
            Self::MirrorStopped { .. } => 18,
            Self::LinkDown { .. } => 19,
            Self::GroupsLeftOut { .. } => 20,
            Self::CertificateEnds { hours_left } if *hours_left > 0 => 21,
            Self::CertificateEnds { .. } => 22,
            Self::ClockApart { .. } => 23,
            Self::SecretsUnopened { .. } => 24,
            Self::SecretsInClear { .. } => 25,
            Self::ObjectStoreAway { .. } => 26,
            Self::DiskTaken { .. } => 27,
            Self::Opening { .. } => 28,
            Self::LinkCertificateEnds { .. } => 29,
            Self::LinkKeyShared { .. } => 30,
            Self::ListenerCertificateEnds { hours_left, .. } if *hours_left > 0 => 31,
            Self::ListenerCertificateEnds { .. } => 32,
        };
        Self::NAMES[index]
    }

    /// The name that operators and programs see; stable.
    pub(crate) fn name(&self) -> &'static str {
        self.entry().0
    }

    pub(crate) fn severity(&self) -> Severity {
        self.entry().1
    }

    /// What of several such conditions this one is about. It stays while details change.
    fn subject(&self) -> String {
        match self {
            Self::GroupNotServing { group }
            | Self::GroupFull { group }
            | Self::GroupShort { group, .. } => group.to_string(),
            Self::NodeDead { node }
            | Self::NodeDraining { node }
            | Self::SlotSyncing { node, .. }
            | Self::NodeOutdated { node, .. }
            | Self::NodeSilent { node } => node.to_string(),
            Self::PeerUnreachable { peer } => peer.to_string(),
            Self::WritesRefused { reason, .. } => reason.to_string(),
            Self::LeaseMissing { cluster, .. } => cluster.clone(),
            Self::MirrorStopped { link, state, .. } => format!("{link} {state}"),
            Self::LinkDown { link, .. }
            | Self::GroupsLeftOut { link, .. }
            | Self::LinkCertificateEnds { link, .. }
            | Self::LinkKeyShared { link, .. }
            | Self::SecretsUnopened { link, .. } => link.clone(),
            Self::ListenerCertificateEnds { listener, .. } => listener.clone(),
            Self::NoMetadataLeader
            | Self::Leaderless { .. }
            | Self::DiskFull { .. }
            | Self::DiskNearlyFull { .. }
            | Self::DiskDamaged { .. }
            | Self::NotCommitting { .. }
            | Self::NotServing { .. }
            | Self::SecretsInClear { .. }
            | Self::ObjectStoreAway { .. }
            | Self::DiskTaken { .. }
            | Self::Opening { .. }
            | Self::CertificateEnds { .. }
            | Self::ClockApart { .. } => String::new(),
        }
    }

    /// What nodes say of one thing that they share: it is one line, however each of them sees it.
    fn about(&self) -> Option<About> {
        let partitions = match self {
            Self::LeaseMissing { partitions, .. } | Self::Opening { partitions } => {
                partitions.count
            }
            Self::LinkDown { .. } | Self::ObjectStoreAway { .. } | Self::LinkKeyShared { .. } => 0,
            _ => return None,
        };
        Some(About { subject: self.subject(), partitions })
    }

    /// What an operator does about it, with the command.
    pub(crate) fn mend(&self) -> String {
        match self {
            Self::NoMetadataLeader => {
                "start nodes until a majority of the voters reach each other: `meridian node list`".to_owned()
            }
            Self::GroupNotServing { .. } | Self::GroupShort { .. } | Self::Leaderless { .. } => {
                "bring back the nodes and disks that are away: `meridian node list`, `meridian disk list`"
                    .to_owned()
            }
            Self::GroupFull { .. } | Self::DiskFull { .. } | Self::DiskNearlyFull { .. } => {
                "keep less (`meridian topic alter TOPIC --config retention.bytes=BYTES`), delete a topic \
                 (`meridian topic delete TOPIC`), or give the disks more room (storage.capacity_bytes, and \
                 restart)"
                    .to_owned()
            }
            Self::NodeDead { node } => format!(
                "start node {node}; if it is lost, `meridian node replace {node}` gives its slot to a spare"
            ),
            Self::NodeDraining { node } => format!("`meridian node undrain {node}` when the work is done"),
            Self::SlotSyncing { node, .. } => {
                format!("wait until it is good: `meridian disk status {node}/disk` shows how far it is")
            }
            Self::NodeOutdated { node, .. } => {
                format!("give node {node} the newer binary and restart it: `meridian node list`")
            }
            Self::NodeSilent { node } => {
                format!("see its log, and restart it if it hangs: `meridian node status {node}`")
            }
            Self::DiskDamaged { .. } => {
                "`meridian disk scrub --node NODE --wait` mends what its peers can give".to_owned()
            }
            Self::PeerUnreachable { peer } => format!(
                "see whether UDP passes between the two nodes: `meridian node status {peer}`"
            ),
            Self::NotCommitting { .. } | Self::NotServing { .. } => {
                "see why those disks refuse or do not answer: `meridian disk list`, `meridian cluster status`".to_owned()
            }
            Self::WritesRefused { reason, .. } => refused_mend(*reason).to_owned(),
            Self::ObjectStoreAway { .. } => {
                "see whether the store is up and takes the node's credentials ([object_store]); cold records are not \
                 readable and not moved there until then"
                    .to_owned()
            }
            Self::DiskTaken { .. } => {
                "see what else fills the file system of node.data (`df`, `du`), or lower storage.capacity_bytes and \
                 restart"
                    .to_owned()
            }
            Self::Opening { .. } => {
                "wait: those that clients ask for come first; `meridian node status NODE` counts what is left"
                    .to_owned()
            }
            Self::CertificateEnds { .. } => {
                "`meridian cert node` makes a new one; put it into tls.folder and restart the node".to_owned()
            }
            Self::ListenerCertificateEnds { listener, .. } => format!(
                "`meridian cert server` makes a new one: write it over the files of listener {listener}; the node needs no \
                 restart"
            ),
            Self::ClockApart { .. } => "set the host's clock (NTP)".to_owned(),
            of_links => of_links.mend_of_links(),
        }
    }

    /// Of links and mirrors: what an operator does and mirrors.
    fn mend_of_links(&self) -> String {
        match self {
            Self::LeaseMissing { .. } => {
                "see whether the mirror's cluster is up (`meridian mirror status` there); if it is gone for good, \
                 `meridian mirror drop-lease TOPIC`"
                    .to_owned()
            }
            Self::MirrorStopped { mend, .. } => mend.clone(),
            Self::LinkDown { link, .. } => {
                format!("`meridian link test {link}` shows which address does not answer")
            }
            Self::GroupsLeftOut { link, .. } => format!(
                "carry fewer groups: narrow the rule (`meridian mirror groups`), or delete groups that nobody \
                 uses at the source of {link}"
            ),
            Self::LinkKeyShared { .. } => {
                "make each cluster a certificate of its own (`meridian cert link`), then `meridian cert revoke` the one \
                 that was copied"
                    .to_owned()
            }
            Self::LinkCertificateEnds { link, .. } => format!(
                "have the source's operators make a new one (`meridian cert link`), then `meridian link alter {link} -c \
                 ssl.certificate.location=FILE -c ssl.key.location=FILE`"
            ),
            Self::SecretsUnopened { link, .. } => format!(
                "give the node the cluster's key file (security.secret_key_file) and restart it; if the key is lost, set \
                 the secrets again: `meridian link alter {link}`"
            ),
            Self::SecretsInClear { .. } => {
                "`meridian link reseal` seals them; change them at the source, for older files of the log still have \
                 them"
                    .to_owned()
            }
            _ => "`meridian cluster status` says more".to_owned(),
        }
    }
}

fn refused_mend(reason: RefusedFor) -> &'static str {
    match reason {
        RefusedFor::TooFewDatacenters => {
            "bring the datacenter back (`meridian node list`), or lower min.insync.datacenters: `meridian topic \
             alter TOPIC --config min.insync.datacenters=1`"
        }
        RefusedFor::Busy => "see which disks are slow or full: `meridian disk list`",
        RefusedFor::MirrorsTooFarBehind => {
            "see why mirrors are behind (`meridian mirror status` at their cluster), or raise mirror.max.lag.ms: \
             `meridian topic alter TOPIC --config mirror.max.lag.ms=MS`"
        }
        RefusedFor::NotServing => "see which disks do not answer: `meridian disk list`",
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMetadataLeader => f.write_str("no leader of the metadata log is known"),
            Self::GroupNotServing { group } => no_records(f, *group, "are good"),
            Self::GroupFull { group } => no_records(f, *group, "have room"),
            Self::GroupShort { group, tolerates, built_for } => write!(
                f,
                "group {group} can lose {} now; it was built to lose {}",
                loss(tolerates),
                loss(built_for)
            ),
            Self::Leaderless { partitions } => write!(f, "{partitions} without a leader"),
            Self::NodeDead { node } => write!(f, "node {node} is dead"),
            Self::NodeDraining { node } => write!(f, "node {node} is draining"),
            Self::SlotSyncing { group, slot, node } => {
                write!(f, "slot {} of group {group} (node {node}) ", slot.index())?;
                f.write_str("is filled from its peers and counts for nothing yet")
            }
            Self::NodeOutdated { node, level, newest } => write!(
                f,
                "node {node} has an older binary (feature level {level}) than others ({newest}): new features \
                 wait for it"
            ),
            Self::NodeSilent { node } => write!(f, "node {node} does not say how it is"),
            Self::DiskFull { used_bytes, usable_bytes } => {
                let (used, usable) = (mib(*used_bytes), mib(*usable_bytes));
                write!(f, "the disk is full and refuses records: {used} of {usable} taken")
            }
            Self::DiskNearlyFull { left_bytes, usable_bytes } => {
                let (left, usable) = (mib(*left_bytes), mib(*usable_bytes));
                write!(f, "the disk is nearly full: {left} of {usable} left")
            }
            Self::DiskDamaged { unreadable } => {
                write!(f, "{unreadable} blobs on the disk can't be read and are not mended yet")
            }
            Self::PeerUnreachable { peer } => {
                write!(f, "node {peer}, which is alive, can't be reached from here")
            }
            Self::NotCommitting { partitions, seconds, refused, silent } => {
                write!(f, "{partitions} can't commit: records have waited {seconds} s for disks")?;
                write_nodes(f, "refused by", refused)?;
                write_nodes(f, "no answer from", silent)
            }
            Self::NotServing { partitions, seconds } => {
                write!(f, "{partitions} not served: the takeover has lasted {seconds} s")
            }
            Self::WritesRefused { reason, partitions } => {
                write!(f, "produce requests to {partitions} are refused: {reason}")
            }
            Self::CertificateEnds { hours_left } => {
                write!(f, "the node's certificate {}", ends_in(*hours_left))
            }
            Self::ListenerCertificateEnds { listener, hours_left } => match hours_left {
                ..=0 => write!(
                    f,
                    "the certificate of listener {listener} has ended: clients can't connect"
                ),
                _ => write!(f, "the certificate of listener {listener} {}", ends_in(*hours_left)),
            },
            Self::ClockApart { ahead_ms } => write!(f, "the host's clock is {}", apart(*ahead_ms)),
            of_links => of_links.fmt_of_links(f),
        }
    }
}

impl Condition {
    /// Those of links and mirrors, and of what a node uses beside its disk.
    fn fmt_of_links(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeaseMissing { partitions, cluster } => write!(
                f,
                "{partitions} without a writer's lease: cluster {cluster} has not said lately that its mirror \
                 is not promoted (lease-missing)"
            ),
            Self::MirrorStopped { link, state, partitions, why, .. } => {
                write!(f, "link {link}: mirror of {partitions} stopped ({state}): {why}")
            }
            Self::LinkDown { link, why } => write!(f, "link {link} is down: {why}"),
            Self::GroupsLeftOut { link, left_out, count_max: max } => {
                write!(
                    f,
                    "link {link}: {left_out} groups are not carried: {max} of a broker are the most"
                )
            }
            Self::ObjectStoreAway { seconds, why } => {
                write!(f, "the object store has failed for {seconds} s: {why}")
            }
            Self::DiskTaken { free_bytes, wanted_bytes } => write!(
                f,
                "others fill the disk: {} are free, and the journal has yet to take {}",
                mib(*free_bytes),
                mib(*wanted_bytes)
            ),
            Self::Opening { partitions } => {
                write!(f, "{partitions} not served yet: taken over, and being rebuilt")
            }
            Self::LinkKeyShared { link, clusters } => write!(
                f,
                "clusters {} all use the certificate of link {link}: its private key was copied",
                clusters.join(" and ")
            ),
            Self::LinkCertificateEnds { link, hours_left } => {
                write!(f, "the certificate of link {link} {}", ends_in(*hours_left))
            }
            Self::SecretsUnopened { link, why } => {
                write!(f, "link {link} can't be used on this node: {why}")
            }
            Self::SecretsInClear { links } => {
                write!(f, "secrets of links lie in clear in the metadata log: {links}")
            }
            _ => f.write_str(self.name()),
        }
    }
}

fn no_records(f: &mut fmt::Formatter<'_>, group: GroupId, want: &str) -> fmt::Result {
    write!(f, "group {group} takes no records: too few of its disks {want}")
}

fn write_nodes(f: &mut fmt::Formatter<'_>, what: &str, nodes: &[NodeId]) -> fmt::Result {
    if nodes.is_empty() {
        return Ok(());
    }
    let ids: Vec<String> = nodes.iter().map(NodeId::to_string).collect();
    let noun = if ids.len() == 1 { "node" } else { "nodes" };
    write!(f, "; {what} {noun} {}", ids.join(", "))
}

/// A loss that is tolerated, as in "it can lose".
fn loss(tolerates: &Tolerance) -> &str {
    match tolerates {
        Tolerance::DatacenterAndRack => "a datacenter and a rack",
        Tolerance::Datacenter => "a datacenter",
        Tolerance::TwoRacks => "two racks",
        Tolerance::Rack => "a rack",
        Tolerance::Nothing => "nothing more",
        other => other.as_str(),
    }
}

fn ends_in(hours: i64) -> String {
    match hours {
        ..=0 => "has ended: it can't connect anew".to_owned(),
        1..=48 => format!("ends in {hours} hours"),
        _ => format!("ends in {} days", hours / 24),
    }
}

fn apart(ahead_ms: i64) -> String {
    match ahead_ms {
        ..0 => format!("{} ms behind the cluster's", ahead_ms.unsigned_abs()),
        _ => format!("{ahead_ms} ms ahead of the cluster's"),
    }
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}
