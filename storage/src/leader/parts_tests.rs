//! Records in parts on eight racks. The leader sits at slot 6 and its partition's row is 3, so that a
//! healthy put goes to slots 6, and 3 to 7 and 0 as far as six.

use bytes::Bytes;
use meridian_base::position::LeaderEpoch;
use meridian_base::topology::Geometry;

use super::*;
use crate::hot::number_on;
use crate::testing::whole_group;

const PARTITION: PartitionId = PartitionId::new(11);
const GENERATION: Generation = Generation::new(2);
const LARGE_SIZE_BYTES: usize = 600;
const HEALTHY: [u8; 6] = [0, 3, 4, 5, 6, 7];

struct Bench {
    leader: Leader,
    health: SlotHealth,
    out: Vec<LeaderOutput>,
}

impl Bench {
    fn serving() -> Self {
        let config = LeaderConfig {
            partition: PARTITION,
            generation: GENERATION,
            group: whole_group(Geometry::Block42),
            own_slot: Some(Slot::new(6)),
            datacenter_count_min: 1,
            layout: Layout::Parts { blob_size_bytes_min: LARGE_SIZE_BYTES },
            pending_size_bytes_max: 1 << 20,
            blob_size_bytes_max: 1 << 20,
            mutations: Mutations::NONE,
        };
        let health = SlotHealth::all_alive(Duration::from_millis(5));
        let (plan, mut out) = (TakeoverPlan::first(LeaderEpoch::new(0)), Vec::new());
        let leader = Leader::start(config, plan, Instant::ZERO, &health, &mut out);
        let mut bench = Self { leader, health, out };
        assert_eq!(bench.puts().len(), 3, "a Start is copies");
        bench.stored(0, &[6, 3, 4]);
        assert!(bench.leader.is_serving());
        bench
    }

    fn put(&mut self, size_bytes: usize) -> Payload {
        let payload = Payload::from(Bytes::from(vec![7; size_bytes]));
        let draft = Draft {
            kind: BlobKind::Records,
            base_offset: self.leader.next_offset(),
            record_count: 1,
            max_timestamp_ms: -1,
            payload: payload.clone(),
        };
        let step = self.leader.put(Instant::ZERO, &self.health, draft, &mut self.out);
        assert_eq!(step, Ok(Step::new(1)));
        payload
    }

    /// Drains the outputs: what was sent, by slot.
    fn puts(&mut self) -> Vec<(u8, Blob)> {
        let puts = std::mem::take(&mut self.out).into_iter().filter_map(|output| match output {
            LeaderOutput::Put { slot, put } => Some((slot.index() as u8, put.blob)),
            _ => None,
        });
        let mut puts: Vec<_> = puts.collect();
        puts.sort_by_key(|(slot, _)| *slot);
        puts
    }

    fn stored(&mut self, step: u64, slots: &[u8]) {
        let point = LogPoint::new(GENERATION, Step::new(step));
        for slot in slots {
            let reply = PutReply {
                key: BlobKey { partition: PARTITION, point },
                incarnation: Incarnation::new(100 + u64::from(*slot)),
                result: PutResult::Stored,
            };
            let slot = Slot::new(*slot);
            self.leader.on_reply(Instant::ZERO, &self.health, slot, reply, &mut self.out);
        }
    }

    fn committed(&self) -> u64 {
        self.leader.mark().map_or(0, |mark| mark.point.step.get())
    }
}

fn slots(puts: &[(u8, Blob)]) -> Vec<u8> {
    puts.iter().map(|(slot, _)| *slot).collect()
}

#[test]
fn h1_each_of_six_slots_is_sent_its_own_part_and_all_six_are_asked() {
    let mut bench = Bench::serving();
    let payload = bench.put(LARGE_SIZE_BYTES);
    let puts = bench.puts();
    assert_eq!(slots(&puts), HEALTHY);
    let mut parts = crate::hot::Assembly::of(&puts[0].1.header);
    for (slot, blob) in &puts {
        let number = blob.header.part.map(|part| part.number);
        assert_eq!(number, Some(number_on(PARTITION, Slot::new(*slot))));
        assert!(parts.add(&blob.header, &blob.payload));
    }
    assert_eq!((parts.count(), parts.payload()), (6, Ok(payload)));
    bench.stored(1, &HEALTHY[..5]);
    assert_eq!(bench.committed(), 0, "five parts: two racks leave three");
    bench.stored(1, &HEALTHY[5..]);
    assert_eq!(bench.committed(), 1);
}

#[test]
fn h1_a_late_slot_is_replaced_by_another_with_its_own_part() {
    let mut bench = Bench::serving();
    bench.put(LARGE_SIZE_BYTES);
    bench.puts();
    bench.stored(1, &[0, 3, 4, 5, 6]);
    let late = Instant::ZERO + Duration::from_millis(6);
    bench.leader.tick(late, &bench.health, &mut bench.out);
    let puts = bench.puts();
    assert_eq!(slots(&puts), [1]);
    let number = puts[0].1.header.part.map(|part| part.number);
    assert_eq!(number, Some(number_on(PARTITION, Slot::new(1))));
    bench.stored(1, &[1]);
    assert_eq!(bench.committed(), 1);
}

#[test]
fn h1_small_blobs_are_three_copies() {
    let mut bench = Bench::serving();
    bench.put(LARGE_SIZE_BYTES - 1);
    let puts = bench.puts();
    assert_eq!(slots(&puts), [3, 4, 6]);
    assert!(puts.iter().all(|(_, blob)| blob.header.part.is_none()));
    bench.stored(1, &[3, 4, 6]);
    assert_eq!(bench.committed(), 1);
}

#[test]
fn h1_with_three_racks_gone_nothing_is_taken_in_parts() {
    let mut bench = Bench::serving();
    bench.health.suspect = SlotSet::from_bits(0b11);
    assert_eq!(bench.leader.admit(&bench.health), Ok(()));
    bench.health.suspect = SlotSet::from_bits(0b111);
    assert_eq!(bench.leader.admit(&bench.health), Err(PutError::NotEnoughDatacenters));
    bench.leader.set_layout(Layout::Copies);
    assert_eq!(bench.leader.admit(&bench.health), Ok(()));
}
