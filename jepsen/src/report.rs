//! What a run came to.

use std::fmt;
use std::time::Duration;

use crate::check::Violation;
use crate::cost::Peaks;

/// What was done in one run, or in many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests that clients sent.
    pub operation_count: u64,
    /// Records whose producer was told that they are safe.
    pub acknowledged_count: u64,
    /// Transactions committed.
    pub transaction_count: u64,
    /// Positions that groups have stored.
    pub position_count: u64,
    /// Passes of compaction.
    pub pass_count: u64,
    /// Logs of coordinators that were made shorter.
    pub shortened_count: u64,
    /// Blobs and stripes that were made whole from their parts, for readers and for recovery.
    pub decoded_count: u64,
    /// Manifests of stripes and objects.
    pub packed_count: u64,
    /// Objects that were put.
    pub object_count: u64,
    /// Objects that leaders deleted.
    pub object_deletion_count: u64,
    /// Parts of stripes that were made again.
    pub mended_count: u64,
    /// Batches of mirrors that were compared with their source's.
    pub mirrored_count: u64,
    /// Mirrors that were promoted.
    pub promotion_count: u64,
    /// Slots that were given to spares.
    pub replacement_count: u64,
    /// Files that moved from a fast disk to a capacity disk.
    pub moved_count: u64,
    /// Topics that were deleted and created anew.
    pub recreation_count: u64,
    /// Partitions whose class was changed.
    pub conversion_count: u64,
    /// Leaders that the metadata appointed.
    pub appointment_count: u64,
    /// Leaders that came to serve.
    pub takeover_count: u64,
    /// Faults injected.
    pub fault_count: u64,
    /// Disks that lost or forgot data.
    pub disk_loss_count: u64,
    /// Bytes of the records that were left in the end.
    pub record_bytes: u64,
    /// Bytes that slots held of them.
    pub held_bytes: u64,
    /// Bytes that clients sent to be kept.
    pub client_bytes: u64,
    /// Bytes put to slots.
    pub put_bytes: u64,
    /// Bytes written to disks.
    pub written_bytes: u64,
    /// The most that was needed of each bound on cost.
    pub peaks: Peaks,
    /// Virtual time.
    pub simulated: Duration,
    /// Events in the trace.
    pub event_count: u64,
}

impl Counters {
    /// Adds another run's.
    pub fn add(&mut self, other: &Self) {
        self.operation_count += other.operation_count;
        self.acknowledged_count += other.acknowledged_count;
        self.transaction_count += other.transaction_count;
        self.position_count += other.position_count;
        self.pass_count += other.pass_count;
        self.shortened_count += other.shortened_count;
        self.decoded_count += other.decoded_count;
        self.packed_count += other.packed_count;
        self.object_count += other.object_count;
        self.object_deletion_count += other.object_deletion_count;
        self.mended_count += other.mended_count;
        self.mirrored_count += other.mirrored_count;
        self.promotion_count += other.promotion_count;
        self.replacement_count += other.replacement_count;
        self.moved_count += other.moved_count;
        self.recreation_count += other.recreation_count;
        self.conversion_count += other.conversion_count;
        self.appointment_count += other.appointment_count;
        self.takeover_count += other.takeover_count;
        self.fault_count += other.fault_count;
        self.disk_loss_count += other.disk_loss_count;
        self.record_bytes += other.record_bytes;
        self.held_bytes += other.held_bytes;
        self.client_bytes += other.client_bytes;
        self.put_bytes += other.put_bytes;
        self.written_bytes += other.written_bytes;
        self.peaks = self.peaks.max(other.peaks);
        self.simulated += other.simulated;
        self.event_count += other.event_count;
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.2} simulated hours, {} operations, {} records acknowledged, {} transactions \
             committed, {} positions of groups, {} passes, {} logs shortened, {} blobs decoded, {} manifests of what is cold, {} objects put and {} deleted, {} parts made again, {} batches mirrored, {} mirrors promoted, {} slots moved, {} files moved, {} topics created anew, {} conversions, {} takeovers of {} appointments, {} faults, {} disks lost, {:.3} bytes held for each byte of records, {} bytes of clients, {} put, {} written; {:?}; {} events",
            self.simulated.as_secs_f64() / 3600.0,
            self.operation_count,
            self.acknowledged_count,
            self.transaction_count,
            self.position_count,
            self.pass_count,
            self.shortened_count,
            self.decoded_count,
            self.packed_count,
            self.object_count,
            self.object_deletion_count,
            self.mended_count,
            self.mirrored_count,
            self.promotion_count,
            self.replacement_count,
            self.moved_count,
            self.recreation_count,
            self.conversion_count,
            self.takeover_count,
            self.appointment_count,
            self.fault_count,
            self.disk_loss_count,
            self.held_bytes as f64 / self.record_bytes.max(1) as f64,
            self.client_bytes,
            self.put_bytes,
            self.written_bytes,
            self.peaks,
            self.event_count,
        )
    }
}

/// One run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The seed that replays it.
    pub seed: u64,
    /// What was done.
    pub counters: Counters,
    /// Digest of everything that happened.
    pub digest: u64,
    /// The first promise that was broken, if any.
    pub violation: Option<Violation>,
}
