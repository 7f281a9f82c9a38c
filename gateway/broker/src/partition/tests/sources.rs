use meridian_protocol::records::{Batch, BatchHeader, Compression, batches};

use super::super::source::{PRODUCER_ID_HEADER, SEQNO_HEADER, SourceError, SourcedBatch};
use super::*;

/// Who sends a batch: an idempotent producer with its next sequence number, or none.
type Sender = Option<(i64, i32)>;

fn sourced(sender: Sender, seqnos: &[u64], compression: Compression) -> RecordBatch {
    let mut builder = BatchBuilder::new();
    if let Some((id, base_sequence)) = sender {
        builder = builder.producer(id, 0, base_sequence);
    }
    for seqno in seqnos {
        let text = seqno.to_string();
        let headers =
            [(PRODUCER_ID_HEADER, Some(&b"a"[..])), (SEQNO_HEADER, Some(text.as_bytes()))];
        builder.append(*seqno as i64, None, Some(text.as_bytes()), &headers);
    }
    let batch = Batch::produced(builder.build_compressed(compression).ok()).unwrap();
    let header = *batch.header();
    let record_count = seqnos.len() as u32;
    let sequenced = |(producer_id, base_sequence)| Sequenced {
        producer_id,
        epoch: 0,
        base_sequence,
        record_count,
        max_timestamp_ms: header.max_timestamp_ms,
    };
    RecordBatch {
        bytes: batch.bytes().clone(),
        record_count,
        max_timestamp_ms: header.max_timestamp_ms,
        sequenced: sender.map(sequenced),
        transaction: None,
        sourced: Some(SourcedBatch::produced(&batch, 0).unwrap()),
    }
}

fn plain(seqnos: &[u64]) -> RecordBatch {
    sourced(None, seqnos, Compression::None)
}

/// What readers see: offset and value.
fn log(bench: &Bench) -> Vec<(i64, u64)> {
    let pieces = bench.partition.tail().read(Offset::ZERO, 1 << 20).unwrap_or_default();
    let mut seen = Vec::new();
    for batch in batches(pieces.concat().into()) {
        let batch = batch.unwrap();
        assert_eq!(batch.check_crc(), Ok(()));
        for record in batch.records(1 << 20).unwrap().map(Result::unwrap) {
            let value = String::from_utf8(record.value.unwrap().to_vec()).unwrap();
            seen.push((record.offset, value.parse().unwrap()));
        }
    }
    seen
}

fn header_at(bench: &Bench, offset: i64) -> BatchHeader {
    let pieces = bench.partition.tail().read(Offset::new(offset), 1).unwrap();
    BatchHeader::parse(&pieces.concat()).unwrap()
}

#[test]
fn a_batch_sent_again_is_in_the_log_once() {
    let mut bench = Bench::new();
    bench.produce(1, plain(&[1, 2, 3]));
    bench.produce(2, plain(&[1, 2, 3]));
    bench.produce(3, plain(&[2]));
    assert_eq!(bench.answers(), [], "not acknowledged before the original (rule 45)");
    assert_eq!(bench.puts.len(), 1);
    bench.store_all();
    assert_eq!(bench.answers(), [(3, Ok(1)), (1, Ok(0)), (2, Ok(0))]);
    bench.produce(4, plain(&[1, 2]));
    assert_eq!(bench.answers(), [(4, Ok(0))], "its original is committed");
    assert_eq!(log(&bench), [(0, 1), (1, 2), (2, 3)]);
    assert_eq!(bench.partition.high_watermark(), Offset::new(3));
}

#[test]
fn other_batch_boundaries_leave_holes_for_what_is_there() {
    for compression in [Compression::None, Compression::Gzip, Compression::Lz4] {
        let mut bench = Bench::new();
        bench.produce(1, sourced(None, &[1, 2, 3], compression));
        bench.produce(2, sourced(None, &[2, 3, 4, 5], compression));
        bench.store_all();
        assert_eq!(bench.answers(), [(1, Ok(0)), (2, Ok(3))]);
        assert_eq!(log(&bench), [(0, 1), (1, 2), (2, 3), (5, 4), (6, 5)]);
        bench.produce(3, sourced(None, &[4, 5], compression));
        assert_eq!(bench.answers(), [(3, Ok(5))], "where the client was told they are");
    }
}

#[test]
fn an_idempotent_producer_goes_on_after_its_duplicates() {
    let mut bench = Bench::new();
    let send = |producer, sequence, seqnos: &[u64]| {
        sourced(Some((producer, sequence)), seqnos, Compression::Zstd)
    };
    bench.produce(1, send(1, 0, &[1, 2, 3]));
    bench.store_all();
    // The client restarted: a new producer id, the same records in other batches.
    bench.produce(2, send(2, 0, &[1, 2]));
    bench.produce(3, send(2, 2, &[3, 4]));
    bench.produce(4, send(2, 4, &[5]));
    bench.store_all();
    assert_eq!(bench.answers(), [(1, Ok(0)), (2, Ok(0)), (3, Ok(5)), (4, Ok(7))]);
    assert_eq!(log(&bench), [(0, 1), (1, 2), (2, 3), (6, 4), (7, 5)]);
    let empty = header_at(&bench, 3);
    assert_eq!((empty.records_count, empty.last_sequence()), (0, 1));
    let mixed = header_at(&bench, 5);
    assert_eq!((mixed.records_count, mixed.base_sequence, mixed.last_sequence()), (1, 2, 3));
    // Retries of these very batches are repeats by their sequence numbers.
    bench.produce(5, send(2, 0, &[1, 2]));
    bench.produce(6, send(2, 2, &[3, 4]));
    assert_eq!(bench.answers(), [(5, Ok(0)), (6, Ok(2))], "where their first records are");
    assert_eq!(bench.partition.high_watermark(), Offset::new(8));
}

#[test]
fn a_gap_is_filled_by_nothing() {
    let mut bench = Bench::new();
    bench.produce(1, plain(&[1, 2, 9]));
    bench.produce(2, plain(&[20]));
    bench.store_all();
    bench.answers();
    bench.produce(3, plain(&[15]));
    let error = SourceError::NeverWritten { index: 0, seqno: 15, last: 20 };
    assert_eq!(bench.answers(), [(3, Err(ProduceError::Source(error)))]);
    assert_eq!(bench.partition.high_watermark(), Offset::new(4));
}

#[test]
fn an_old_duplicate_is_acknowledged_without_an_offset() {
    let mut bench = Bench::new();
    for n in 0..8 {
        bench.produce(n, plain(&[u64::from(n) * 10, u64::from(n) * 10 + 5]));
    }
    bench.store_all();
    bench.answers();
    bench.produce(9, plain(&[0, 5]));
    assert_eq!(bench.answers(), [(9, Ok(-1))]);
}

/// Rule T9 for sources: what the log says, whatever the leader did.
#[test]
fn replay_gives_the_leaders_sources() {
    let mut bench = Bench::new();
    let mut replayed = PartitionState::default();
    replayed.track_sources(true, 0);
    bench.partition.track_sources(true, 0);
    let mut sequence = 0;
    for n in 0..20u64 {
        // Each batch repeats half of the one before, every third all of it.
        let first = n / 3 * 6;
        let seqnos: Vec<u64> = (first..first + 3 + n % 3 * 2).collect();
        let compression = if n % 2 == 0 { Compression::Snappy } else { Compression::None };
        bench.produce(n as u32, sourced(Some((7, sequence)), &seqnos, compression));
        sequence += seqnos.len() as i32;
        while let Some(put) = bench.puts.front().cloned() {
            let payload = put.blob.payload.to_contiguous();
            assert_eq!(replayed.apply_blob(&put.blob.header, payload), Ok(()));
            bench.store_one();
        }
    }
    assert!(bench.answers().iter().all(|(_, answer)| answer.is_ok()));
    assert_eq!(&replayed, bench.partition.state());
    assert_eq!(PartitionState::decode(replayed.encode()), Ok(replayed.clone()));
    assert_eq!(replayed.sources.map(|sources| sources.count()), Some(1));
    let seqnos: Vec<u64> = log(&bench).into_iter().map(|(_, seqno)| seqno).collect();
    assert_eq!(seqnos, (0..seqnos.len() as u64).collect::<Vec<_>>(), "each once, in order");
}

#[test]
fn a_topic_that_does_not_ask_remembers_nothing() {
    let mut bench = Bench::new();
    bench.partition.track_sources(true, 0);
    bench.produce(1, plain(&[1]));
    bench.store_all();
    bench.partition.track_sources(false, 0);
    assert_eq!(bench.partition.state().sources, None);
    let decoded = PartitionState::decode(bench.partition.state().encode());
    assert_eq!(decoded.map(|state| state.sources), Ok(None));
}
