//! What is cold, as a partition's leader judges it: which key a stripe or an object gets, which manifest names
//! it, and which ones nobody can come to read. Rules O1-O8 of `docs/protocol.md`.
//!
//! ```text
//! stored, durable -> manifest put, from the one in force -> committed -> known to every takeover: copies may go
//! held, not named, and nobody can come to name it: may go
//! ```

use std::collections::BTreeMap;

use meridian_base::position::{Generation, LogPoint, Offset, Step};

use crate::erasure::Stripe;
use crate::manifest::{Manifest, Object, Piece};
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

/// What a leader has stored and no manifest names yet. A manifest that was refused is put again later, and nothing is
/// stored again for it (rule O8).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packed {
    based_on: Offset,
    pieces: Vec<Piece>,
    end: Offset,
}

impl Packed {
    /// What is stored already, if it follows the manifest that ends at `based_on` and reaches above `from`, where
    /// packing is to go on; else nothing yet.
    pub fn going_on(known: Option<Self>, based_on: Offset, from: Offset, rules: Mutations) -> Self {
        let fits = |it: &Self| it.based_on == based_on && it.end > from;
        let is_forgotten = Mutation::StoredAgain.active(rules);
        let known = known.filter(|it| fits(it) && !is_forgotten);
        known.unwrap_or_else(|| Self { based_on, pieces: Vec::new(), end: from })
    }

    /// One more run is stored, whose last record comes before `end`.
    pub fn keep(&mut self, piece: Piece, end: Offset) {
        self.pieces.push(piece);
        self.end = end;
    }

    /// Whether a manifest may yet name it, while the newest ends at `newest` and the log starts here. Until then what
    /// looks surplus may be this (rule O5).
    pub fn may_be_named(&self, newest: Offset, log_start_offset: Offset) -> bool {
        !self.pieces.is_empty() && self.based_on == newest && self.end > log_start_offset
    }

    /// What is stored.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The offset after the last record in it.
    pub fn end(&self) -> Offset {
        self.end
    }
}

/// In which order stripes are made whole: those first that have the fewest parts left to lose. Each comes with the
/// parts that it lacks.
pub fn most_endangered_first(
    missing: impl IntoIterator<Item = (Stripe, Vec<u8>)>,
) -> Vec<(Stripe, Vec<u8>)> {
    let mut missing: Vec<(Stripe, Vec<u8>)> = missing.into_iter().collect();
    missing.sort_by_key(|(stripe, lacking)| {
        (stripe.code.parity_count().saturating_sub(lacking.len()), stripe.point)
    });
    missing
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

    /// The objects among them.
    pub fn objects_in_use(&self) -> BTreeMap<LogPoint, Object> {
        let pieces = self.in_use();
        pieces.iter().filter_map(Piece::object).map(|object| (object.point, object)).collect()
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

/// Whether a leader has to look for objects of its partition that nobody needs: it puts some, its manifest names
/// some, or the store has some, whoever put them and whatever the partition's class was then.
pub fn may_have_objects(puts: bool, names: bool, is_in_store: bool, mutations: Mutations) -> bool {
    puts || names || is_in_store && !Mutation::ObjectsForgotten.active(mutations)
}

/// An object that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// What it is named by.
    pub point: LogPoint,
    /// Its size.
    pub size_bytes: u64,
}

/// Which objects of those that are there are of no use, and which that should be there are not.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// How many are named and not there, or not whole.
    pub missing: usize,
    /// How many are there and not named.
    pub unnamed: usize,
    /// Those of them that nobody can come to name.
    pub surplus: Vec<LogPoint>,
}

/// Compares what is in use with what is there. What is named has to be looked up last: what was named meanwhile
/// may look as if it were not there then, never as if nobody named it.
pub fn compare(
    named: &BTreeMap<LogPoint, Object>,
    listed: &[Listed],
    tending: &Tending<'_>,
) -> Compared {
    let there: BTreeMap<LogPoint, u64> =
        listed.iter().map(|listed| (listed.point, listed.size_bytes)).collect();
    let is_whole = |object: &Object| {
        there
            .get(&object.point)
            .is_some_and(|size_bytes| *size_bytes == u64::from(object.size_bytes))
    };
    let unnamed = there.keys().filter(|point| !named.contains_key(point));
    Compared {
        missing: named.values().filter(|object| !is_whole(object)).count(),
        unnamed: unnamed.clone().count(),
        surplus: unnamed.filter(|point| tending.may_go(**point)).copied().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::erasure::Code;
    use crate::manifest::Place;

    fn point(generation: u32, step: u64) -> LogPoint {
        LogPoint::new(Generation::new(generation), Step::new(step))
    }

    #[test]
    fn only_what_nobody_can_come_to_name_is_surplus() {
        let object = |point, size_bytes| (point, Object { point, size_bytes, crc: 1 });
        let named: BTreeMap<LogPoint, Object> =
            [object(point(1, 1), 10), object(point(1, 2), 10), object(point(1, 3), 10)].into();
        let there = [(1, 1, 10), (1, 2, 9), (1, 9, 10), (2, 1, 10), (3, 1, 10)];
        let listed = there.map(|(generation, step, size_bytes)| Listed {
            point: point(generation, step),
            size_bytes,
        });
        let safe = Tending {
            generation: Generation::new(2),
            manifest: None,
            is_manifest_safe: true,
            log_start_offset: Offset::ZERO,
            log_start_safe: None,
            mutations: Mutations::NONE,
        };
        let compared = compare(&named, &listed, &safe);
        assert_eq!((compared.missing, compared.unnamed), (2, 3), "one is short, one is not there");
        assert_eq!(compared.surplus, [point(1, 9), point(2, 1)], "a later leader's is not ours");
        let unsafe_yet = Tending { is_manifest_safe: false, ..safe };
        let unsafe_yet = compare(&named, &listed, &unsafe_yet);
        assert_eq!(unsafe_yet, Compared { surplus: Vec::new(), ..compared });
    }

    #[test]
    fn what_is_stored_is_kept_until_its_manifest_is_another_one() {
        let place = Place::Object { point: point(1, 1), crc: 1 };
        let piece =
            Piece { base_offset: Offset::new(3), max_timestamp_ms: -1, size_bytes: 1, place };
        let going_on = |known, based_on, from| {
            Packed::going_on(known, Offset::new(based_on), Offset::new(from), Mutations::NONE)
        };
        let mut packed = going_on(None, 3, 3);
        assert_eq!((packed.pieces().len(), packed.end()), (0, Offset::new(3)));
        packed.keep(piece, Offset::new(9));
        assert_eq!(going_on(Some(packed.clone()), 3, 3), packed, "its manifest was refused");
        assert_eq!(going_on(Some(packed.clone()), 3, 8), packed, "the log starts amid it");
        for (based_on, from) in [(9, 9), (3, 9)] {
            assert_eq!(going_on(Some(packed.clone()), based_on, from).pieces(), []);
            assert!(!packed.may_be_named(Offset::new(based_on), Offset::new(from)));
        }
        assert!(packed.may_be_named(Offset::new(3), Offset::new(8)));
    }

    #[test]
    fn what_is_nearest_to_being_lost_is_made_whole_first() {
        let stripe = |step, code, lacking: &[u8]| {
            let point = LogPoint::new(Generation::FIRST, Step::new(step));
            (Stripe { point, code, size_bytes: 1, crc: 1 }, lacking.to_vec())
        };
        let missing = [
            stripe(1, Code::Rs54, &[0, 1]),
            stripe(2, Code::Block42, &[3]),
            stripe(3, Code::Rs54, &[0, 1, 2, 3]),
            stripe(4, Code::Block42, &[0, 1, 2]),
            stripe(5, Code::Rs54, &[0, 1, 2]),
        ];
        let order = most_endangered_first(missing).into_iter().map(|(it, _)| it.point.step.get());
        assert_eq!(order.collect::<Vec<_>>(), [3, 4, 2, 5, 1]);
    }
}
