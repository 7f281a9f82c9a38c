//! Blobs of records in parts: 1.5 bytes stored for each byte, from the first ack on.
//!
//! ```text
//! blob     |  batches, as they were put  | 0 |     four data parts and four of parity
//!          '---0---'---1---'---2---'---3---'       any four give the blob back
//! slots    each has one part of its own:           a put is durable with any six of the eight
//!          no other slot ever holds that one
//! ```
//! A part is stored under its blob's own key, with the blob's own header but for size and checksum, and
//! says which part it is of which whole ([`PartOf`]). As every slot has *its* part, distinct slots hold
//! distinct parts, and quorums of parts are sets of slots, as those of copies are. A slot that is late is
//! replaced by one that is not, which has another part; a slot that lost its disk makes its part again.

mod gather;

use std::cell::RefCell;

use bytes::Bytes;
use meridian_base::id::PartitionId;
use meridian_base::quorum::PARTS_NEEDED;
use meridian_base::topology::{Geometry, Slot};

use crate::blob::{BlobHeader, BlobKind, PartOf, Payload};
use crate::erasure::{JoinError, Part, Shape, ShardEncoder, join, mend, shard_size_bytes};

pub use self::gather::{Gathering, Given};

/// All parts of a blob, data and parity.
pub const PART_COUNT: usize = Geometry::Block42.slot_count();
/// How the records of a partition are put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// As whole copies.
    Copies,
    /// In parts, where the group has a slot for each.
    Parts {
        /// Smaller blobs are copies.
        blob_size_bytes_min: usize,
    },
}

impl Layout {
    /// Parts of a page or more: of less, six syncs are dearer than three.
    pub const PARTS: Self = Self::Parts { blob_size_bytes_min: 16 << 10 };

    /// Whether a blob of this kind and size is put in parts in a group of this shape.
    pub fn is_in_parts(self, geometry: Geometry, kind: BlobKind, size_bytes: usize) -> bool {
        match self {
            Self::Copies => false,
            Self::Parts { blob_size_bytes_min } => {
                geometry == Geometry::Block42
                    && kind == BlobKind::Records
                    && size_bytes >= blob_size_bytes_min
            }
        }
    }
}

/// The number of the part that `slot` holds of each blob of the partition. Partitions are turned against
/// each other, so that data, which is what is read, spreads; the blobs of one are not, so that one slot's
/// answer brings data of many.
pub fn number_on(partition: PartitionId, slot: Slot) -> u8 {
    let turn = (partition.get() % PART_COUNT as u64) as usize;
    ((slot.index() + PART_COUNT - turn) % PART_COUNT) as u8
}

/// Whether a blob with this header is what `slot` is to hold: of one in parts, only its own.
pub(crate) fn is_own(header: &BlobHeader, partition: PartitionId, slot: Slot) -> bool {
    header.part.is_none_or(|part| part.number == number_on(partition, slot))
}

/// Whether part `number` holds records as they are.
pub fn is_data(number: u8) -> bool {
    usize::from(number) < PARTS_NEEDED
}

thread_local! {
    /// One for each thread: thousands of partitions would keep what it works in for nothing.
    static ENCODER: RefCell<ShardEncoder> =
        RefCell::new(ShardEncoder::new(PARTS_NEEDED, PART_COUNT - PARTS_NEEDED));
}

/// All parts of a blob, in order. The data parts share its memory.
pub fn cut(header: &BlobHeader, payload: &Payload) -> Vec<(BlobHeader, Payload)> {
    let shard_size_bytes = shard_size_bytes(PARTS_NEEDED, payload.size_bytes());
    let parts =
        ENCODER.with_borrow_mut(|encoder| encoder.encode(payload.parts(), shard_size_bytes));
    parts
        .into_iter()
        .map(|Part { number, shard, crc }| {
            let whole =
                PartOf { number, size_bytes: header.payload_size_bytes, crc: header.payload_crc };
            let header = BlobHeader {
                payload_size_bytes: shard_size_bytes as u32,
                payload_crc: crc,
                part: Some(whole),
                ..*header
            };
            (header, shard)
        })
        .collect()
}

/// Why parts do not give their blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssembleError {
    /// Too few were read; ask further slots.
    #[error("{found} distinct parts of a blob that needs {PARTS_NEEDED}; ask further slots")]
    TooFew {
        /// Distinct parts read.
        found: usize,
    },
    /// Each is what was put, but together they are not the blob.
    #[error("the parts do not give the blob that their headers name; one was never put like that")]
    NotTheBlob,
}

/// The parts of one blob that were read so far.
#[derive(Clone, Debug)]
pub struct Assembly {
    whole: BlobHeader,
    parts: Vec<Part>,
    /// Those that are not what was put.
    damaged: Vec<Part>,
}

impl Assembly {
    /// Begins with no part of the blob that `header`, its own or a part's, belongs to.
    pub fn of(header: &BlobHeader) -> Self {
        Self { whole: header.whole(), parts: Vec::new(), damaged: Vec::new() }
    }

    /// Takes a part, unless it is none of this blob or not what was put; whether it was taken.
    pub fn add(&mut self, header: &BlobHeader, payload: &Payload) -> bool {
        let Some(part) = self.fitting(header, payload).filter(|_| header.matches(payload)) else {
            return false;
        };
        if self.parts.iter().all(|known| known.number != part.number) {
            self.damaged.retain(|known| known.number != part.number);
            self.parts.push(part);
        }
        true
    }

    /// Takes what a disk gave of a part that is damaged.
    pub fn add_damaged(&mut self, header: &BlobHeader, payload: &Payload) {
        let part = self.fitting(header, payload);
        self.damaged.extend(part.filter(|part| self.given().all(|it| it.number != part.number)));
    }

    fn fitting(&self, header: &BlobHeader, payload: &Payload) -> Option<Part> {
        let PartOf { number, .. } = header.part?;
        let size_bytes = self.shape().shard_size_bytes;
        let fits = header.whole() == self.whole
            && usize::from(number) < PART_COUNT
            && header.payload_size_bytes as usize == size_bytes
            && payload.size_bytes() == size_bytes;
        fits.then(|| Part { number, shard: payload.clone(), crc: header.payload_crc })
    }

    fn given(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().chain(&self.damaged)
    }

    /// How many distinct ones there are.
    pub fn count(&self) -> usize {
        self.parts.len()
    }

    /// Whether the blob can be had from these.
    pub fn is_enough(&self) -> bool {
        self.count() >= PARTS_NEEDED
    }

    /// The header of the blob.
    pub fn header(&self) -> &BlobHeader {
        &self.whole
    }

    /// The blob's bytes.
    pub fn payload(&self) -> Result<Payload, AssembleError> {
        let (bytes, _) = join(self.shape(), &self.parts).map_err(|error| match error {
            JoinError::TooFew { found } => AssembleError::TooFew { found },
            JoinError::Unfit => AssembleError::NotTheBlob,
        })?;
        self.checked(bytes.freeze())
    }

    /// The payload of parts of which some are damaged, each at a place of its own.
    fn mended(&self) -> Result<Payload, AssembleError> {
        let given: Vec<Part> = self.given().cloned().collect();
        let bytes = mend(self.shape(), &given);
        self.checked(bytes.ok_or(AssembleError::TooFew { found: self.count() })?)
    }

    fn checked(&self, mut bytes: Bytes) -> Result<Payload, AssembleError> {
        bytes.truncate(self.whole.payload_size_bytes as usize);
        let payload = Payload::from(bytes);
        if self.whole.matches(&payload) { Ok(payload) } else { Err(AssembleError::NotTheBlob) }
    }

    /// Part `number`, made again if it is none of those that were read; from damaged ones, if there are not enough
    /// others.
    pub fn part(&self, number: u8) -> Result<(BlobHeader, Payload), AssembleError> {
        let payload = if self.is_enough() { self.payload()? } else { self.mended()? };
        let mut parts = cut(&self.whole, &payload);
        Ok(parts.swap_remove(usize::from(number)))
    }

    fn shape(&self) -> Shape {
        let size_bytes = self.whole.payload_size_bytes as usize;
        Shape {
            data_count: PARTS_NEEDED,
            parity_count: PART_COUNT - PARTS_NEEDED,
            shard_size_bytes: shard_size_bytes(PARTS_NEEDED, size_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use meridian_base::position::{Generation, LogPoint, Offset, Step};
    use meridian_base::topology::SlotSet;

    use super::*;
    use crate::blob::{Blob, BlobKey};
    use crate::message::ReadFrom;

    fn blob(size_bytes: usize, seed: u8) -> (BlobHeader, Payload) {
        let bytes: Vec<u8> = (0..size_bytes).map(|n| (n * 31 / 7) as u8 ^ seed).collect();
        // In pieces, as batches are.
        let pieces = bytes.chunks(5000).map(Bytes::copy_from_slice).collect();
        let payload = Payload::from_parts(pieces);
        let kind = BlobKind::Records;
        (BlobHeader::describe(kind, Offset::new(7), 3, 99, &payload), payload)
    }

    fn assemble(parts: &[(BlobHeader, Payload)], numbers: SlotSet) -> Assembly {
        let mut assembly = Assembly::of(&parts[0].0);
        for number in numbers.iter() {
            let (header, payload) = &parts[number.index()];
            assert!(assembly.add(header, payload));
        }
        assembly
    }

    #[test]
    fn any_four_parts_and_no_three_give_the_blob() {
        for size_bytes in [1, 255, 256, 257, 16 << 10, 100_003] {
            let (header, payload) = blob(size_bytes, 1);
            let parts = cut(&header, &payload);
            assert_eq!(parts.len(), PART_COUNT);
            for numbers in (0..256).map(SlotSet::from_bits) {
                let assembly = assemble(&parts, numbers);
                let found = numbers.count();
                assert_eq!(assembly.is_enough(), found >= 4);
                match assembly.payload() {
                    Ok(given) => assert_eq!((given, found >= 4), (payload.clone(), true)),
                    Err(error) => assert_eq!(error, AssembleError::TooFew { found }),
                }
            }
        }
    }

    /// Flips a bit in each of these bytes.
    fn damaged(payload: &Payload, places: impl IntoIterator<Item = usize>) -> Payload {
        let mut bytes = payload.to_contiguous().to_vec();
        places.into_iter().for_each(|place| bytes[place] ^= 8);
        Payload::from(Bytes::from(bytes))
    }

    #[test]
    fn six_parts_damaged_at_different_places_give_the_blob() {
        let (header, payload) = blob(100_003, 3);
        let parts = cut(&header, &payload);
        let shard_size_bytes = parts[0].1.size_bytes();
        for left_out in [[0, 1], [2, 7], [6, 7]] {
            for whole_count in 0..4 {
                let mut assembly = Assembly::of(&header);
                let numbers = (0..PART_COUNT).filter(|number| !left_out.contains(number));
                for (index, number) in numbers.enumerate() {
                    let (part, shard) = &parts[number];
                    let result = assembly.part(left_out[0] as u8);
                    assert!(result.is_err(), "{index} parts, {whole_count} of them whole");
                    if index < whole_count {
                        assert!(assembly.add(part, shard));
                        continue;
                    }
                    // Several columns of each, and neighbours of those of others.
                    let places = (64 * number..shard_size_bytes).step_by(64 * PART_COUNT * 3);
                    let given = damaged(shard, places);
                    assert!(!assembly.add(part, &given));
                    assembly.add_damaged(part, &given);
                }
                for (number, part) in (0..).zip(&parts) {
                    assert_eq!(assembly.part(number), Ok(part.clone()));
                }
            }
        }
    }

    #[test]
    fn parts_damaged_at_the_same_place_give_nothing() {
        let (header, payload) = blob(40_000, 4);
        let parts = cut(&header, &payload);
        for second in [64, 127, 64 + 32] {
            let mut assembly = Assembly::of(&header);
            for (index, (part, shard)) in parts[..6].iter().enumerate() {
                let places = match index {
                    0 => [64],
                    1 => [second],
                    _ => [640 + 64 * index],
                };
                assembly.add_damaged(part, &damaged(shard, places));
            }
            assert!(assembly.part(0).is_err(), "bytes 64 and {second} are of one column");
            // One of the two as it was put decides it.
            assert!(assembly.add(&parts[1].0, &parts[1].1));
            assert_eq!(assembly.part(0), Ok(parts[0].clone()));
        }
    }

    #[test]
    fn a_lost_part_is_made_again_bit_by_bit() {
        let (header, payload) = blob(40_000, 2);
        let parts = cut(&header, &payload);
        for number in 0..PART_COUNT as u8 {
            let others = (0..8).map(Slot::new).filter(|slot| slot.index() != usize::from(number));
            let assembly = assemble(&parts, others.take(4).collect());
            assert_eq!(assembly.part(number), Ok(parts[usize::from(number)].clone()));
        }
    }

    #[test]
    fn parts_say_what_they_are_of() {
        let (header, payload) = blob(20_000, 3);
        for (number, (part, shard)) in (0..).zip(cut(&header, &payload)) {
            assert_eq!(part.whole(), header);
            assert_eq!(part.part.map(|part| part.number), Some(number));
            assert!(part.matches(&shard));
            assert_eq!(shard.size_bytes(), 5056, "a quarter, in blocks of 64");
        }
        assert_eq!(header.whole(), header);
    }

    #[test]
    fn parts_of_two_blobs_are_never_mixed() {
        let ((mine, payload), (other, other_payload)) = (blob(20_000, 4), blob(20_000, 5));
        let (parts, others) = (cut(&mine, &payload), cut(&other, &other_payload));
        let mut assembly = assemble(&parts, SlotSet::first(3));
        for (header, payload) in &others {
            assert!(!assembly.add(header, payload));
        }
        // Nor is one that claims to be of this blob, with bytes of the other, and a checksum of its own.
        let forged = BlobHeader { payload_crc: others[3].0.payload_crc, ..parts[3].0 };
        assert!(!assembly.add(&parts[3].0, &others[3].1), "not what was put");
        assert!(assembly.add(&forged, &others[3].1));
        assert_eq!(assembly.payload(), Err(AssembleError::NotTheBlob));
        assert!(!assembly.add(&mine, &payload), "a whole blob is no part");
    }

    #[test]
    fn one_part_twice_counts_once() {
        let (header, payload) = blob(20_000, 6);
        let parts = cut(&header, &payload);
        let mut assembly = assemble(&parts, SlotSet::first(3));
        assert!(assembly.add(&parts[1].0, &parts[1].1));
        assert_eq!(assembly.payload(), Err(AssembleError::TooFew { found: 3 }));
    }

    fn stored(key: BlobKey, (header, payload): &(BlobHeader, Payload)) -> Blob {
        Blob { key, header: *header, payload: payload.clone() }
    }

    #[test]
    fn one_answer_is_completed_by_three_and_ends_where_a_part_is_missing() {
        let key = |step| BlobKey {
            partition: PartitionId::new(1),
            point: LogPoint::new(Generation::FIRST, Step::new(step)),
        };
        let wholes: Vec<_> = (0..4).map(|seed| blob(20_000, seed)).collect();
        let parts: Vec<_> = wholes.iter().map(|(header, payload)| cut(header, payload)).collect();
        let from = |number: usize, steps: &[u64]| -> Vec<Blob> {
            let part = |step: &u64| stored(key(*step), &parts[*step as usize][number]);
            steps.iter().map(part).collect()
        };
        // Of the slot that is asked first three blobs are in parts, and the fourth is whole.
        let mut answer = from(5, &[0, 1, 2]);
        answer.push(stored(key(3), &wholes[3]));
        let Some(Given::Parts(mut gathering)) = Given::of(answer) else { panic!("parts") };
        let request = gathering.request();
        assert_eq!((request.from, request.last_step), (ReadFrom::Step(Step::new(0)), Step::new(2)));
        assert_eq!(gathering.missing_count(), 3);
        gathering.add(&from(0, &[0, 1, 2]));
        gathering.add(&from(0, &[0, 1, 2]));
        assert_eq!(gathering.missing_count(), 2, "what is known adds nothing");
        gathering.add(&from(1, &[0, 2]));
        gathering.add(&from(7, &[0, 1, 2]));
        assert_eq!(gathering.missing_count(), 0);
        let joined = gathering.join().expect("parts of one write each");
        assert_eq!(joined, [stored(key(0), &wholes[0])], "of the second there are three parts");
        assert!(Given::of(Vec::new()).is_none());
        let whole = Given::of(vec![stored(key(3), &wholes[3]), from(5, &[0]).remove(0)]);
        assert!(matches!(whole, Some(Given::Whole(blobs)) if blobs.len() == 1));
    }

    #[test]
    fn each_slot_has_a_part_of_its_own_and_data_spreads_over_the_slots() {
        let mut data_counts = [0; PART_COUNT];
        for partition in (0..16).map(PartitionId::new) {
            let mut numbers: Vec<u8> =
                (0..8).map(|slot| number_on(partition, Slot::new(slot))).collect();
            for (slot, number) in numbers.iter().enumerate() {
                data_counts[slot] += usize::from(is_data(*number));
            }
            numbers.sort_unstable();
            assert_eq!(numbers, (0..8).collect::<Vec<u8>>());
        }
        assert_eq!(data_counts, [8; PART_COUNT]);
    }

    #[test]
    fn small_blobs_and_all_but_records_are_copies() {
        let is_in_parts =
            |kind, size_bytes| Layout::PARTS.is_in_parts(Geometry::Block42, kind, size_bytes);
        assert!(is_in_parts(BlobKind::Records, 16 << 10));
        assert!(!is_in_parts(BlobKind::Records, (16 << 10) - 1));
        for kind in [BlobKind::Start, BlobKind::Checkpoint, BlobKind::Clean, BlobKind::Manifest] {
            assert!(!is_in_parts(kind, 16 << 10));
        }
        assert!(!Layout::PARTS.is_in_parts(Geometry::Mirror3Dc, BlobKind::Records, 16 << 10));
        assert!(!Layout::Copies.is_in_parts(Geometry::Block42, BlobKind::Records, 16 << 10));
    }
}
