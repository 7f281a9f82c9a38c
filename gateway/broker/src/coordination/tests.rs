use std::time::Duration;

use meridian_base::id::TopicId;
use meridian_base::position::Offset;
use meridian_storage::mutation::Mutations;

use super::group_state::{Changes, Groups, Outcome};
use super::journal::Entry;
use super::offset_record::{Committed, OffsetKey};
use super::{Limits, batches};

/// What a group's coordinator writes goes in batches that a blob holds, however much it is, and is answered once all of
/// it is committed.
#[test]
fn many_committed_offsets_go_in_several_writes() {
    let limits = Limits::small(Duration::from_secs(1), Mutations::NONE);
    let mut groups: Groups<u32> = Groups::new(limits, true);
    groups.entry("g").expect("there is room");
    let count = 30_000;
    let changes = |offset: Option<i64>| -> Changes {
        let committed = offset.map(|offset| Committed {
            offset,
            leader_epoch: -1,
            metadata: "x".repeat(100),
            committed_at_ms: 0,
        });
        let key = |index| OffsetKey { topic: TopicId::new(5), index };
        (0..count).map(|index| (key(index), committed.clone())).collect()
    };
    let mut base_offset = 0;
    for (waiter, offset, held) in [(7, Some(3), count as usize), (8, None, 0)] {
        groups.write_offsets("g", changes(offset), Some(waiter));
        let mut write_count = 0;
        loop {
            assert_ne!(groups.by_id["g"].offsets().count(), held, "not all is committed");
            let writes = groups.take_writes(1 << 20);
            if writes.is_empty() {
                panic!("all was written, and nobody was answered");
            }
            write_count += 1;
            let records: Vec<Entry> =
                writes.iter().flat_map(|write| write.records.clone()).collect();
            let record_count = records.len() as i64;
            let largest = batches(0, records).iter().map(|batch| batch.bytes.len()).max();
            assert!(largest < Some(3 << 20), "{largest:?}");
            groups.on_committed(Offset::new(base_offset), writes);
            base_offset += record_count;
            let outcomes = groups.take_outcomes();
            if let [Outcome::Written(answered, Ok(()))] = outcomes[..] {
                assert_eq!(answered, waiter);
                break;
            }
            assert!(outcomes.is_empty());
        }
        assert!(offset.is_none() || write_count > 1, "{write_count}");
        assert_eq!(groups.by_id["g"].offsets().count(), held);
    }
}
