//! What clients and nemesis did and saw, in the form that Jepsen gives it.
//!
//! Operations of the log are those of `jepsen.tests.kafka`, which can judge the file as it is:
//!
//! ```edn
//! {:index 0, :time 51, :type :invoke, :process 3, :f :send, :value [[:send 5 10]]}
//! {:index 1, :time 93, :type :ok, :process 3, :f :send, :value [[:send 5 [120 10]]]}
//! {:index 2, :time 99, :type :ok, :process 4, :f :poll, :value [[:poll {5 [[120 10]]}]]}
//! ```
//!
//! Keys are partitions. Offsets of groups and registers have operations of their own, of which
//! Jepsen's checker of logs takes no notice.

mod read;

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::clock;
use crate::edn::{Edn, keyword};
use crate::failure::Failure;

/// A partition of the topic under test, or another thing that operations are about.
pub(crate) type Key = i64;
/// What records hold: unique within a run.
pub(crate) type Value = i64;
pub(crate) type Offset = i64;
/// A leader epoch.
pub(crate) type Epoch = i64;
/// What a poll gave, by partition.
pub(crate) type Polled = BTreeMap<Key, Vec<(Offset, Value)>>;

/// Who did it. A client whose operation is in doubt goes on under a new number, as in Jepsen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Process {
    Client(i64),
    Nemesis,
}

/// The begin of an operation, or how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Invoke,
    Ok,
    /// It did not happen and never will.
    Fail,
    /// It may have happened, or may yet.
    Info,
}

/// A part of an operation on the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Micro {
    Send { key: Key, offset: Option<Offset>, value: Value },
    Poll(Option<Polled>),
}

/// What an operation was about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Send(Vec<Micro>),
    Poll(Vec<Micro>),
    /// Sends and polls, all or nothing.
    Txn(Vec<Micro>),
    /// Reads these partitions from now on; from their beginning, if so.
    Assign {
        keys: Vec<Key>,
        from_beginning: bool,
    },
    /// Reads as a member of the group.
    Subscribe,
    /// The member's share of the partitions has changed.
    Assigned {
        generation: i64,
        keys: Vec<Key>,
    },
    /// Commits positions for the group; the generation is the member's.
    Commit {
        generation: i64,
        offsets: BTreeMap<Key, Offset>,
    },
    /// Asks where the group is.
    Committed(Option<BTreeMap<Key, Offset>>),
    /// Asks for the ends of partitions.
    Ends(Option<BTreeMap<Key, Offset>>),
    /// Asks how far partitions go, and then how far all in them is decided: the second comes first.
    Stable(Option<BTreeMap<Key, (Offset, Offset)>>),
    /// Asks a leader which epochs its log has, and where each of them ends.
    Lineage {
        key: Key,
        epochs: Option<Vec<(Epoch, Offset)>>,
    },
    Write {
        key: Key,
        value: Value,
    },
    Read {
        key: Key,
        value: Option<Value>,
    },
    /// Creates a topic; the id is that of a topic that was created.
    CreateTopic {
        key: Key,
        id: Option<String>,
    },
    DeleteTopic {
        key: Key,
    },
    /// The topics that a node knows.
    Topics {
        node: i64,
        keys: Option<Vec<Key>>,
    },
    /// A producer that must be fenced writes: with an epoch that is over.
    Zombie {
        key: Key,
        offset: Option<Offset>,
        value: Value,
    },
    /// A batch that was acknowledged is sent once more, byte for byte.
    Replay {
        key: Key,
        offset: Option<Offset>,
        value: Value,
    },
    /// Whether a leader that was replaced goes on to serve readers what is old.
    Deposed {
        key: Key,
        node: i64,
        goes_on: Option<bool>,
    },
    /// Whether what a fault demands came true, where its nemesis looked itself.
    Demand {
        what: String,
        met: Option<bool>,
    },
    /// Begin or end of a fault, and what was hit.
    Fault {
        name: String,
        begins: bool,
        detail: String,
    },
}

/// What else is known of an operation, beside what Jepsen's checkers look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Notes {
    /// Why it failed or is in doubt.
    pub(crate) error: Option<String>,
    /// Offsets without a record in them that were skipped while reading, from and up to.
    pub(crate) gaps: Vec<(Key, Offset, Offset)>,
    /// How far partitions are read now: beyond the last record there may be ends of transactions.
    pub(crate) read_to: Vec<(Key, Offset)>,
    /// Of what was read: offsets whose batches a leader of this epoch wrote, from the first to the last.
    pub(crate) epochs: Vec<(Key, Offset, Offset, Epoch)>,
    /// Last stable offsets that leaders told within a transaction, after its sends.
    pub(crate) stable: Vec<(Key, Offset)>,
    /// The position that a transaction commits, as a register and its value.
    pub(crate) position: Option<(Key, Value)>,
    /// What a write was charged, where it is for a quota.
    pub(crate) charge: Option<Charge>,
}

/// What a client with a quota wrote to a node, and how long it was told to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) node: i64,
    pub(crate) size_bytes: i64,
    pub(crate) throttle_ms: i64,
}

/// A line of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) time: Duration,
    pub(crate) kind: Kind,
    pub(crate) process: Process,
    pub(crate) body: Body,
    pub(crate) notes: Notes,
}

impl Notes {
    /// Nothing is known but why it failed or is in doubt.
    pub(crate) fn error(why: String) -> Self {
        Self { error: Some(why), ..Self::default() }
    }

    fn to_edn(&self, entries: &mut Vec<(&'static str, Edn)>) {
        let numbers = |of: &[i64]| Edn::Vector(of.iter().map(|number| (*number).into()).collect());
        if let Some(error) = &self.error {
            entries.push(("error", Edn::Text(error.clone())));
        }
        if !self.gaps.is_empty() {
            let gaps = self.gaps.iter().map(|(key, from, to)| numbers(&[*key, *from, *to]));
            entries.push(("gaps", Edn::Vector(gaps.collect())));
        }
        if !self.read_to.is_empty() {
            let read_to = self.read_to.iter().map(|(key, offset)| numbers(&[*key, *offset]));
            entries.push(("read-to", Edn::Vector(read_to.collect())));
        }
        if !self.epochs.is_empty() {
            let epochs =
                self.epochs.iter().map(|(key, from, to, of)| numbers(&[*key, *from, *to, *of]));
            entries.push(("epochs", Edn::Vector(epochs.collect())));
        }
        if !self.stable.is_empty() {
            let stable = self.stable.iter().map(|(key, offset)| numbers(&[*key, *offset]));
            entries.push(("stable", Edn::Vector(stable.collect())));
        }
        if let Some((key, value)) = self.position {
            entries.push(("position", numbers(&[key, value])));
        }
        if let Some(Charge { node, size_bytes, throttle_ms }) = self.charge {
            entries.push(("charge", numbers(&[node, size_bytes, throttle_ms])));
        }
    }
}

/// Collects a history.
pub(crate) struct Recorder {
    start: Instant,
    ops: Mutex<Vec<Op>>,
}

impl Body {
    /// Jepsen's name of it.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Send(_) => "send",
            Self::Poll(_) => "poll",
            Self::Txn(_) => "txn",
            Self::Assign { .. } => "assign",
            Self::Subscribe => "subscribe",
            Self::Assigned { .. } => "assigned",
            Self::Commit { .. } => "commit",
            Self::Committed(_) => "committed",
            Self::Ends(_) => "ends",
            Self::Stable(_) => "stable",
            Self::Lineage { .. } => "lineage",
            Self::Write { .. } => "write",
            Self::Read { .. } => "read",
            Self::CreateTopic { .. } => "create-topic",
            Self::DeleteTopic { .. } => "delete-topic",
            Self::Topics { .. } => "topics",
            Self::Zombie { .. } => "zombie",
            Self::Replay { .. } => "replay",
            Self::Deposed { .. } => "deposed",
            Self::Demand { .. } => "demand",
            Self::Fault { name, .. } => name,
        }
    }

    /// Its parts, if it is about the log.
    pub(crate) fn micros(&self) -> &[Micro] {
        match self {
            Self::Send(micros) | Self::Poll(micros) | Self::Txn(micros) => micros,
            _ => &[],
        }
    }

    fn value(&self) -> Edn {
        let keys = |keys: &[Key]| Edn::Vector(keys.iter().map(|key| Edn::Int(*key)).collect());
        let offsets = |offsets: &BTreeMap<Key, Offset>| {
            Edn::Map(offsets.iter().map(|(k, o)| (Edn::Int(*k), Edn::Int(*o))).collect())
        };
        let known = |value: Option<i64>| value.map_or(Edn::Nil, Edn::Int);
        match self {
            Self::Send(micros) | Self::Poll(micros) | Self::Txn(micros) => {
                Edn::Vector(micros.iter().map(Micro::to_edn).collect())
            }
            Self::Assign { keys: of, .. } => keys(of),
            Self::Subscribe => Edn::Nil,
            Self::Assigned { generation, keys: of } => {
                Edn::Vector(vec![Edn::Int(*generation), keys(of)])
            }
            Self::Commit { generation, offsets: of } => {
                Edn::Vector(vec![Edn::Int(*generation), offsets(of)])
            }
            Self::Committed(of) | Self::Ends(of) => of.as_ref().map_or(Edn::Nil, offsets),
            Self::Stable(of) => of.as_ref().map_or(Edn::Nil, |of| {
                let pair = |(key, (stable, high)): (&Key, &(Offset, Offset))| {
                    let both = vec![Edn::Int(*stable), Edn::Int(*high)];
                    (Edn::Int(*key), Edn::Vector(both))
                };
                Edn::Map(of.iter().map(pair).collect())
            }),
            Self::Lineage { key, epochs } => {
                let pair = |(epoch, end): &(Epoch, Offset)| {
                    Edn::Vector(vec![Edn::Int(*epoch), Edn::Int(*end)])
                };
                let epochs = epochs
                    .as_ref()
                    .map_or(Edn::Nil, |of| Edn::Vector(of.iter().map(pair).collect()));
                Edn::Vector(vec![Edn::Int(*key), epochs])
            }
            Self::Write { key, value } => Edn::Vector(vec![Edn::Int(*key), Edn::Int(*value)]),
            Self::Read { key, value } => Edn::Vector(vec![Edn::Int(*key), known(*value)]),
            Self::CreateTopic { key, id } => {
                Edn::Vector(vec![Edn::Int(*key), id.clone().map_or(Edn::Nil, Edn::Text)])
            }
            Self::DeleteTopic { key } => Edn::Int(*key),
            Self::Topics { node, keys: of } => {
                Edn::Vector(vec![Edn::Int(*node), of.as_ref().map_or(Edn::Nil, |of| keys(of))])
            }
            Self::Zombie { key, offset, value } | Self::Replay { key, offset, value } => {
                Edn::Vector(vec![Edn::Int(*key), known(*offset), Edn::Int(*value)])
            }
            Self::Deposed { key, node, goes_on } => {
                let goes_on = goes_on.map_or(Edn::Nil, Edn::Bool);
                Edn::Vector(vec![Edn::Int(*key), Edn::Int(*node), goes_on])
            }
            Self::Demand { what, met } => {
                Edn::Vector(vec![Edn::Text(what.clone()), met.map_or(Edn::Nil, Edn::Bool)])
            }
            Self::Fault { begins, detail, .. } => {
                let word = if *begins { "begins" } else { "ends" };
                Edn::Vector(vec![keyword(word), Edn::Text(detail.clone())])
            }
        }
    }
}

impl Micro {
    fn to_edn(&self) -> Edn {
        let pair = |offset: &i64, value: &i64| Edn::Vector(vec![(*offset).into(), (*value).into()]);
        match self {
            Self::Send { key, offset, value } => {
                let sent = offset.map_or(Edn::Int(*value), |offset| pair(&offset, value));
                Edn::Vector(vec![keyword("send"), Edn::Int(*key), sent])
            }
            Self::Poll(None) => Edn::Vector(vec![keyword("poll")]),
            Self::Poll(Some(polled)) => {
                let records = |records: &Vec<(Offset, Value)>| {
                    Edn::Vector(records.iter().map(|(o, v)| pair(o, v)).collect())
                };
                let polled = polled.iter().map(|(key, of)| (Edn::Int(*key), records(of)));
                Edn::Vector(vec![keyword("poll"), Edn::Map(polled.collect())])
            }
        }
    }
}

impl Kind {
    const ALL: [Self; 4] = [Self::Invoke, Self::Ok, Self::Fail, Self::Info];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Invoke => "invoke",
            Self::Ok => "ok",
            Self::Fail => "fail",
            Self::Info => "info",
        }
    }
}

impl Op {
    pub(crate) fn to_edn(&self, index: usize) -> Edn {
        let process = match self.process {
            Process::Client(number) => Edn::Int(number),
            Process::Nemesis => keyword("nemesis"),
        };
        let mut entries = vec![
            ("index", Edn::Int(i64::try_from(index).unwrap_or(i64::MAX))),
            ("time", Edn::Int(i64::try_from(self.time.as_nanos()).unwrap_or(i64::MAX))),
            ("type", keyword(self.kind.name())),
            ("process", process),
            ("f", keyword(self.body.name())),
            ("value", self.body.value()),
        ];
        if let Body::Assign { from_beginning: true, .. } = self.body {
            entries.push(("seek-to-beginning?", Edn::Bool(true)));
        }
        self.notes.to_edn(&mut entries);
        Edn::map(entries)
    }
}

impl Recorder {
    pub(crate) fn start() -> Self {
        Self { start: clock::now(), ops: Mutex::default() }
    }

    /// Time since the run began.
    pub(crate) fn time(&self) -> Duration {
        clock::now() - self.start
    }

    pub(crate) fn record(&self, kind: Kind, process: Process, body: Body) {
        self.record_with(kind, process, body, Notes::default());
    }

    pub(crate) fn record_with(&self, kind: Kind, process: Process, body: Body, notes: Notes) {
        let mut ops = self.ops.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock: times ascend.
        let time = self.time();
        ops.push(Op { time, kind, process, body, notes });
    }

    /// Everything so far.
    pub(crate) fn history(&self) -> Vec<Op> {
        self.ops.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Writes a history, one operation a line.
pub(crate) fn save(history: &[Op], file: &Path) -> Result<(), Failure> {
    let write = || {
        let mut to = BufWriter::new(std::fs::File::create(file)?);
        for (index, op) in history.iter().enumerate() {
            writeln!(to, "{}", op.to_edn(index))?;
        }
        to.flush()
    };
    write().map_err(Failure::file(file))
}

/// Reads a history that [`save`] has written.
pub(crate) fn load(file: &Path) -> Result<Vec<Op>, Failure> {
    let text = std::fs::read_to_string(file).map_err(Failure::file(file))?;
    let op = |(number, line): (usize, &str)| {
        read::op(line).map_err(|problem| {
            Failure::Invalid(format!("{} line {}: {problem}", file.display(), number + 1))
        })
    };
    text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(op).collect()
}
