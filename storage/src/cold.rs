//! What is cold, as a partition's leader judges it: which key a stripe or an object gets, which manifest names
//! it, and which ones nobody can come to read. Rules O1-O6 of `docs/protocol.md`.
//!
//! ```text
//! stored, durable -> manifest put, from the one in force -> committed -> known to every takeover: copies may go
//! held, not named, and nobody can come to name it: may go
//! ```

use meridian_base::position::{Generation, LogPoint, Offset, Step};

use crate::manifest::{Manifest, Piece};
use crate::mutation::{Mutation, Mutations};

/// The key of the stripe or object with this number, from 1, of a leader: never used before, as a generation is
/// one process's.
pub fn key(generation: Generation, number: u64, mutations: Mutations) -> LogPoint {
    let is_reused = Mutation::ColdKeyReused.active(mutations);
    let generation = if is_reused { Generation::FIRST } else { generation };
    LogPoint::new(generation, Step::new(number))
}

/// Whether a manifest that ends at `end` and was made from the one that ends at `based_on` may be put, while the
/// newest ends at `newest` (zero for none). Otherwise its pieces may overlap what that names.
pub fn may_follow(newest: Offset, based_on: Offset, end: Offset, mutations: Mutations) -> bool {
    let is_current = based_on == newest || Mutation::OldBaseAccepted.active(mutations);
    is_current && end > newest
}

/// The manifest that names what `newest` does, but what lies below the log's start, and `packed` after it.
pub fn extended(
    newest: Option<&Manifest>,
    log_start_offset: Offset,
    packed: Vec<Piece>,
    end: Offset,
) -> Manifest {
    let replaced_size_bytes = packed.iter().map(|piece| u64::from(piece.size_bytes)).sum();
    let known = newest.map(|newest| newest.pieces_from(log_start_offset)).unwrap_or_default();
    Manifest { end, replaced_size_bytes, pieces: known.into_iter().chain(packed).collect() }
}

/// What a leader goes by when it has stripes and objects deleted.
#[derive(Clone, Copy, Debug)]
pub struct Tending<'a> {
    /// Its own.
    pub generation: Generation,
    /// The newest manifest that is committed.
    pub manifest: Option<&'a Manifest>,
    /// Whether every takeover finds that one: none before it can come into force again.
    pub is_manifest_safe: bool,
    /// Where the log starts.
    pub log_start_offset: Offset,
    /// Where every takeover knows it to start, if it does: at that offset, or above.
    pub log_start_safe: Option<Offset>,
    /// The rule that is broken, if any.
    pub mutations: Mutations,
}

impl Tending<'_> {
    /// The pieces of the manifest that somebody may read yet.
    pub fn in_use(&self) -> Vec<Piece> {
        let log_start_offset = if Mutation::FreedBelowOwnStart.active(self.mutations) {
            self.log_start_offset
        } else {
            self.log_start_safe.unwrap_or(Offset::ZERO)
        };
        self.manifest.map(|it| it.pieces_from(log_start_offset)).unwrap_or_default()
    }

    /// Whether what is held under this key, and not in use, may go.
    pub fn may_go(&self, key: LogPoint) -> bool {
        let is_safe = self.is_manifest_safe || Mutation::FreedInDoubt.active(self.mutations);
        // What a later leader stored is not for this one to judge.
        let is_ours = key.generation <= self.generation
            || Mutation::FreedOfLaterLeader.active(self.mutations);
        is_safe && is_ours
    }
}
