//! Histories in a few words, for tests of checkers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Anomaly, FINAL};
use crate::history::{Body, Epoch, Key, Kind, Micro, Notes, Offset, Op, Process, Value};

/// Writes a history line by line.
#[derive(Default)]
pub(super) struct Script {
    pub(super) ops: Vec<Op>,
}

pub(super) fn polled(key: Key, records: &[(Offset, Value)]) -> Body {
    Body::Poll(vec![Micro::Poll(Some([(key, records.to_vec())].into()))])
}

impl Script {
    pub(super) fn line(mut self, process: i64, kind: Kind, body: Body) -> Self {
        let time = Duration::from_millis(1 + self.ops.len() as u64);
        let process = Process::Client(process);
        self.ops.push(Op { time, kind, process, body, notes: Notes::default() });
        self
    }

    /// A begin and, at once, its end.
    pub(super) fn op(self, process: i64, kind: Kind, begin: Body, end: Body) -> Self {
        self.line(process, Kind::Invoke, begin).line(process, kind, end)
    }

    pub(super) fn acked(self, process: i64, key: Key, offset: Offset, value: Value) -> Self {
        self.sent(process, Kind::Ok, key, Some(offset), value)
    }

    pub(super) fn sent(
        self,
        process: i64,
        kind: Kind,
        key: Key,
        offset: Option<Offset>,
        value: Value,
    ) -> Self {
        let send = |offset| Body::Send(vec![Micro::Send { key, offset, value }]);
        self.op(process, kind, send(None), send(offset))
    }

    pub(super) fn poll(self, process: i64, key: Key, records: &[(Offset, Value)]) -> Self {
        self.op(process, Kind::Ok, Body::Poll(vec![Micro::Poll(None)]), polled(key, records))
    }

    pub(super) fn assign(self, process: i64, key: Key) -> Self {
        let body = Body::Assign { keys: vec![key], from_beginning: true };
        self.op(process, Kind::Ok, body.clone(), body)
    }

    pub(super) fn ends(self, process: i64, key: Key, end: Offset) -> Self {
        let ends: BTreeMap<Key, Offset> = [(key, end)].into();
        self.op(process, Kind::Ok, Body::Ends(None), Body::Ends(Some(ends)))
    }

    pub(super) fn stable(self, process: i64, key: Key, told: (Offset, Offset)) -> Self {
        let told: BTreeMap<Key, (Offset, Offset)> = [(key, told)].into();
        self.op(process, Kind::Ok, Body::Stable(None), Body::Stable(Some(told)))
    }

    pub(super) fn lineage(self, process: i64, key: Key, epochs: &[(Epoch, Offset)]) -> Self {
        let body = |epochs| Body::Lineage { key, epochs };
        self.op(process, Kind::Ok, body(None), body(Some(epochs.to_vec())))
    }

    /// From here on everything is read.
    pub(super) fn last(self) -> Self {
        self.fault(FINAL, "")
    }

    /// A fault begins.
    pub(super) fn fault(mut self, name: &str, detail: &str) -> Self {
        let (name, detail) = (name.to_owned(), detail.to_owned());
        self = self.line(0, Kind::Info, Body::Fault { name, begins: true, detail });
        if let Some(op) = self.ops.last_mut() {
            op.process = Process::Nemesis;
        }
        self
    }

    /// Everything of a partition is read, and its end told.
    pub(super) fn whole(self, key: Key, records: &[(Offset, Value)]) -> Self {
        let end = records.last().map_or(0, |(offset, _)| offset + 1);
        self.last().assign(90, key).ends(90, key, end).poll(90, key, records)
    }

    pub(super) fn anomalies(&self) -> Vec<Anomaly> {
        super::anomalies(&self.ops)
    }

    /// What else is known of the last operation, at its begin and at its end.
    pub(super) fn noting(mut self, notes: &Notes) -> Self {
        self.ops.iter_mut().rev().take(2).for_each(|op| op.notes.clone_from(notes));
        self
    }

    /// The kinds found must be these.
    pub(super) fn finds(&self, expected: &[&str]) {
        let found = self.anomalies();
        let kinds: BTreeSet<&str> = found.iter().map(|anomaly| anomaly.kind).collect();
        assert_eq!(kinds, expected.iter().copied().collect(), "{found:?}");
    }
}
