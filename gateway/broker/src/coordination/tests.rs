use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::TopicId;
use meridian_base::position::Offset;
use meridian_storage::mutation::Mutations;

use super::group_state::{Changes, Groups, Outcome};
use super::offset_record::{Committed, OffsetKey};
use super::{Limits, batches};
use crate::coordinator::{Config, Coordinator, Input, LogView, Output};

/// What a group's coordinator writes goes in batches that a blob holds, however much it is, and is answered once all of
/// it is committed.
#[test]
fn many_committed_offsets_go_in_several_writes() {
    let limits = Limits::small(Duration::from_secs(1), Mutations::NONE);
    let config = Config {
        batch_size_bytes: 1 << 20,
        piece_size_bytes: 1 << 20,
        busy_timeout: Duration::ZERO,
        record_count_min: i64::MAX,
        pause_min: Duration::ZERO,
        pause_max: Duration::ZERO,
        mutations: Mutations::NONE,
    };
    let mut coordinator: Coordinator<Groups<u32>> = Coordinator::new(Groups::new(limits), config);
    let step = |coordinator: &mut Coordinator<Groups<u32>>, input| {
        let (start, is_serving, rests) = (Offset::ZERO, true, false);
        let log = LogView { start, high_watermark: start, is_serving, has_others: false, rests };
        let mut out = Vec::new();
        coordinator.step(Instant::ZERO, log, input, &mut out);
        out
    };
    step(&mut coordinator, Input::Wake);
    coordinator.serving_mut().expect("it serves").entry("g").expect("there is room");
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
        let groups = coordinator.serving_mut().expect("it serves");
        groups.write_offsets("g", changes(offset), Some(waiter));
        let mut write_count = 0;
        let mut out = step(&mut coordinator, Input::Wake);
        while let Some(Output::Append(records)) = out.pop() {
            let groups = coordinator.serving().expect("it serves");
            assert_ne!(groups.by_id["g"].offsets().count(), held, "not all is committed");
            assert!(out.is_empty(), "nobody is answered before");
            write_count += 1;
            let at = Offset::new(base_offset);
            base_offset += records.len() as i64;
            let largest = batches(0, records).iter().map(|batch| batch.bytes.len()).max();
            assert!(largest < Some(3 << 20), "{largest:?}");
            out = step(&mut coordinator, Input::Appended(Ok(at)));
            if let [Output::Outcome(Outcome::Written(answered, Ok(())))] = out[..] {
                assert_eq!(answered, waiter);
            }
        }
        let groups = coordinator.serving().expect("it serves");
        assert!(offset.is_none() || write_count > 1, "{write_count}");
        assert_eq!(groups.by_id["g"].offsets().count(), held);
    }
}
