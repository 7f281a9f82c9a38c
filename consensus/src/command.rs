//! Every decision the cluster can take, as written in the metadata log.
//!
//! The encoding is one version byte and then postcard. Postcard numbers variants and fields by
//! their order: **append only**, never reorder or remove. `tests/golden.rs` holds the bytes.

use std::fmt;

use meridian_base::id::{ClusterId, GroupId, Incarnation, NodeId, PartitionId, TopicId};
use meridian_base::position::{Generation, LeaderEpoch};
use meridian_base::topology::{Datacenter, Geometry, Rack, Slot};
use serde::{Deserialize, Serialize};

use crate::error::DecodeError;

/// Version of the encoding of [`Proposal`].
const PROPOSAL_VERSION: u8 = 1;

/// Names one proposal for all time: its proposer draws it by chance and repeats it on each retry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestId(u128);

impl RequestId {
    /// Wraps 128 bits of chance.
    pub const fn new(raw: u128) -> Self {
        Self(raw)
    }

    /// The raw bits.
    pub const fn get(self) -> u128 {
        self.0
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "R{:032x}", self.0)
    }
}

/// A command and the request that asked for it. Applying it twice is applying it once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// Names the request.
    pub request_id: RequestId,
    /// What is to be decided.
    pub command: Command,
}

impl Proposal {
    /// The bytes of a log entry.
    pub fn encode(&self) -> Vec<u8> {
        let version = vec![PROPOSAL_VERSION];
        postcard::to_extend(self, version).expect("a proposal always encodes into memory")
    }

    /// Reads a log entry back.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (version, body) = bytes.split_first().ok_or(DecodeError::Empty)?;
        if *version != PROPOSAL_VERSION {
            return Err(DecodeError::Version { found: *version, known: PROPOSAL_VERSION });
        }
        postcard::from_bytes(body).map_err(DecodeError::malformed)
    }
}

/// One decision. Commands carry what was observed (expected generations, incarnations, epochs), so
/// that a decision made on stale knowledge is refused or skipped when it is applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Names the cluster and fixes its shape. The storage group is created as soon as the mounted
    /// disks of registered nodes fill the geometry.
    Bootstrap {
        /// The cluster's id.
        cluster_id: ClusterId,
        /// Shape of the storage group to be created.
        geometry: Geometry,
    },
    /// A node started: enters or replaces its registration and gives it a new epoch.
    RegisterNode(NodeRegistration),
    /// A storage node mounted its disk and says what it found there (rules S4, 12).
    MountDisk {
        /// The node.
        node: NodeId,
        /// The life the disk says it is in; zero for a blank disk.
        incarnation: Incarnation,
        /// Number of this mount: made durable on the disk before this is proposed, and the same
        /// on every retry.
        mount_epoch: MountEpoch,
        /// Whether the disk holds the data of that life.
        found_data: bool,
    },
    /// A slot's disk has synced all it missed and counts again.
    SlotSynced {
        /// The group.
        group: GroupId,
        /// The slot.
        slot: Slot,
        /// The life of the disk that synced.
        incarnation: Incarnation,
    },
    /// Moves a slot to another node's disk of the same datacenter (self-heal, replacement). That disk begins a
    /// new life there, from [`FeatureLevel::SLOT_LIVES`] on (rule S7).
    ReplaceSlot {
        /// The group.
        group: GroupId,
        /// The slot.
        slot: Slot,
        /// The node that is to lose the slot.
        from: NodeId,
        /// The node whose mounted disk fills it, `LostData` until it has synced.
        to: NodeId,
    },
    /// Creates a topic.
    CreateTopic {
        /// Drawn by chance by the proposer; never reused.
        topic: TopicId,
        /// The name.
        name: String,
        /// First leader of each partition, in index order: its length is the partition count.
        leaders: Vec<NodeId>,
        /// Topic configs that differ from the defaults.
        configs: Vec<ConfigChange>,
        /// Whether the cluster keeps its own state in it (`__consumer_offsets`...).
        internal: bool,
    },
    /// Deletes a topic, its partitions and its configs.
    DeleteTopic {
        /// The topic.
        topic: TopicId,
    },
    /// Adds partitions to a topic.
    CreatePartitions {
        /// The topic.
        topic: TopicId,
        /// How many partitions the proposer saw: the command is refused if there are others now.
        expected_count: u32,
        /// First leader of each partition to be added.
        leaders: Vec<NodeId>,
    },
    /// Sets and deletes configs of one resource.
    SetConfigs {
        /// What they belong to.
        resource: ConfigResource,
        /// The changes; a later one for the same name wins.
        changes: Vec<ConfigChange>,
    },
    /// Gives partitions new leaders: takeover, planned move or promotion, batched.
    AssignLeaders(Vec<LeaderAssignment>),
    /// Hands a node a block of producer ids.
    AllocateProducerIds {
        /// The node.
        node: NodeId,
    },
    /// Judges a node's life.
    MarkNode {
        /// The node.
        node: NodeId,
        /// The registration that was judged: a node that registered anew is not touched.
        epoch: NodeEpoch,
        /// The verdict.
        liveness: Liveness,
    },
    /// Raises the level of features the whole cluster may use.
    SetFeatureLevel(FeatureLevel),
    /// Forgets a node that fills no slot and leads no partition.
    RemoveNode {
        /// The node.
        node: NodeId,
    },
    /// Gives a node a new life in Raft, because it is new or lost its log (rules M3, 36).
    AllocateRaftLife {
        /// The node.
        node: NodeId,
    },
    /// Writes rows whose meaning belongs to the gateway or the mirror (ACLs, SCRAM users...).
    PutRows(Vec<RowChange>),
    /// Creates another storage group, of nodes whose disks fill no slot.
    CreateGroup {
        /// How many groups the proposer saw: the command is refused if there are others now.
        expected_count: u32,
        /// Its shape.
        geometry: Geometry,
        /// The node for each slot, in order.
        nodes: Vec<NodeId>,
    },
    /// Moves partitions to other groups, each under a new leader, batched. What is stored stays where it
    /// is; what is put from now on goes there.
    MovePartitions(Vec<PartitionMove>),
    /// Takes a topic's name from it and makes it the cluster's own: another may have the old name.
    SetAside {
        /// The topic.
        topic: TopicId,
        /// Its name from now on.
        name: String,
    },
}

/// What a node says about itself when it starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRegistration {
    /// The node.
    pub node: NodeId,
    /// Its datacenter.
    pub datacenter: Datacenter,
    /// Its rack, unique within the datacenter.
    pub rack: Rack,
    /// What it does.
    pub roles: Roles,
    /// Where Kafka clients reach it.
    pub kafka: Endpoint,
    /// Where other nodes reach it (QUIC).
    pub peer: Endpoint,
    /// Where operators reach it.
    pub admin: Endpoint,
    /// The binary's version, for operators.
    pub binary_version: String,
    /// Lowest feature level its binary can run at.
    pub feature_level_min: FeatureLevel,
    /// Highest feature level its binary can run at.
    pub feature_level_max: FeatureLevel,
}

/// The parts of the system a node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roles {
    /// Votes on metadata.
    pub meta: bool,
    /// Fills a slot.
    pub storage: bool,
    /// Serves clients and leads partitions.
    pub gateway: bool,
}

impl Roles {
    /// All roles: the default.
    pub const ALL: Self = Self { meta: true, storage: true, gateway: true };
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Endpoint {
    /// Name or address.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Number of a disk's mount, made durable on the disk before the mount is announced.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct MountEpoch(u64);

impl MountEpoch {
    /// Wraps the number a disk holds.
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// The raw number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// One registration of a node: the index of the log entry that made it (Kafka's broker epoch).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct NodeEpoch(u64);

impl NodeEpoch {
    /// Wraps a log index.
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// The raw log index.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// What the cluster thinks of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Liveness {
    /// Serves, and may be given partitions.
    Alive,
    /// Was not heard from: its partitions are taken over.
    Dead,
    /// Serves what it has, and is given nothing new.
    Draining,
}

/// A level of features that all nodes agreed to use (rule 67).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct FeatureLevel(u16);

impl FeatureLevel {
    /// The level of a new cluster.
    pub const FIRST: Self = Self(1);
    /// Manifests may name stripes.
    pub const STRIPES: Self = Self(2);
    /// Manifests may name objects of an object store.
    pub const OBJECTS: Self = Self(3);
    /// A storage group may be eight racks of one datacenter.
    pub const EIGHT_RACKS: Self = Self(4);
    /// There may be several storage groups.
    pub const GROUPS: Self = Self(5);
    /// Links may have options that say nothing of how connections are made, and the rows that these lead to.
    pub const LINK_OPTIONS: Self = Self(6);
    /// A disk that is given a slot begins a new life.
    pub const SLOT_LIVES: Self = Self(7);
    /// A topic may be set aside, for a mirror to take from it what both sides of a failover have.
    pub const SEEDS: Self = Self(8);
    /// A lease is looked at once more when its entry is applied.
    pub const LEASES_CHECKED: Self = Self(9);
    /// Nodes tell each other what of them stops or threatens writes.
    pub const HEALTH: Self = Self(10);
    /// Secrets of links are sealed in their rows.
    pub const SECRETS: Self = Self(11);
    /// Single consumer groups may have configs.
    pub const GROUP_CONFIGS: Self = Self(12);
    /// Links may have grants.
    pub const ACCESS: Self = Self(13);
    /// Users may have credentials and access rules.
    pub const RULES: Self = Self(14);
    /// Resources that no access rule is about may be open to everybody.
    pub const OPEN_RESOURCES: Self = Self(15);
    /// Users may have delegation tokens.
    pub const TOKENS: Self = Self(16);
    /// There may be share groups.
    pub const SHARE_GROUPS: Self = Self(17);
    /// Quotas may hold for the whole cluster.
    pub const QUOTA_SHARES: Self = Self(18);
    /// New partitions may go to any group that fits their storage class.
    pub const GROUPS_SPREAD: Self = Self(19);
    /// The highest that this binary can run at.
    pub const LATEST: Self = Self::GROUPS_SPREAD;

    /// The level from which on all nodes know groups of this shape.
    pub const fn of_geometry(geometry: Geometry) -> Self {
        match geometry {
            Geometry::None | Geometry::OnePerDc | Geometry::Mirror3Dc => Self::FIRST,
            Geometry::Block42 => Self::EIGHT_RACKS,
        }
    }

    /// Wraps a raw level.
    pub const fn new(raw: u16) -> Self {
        Self(raw)
    }

    /// The raw level.
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// What a config belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ConfigResource {
    /// The default of all nodes.
    Cluster,
    /// One node.
    Node(NodeId),
    /// One topic.
    Topic(TopicId),
    /// One consumer group, whether or not it is there.
    Group(String),
}

/// Sets or deletes one config. APPEND and SUBTRACT are resolved by the proposer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigChange {
    /// The config's name.
    pub name: String,
    /// Its new value; `None` deletes it, so that the default holds again.
    pub value: Option<String>,
}

/// Gives one partition a new leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderAssignment {
    /// The partition.
    pub partition: PartitionId,
    /// The generation the proposer saw; the entry is skipped if it is another now.
    pub expected: Generation,
    /// The leader of the next generation.
    pub leader: NodeId,
    /// The new leader epoch is above the partition's own and above this one: a promoted mirror
    /// continues its source's epochs (rule F6). [`LeaderEpoch::UNKNOWN`] otherwise.
    pub epoch_floor: LeaderEpoch,
}

/// Moves one partition to another group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionMove {
    /// Its leader there; skipped like any assignment if it is stale.
    pub assignment: LeaderAssignment,
    /// The group; skipped if the partition is there.
    pub group: GroupId,
}

/// Whose rows they are. The discriminants are persisted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RowKind {
    /// An access rule.
    Acl,
    /// A SCRAM credential.
    ScramUser,
    /// A quota of a user or client.
    Quota,
    /// A federation link.
    Link,
    /// State of one mirrored topic.
    MirrorTopic,
    /// Leases of nodes that rest or leave, and whose the object store is.
    Lifecycle,
    /// Which of its copies at several clusters writes to a topic next.
    Succession,
    /// How a federation link is secured.
    LinkOptions,
    /// Which topics or groups follow a link by themselves.
    MirrorRule,
    /// Which topics are written to only under a lease of another cluster.
    WriterLease,
    /// Which topics of other clusters this one grants leases for.
    LeaseGrant,
    /// Which quotas of clients a federation link has set.
    CarriedQuota,
    /// What a mirror takes from the topic that had its name before.
    Seed,
    /// What the links of other clusters may take.
    LinkGrant,
    /// Whether requests are held to the access rules: one row, with an empty key.
    Authorization,
    /// Where the further listeners of a node are.
    Listeners,
    /// Which access rules a federation link has set.
    CarriedAcl,
    /// Which credentials of users a federation link has set.
    CarriedUser,
    /// A delegation token of a user.
    DelegationToken,
}

/// Writes or deletes one row.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowChange {
    /// Whose row.
    pub kind: RowKind,
    /// The row's key.
    pub key: Vec<u8>,
    /// Its new value; `None` deletes it.
    pub value: Option<Vec<u8>>,
    /// What must hold of the row's version; if it does not, no row of the command is written.
    pub expected: ExpectedVersion,
}

/// Without the value, which may be a secret.
impl fmt::Debug for RowChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowChange")
            .field("kind", &self.kind)
            .field("key", &self.key.escape_ascii().to_string())
            .field("value_size_bytes", &self.value.as_ref().map(Vec::len))
            .field("expected", &self.expected)
            .finish()
    }
}

/// A condition on the version of a row: the index of the log entry that last wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExpectedVersion {
    /// No condition.
    Any,
    /// The row must not exist.
    Absent,
    /// The row must have been last written by this log entry.
    Exactly(u64),
}
