//! What nodes say to a slot of a storage group, and what it answers.
//!
//! Every write, fence and sync names the partition, the generation and the group configuration it
//! was made under (rule S1); every answer names the disk's incarnation (rule L1).

use bytes::Bytes;
use meridian_base::id::{ConfigVersion, GroupId, Incarnation, PartitionId};
use meridian_base::position::{Generation, LogPoint, Offset, Step};
use meridian_base::topology::{GroupConfig, Slot};

use crate::blob::{Blob, BlobInfo, BlobKey};
use crate::lineage::Start;

/// The latest point of a partition that its leader knows to be committed, and what is visible there.
///
/// A leader says nothing of its own generation before `Start` and the whole copied tail are
/// committed, so a mark of a generation proves that generation established (rule T3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommitMark {
    /// Generation and step.
    pub point: LogPoint,
    /// Offset after the last record at or below `point`.
    pub high_watermark: Offset,
}

/// Stores one blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// The configuration under which the leader counts acks.
    pub config_version: ConfigVersion,
    /// What the leader knows to be committed.
    pub mark: Option<CommitMark>,
    /// The blob.
    pub blob: Blob,
}

/// A slot's answer to [`Put`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutReply {
    /// Which blob.
    pub key: BlobKey,
    /// The life of the disk that answers.
    pub incarnation: Incarnation,
    /// What became of it.
    pub result: PutResult,
}

/// What became of a put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutResult {
    /// Durable.
    Stored,
    /// A newer leader has fenced the partition here.
    Fenced {
        /// Its generation.
        by: Generation,
    },
    /// The put was made under an old configuration; this is the slot's own.
    Stale {
        /// The slot's configuration.
        config: GroupConfig,
    },
    /// The key holds other bytes: two leaders shared a generation. Never seen if the rules hold.
    Conflict,
    /// The slot takes no puts for now; the leader goes elsewhere.
    Refused {
        /// Why.
        reason: Refusal,
    },
}

/// Why a slot takes no puts for now. Discriminants are on the wire: stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// The disk is full up to the reserve kept for fences.
    Full = 0,
    /// Too much is queued for the disk.
    Busy = 1,
    /// The disk has yet to sync (rule S4).
    Syncing = 2,
    /// The node does not hold this partition's group.
    NotMine = 3,
}

/// Fences partitions and reads their indexes, in one atomic request for many partitions (rule S3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceRead {
    /// The group.
    pub group: GroupId,
    /// The configuration under which the new leader counts answers.
    pub config_version: ConfigVersion,
    /// The partitions, each with its new generation.
    pub entries: Vec<(PartitionId, Generation)>,
    /// What the slot listed already, if it is asked for the rest of one partition's view.
    pub above: Option<LogPoint>,
}

/// A slot's answer to [`FenceRead`], or a part of it: there are several if one message has no room for all (rule Z5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceReadReply {
    /// The life of the disk that answers.
    pub incarnation: Incarnation,
    /// Set if the request was made under an old configuration; then `answers` is empty.
    pub stale: Option<GroupConfig>,
    /// One answer for each entry, or for some of them.
    pub answers: Vec<FenceAnswer>,
}

/// A slot's answer for one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceAnswer {
    /// The partition.
    pub partition: PartitionId,
    /// The generation asked for.
    pub generation: Generation,
    /// What the slot knows.
    pub result: FenceResult,
}

/// What a slot knows of a partition it has just fenced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FenceResult {
    /// The fence is durable, and this is everything.
    Certain(PartitionView),
    /// A newer leader was here first.
    Fenced {
        /// Its generation.
        by: Generation,
    },
    /// The slot can't say for sure (syncing, unreadable): counts as silent, never as empty.
    Unsure,
    /// A piece of what would be [`FenceResult::Certain`], if one message had room for it.
    Piece(ViewPiece),
}

/// A piece of a view that one message has no room for (rule Z5). It says nothing without the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewPiece {
    /// It lists what lies above this point; the first piece has none.
    pub above: Option<LogPoint>,
    /// It lists nothing above this point; the last piece has none.
    pub up_to: Option<LogPoint>,
    /// Mark and log start as they are now, and what lies between the two points.
    pub view: PartitionView,
}

/// Everything a slot holds of a partition that a takeover needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionView {
    /// Highest mark known here.
    pub mark: Option<CommitMark>,
    /// First offset that can still be read, as far as known here: from beacons, and from every
    /// `Trim` of the mark's own generation at or below the mark. (One of an older generation may be
    /// void.)
    pub log_start_offset: Offset,
    /// Blobs held here at or above the mark's point (all of them if there is no mark), in order.
    pub blobs: Vec<BlobInfo>,
    /// `Start` of every generation at or above the mark's that is held here.
    pub starts: Vec<(Generation, Start)>,
    /// Checkpoints held here, from the second newest on that is certain to be committed; all, if none is.
    pub checkpoints: Vec<BlobInfo>,
}

/// Reads blobs of one generation from the one that holds `offset` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The partition.
    pub partition: PartitionId,
    /// The generation that holds the offset, from the lineage.
    pub generation: Generation,
    /// Where to begin.
    pub from: ReadFrom,
    /// Last step that counts.
    pub last_step: Step,
    /// Stop before the answer grows above this, parts counted as the blobs that they are of; the first
    /// always comes. With [`Read::AS_FOUND`] it is the only one, and comes even if it is damaged.
    pub size_bytes_max: u32,
}

impl Read {
    /// No bound that a reader asks for. A slot that does not know what else it means says that a damaged blob is
    /// unreadable, as to everyone.
    pub const AS_FOUND: u32 = 0;

    /// Reads this blob and no other.
    pub fn one(key: BlobKey) -> Self {
        Self {
            partition: key.partition,
            generation: key.point.generation,
            from: ReadFrom::Step(key.point.step),
            last_step: key.point.step,
            // The first always comes, and there is no second.
            size_bytes_max: 1,
        }
    }

    /// Reads this blob and no other, damaged or not: [`ReadReply::Damaged`] is of use to who mends it.
    pub fn as_found(key: BlobKey) -> Self {
        Self { size_bytes_max: Self::AS_FOUND, ..Self::one(key) }
    }
}

/// Where a read begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFrom {
    /// At the blob of records that holds this offset.
    Offset(Offset),
    /// At this step.
    Step(Step),
}

/// A slot's answer to [`Read`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadReply {
    /// Blobs at consecutive steps, checksums verified.
    Blobs(Vec<Blob>),
    /// This slot does not hold the blob; another may.
    NotHere,
    /// The slot holds it but can't read it now.
    Unreadable,
    /// Only to [`Read::as_found`]: what the disk gave of a blob, whose checksum it does not have.
    Damaged(Blob),
}

impl ReadReply {
    /// What was given of the one blob that was asked for, damaged or not.
    pub fn into_payload(self) -> Option<Bytes> {
        let blob = match self {
            Self::Blobs(blobs) => blobs.into_iter().next()?,
            Self::Damaged(blob) => blob,
            Self::NotHere | Self::Unreadable => return None,
        };
        Some(blob.payload.to_contiguous())
    }
}

/// Asks a peer for what it knows, to refill a disk that lost its data (rule S4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncPull {
    /// The group.
    pub group: GroupId,
    /// The configuration that holds the asking disk's new incarnation; the peer adopts it first,
    /// so that it refuses every put that counts the old one.
    pub config: GroupConfig,
    /// Partitions above this one, in order; `None` begins.
    pub after: Option<PartitionId>,
    /// Before them the rest of one that the last page was cut in: its blobs above this point.
    pub resume: Option<(PartitionId, LogPoint)>,
}

/// A peer's answer to [`SyncPull`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncPage {
    /// The life of the disk that answers.
    pub incarnation: Incarnation,
    /// What it knows of the next partitions.
    pub partitions: Vec<SyncPartition>,
    /// Whether these were the last.
    pub complete: bool,
    /// Set if the peer is itself syncing: it counts for nothing.
    pub unsure: bool,
    /// Whether the last partition has more blobs than are listed here (rule Z4).
    pub is_cut: bool,
}

/// What a peer knows of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncPartition {
    /// The partition.
    pub partition: PartitionId,
    /// Its durable fence.
    pub fence: Generation,
    /// Highest mark known.
    pub mark: Option<CommitMark>,
    /// First offset that can still be read.
    pub log_start_offset: Offset,
    /// Every blob held, in order; of one that a page was cut in, those that fit.
    pub blobs: Vec<BlobInfo>,
}

/// Tells a slot what a leader knows to be committed, and what it may free. Not answered.
///
/// A slot ignores a beacon whose mark is of a generation below its fence: a takeover may be about to
/// read what the beacon would free. It frees only what is at or below the mark, and never for this
/// reason alone a `Start` or a checkpoint: those go with their generation, or, in the mark's own
/// generation, a checkpoint when a newer one is at or below the mark. (A checkpoint of an older
/// generation may be void, so it replaces nothing.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beacon {
    /// The partition.
    pub partition: PartitionId,
    /// What is committed.
    pub mark: CommitMark,
    /// First offset that can be read. Never above the newest checkpoint, so it may lag behind the log
    /// start that clients are told.
    pub log_start_offset: Offset,
    /// Records wholly below may be freed: they lie below the log start, or a manifest that every
    /// takeover will know names what replaces them.
    pub free_below: Offset,
    /// Clean blobs and manifests below may be freed: no manifest in force names them.
    pub clean_from: LogPoint,
    /// First generation that can still be read: blobs of older generations may be freed (rule T8).
    pub generation_min: Generation,
}

/// Asks a slot which parts of a partition's stripes it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListParts {
    /// The partition, not its companion.
    pub partition: PartitionId,
    /// Parts above this one, in order; `None` begins.
    pub after: Option<LogPoint>,
}

/// A part that a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldPart {
    /// Of which stripe.
    pub point: LogPoint,
    /// Its bytes, head included.
    pub size_bytes: u32,
    /// Its bytes are not known to be damaged, and it is not known to be another slot's.
    pub is_readable: bool,
}

/// A slot's answer to [`ListParts`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartList {
    /// The life of the disk that answers.
    pub incarnation: Incarnation,
    /// Bytes of the partition's own blobs here: its copies.
    pub copies_size_bytes: u64,
    /// The next parts, in order.
    pub parts: Vec<HeldPart>,
    /// Whether these were the last.
    pub complete: bool,
}

/// Tells a slot which parts nobody will read again. Not answered: what gets lost is listed, and told,
/// again.
///
/// Only a leader says so, of stripes that its own or an earlier generation made, that no manifest
/// names or ever can name: a later leader's manifest names stripes of its own, or of manifests that
/// this leader knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeParts {
    /// The partition, not its companion.
    pub partition: PartitionId,
    /// The stripes.
    pub points: Vec<LogPoint>,
}

/// Asks a slot which records of a partition it holds, to find copies that nobody needs (rules K1 to
/// K3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListCopies {
    /// The partition.
    pub partition: PartitionId,
    /// The group whose slots are asked.
    pub group: GroupId,
    /// The configuration that the leader goes by.
    pub config_version: ConfigVersion,
    /// The leader's generation.
    pub generation: Generation,
    /// Records above this point, in order; `None` begins.
    pub after: Option<LogPoint>,
    /// Most that are to be listed; with none the slot says how many bytes there are.
    pub count_max: u32,
}

/// A blob of records that a slot holds, and can read as far as it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldCopy {
    /// Which.
    pub point: LogPoint,
    /// What it takes here.
    pub size_bytes: u32,
    /// It is this slot's own part of the blob, and not all of it.
    pub is_part: bool,
}

/// A slot's answer to [`ListCopies`]: only of one that counts, and that goes by the leader's
/// configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyList {
    /// The life of the disk that answers.
    pub incarnation: Incarnation,
    /// The configuration that it goes by.
    pub config_version: ConfigVersion,
    /// Highest mark known.
    pub mark: Option<CommitMark>,
    /// Bytes of all records of the partition here, if that was asked.
    pub records_size_bytes: u64,
    /// The next of them.
    pub copies: Vec<HeldCopy>,
    /// Whether these were the last.
    pub complete: bool,
}

/// Tells a slot which copies nobody needs. Not answered: what gets lost is listed, and told, again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeCopies {
    /// The partition.
    pub partition: PartitionId,
    /// The configuration under which they were listed.
    pub config_version: ConfigVersion,
    /// The leader's generation.
    pub generation: Generation,
    /// What is committed: what may go lies below.
    pub mark: CommitMark,
    /// The tag of the list that says that they are here. The slot goes by its last list only (rule
    /// K3).
    pub list: u64,
    /// What may go.
    pub points: Vec<LogPoint>,
}

/// Everything one node sends another about storage. `tag` matches answers to requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorageMessage {
    /// Store a blob.
    Put(Put),
    /// Answers to puts, batched.
    PutReplies(Vec<PutReply>),
    /// Fence and read.
    FenceRead {
        /// Matches the reply.
        tag: u64,
        /// The request.
        request: FenceRead,
    },
    /// Answer to a fence.
    FenceReadReply {
        /// The request's tag.
        tag: u64,
        /// The answer.
        reply: FenceReadReply,
    },
    /// Read blobs.
    Read {
        /// Matches the reply.
        tag: u64,
        /// The request.
        request: Read,
    },
    /// Answer to a read.
    ReadReply {
        /// The request's tag.
        tag: u64,
        /// The answer.
        reply: ReadReply,
    },
    /// Ask for what a peer knows.
    SyncPull {
        /// Matches the reply.
        tag: u64,
        /// The request.
        request: SyncPull,
    },
    /// Answer to a sync.
    SyncPage {
        /// The request's tag.
        tag: u64,
        /// The answer.
        page: SyncPage,
    },
    /// Progress of partitions.
    Beacons(Vec<Beacon>),
    /// Ask for the parts held.
    ListParts {
        /// Matches the reply.
        tag: u64,
        /// The request.
        request: ListParts,
    },
    /// Answer to a list.
    PartList {
        /// The request's tag.
        tag: u64,
        /// The answer.
        list: PartList,
    },
    /// Free parts.
    FreeParts(FreeParts),
    /// Ask for the records held.
    ListCopies {
        /// Matches the reply, and names the list.
        tag: u64,
        /// The request.
        request: ListCopies,
    },
    /// Answer to that.
    CopyList {
        /// The request's tag.
        tag: u64,
        /// The answer.
        list: CopyList,
    },
    /// Free copies.
    FreeCopies(FreeCopies),
    /// Asks whether this slot's disk is being scrubbed: one disk of a group at a time.
    ScrubAsk {
        /// Matches the answer.
        tag: u64,
        /// The slot that would like to begin.
        slot: Slot,
    },
    /// Answer to that.
    ScrubAnswer {
        /// The request's tag.
        tag: u64,
        /// It is, or it is about to be.
        busy: bool,
    },
}
