//! Key compaction, without I/O: which records of a log are still the last of their key, and what the
//! batches look like without the others. As Kafka's log cleaner does it (KIP-58, KIP-534).
//!
//! ```text
//! round:  offsets   reads the dirty part:  key -> its last offset, until memory is full or it ends
//!         survivors reads the log again from its start: each batch stays, shrinks or goes
//! ```
//! Offsets, timestamps and the order of records never change; a batch keeps the offsets it took.
//! Records without a key are nobody's last and stay. What is above the round's end stays, as does
//! the last batch of every producer, emptied if need be: whoever rebuilds producers from the log
//! must find its sequence numbers.
//!
//! How a round's result gets into the log: `docs/decisions/0010-key-compaction.md`.

mod decided;
mod offsets;
mod pass;
mod survivors;
#[cfg(test)]
mod tests;

pub use self::decided::Aborted;
pub use self::offsets::{KeyOffsets, MapFull};
pub use self::pass::{Pass, PassLimits, Plan};
pub use self::survivors::{CleanError, Cleaned, Round};
