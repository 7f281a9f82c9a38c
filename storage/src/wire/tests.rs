//! Every message survives the wire, and no bytes make the decoder panic.

use meridian_base::id::NodeId;
use meridian_base::position::{LeaderEpoch, LogPoint, Offset};
use meridian_base::topology::{Geometry, GroupConfig, SlotConfig, SlotState};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::blob::{BlobInfo, BlobKind, PartOf};
use crate::hot;
use crate::lineage::{EpochStart, Past};
use crate::message::{
    CommitMark, CopyList, FreeCopies, HeldCopy, HeldPart, ListCopies, ListParts, PartList,
};

fn point() -> impl Strategy<Value = LogPoint> {
    (1u32.., 0..u64::MAX)
        .prop_map(|(generation, step)| LogPoint::new(Generation::new(generation), Step::new(step)))
}

fn offset() -> impl Strategy<Value = Offset> {
    (0..i64::MAX / 2).prop_map(Offset::new)
}

fn partition() -> impl Strategy<Value = PartitionId> {
    any::<u64>().prop_map(PartitionId::new)
}

fn generation() -> impl Strategy<Value = Generation> {
    any::<u32>().prop_map(Generation::new)
}

fn incarnation() -> impl Strategy<Value = Incarnation> {
    any::<u64>().prop_map(Incarnation::new)
}

fn mark() -> impl Strategy<Value = CommitMark> {
    (point(), offset()).prop_map(|(point, high_watermark)| CommitMark { point, high_watermark })
}

fn kind() -> impl Strategy<Value = BlobKind> {
    (0u8..7).prop_filter_map("a kind", BlobKind::from_u8)
}

fn blob() -> impl Strategy<Value = Blob> {
    let payload = vec(vec(any::<u8>(), 0..40).prop_map(Bytes::from), 0..3);
    let part = (0..hot::PART_COUNT as u8, any::<u32>(), any::<u32>())
        .prop_map(|(number, size_bytes, crc)| PartOf { number, size_bytes, crc });
    let payload = (payload, option::of(part));
    (partition(), point(), kind(), offset(), any::<u32>(), any::<i64>(), payload).prop_map(
        |(partition, mut point, kind, base_offset, record_count, max_timestamp_ms, payload)| {
            let (parts, part) = payload;
            point.step = match kind {
                BlobKind::Start => Step::START,
                _ => Step::new(point.step.get().max(1)),
            };
            let payload = Payload::from_parts(parts);
            let mut header =
                BlobHeader::describe(kind, base_offset, record_count, max_timestamp_ms, &payload);
            header.part = part.filter(|_| kind == BlobKind::Records);
            Blob { key: BlobKey { partition, point }, header, payload }
        },
    )
}

fn info() -> impl Strategy<Value = BlobInfo> {
    blob().prop_map(|blob| BlobInfo { point: blob.key.point, header: blob.header })
}

fn config() -> impl Strategy<Value = GroupConfig> {
    let slot =
        (any::<u32>(), incarnation(), any::<bool>()).prop_map(|(node, incarnation, good)| {
            let state = if good { SlotState::Good } else { SlotState::LostData };
            SlotConfig { node: NodeId::new(node), incarnation, state }
        });
    let geometry = proptest::sample::select(&Geometry::ALL[..]);
    (any::<u32>(), any::<u64>(), geometry, vec(slot, 0..10)).prop_map(
        |(group, version, geometry, slots)| GroupConfig {
            group: GroupId::new(group),
            version: ConfigVersion::new(version),
            geometry,
            slots,
        },
    )
}

fn start() -> impl Strategy<Value = Start> {
    let past = (generation(), offset(), 0..u64::MAX).prop_map(|(generation, base_offset, step)| {
        Past { generation, base_offset, last_step: Step::new(step) }
    });
    let epoch = (0i32.., offset()).prop_map(|(epoch, start_offset)| EpochStart {
        epoch: LeaderEpoch::new(epoch),
        start_offset,
    });
    (option::of(point()), offset(), any::<u64>(), offset(), vec(past, 0..4), vec(epoch, 0..4))
        .prop_map(|(previous, base_offset, tail_length, log_start_offset, past, epochs)| Start {
            previous,
            base_offset,
            tail_length,
            log_start_offset,
            past,
            epochs,
            checkpoint: None,
        })
}

fn put_result() -> impl Strategy<Value = PutResult> {
    let reason = prop_oneof![
        Just(Refusal::Full),
        Just(Refusal::Busy),
        Just(Refusal::Syncing),
        Just(Refusal::NotMine)
    ];
    prop_oneof![
        Just(PutResult::Stored),
        generation().prop_map(|by| PutResult::Fenced { by }),
        config().prop_map(|config| PutResult::Stale { config }),
        Just(PutResult::Conflict),
        reason.prop_map(|reason| PutResult::Refused { reason }),
    ]
}

fn fence_result() -> impl Strategy<Value = FenceResult> {
    let view = (
        option::of(mark()),
        offset(),
        vec(info(), 0..4),
        vec((generation(), start()), 0..3),
        vec(info(), 0..3),
    )
        .prop_map(|(mark, log_start_offset, blobs, starts, checkpoints)| PartitionView {
            mark,
            log_start_offset,
            blobs,
            starts,
            checkpoints,
        })
        .boxed();
    let piece = (option::of(point()), option::of(point()), view.clone())
        .prop_map(|(above, up_to, view)| FenceResult::Piece(ViewPiece { above, up_to, view }));
    prop_oneof![
        view.prop_map(FenceResult::Certain),
        generation().prop_map(|by| FenceResult::Fenced { by }),
        Just(FenceResult::Unsure),
        piece,
    ]
}

fn put_message() -> impl Strategy<Value = StorageMessage> {
    (any::<u64>(), option::of(mark()), blob()).prop_map(|(version, mark, blob)| {
        StorageMessage::Put(Put { config_version: ConfigVersion::new(version), mark, blob })
    })
}

fn fence_message() -> impl Strategy<Value = StorageMessage> {
    let entries = vec((partition(), generation()), 0..5);
    (any::<u64>(), any::<u32>(), any::<u64>(), entries, option::of(point())).prop_map(
        |(tag, group, version, entries, above)| StorageMessage::FenceRead {
            tag,
            request: FenceRead {
                group: GroupId::new(group),
                config_version: ConfigVersion::new(version),
                entries,
                above,
            },
        },
    )
}

fn fence_reply_message() -> impl Strategy<Value = StorageMessage> {
    let answer = (partition(), generation(), fence_result())
        .prop_map(|(partition, generation, result)| FenceAnswer { partition, generation, result });
    (any::<u64>(), incarnation(), option::of(config()), vec(answer, 0..3)).prop_map(
        |(tag, incarnation, stale, answers)| StorageMessage::FenceReadReply {
            tag,
            reply: FenceReadReply { incarnation, stale, answers },
        },
    )
}

fn read_message() -> impl Strategy<Value = StorageMessage> {
    let from = prop_oneof![
        offset().prop_map(ReadFrom::Offset),
        any::<u64>().prop_map(|step| ReadFrom::Step(Step::new(step))),
    ];
    (any::<u64>(), partition(), generation(), from, any::<u64>(), any::<u32>()).prop_map(
        |(tag, partition, generation, from, last, size_bytes_max)| {
            let last_step = Step::new(last);
            let request = Read { partition, generation, from, last_step, size_bytes_max };
            StorageMessage::Read { tag, request }
        },
    )
}

fn sync_message() -> impl Strategy<Value = StorageMessage> {
    let entry = (partition(), generation(), option::of(mark()), offset(), vec(info(), 0..3))
        .prop_map(|(partition, fence, mark, log_start_offset, blobs)| SyncPartition {
            partition,
            fence,
            mark,
            log_start_offset,
            blobs,
        });
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let page = (any::<u64>(), incarnation(), vec(entry, 0..3), flags).prop_map(
        |(tag, incarnation, partitions, (complete, unsure, is_cut))| StorageMessage::SyncPage {
            tag,
            page: SyncPage { incarnation, partitions, complete, unsure, is_cut },
        },
    );
    let resume = option::of((partition(), point()));
    let pull = (any::<u64>(), any::<u32>(), config(), option::of(partition()), resume).prop_map(
        |(tag, group, config, after, resume)| StorageMessage::SyncPull {
            tag,
            request: SyncPull { group: GroupId::new(group), config, after, resume },
        },
    );
    prop_oneof![page, pull]
}

fn parts_message() -> impl Strategy<Value = StorageMessage> {
    let list =
        (any::<u64>(), partition(), option::of(point())).prop_map(|(tag, partition, after)| {
            StorageMessage::ListParts { tag, request: ListParts { partition, after } }
        });
    let held = (point(), any::<u32>(), any::<bool>())
        .prop_map(|(point, size_bytes, is_readable)| HeldPart { point, size_bytes, is_readable });
    let listed = (any::<u64>(), incarnation(), any::<u64>(), vec(held, 0..4), any::<bool>())
        .prop_map(|(tag, incarnation, copies_size_bytes, parts, complete)| {
            let list = PartList { incarnation, copies_size_bytes, parts, complete };
            StorageMessage::PartList { tag, list }
        });
    let free = (partition(), vec(point(), 0..4))
        .prop_map(|(partition, points)| StorageMessage::FreeParts(FreeParts { partition, points }));
    prop_oneof![list, listed, free]
}

fn copies_message() -> impl Strategy<Value = StorageMessage> {
    let version = || any::<u64>().prop_map(ConfigVersion::new);
    let asked = (any::<u64>(), partition(), any::<u32>(), version(), generation());
    let list = (asked, option::of(point()), any::<u32>()).prop_map(
        |((tag, partition, group, config_version, generation), after, count_max)| {
            let group = GroupId::new(group);
            let request =
                ListCopies { partition, group, config_version, generation, after, count_max };
            StorageMessage::ListCopies { tag, request }
        },
    );
    let held = (point(), any::<u32>(), any::<bool>())
        .prop_map(|(point, size_bytes, is_part)| HeldCopy { point, size_bytes, is_part });
    let said = (any::<u64>(), incarnation(), version(), option::of(mark()), any::<u64>());
    let listed = (said, vec(held, 0..4), any::<bool>()).prop_map(
        |((tag, incarnation, config_version, mark, records_size_bytes), copies, complete)| {
            let list = CopyList {
                incarnation,
                config_version,
                mark,
                records_size_bytes,
                copies,
                complete,
            };
            StorageMessage::CopyList { tag, list }
        },
    );
    let by = (partition(), version(), generation(), mark());
    let free = (by, any::<u64>(), vec(point(), 0..4)).prop_map(
        |((partition, config_version, generation, mark), list, points)| {
            let freed = FreeCopies { partition, config_version, generation, mark, list, points };
            StorageMessage::FreeCopies(freed)
        },
    );
    prop_oneof![list, listed, free]
}

fn message() -> impl Strategy<Value = StorageMessage> {
    let reply = ((partition(), point()), incarnation(), put_result()).prop_map(
        |((partition, point), incarnation, result)| PutReply {
            key: BlobKey { partition, point },
            incarnation,
            result,
        },
    );
    let read_reply = prop_oneof![
        vec(blob(), 0..4).prop_map(ReadReply::Blobs),
        Just(ReadReply::NotHere),
        Just(ReadReply::Unreadable),
        (blob(), any::<u32>()).prop_map(|(blob, payload_crc)| {
            let header = BlobHeader { payload_crc, ..blob.header };
            ReadReply::Damaged(Blob { header, ..blob })
        }),
    ];
    let beacon = (partition(), mark(), offset(), offset(), point(), generation()).prop_map(
        |(partition, mark, log_start_offset, free_below, clean_from, generation_min)| Beacon {
            partition,
            mark,
            log_start_offset,
            free_below,
            clean_from,
            generation_min,
        },
    );
    prop_oneof![
        put_message(),
        vec(reply, 0..4).prop_map(StorageMessage::PutReplies),
        fence_message(),
        fence_reply_message(),
        read_message(),
        (any::<u64>(), read_reply)
            .prop_map(|(tag, reply)| StorageMessage::ReadReply { tag, reply }),
        sync_message(),
        vec(beacon, 0..4).prop_map(StorageMessage::Beacons),
        parts_message(),
        copies_message(),
        (any::<u64>(), 0u8..9)
            .prop_map(|(tag, slot)| StorageMessage::ScrubAsk { tag, slot: Slot::new(slot) }),
        (any::<u64>(), any::<bool>())
            .prop_map(|(tag, busy)| StorageMessage::ScrubAnswer { tag, busy }),
    ]
}

fn encoded(message: &StorageMessage) -> Bytes {
    message.encode().concat().into()
}

proptest! {
    #[test]
    fn every_message_round_trips(message in message()) {
        prop_assert_eq!(StorageMessage::decode(encoded(&message)), Ok(message));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
        let _ = StorageMessage::decode(bytes.into());
    }

    #[test]
    fn a_broken_message_never_panics(
        message in message(),
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = encoded(&message).to_vec();
        let at = at.index(bytes.len());
        bytes[at] = value;
        let _ = StorageMessage::decode(bytes.clone().into());
        bytes.truncate(cut.index(bytes.len()));
        prop_assert!(StorageMessage::decode(bytes.into()).is_err());
    }
}

fn first_records() -> LogPoint {
    LogPoint::new(Generation::FIRST, Step::START.next())
}

#[test]
fn a_start_anywhere_but_at_step_0_is_refused() {
    let put = |kind, step| {
        let payload = Payload::default();
        let header = BlobHeader::describe(kind, Offset::ZERO, 0, -1, &payload);
        let point = LogPoint::new(Generation::FIRST, step);
        let blob = Blob { key: BlobKey { partition: PartitionId::new(1), point }, header, payload };
        let config_version = ConfigVersion::new(1);
        StorageMessage::decode(encoded(&StorageMessage::Put(Put {
            config_version,
            mark: None,
            blob,
        })))
    };
    assert!(put(BlobKind::Start, Step::START).is_ok());
    for (kind, step) in [(BlobKind::Start, Step::new(1)), (BlobKind::Trim, Step::START)] {
        let refused = put(kind, step).unwrap_err();
        assert!(matches!(refused, DecodeError::Invalid { field: "kind at its step", .. }));
    }
}

#[test]
fn only_records_are_in_parts_and_only_in_eight() {
    let payload = Payload::from(Bytes::from_static(b"x"));
    let decoded = |kind, number| {
        let header = BlobHeader::describe(kind, Offset::ZERO, 0, -1, &payload);
        let part = Some(PartOf { number, size_bytes: 4, crc: 9 });
        let key = BlobKey { partition: PartitionId::new(1), point: first_records() };
        let blob = Blob { key, header: BlobHeader { part, ..header }, payload: payload.clone() };
        let put = Put { config_version: ConfigVersion::new(1), mark: None, blob };
        StorageMessage::decode(encoded(&StorageMessage::Put(put)))
    };
    assert!(decoded(BlobKind::Records, 7).is_ok());
    assert!(decoded(BlobKind::Records, 8).is_err());
    assert!(decoded(BlobKind::Checkpoint, 1).is_err());
}

#[test]
fn payloads_are_passed_by_reference_both_ways() {
    let payload = Bytes::from(vec![7; 1000]);
    let blob = Blob {
        key: BlobKey { partition: PartitionId::new(1), point: first_records() },
        header: BlobHeader::describe(
            BlobKind::Records,
            Offset::ZERO,
            1,
            -1,
            &Payload::from(payload.clone()),
        ),
        payload: payload.clone().into(),
    };
    let put = Put { config_version: ConfigVersion::new(1), mark: None, blob };
    let message = StorageMessage::Put(put);
    assert_eq!(message.encode()[1].as_ptr(), payload.as_ptr());
    let received = encoded(&message);
    let Ok(StorageMessage::Put(put)) = StorageMessage::decode(received.clone()) else { panic!() };
    let end = received.as_ptr_range().end;
    assert_eq!(put.blob.payload.parts()[0].as_ptr_range().end, end);
}

#[test]
fn a_payload_that_was_changed_is_refused() {
    let payload = Payload::from(Bytes::from_static(b"payload"));
    let header = BlobHeader::describe(BlobKind::Records, Offset::ZERO, 1, -1, &payload);
    let key = BlobKey { partition: PartitionId::new(1), point: first_records() };
    let blob = Blob { key, header, payload };
    let put = Put { config_version: ConfigVersion::new(1), mark: None, blob };
    let mut bytes = encoded(&StorageMessage::Put(put)).to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    assert!(matches!(
        StorageMessage::decode(bytes.into()),
        Err(DecodeError::Invalid { field: "payload checksum", .. })
    ));
}

/// The bytes of a put, for ever: nodes of two versions talk to each other.
#[test]
fn a_put_is_encoded_as_it_always_was() {
    let payload = Payload::from(Bytes::from_static(b"abc"));
    let key = BlobKey {
        partition: PartitionId::new(0x0102),
        point: LogPoint::new(Generation::new(3), Step::new(4)),
    };
    let header = BlobHeader::describe(BlobKind::Records, Offset::new(5), 6, 7, &payload);
    let mark = Some(CommitMark {
        point: LogPoint::new(Generation::new(3), Step::new(2)),
        high_watermark: Offset::new(4),
    });
    let blob = Blob { key, header, payload };
    let put = Put { config_version: ConfigVersion::new(9), mark, blob };
    let hex: String =
        encoded(&StorageMessage::Put(put)).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        hex,
        concat!(
            "00",                                       // kind
            "0000000000000009",                         // config version
            "01000000030000000000000002",               // mark: generation, step
            "0000000000000004",                         // high watermark
            "0000000000000102000000030000000000000004", // key
            "01000000000000000500000006",               // kind, base offset, record count
            "0000000000000007",                         // timestamp
            "00000003364b3fb7",                         // payload size and checksum
            "616263",
        )
    );
}
