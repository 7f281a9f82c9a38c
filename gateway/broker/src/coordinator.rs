//! What every coordinator does around its log, whatever it keeps there. Pure.
//!
//! The state of a coordinator is a function of the log of its partition, which the coordinator's node leads.
//!
//! ```text
//! load   log -- Read --> replay --> state
//! step   state + request -- decision --> queue -- Append --> log, one batch at a time
//! after  Appended --> outcomes: answers, markers
//! trim   state -- piece by piece --> queue --> log, then Trim: the log starts where that began
//! ```
//!
//! An outcome leaves only after the records of its decision, and all before them, are committed. A coordinator whose
//! records are refused is closed, and another reads the log. See `docs/decisions/0050-one-coordinator-runtime.md`.

pub mod queue;
mod snapshot;
mod state;
#[cfg(test)]
mod tests;
mod transactions;

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::id::TopicId;
use meridian_base::position::Offset;
use meridian_protocol::ErrorCode;
use meridian_storage::mutation::Mutations;

use self::queue::{Batch, Entry, WriteQueue};
pub use self::snapshot::NotShortened;
use self::snapshot::Snapshot;
pub use self::state::{Piece, State};
pub use self::transactions::TransactionState;
use crate::coordination::records_in;

/// When a log that could not be read is read again.
const READ_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// When it is looked again whether what is on its way around the coordinator is in the log.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(5);
/// When a log without room is offered the same again.
const OFFER_AGAIN_AFTER: Duration = Duration::from_millis(20);
/// Batches without a record that are done in one step.
const EMPTY_COUNT_MAX: usize = 64;

/// Bounds of one coordinator.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Bytes of records written at once.
    pub batch_size_bytes: usize,
    /// Bytes of a snapshot written at once.
    pub piece_size_bytes: usize,
    /// How long records are offered to a log that has no room for them.
    pub busy_timeout: Duration,
    /// Shorter logs are not shortened.
    pub record_count_min: i64,
    /// How long a log rests that refused a snapshot, at first.
    pub pause_min: Duration,
    /// And at most.
    pub pause_max: Duration,
    /// The broken rule, if any.
    pub mutations: Mutations,
}

/// The log as it is at a step.
#[derive(Clone, Copy, Debug)]
pub struct LogView {
    /// Its first offset.
    pub start: Offset,
    /// The offset after its last committed record.
    pub high_watermark: Offset,
    /// Whether this node leads it still: a log that is not led looks empty.
    pub is_serving: bool,
    /// Whether something is on its way into it that the coordinator did not write.
    pub has_others: bool,
    /// Whether no snapshot is to be begun now.
    pub rests: bool,
}

/// Why a log could not be read now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// It may be readable later.
    Later,
    /// It is not led here any more.
    Lost,
}

/// Why records are not known to be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendError {
    /// Nothing was written, and there may be room later. What those who wait are answered if there never is.
    Busy(ErrorCode),
    /// What those who wait are answered.
    Failed(ErrorCode),
}

/// What happens to a coordinator besides requests.
#[derive(Clone, Debug)]
pub enum Input {
    /// Something was decided, or time has passed; see [`Coordinator::wake_at`].
    Wake,
    /// What [`Output::Read`] asked for: batches from there on.
    Read(Result<Bytes, ReadError>),
    /// What became of [`Output::Append`]: where its first record is.
    Appended(Result<Offset, AppendError>),
    /// Which of [`Output::Topics`] are there no more.
    Gone(BTreeSet<TopicId>),
    /// Whether the log starts where [`Output::Trim`] said.
    Trimmed(bool),
    /// The coordinator is not to go on: those who wait are answered with this.
    Close(ErrorCode),
}

/// What is to be done for a coordinator.
#[derive(Debug)]
pub enum Output<O> {
    /// Read the log from here on, at least one batch.
    Read(Offset),
    /// Append these records. They are to be handed to the log before anything else is asked of the coordinator.
    Append(Vec<Entry>),
    /// Say which of these topics were deleted.
    Topics(BTreeSet<TopicId>),
    /// Have the log start here.
    Trim(Offset),
    /// A snapshot is being written.
    SnapshotBegun,
    /// It is in the log, which starts here.
    SnapshotDone(Offset),
    /// The log is as it was, and rests for this long.
    SnapshotRefused(NotShortened, Duration),
    /// What has come of a decision.
    Outcome(O),
}

#[derive(Debug)]
enum Phase {
    Loading {
        read_to: Offset,
        is_reading: bool,
        /// Not to be read before.
        again_at: Instant,
    },
    Serving,
    Closed(ErrorCode),
}

/// A batch that was taken.
#[derive(Debug)]
struct Writing<E> {
    batch: Batch<E>,
    is_offered: bool,
    again_at: Instant,
    busy_until: Instant,
}

/// See the module.
#[derive(Debug)]
pub struct Coordinator<S: State> {
    state: S,
    config: Config,
    phase: Phase,
    queue: WriteQueue<S::Effect>,
    writing: Option<Writing<S::Effect>>,
    snapshot: Snapshot<S::Place>,
    /// Whether a step ended before all was done.
    has_more: bool,
}

impl<S: State> Coordinator<S> {
    /// A coordinator that has read nothing, and keeps what `state` says of an empty log.
    pub fn new(state: S, config: Config) -> Self {
        Self {
            state,
            config,
            phase: Phase::Loading {
                read_to: Offset::ZERO,
                is_reading: false,
                again_at: Instant::ZERO,
            },
            queue: WriteQueue::default(),
            writing: None,
            snapshot: Snapshot::new(&config),
            has_more: false,
        }
    }

    /// The state; an error while it is not all that the log says.
    pub fn serving(&self) -> Result<&S, ErrorCode> {
        match self.phase {
            Phase::Serving => Ok(&self.state),
            Phase::Loading { .. } => Err(ErrorCode::CoordinatorLoadInProgress),
            Phase::Closed(code) => Err(code),
        }
    }

    /// The state, to decide something. [`Self::step`] or [`Self::settle`] must follow.
    pub fn serving_mut(&mut self) -> Result<&mut S, ErrorCode> {
        self.serving()?;
        Ok(&mut self.state)
    }

    /// The state, for who knows that this [is serving](Self::serving).
    pub fn state(&self) -> &S {
        &self.state
    }

    /// Like [`Self::state`]; [`Self::step`] or [`Self::settle`] must follow.
    pub fn state_mut(&mut self) -> &mut S {
        &mut self.state
    }

    /// Whether nothing is on its way, nor ever will be.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Closed(_)) && self.writing.is_none()
    }

    /// When [`Input::Wake`] has something to do, if nothing happens before.
    pub fn wake_at(&self, now: Instant) -> Option<Instant> {
        let of_phase = match (&self.phase, &self.writing) {
            _ if self.has_more => Some(now),
            (Phase::Loading { again_at, is_reading: false, .. }, _) => Some(*again_at),
            (Phase::Serving, Some(writing)) if !writing.is_offered => Some(writing.again_at),
            (Phase::Serving, None) => self.snapshot.wake_at(now),
            _ => None,
        };
        of_phase.map(|at| at.max(now))
    }

    /// Whether all that was decided is in the log.
    pub fn is_settled(&self) -> bool {
        !self.has_more && self.writing.is_none() && self.queue.is_empty()
    }

    /// Whether something was decided and is not on its way.
    pub fn has_work(&self) -> bool {
        self.has_more || self.writing.is_none() && !self.queue.is_empty()
    }

    /// Takes an input, and goes on as far as it can without another.
    pub fn step(
        &mut self,
        now: Instant,
        log: LogView,
        input: Input,
        out: &mut Vec<Output<S::Outcome>>,
    ) {
        match input {
            Input::Wake => {}
            Input::Read(read) => self.on_read(now, read),
            Input::Appended(appended) => self.on_appended(now, appended, out),
            Input::Gone(topics) => self.snapshot.on_gone(topics),
            Input::Trimmed(is_done) => self.on_trimmed(now, is_done, out),
            Input::Close(code) => self.close(code),
        }
        self.has_more = false;
        self.take_decisions();
        if let Phase::Loading { .. } = self.phase {
            self.load(now, log, out);
        }
        if let Phase::Serving = self.phase {
            self.write(now, log, out);
        }
        self.settle(out);
    }

    /// Takes what was decided into the queue, and gives the outcomes that wait for no record.
    pub fn settle(&mut self, out: &mut Vec<Output<S::Outcome>>) {
        self.take_decisions();
        out.extend(self.state.take_outcomes().into_iter().map(Output::Outcome));
    }

    fn take_decisions(&mut self) {
        for write in self.state.take_decisions() {
            match self.phase {
                Phase::Closed(code) => self.state.refuse(write.effect, code),
                Phase::Loading { .. } | Phase::Serving => self.queue.push(write),
            }
        }
    }

    /// Gives all up but the batch on its way, which the log decides.
    fn close(&mut self, code: ErrorCode) {
        if let Phase::Closed(_) = self.phase {
            return;
        }
        self.take_decisions();
        self.phase = Phase::Closed(code);
        self.snapshot = Snapshot::new(&self.config);
        for write in self.queue.close() {
            self.state.refuse(write.effect, code);
        }
        if self.writing.as_ref().is_some_and(|writing| !writing.is_offered) {
            self.refuse_writing(code);
        }
        self.state.clear();
    }

    fn refuse_writing(&mut self, code: ErrorCode) {
        if let Some(Writing { batch: Batch::Decisions(writes), .. }) = self.writing.take() {
            writes.into_iter().for_each(|write| self.state.refuse(write.effect, code));
        }
    }

    fn on_read(&mut self, now: Instant, read: Result<Bytes, ReadError>) {
        let Phase::Loading { read_to, is_reading, again_at } = &mut self.phase else { return };
        *is_reading = false;
        let from = *read_to;
        match read {
            Ok(bytes) => {
                let next = records_in(bytes, from, |batch, record| {
                    let offset = record.offset;
                    if let Err(error) = self.state.replay(batch, record) {
                        tracing::error!(offset, %error, "a record of a coordinator cannot be read");
                    }
                });
                *read_to = next;
                if next <= from {
                    self.close(ErrorCode::NotCoordinator);
                }
            }
            Err(ReadError::Later) => *again_at = now + READ_AGAIN_AFTER,
            Err(ReadError::Lost) => self.close(ErrorCode::NotCoordinator),
        }
    }

    /// Reads on. The log has been read when it has nothing more under the lock that also tells those who append
    /// around the coordinator that it serves.
    fn load(&mut self, now: Instant, log: LogView, out: &mut Vec<Output<S::Outcome>>) {
        let Phase::Loading { read_to, is_reading, again_at } = &mut self.phase else { return };
        if *is_reading || now < *again_at {
            return;
        }
        if !log.is_serving {
            return self.close(ErrorCode::NotCoordinator);
        }
        *read_to = log.start.max(*read_to);
        if *read_to < log.high_watermark {
            *is_reading = true;
            out.push(Output::Read(*read_to));
        } else if log.has_others {
            *again_at = now + LOOK_AGAIN_AFTER;
        } else {
            self.phase = Phase::Serving;
            self.state.on_loaded(now);
            self.take_decisions();
        }
    }

    /// Offers the next batch to the log, if none is on its way.
    fn write(&mut self, now: Instant, log: LogView, out: &mut Vec<Output<S::Outcome>>) {
        for _ in 0..EMPTY_COUNT_MAX {
            if self.writing.is_none() {
                self.shorten(now, log, out);
                let Some(batch) = self.queue.take(self.config.batch_size_bytes) else { return };
                let busy_until = now + self.config.busy_timeout;
                let writing = Writing { batch, is_offered: false, again_at: now, busy_until };
                self.writing = Some(writing);
            }
            let Some(writing) = &mut self.writing else { return };
            if writing.is_offered || now < writing.again_at {
                return;
            }
            let records = match &mut writing.batch {
                Batch::Decisions(writes) => {
                    writes.iter().flat_map(|write| write.records.iter().cloned()).collect()
                }
                Batch::Piece(records) => {
                    if !self.snapshot.is_of_one_moment() {
                        *records = self.state.still_holding(std::mem::take(records));
                    }
                    records.clone()
                }
            };
            if !records.is_empty() {
                writing.is_offered = true;
                return out.push(Output::Append(records));
            }
            // What was decided before is committed.
            self.on_committed(log.high_watermark);
        }
        self.has_more = true;
    }

    fn on_appended(
        &mut self,
        now: Instant,
        appended: Result<Offset, AppendError>,
        out: &mut Vec<Output<S::Outcome>>,
    ) {
        let is_closed = matches!(self.phase, Phase::Closed(_));
        let Some(writing) = self.writing.as_mut().filter(|writing| writing.is_offered) else {
            return;
        };
        writing.is_offered = false;
        let is_piece = matches!(writing.batch, Batch::Piece(_));
        match appended {
            Ok(base_offset) => self.on_committed(base_offset),
            Err(AppendError::Busy(_)) if now < writing.busy_until && !is_closed => {
                writing.again_at = now + OFFER_AGAIN_AFTER;
            }
            Err(_) if is_piece => {
                self.writing = None;
                self.give_up_snapshot(now, NotShortened::Refused, out);
            }
            Err(AppendError::Busy(code) | AppendError::Failed(code)) => {
                self.refuse_writing(code);
                self.close(code);
            }
        }
    }

    /// The batch on its way is committed, its first record there.
    fn on_committed(&mut self, base_offset: Offset) {
        match self.writing.take().map(|writing| writing.batch) {
            Some(Batch::Decisions(writes)) => {
                let mut at = base_offset;
                for write in writes {
                    let count = u32::try_from(write.records.len()).unwrap_or(u32::MAX);
                    self.state.on_committed(at, write.effect);
                    at = at.advance(count);
                }
            }
            Some(Batch::Piece(records)) => {
                self.state.on_piece_committed(base_offset, &records);
                self.snapshot.on_piece_committed();
            }
            None => {}
        }
    }
}
