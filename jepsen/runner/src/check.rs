//! What a history must not show: one file per invariant, each with histories that it must reject.

mod availability;
pub(crate) mod cost;
mod cycle;
mod demand;
mod deposed;
mod group;
mod held;
mod lineage;
mod log;
mod order;
mod position;
mod quota;
mod reads;
mod recovery;
mod register;
pub(crate) mod scrub;
mod stable;
#[cfg(test)]
mod testing;
mod topics;
mod torn;
mod watermark;
mod zombie;

use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) use availability::Service;
pub(crate) use demand::{AGAIN_WITHIN, Demand, Returns};
pub(crate) use quota::QUOTA_BYTES_PER_S;
pub(crate) use recovery::AfterOverload;

use crate::history::{Body, Key, Kind, Micro, Notes, Offset, Op, Process, Value};
use crate::nemesis;

/// What began the reading of everything.
pub(crate) const FINAL: &str = "final-reads";

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Anomaly {
    /// In Jepsen's words, where it has one.
    pub(crate) kind: &'static str,
    pub(crate) text: String,
    /// The lines of the history that show it.
    pub(crate) ops: Vec<usize>,
}

impl Anomaly {
    fn new(kind: &'static str, text: String, ops: impl IntoIterator<Item = usize>) -> Self {
        let mut ops: Vec<usize> = ops.into_iter().collect();
        ops.sort_unstable();
        ops.dedup();
        Self { kind, text, ops }
    }
}

/// A pair of lines: an operation and how it ended, if it did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span<'a> {
    pub(crate) begin: usize,
    pub(crate) end: Option<usize>,
    pub(crate) invoked: &'a Op,
    pub(crate) completed: Option<&'a Op>,
}

/// A history, and what can be read off it at once.
pub(crate) struct Facts<'a> {
    pub(crate) history: &'a [Op],
    pub(crate) spans: Vec<Span<'a>>,
    /// What was seen at an offset, and by whom: acks and polls.
    pub(crate) seen: BTreeMap<Key, BTreeMap<Offset, BTreeMap<Value, usize>>>,
    /// What was sent, and how that ended.
    pub(crate) sends: BTreeMap<Value, Sent>,
    /// What was read after the faults, by partition; `None` if there was no such reading.
    pub(crate) last: Option<BTreeMap<Key, BTreeMap<Offset, Value>>>,
    /// How far it was read then, as the readers say.
    pub(crate) last_read_to: BTreeMap<Key, Offset>,
    /// The ends that leaders told then.
    pub(crate) last_ends: BTreeMap<Key, Offset>,
}

/// A record on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) key: Key,
    /// The line that began it.
    pub(crate) begin: usize,
    pub(crate) process: Process,
    /// The line that ended it.
    pub(crate) end: Option<usize>,
    pub(crate) outcome: Kind,
    pub(crate) offset: Option<Offset>,
}

impl<'a> Span<'a> {
    fn kind(&self) -> Kind {
        self.completed.map_or(Kind::Info, |op| op.kind)
    }

    /// What it was about, as known at its end.
    fn body(&self) -> &'a Body {
        &self.completed.unwrap_or(self.invoked).body
    }

    /// What else is known of it.
    fn notes(&self) -> &'a Notes {
        &self.completed.unwrap_or(self.invoked).notes
    }

    fn begun_at(&self) -> Duration {
        self.invoked.time
    }

    /// Never, if it may still happen.
    fn ended_at(&self) -> Duration {
        match self.completed {
            Some(op) if op.kind != Kind::Info => op.time,
            _ => Duration::MAX,
        }
    }

    fn ops(&self) -> impl Iterator<Item = usize> {
        [Some(self.begin), self.end].into_iter().flatten()
    }
}

impl<'a> Facts<'a> {
    pub(crate) fn of(history: &'a [Op]) -> Self {
        let spans = spans(history);
        let mut facts = Self {
            history,
            spans,
            seen: BTreeMap::new(),
            sends: BTreeMap::new(),
            last: None,
            last_read_to: BTreeMap::new(),
            last_ends: BTreeMap::new(),
        };
        facts.collect();
        facts
    }

    /// Where the reading of everything begins.
    fn final_from(&self) -> Option<usize> {
        let is_final = |op: &Op| matches!(&op.body, Body::Fault { name, .. } if name == FINAL);
        self.history.iter().position(is_final)
    }

    fn collect(&mut self) {
        let final_from = self.final_from();
        for span in self.spans.clone() {
            let line = span.end.unwrap_or(span.begin);
            let is_final = final_from.is_some_and(|from| span.begin > from);
            let is_txn = matches!(span.invoked.body, Body::Txn(_));
            for (micro, known) in span.invoked.body.micros().iter().zip(span.body().micros()) {
                if let (Micro::Send { key, value, .. }, Micro::Send { offset, .. }) = (micro, known)
                {
                    let sent = Sent {
                        key: *key,
                        begin: span.begin,
                        process: span.invoked.process,
                        end: span.end,
                        outcome: span.kind(),
                        offset: *offset,
                    };
                    self.sends.insert(*value, sent);
                    // The place of a record whose transaction is not committed may hold nothing.
                    let is_visible = span.kind() == Kind::Ok || !is_txn;
                    if let Some(offset) = offset.filter(|_| is_visible) {
                        self.saw(*key, offset, *value, line);
                    }
                }
            }
            if let Body::Replay { key, offset: Some(offset), value } = *span.body() {
                self.saw(key, offset, value, line);
            }
            for micro in span.body().micros() {
                let Micro::Poll(Some(polled)) = micro else { continue };
                for (key, records) in polled {
                    for (offset, value) in records {
                        self.saw(*key, *offset, *value, line);
                        if is_final {
                            let last = self.last.get_or_insert_default();
                            last.entry(*key).or_default().insert(*offset, *value);
                        }
                    }
                }
            }
            if is_final {
                self.last_read_to.extend(span.notes().read_to.iter().copied());
            }
            if let (true, Body::Ends(Some(ends))) = (is_final, span.body()) {
                self.last_ends.extend(ends);
                let last = self.last.get_or_insert_default();
                ends.keys().for_each(|key| {
                    last.entry(*key).or_default();
                });
            }
        }
    }

    fn saw(&mut self, key: Key, offset: Offset, value: Value, line: usize) {
        let values = self.seen.entry(key).or_default().entry(offset).or_default();
        values.entry(value).or_insert(line);
    }
}

/// Pairs the begins of clients' operations with their ends.
fn spans(history: &[Op]) -> Vec<Span<'_>> {
    let mut open: BTreeMap<Process, usize> = BTreeMap::new();
    let mut spans: Vec<Span<'_>> = Vec::new();
    for (index, op) in history.iter().enumerate() {
        if op.process == Process::Nemesis {
            continue;
        }
        if op.kind == Kind::Invoke {
            open.insert(op.process, spans.len());
            spans.push(Span { begin: index, end: None, invoked: op, completed: None });
        } else if let Some(span) = open.remove(&op.process).and_then(|it| spans.get_mut(it)) {
            span.end = Some(index);
            span.completed = Some(op);
        }
    }
    spans
}

/// All that is wrong with what clients saw.
pub(crate) fn anomalies(history: &[Op]) -> Vec<Anomaly> {
    let facts = Facts::of(history);
    let mut all = Vec::new();
    all.extend(log::check(&facts));
    all.extend(order::check(&facts));
    all.extend(reads::check(&facts));
    all.extend(watermark::check(&facts));
    all.extend(zombie::check(&facts));
    all.extend(group::check(&facts));
    all.extend(register::check(&facts));
    all.extend(topics::check(&facts));
    all.extend(torn::check(&facts));
    all.extend(stable::check(&facts));
    all.extend(held::check(&facts));
    all.extend(lineage::check(&facts));
    all.extend(position::check(&facts));
    all.extend(quota::check(&facts));
    all.extend(cycle::check(&facts));
    all.extend(deposed::check(&facts));
    all.extend(demand::check(&facts));
    all
}

/// Where what is decided was held up, though all faults were within the promise.
pub(crate) fn held_too_long(history: &[Op]) -> Vec<Anomaly> {
    held::too_long(&Facts::of(history))
}

/// How service came back after faults, by what is demanded of each, times `slack`.
pub(crate) fn returns(history: &[Op], slack: f64) -> Returns {
    let demands = nemesis::demands();
    demand::returns(&Facts::of(history), |name| demands.get(name).copied(), slack)
}

/// The partitions to which no write succeeded in time after the last fault.
pub(crate) fn not_written_again(history: &[Op]) -> Vec<Anomaly> {
    demand::not_again(&Facts::of(history))
}

/// Whether the cluster is after an overload as it was before.
pub(crate) fn after_overload(history: &[Op]) -> AfterOverload {
    recovery::measure(&Facts::of(history))
}

/// How well the cluster served.
pub(crate) fn service(history: &[Op]) -> Service {
    availability::measure(&Facts::of(history))
}
