//! How partitions are stored, and what they know of persistent producers: `topic.storage` and `source.list`, asked of
//! a partition's leader.

use serde::{Deserialize, Serialize};

/// A partition by its topic's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfPartition {
    /// The topic's name.
    pub topic: String,
    /// Its index.
    pub partition: u32,
}

/// How a partition is stored, as its slots and the object store say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Storage {
    /// The storage class, as the topic's configuration has it.
    pub class: String,
    /// The group that it is put to.
    pub group: u32,
    /// Groups that it was in before, and what was put then still is.
    pub former_groups: Vec<u32>,
    /// How many bytes lie in which group, as far as its slots were heard. A node of an older build does not say.
    #[serde(default)]
    pub groups: Vec<GroupHolding>,
    /// Whether its group is that of its class.
    pub is_in_place: bool,
    /// Slots that said what they hold.
    pub slots_heard: usize,
    /// Bytes of the batches that lie in copies.
    pub hot_bytes: u64,
    /// Bytes of the batches that lie in stripes.
    pub cold_bytes: u64,
    /// Stripes that the manifest names.
    pub stripes: usize,
    /// Bytes of all copies and what goes with them, on the slots that were heard.
    pub copies_stored_bytes: u64,
    /// Bytes of all parts there.
    pub parts_stored_bytes: u64,
    /// Parts that a slot should hold and does not, or not readably.
    pub missing_parts: usize,
    /// Parts that no manifest names.
    pub surplus_parts: usize,
    /// Where the object store is; `None` if the node has none.
    pub object_store: Option<String>,
    /// Objects that the manifest names.
    pub objects: usize,
    /// Bytes of the batches in them.
    pub object_bytes: u64,
    /// Bytes that the store has under the partition's names.
    pub object_stored_bytes: u64,
    /// Objects that are named and are not there, or not whole.
    pub missing_objects: usize,
    /// Objects that no manifest names.
    pub surplus_objects: usize,
    /// Why the store can't be asked now.
    pub object_error: Option<String>,
    /// Bytes that the class still has to pack.
    pub to_pack_bytes: u64,
}

/// How many bytes of a partition lie in one group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupHolding {
    /// The group.
    pub group: u32,
    /// Bytes on its slots.
    pub stored_bytes: u64,
}

/// Lists the persistent producers of a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListSources {
    /// The topic's name.
    pub topic: String,
    /// The partition's index.
    pub partition: u32,
    /// Only the producer of this name.
    #[serde(default)]
    pub producer_id: Option<String>,
    /// Only producers whose names come after this one: for the next page.
    #[serde(default)]
    pub after: Option<String>,
    /// Most producers in the answer.
    #[serde(default)]
    pub limit: Option<usize>,
}

/// Some producers of a partition: what is in the log for good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourcePage {
    /// Number of producers of the partition.
    pub count: usize,
    /// In the order of their names.
    pub sources: Vec<Source>,
    /// Whether there are more after the last.
    pub more: bool,
}

/// A persistent producer in a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Its name.
    pub producer_id: String,
    /// The number of its last record that is in the log for good.
    pub last_seqno: u64,
    /// The offset of that record.
    pub last_offset: i64,
    /// When it last wrote, in milliseconds since 1970.
    pub last_seen_ms: i64,
}
