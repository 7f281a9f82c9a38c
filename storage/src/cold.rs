//! What is cold, as a partition's leader judges it: which key a stripe or an object gets, which manifest names
//! it, and which ones nobody can come to read. Rules O1-O8 of `docs/protocol.md`.
//!
//! ```text
//! stored, durable -> manifest put, from the one in force -> committed -> known to every takeover: copies may go
//! held, not named, and nobody can come to name it: may go
//! ```
//! What lies elsewhere than its class says is packed again: the manifest that names the new place has the others as
//! they were.

use std::collections::BTreeMap;
use std::ops::Range;

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

/// Whether a manifest that ends at `end` and was made from `based_on` may be put after `newest`. Otherwise its pieces
/// may overlap what that names, or name what was freed since.
pub fn may_follow(
    newest: Option<&Manifest>,
    based_on: Option<&Manifest>,
    end: Offset,
    mutations: Mutations,
) -> bool {
    let is_current = based_on == newest || Mutation::OldBaseAccepted.active(mutations);
    is_current && newest.is_none_or(|newest| end >= newest.end)
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

/// Records that lie elsewhere than they should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misplaced {
    /// Their offsets: whole pieces, but for what is below the log's start.
    pub offsets: Range<Offset>,
    /// Bytes of their batches.
    pub size_bytes: u64,
}

/// What of a manifest is not in place, in runs of pieces of at most `size_bytes_max`, or of one.
pub fn misplaced(
    manifest: &Manifest,
    log_start_offset: Offset,
    size_bytes_max: u64,
    mutations: Mutations,
    is_in_place: impl Fn(&Piece) -> bool,
) -> Vec<Misplaced> {
    let mut runs: Vec<Misplaced> = Vec::new();
    let pieces = manifest.pieces_from(log_start_offset);
    for (index, piece) in pieces.iter().enumerate().filter(|(_, piece)| !is_in_place(piece)) {
        let base_offset = piece.base_offset.max(log_start_offset);
        let size_bytes = u64::from(piece.size_bytes);
        let end = pieces.get(index + 1).map_or(manifest.end, |next| next.base_offset);
        match runs.last_mut() {
            Some(run)
                if run.offsets.end == base_offset
                    && run.size_bytes + size_bytes <= size_bytes_max =>
            {
                run.offsets.end = end;
                run.size_bytes += size_bytes;
            }
            _ => runs.push(Misplaced { offsets: base_offset..end, size_bytes }),
        }
    }
    if Mutation::RepackedInPart.active(mutations) {
        for Misplaced { offsets, .. } in &mut runs {
            offsets.end = offsets.end.min(offsets.start.advance(1));
        }
    }
    runs
}

/// The manifest that names `packed` where `newest` named what holds these offsets, which are those of a [`Misplaced`].
pub fn repacked(
    newest: &Manifest,
    log_start_offset: Offset,
    offsets: &Range<Offset>,
    packed: Vec<Piece>,
) -> Manifest {
    let first = newest.pieces.partition_point(|piece| piece.base_offset <= offsets.start);
    let (before, rest) = newest.pieces.split_at(first.saturating_sub(1));
    let after = rest.iter().filter(|piece| piece.base_offset >= offsets.end);
    let pieces = before.iter().copied().chain(packed).chain(after.copied()).collect();
    let all = Manifest { end: newest.end, replaced_size_bytes: 0, pieces };
    Manifest { pieces: all.pieces_from(log_start_offset), ..all }
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

    fn manifest(pieces: &[(i64, u32, Place)], end: i64) -> Manifest {
        let piece = |(base, size_bytes, place): &(i64, u32, Place)| Piece {
            base_offset: Offset::new(*base),
            max_timestamp_ms: 0,
            size_bytes: *size_bytes,
            place: *place,
        };
        let pieces = pieces.iter().map(piece).collect();
        Manifest { end: Offset::new(end), replaced_size_bytes: 9, pieces }
    }

    #[test]
    fn what_lies_elsewhere_is_packed_again_in_runs_and_the_rest_stays() {
        let object = |step| Place::Object { point: point(1, step), crc: 0 };
        let stripe = |step| Place::Stripe { point: point(1, step), code: Code::Rs54, crc: 0 };
        let pieces = [
            (0, 5, object(1)),
            (10, 5, stripe(2)),
            (20, 4, object(3)),
            (30, 4, object(4)),
            (40, 4, object(5)),
            (50, 1, stripe(6)),
        ];
        let newest = manifest(&pieces, 60);
        let found = |log_start, size_bytes_max| -> Vec<(i64, i64, u64)> {
            let is_in_place = |piece: &Piece| piece.stripe().is_some();
            let log_start = Offset::new(log_start);
            misplaced(&newest, log_start, size_bytes_max, Mutations::NONE, is_in_place)
                .into_iter()
                .map(|it| (it.offsets.start.get(), it.offsets.end.get(), it.size_bytes))
                .collect()
        };
        assert_eq!(found(0, 9), [(0, 10, 5), (20, 40, 8), (40, 50, 4)]);
        assert_eq!(found(0, 99), [(0, 10, 5), (20, 50, 12)]);
        assert_eq!(
            found(0, 1),
            [(0, 10, 5), (20, 30, 4), (30, 40, 4), (40, 50, 4)],
            "one at least"
        );
        assert_eq!(found(35, 99), [(35, 50, 8)], "of the first only what is left");
        assert_eq!(found(55, 99), []);

        let packed = |bases: &[i64]| {
            let piece = |base: &i64| (*base, 6, stripe(7));
            manifest(&bases.iter().map(piece).collect::<Vec<_>>(), 60).pieces
        };
        let again = |log_start, offsets: Range<i64>, bases: &[i64]| {
            let offsets = Offset::new(offsets.start)..Offset::new(offsets.end);
            repacked(&newest, Offset::new(log_start), &offsets, packed(bases))
        };
        let all = again(0, 20..50, &[20, 33]);
        let expected = [pieces[0], pieces[1], (20, 6, stripe(7)), (33, 6, stripe(7)), pieces[5]];
        assert_eq!(all, Manifest { replaced_size_bytes: 0, ..manifest(&expected, 60) });
        let cut = again(35, 35..50, &[35]);
        assert_eq!(cut.pieces, manifest(&[(35, 6, stripe(7)), pieces[5]], 60).pieces);
        assert_eq!(again(55, 35..50, &[35]).pieces, manifest(&[pieces[5]], 60).pieces, "deleted");
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
