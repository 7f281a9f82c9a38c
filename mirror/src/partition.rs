//! One partition of a mirror, without I/O: what to ask the source, what to append, when to stop.
//!
//! ```text
//!  Lost --Source--> own log empty? -----------------------> Seeking --Bounds--> Following
//!   ^                    | no                                                     ^   |
//!   |                EpochEnd: does the source have our last epoch up to our end? |   | OutOfRange
//!   |                    | yes                                                    |   v
//!   |                Overlap: is the source's batch at our last one the same? ----+ Bounds
//!   |                Open: if it is compacted, has it what is undecided here? ------+
//!   |                    |                                                            |
//!   +--Retry <-- failed  +--> Stopped: diverged, truncated, gap ... <-----------------+
//! ```
//!
//! Every connection, and every new leader of the source, begins with the comparison. Within one
//! leader's epoch the source only grows, so nothing is compared while it answers under that epoch.

mod follow;
mod verify;

use std::time::Duration;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_base::id::TopicId;
use meridian_base::position::{LeaderEpoch, Offset};

use crate::lag::{Lag, LagMeter, Pace};
use crate::mutation::Mutation;
use crate::seed::Part;
use crate::state::State;

/// A mirror that has been behind for less than this counts as up to date.
const UP_TO_DATE: Duration = Duration::from_secs(2);

/// Bounds of one mirrored partition, and what its source is.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The topic at the source.
    pub source_topic: TopicId,
    /// The leader epoch that clients of the mirror see.
    pub leader_epoch: LeaderEpoch,
    /// Bytes appended but not committed, above which nothing more is fetched.
    pub in_flight_size_bytes_max: u64,
    /// First pause after a failure.
    pub retry_after_min: Duration,
    /// Longest pause after failures.
    pub retry_after_max: Duration,
    /// How long a source must go on saying that it has lost records before that is final.
    pub confirmed_after: Duration,
    /// What is taken of the source, if not all: it is the topic that had the mirror's name before.
    pub seed: Option<Part>,
    /// A rule to break, for tests.
    pub mutation: Option<Mutation>,
}

impl Settings {
    /// The usual bounds.
    pub fn new(source_topic: TopicId, leader_epoch: LeaderEpoch) -> Self {
        Self {
            source_topic,
            leader_epoch,
            in_flight_size_bytes_max: 8 << 20,
            retry_after_min: Duration::from_millis(50),
            retry_after_max: Duration::from_secs(5),
            confirmed_after: Duration::from_secs(10),
            seed: None,
            mutation: None,
        }
    }
}

/// What identifies a batch of the own log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchId {
    /// Offset of its first record.
    pub base_offset: Offset,
    /// Offset of its last record.
    pub last_offset: Offset,
    /// Epoch of the source's leader that appended it.
    pub leader_epoch: LeaderEpoch,
    /// Checksum of all it holds but offset and epoch.
    pub crc: u32,
}

/// A batch of the source, whose checksum has been verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceBatch {
    /// What identifies it.
    pub id: BatchId,
    /// The whole batch.
    pub bytes: Bytes,
}

impl SourceBatch {
    /// Whether it has fewer records than offsets: compaction has removed some of them.
    pub fn is_sparse(&self) -> bool {
        const RECORD_COUNT_AT: usize = 57;
        let count = self.bytes.get(RECORD_COUNT_AT..RECORD_COUNT_AT + 4);
        let count = count.and_then(|count| count.try_into().ok()).map(i32::from_be_bytes);
        let offsets = self.id.last_offset.get() - self.id.base_offset.get() + 1;
        count.is_some_and(|count| i64::from(count) < offsets)
    }
}

/// The own log when the machine starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnLog {
    /// First offset that can be read.
    pub start: Offset,
    /// Offset after the last record: where the mirror goes on (rule F2).
    pub end: Offset,
    /// The last batch, unless there is none.
    pub last: Option<BatchId>,
    /// How old its records are: the mirror may have been away for as long.
    pub idle: Duration,
}

/// The partition at the source, as the source's metadata has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceView {
    /// The topic that has the name now.
    pub topic: TopicId,
    /// Epoch of the partition's leader.
    pub leader_epoch: LeaderEpoch,
    /// Whether records may be missing between others because of their keys, or may have been removed so once.
    pub is_compacted: bool,
    /// How long it keeps tombstones, if it is compacted now: who reads later does not hear of deletions.
    pub delete_retention: Option<Duration>,
}

/// Names a question, so that an answer to an older one is told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u64);

/// What to ask the source's leader, all of it under the leader epoch in the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Where does the epoch end (OffsetForLeaderEpoch)?
    EpochEnd {
        /// The epoch of our last record.
        epoch: LeaderEpoch,
    },
    /// Where does the log begin and end (ListOffsets)?
    Bounds,
    /// Which batches come from this offset on (Fetch)? The embedder may have the source go on from there, while
    /// [`MirrorPartition::fetches_from`] says so.
    Fetch {
        /// The offset.
        from: Offset,
    },
}

/// What the source answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To [`Question::EpochEnd`]: the epoch asked for or the largest below it, and where it ends;
    /// `None` if there is none.
    EpochEnd(Option<(LeaderEpoch, Offset)>),
    /// To [`Question::Bounds`].
    Bounds {
        /// First offset that can be read.
        start: Offset,
        /// Offset after the last committed record.
        high_watermark: Offset,
    },
    /// To [`Question::Fetch`]. More than one may come: the source was asked to go on where the one before ended.
    Fetched {
        /// From where it was read, if the source says so.
        from: Option<Offset>,
        /// Whether the source was asked to go on.
        goes_on: bool,
        /// Whole batches in order; the first may begin before the offset asked for.
        batches: Vec<SourceBatch>,
        /// First offset that can be read.
        start: Offset,
        /// Offset after the last committed record.
        high_watermark: Offset,
    },
}

/// Why a question was not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The source can't be reached, answers under another epoch, or says that it can't now.
    Unreachable(String),
    /// The source does not let this link read the topic.
    Refused(String),
    /// The offset asked for is not in the source's log.
    OutOfRange,
    /// What it sends can never be kept.
    Unsupported(String),
}

/// Why the source's metadata has no view of the partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoView {
    /// Nobody answers, or the partition has no leader.
    Unreachable(String),
    /// The source does not let this link see the topic, if it is there at all.
    Refused(String),
    /// There is no such topic or partition.
    Deleted,
    /// Another cluster answers at the link's addresses.
    OtherCluster(String),
}

/// What the machine is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Where the transactions begin that are open in the own log. It comes before
    /// [`Input::Source`], if there are any or were.
    Open(Vec<Offset>),
    /// The source's metadata, after [`Output::Refresh`] or unasked.
    Source(Result<SourceView, NoView>),
    /// The answer to a question.
    Answered {
        /// The question's name.
        token: Token,
        /// When it was sent.
        asked_at: Instant,
        /// What came of it.
        answer: Result<Answer, Failure>,
    },
    /// What was appended is durable up to `end`.
    Committed {
        /// Offset after the last durable record.
        end: Offset,
        /// Size of what became durable.
        size_bytes: u64,
    },
    /// Where the source ends now, asked for while nothing may be fetched.
    SourceEnd {
        /// Its end.
        end: Offset,
        /// When it was asked for.
        asked_at: Instant,
    },
    /// The own log can never take what was to be appended.
    Refused(String),
    /// Time has passed. Needed when [`MirrorPartition::wake_at`] has come.
    Tick,
}

/// What the embedder is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Look the source's topic up and tell with [`Input::Source`].
    Refresh,
    /// Ask the leader of the partition.
    Ask {
        /// Names the question.
        token: Token,
        /// The epoch the leader must have, or refuse (KIP-320).
        leader_epoch: LeaderEpoch,
        /// What to ask.
        question: Question,
    },
    /// Make the empty log begin at this offset.
    Begin(Offset),
    /// Append batches at the end of the log, which must be `expected`.
    Append {
        /// Where the log must end.
        expected: Offset,
        /// The batches; between them, and before the first, offsets may be missing.
        batches: Vec<SourceBatch>,
    },
    /// Let go of records before this offset, as the source has.
    Trim(Offset),
    /// Have the metadata log give the partition a leader epoch above this one: clients never see a
    /// batch with a later epoch than its partition's.
    RaiseEpoch(LeaderEpoch),
}

/// What operators see of a mirrored partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// What it does.
    pub state: State,
    /// Offset after the last durable record.
    pub end: Offset,
    /// Where the source was last seen to end.
    pub source_end: Option<Offset>,
    /// How long ago that was, at most: what the source took since is not in the lag.
    pub source_seen_ago: Option<Duration>,
    /// How fast it grew then.
    pub source_pace: Option<Pace>,
    /// How far behind it is.
    pub lag: Lag,
    /// Bytes mirrored since this node leads the partition.
    pub mirrored_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Waits for the source's metadata.
    Lost,
    /// Asks for the source's metadata again at a time.
    Retry { at: Instant },
    /// Asked where our last epoch ends at the source.
    EpochEnd,
    /// Asked for the batch that is our last.
    Overlap,
    /// Asked for the first batch of a transaction that is open here.
    Open { first: Offset },
    /// Asked where the source's log begins and ends, because of this.
    Bounds(BoundsFor),
    /// Fetches; `is_asked` while answers are to come.
    Following { is_asked: bool },
    /// An operator must decide.
    Stopped(State),
}

/// Why the bounds of the source's log were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BoundsFor {
    /// The own log is empty: it begins where the source's does.
    Seek,
    /// A fetch was out of range.
    OutOfRange,
    /// The source does not know the epoch of our last record.
    UnknownEpoch,
    /// The source has let go of our last batch: there is nothing to compare it with.
    Overlap,
}

/// One partition of a mirror.
#[derive(Clone, Debug)]
pub struct MirrorPartition {
    settings: Settings,
    phase: Phase,
    own: OwnLog,
    /// Offset after the last durable record; `own.end` is where the next batch goes.
    committed: Offset,
    in_flight_size_bytes: u64,
    view: Option<SourceView>,
    /// Where an empty log begins to read.
    seek: Offset,
    /// Where the transactions begin that are open in the own log.
    open: Vec<Offset>,
    /// Those of them that the source is still to be asked for.
    unverified: Vec<Offset>,
    last_token: Token,
    /// What failed, until the next answer.
    failure: Option<State>,
    retry_after: Duration,
    /// Since when the source has said nothing but that it has lost records.
    lost_since: Option<Instant>,
    /// When the mirror last had all of the source, and how long before that was, if that was before it began.
    had_all: Option<(Instant, Duration)>,
    lag: LagMeter,
}

impl MirrorPartition {
    /// Starts from the own log alone; asks for the source's metadata.
    pub fn start(settings: Settings, own: OwnLog, out: &mut Vec<Output>) -> Self {
        out.push(Output::Refresh);
        Self {
            phase: Phase::Lost,
            own,
            committed: own.end,
            in_flight_size_bytes: 0,
            view: None,
            seek: Offset::ZERO,
            open: Vec::new(),
            unverified: Vec::new(),
            last_token: Token(0),
            failure: None,
            retry_after: settings.retry_after_min,
            lost_since: None,
            had_all: None,
            lag: LagMeter::default(),
            settings,
        }
    }

    /// Takes an input; says what is to be done.
    pub fn step(&mut self, now: Instant, input: Input, out: &mut Vec<Output>) {
        self.had_all.get_or_insert((now, self.own.idle));
        match input {
            Input::Open(first_offsets) => self.open = first_offsets,
            Input::Source(Ok(view)) => self.on_view(now, view, out),
            Input::Source(Err(no_view)) => self.on_no_view(now, no_view),
            Input::Answered { token, asked_at, answer } => {
                let is_expected = token == self.last_token || self.breaks(Mutation::IgnoreToken);
                if is_expected {
                    self.on_answer(now, asked_at, answer, out);
                }
            }
            Input::Committed { end, size_bytes } => {
                self.committed = self.committed.max(end);
                self.in_flight_size_bytes = self.in_flight_size_bytes.saturating_sub(size_bytes);
                self.lag.on_end(self.reached());
                self.ask_for_more(out);
            }
            Input::SourceEnd { end, asked_at } => {
                if matches!(self.phase, Phase::Following { .. }) {
                    // It may come after the answer to a later fetch.
                    let end = self.lag.source_end().map_or(end, |known| known.max(end));
                    self.lag.on_source(now, asked_at, self.reached(), end);
                }
            }
            Input::Refused(detail) => self.stop(State::Unsupported { detail }),
            Input::Tick => {
                if self.wake_at().is_some_and(|at| at <= now) {
                    self.phase = Phase::Lost;
                    out.push(Output::Refresh);
                }
            }
        }
    }

    /// When [`Input::Tick`] is needed.
    pub fn wake_at(&self) -> Option<Instant> {
        match self.phase {
            Phase::Retry { at } => Some(at),
            _ => None,
        }
    }

    /// Whether what was found at the source is news that it has to be told: that it waits for, or a view under a later
    /// epoch, or of another topic, than the one it works with. What works is left to work while nobody answers, or only
    /// a node that is behind: if there is more to it, its own questions will fail soon enough.
    pub fn heeds(&self, found: &Result<SourceView, NoView>) -> bool {
        let is_lost = matches!(self.phase, Phase::Lost | Phase::Retry { .. });
        is_lost
            || match found {
                Ok(view) => self.view.is_none_or(|known| {
                    known.topic != view.topic || known.leader_epoch < view.leader_epoch
                }),
                Err(NoView::Unreachable(_) | NoView::Refused(_)) => false,
                Err(NoView::Deleted | NoView::OtherCluster(_)) => true,
            }
    }

    /// From where the source may go on answering this question, if it may.
    pub fn fetches_from(&self, token: Token) -> Option<Offset> {
        let is_asked = self.phase == Phase::Following { is_asked: true };
        (token == self.last_token && is_asked && self.wants_more()).then(|| self.next())
    }

    /// Whether it does nothing more: an operator must decide.
    pub fn has_stopped(&self) -> bool {
        matches!(self.phase, Phase::Stopped(_))
    }

    /// What operators see.
    pub fn status(&self, now: Instant) -> Status {
        let lag = self.lag.lag(now, self.reached());
        let state = match (&self.phase, &self.failure) {
            (Phase::Stopped(state), _) | (_, Some(state)) => state.clone(),
            (Phase::Following { .. }, None) if lag.time < UP_TO_DATE => State::Mirroring,
            (Phase::Following { .. }, None) => State::CatchingUp,
            _ => State::Verifying,
        };
        Status {
            state,
            end: self.committed,
            source_end: self.lag.source_end(),
            source_seen_ago: self.lag.source_seen_ago(now),
            source_pace: self.lag.pace(),
            lag,
            mirrored_bytes: self.lag.mirrored_bytes(),
        }
    }

    /// Up to where nothing is missing: an empty log lacks nothing that the source let go of.
    fn reached(&self) -> Offset {
        if self.is_unbegun() { self.committed.max(self.seek) } else { self.committed }
    }

    fn breaks(&self, mutation: Mutation) -> bool {
        mutation.active(self.settings.mutation)
    }

    fn ask(&mut self, question: Question, out: &mut Vec<Output>) {
        let Some(view) = self.view else { return };
        self.last_token = Token(self.last_token.0 + 1);
        let token = self.last_token;
        out.push(Output::Ask { token, leader_epoch: view.leader_epoch, question });
    }

    fn stop(&mut self, state: State) {
        self.last_token = Token(self.last_token.0 + 1);
        self.phase = Phase::Stopped(state);
    }

    /// Starts over after a pause that grows with each failure.
    fn retry(&mut self, now: Instant, state: State) {
        self.last_token = Token(self.last_token.0 + 1);
        self.phase = Phase::Retry { at: now + self.retry_after };
        self.retry_after = (self.retry_after * 2).min(self.settings.retry_after_max);
        self.failure = Some(state);
        self.lost_since = None;
    }

    /// The source says that it has lost what is here. So does a node of it that leads no more and has yet to hear of
    /// that: operators are told at once, and it is final when it has been said for long enough, and nothing else.
    fn mistrust(&mut self, now: Instant, state: State) {
        let since = self.lost_since.unwrap_or(now);
        if now.since(since) >= self.settings.confirmed_after || self.breaks(Mutation::BelieveAtOnce)
        {
            return self.stop(state);
        }
        self.retry(now, state);
        self.lost_since = Some(since);
    }

    fn on_answer(
        &mut self,
        now: Instant,
        asked_at: Instant,
        answer: Result<Answer, Failure>,
        out: &mut Vec<Output>,
    ) {
        let answer = match answer {
            Ok(answer) => answer,
            Err(failure) => return self.on_failure(now, failure, out),
        };
        let answer = match self.settings.seed {
            Some(part) => part.limit(answer),
            None => answer,
        };
        match (self.phase.clone(), answer) {
            (Phase::EpochEnd, Answer::EpochEnd(end)) => self.on_epoch_end(now, end, out),
            (Phase::Overlap, Answer::Fetched { batches, start, high_watermark, .. }) => {
                self.on_overlap(now, asked_at, batches, start, high_watermark, out);
            }
            (Phase::Open { first }, Answer::Fetched { batches, start, .. }) => {
                self.on_first_of_open(now, first, batches, start, out);
            }
            (Phase::Bounds(cause), Answer::Bounds { start, high_watermark }) => {
                self.lag.on_source(now, asked_at, self.reached(), high_watermark);
                self.on_bounds(now, cause, start, high_watermark, out);
            }
            (
                Phase::Following { is_asked },
                Answer::Fetched { from, goes_on, batches, start, high_watermark },
            ) => {
                if from.is_some_and(|from| from > self.next()) && !self.breaks(Mutation::SkipAnswer)
                {
                    let detail = "an answer of the source was lost".to_owned();
                    return self.retry(now, State::SourceUnreachable { detail });
                }
                // One that comes a second time may say so when nothing is under way any more.
                self.phase = Phase::Following { is_asked: is_asked && goes_on };
                self.on_fetched(now, asked_at, batches, start, high_watermark, out);
            }
            // An answer to another question than the last.
            _ => {}
        }
    }

    fn on_failure(&mut self, now: Instant, failure: Failure, out: &mut Vec<Output>) {
        match (failure, &self.phase) {
            (_, Phase::Stopped(_)) => {}
            (Failure::Unreachable(detail), _) => {
                self.retry(now, State::SourceUnreachable { detail });
            }
            (Failure::Refused(detail), _) => self.retry(now, State::SourceRefused { detail }),
            (Failure::Unsupported(detail), _) => self.stop(State::Unsupported { detail }),
            (Failure::OutOfRange, Phase::Overlap) => self.ask_bounds(BoundsFor::Overlap, out),
            // Nobody reads below the log start, here either.
            (Failure::OutOfRange, Phase::Open { .. }) => self.verify_open(out),
            (Failure::OutOfRange, _) => self.ask_bounds(BoundsFor::OutOfRange, out),
        }
    }
}
