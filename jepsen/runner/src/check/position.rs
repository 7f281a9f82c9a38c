//! The position that a transaction commits holds if, and only if, its records are there.
//!
//! That positions are linearizable is checked as for other registers; here those at the end are held
//! against the records at the end.

use std::collections::BTreeMap;

use super::{Anomaly, Facts, Span};
use crate::history::{Body, Key, Micro, Value};

pub(super) fn check(facts: &Facts<'_>) -> Vec<Anomaly> {
    let Some(from) = facts.final_from() else { return Vec::new() };
    let mut last: BTreeMap<Key, (Option<Value>, &Span<'_>)> = BTreeMap::new();
    for span in facts.spans.iter().filter(|span| span.begin > from) {
        if let (Body::Read { key, value }, super::Kind::Ok) = (span.body(), span.kind()) {
            last.insert(*key, (*value, span));
        }
    }
    let mut found = Vec::new();
    for (key, (value, read)) in last {
        let mut of_key = facts.spans.iter().filter_map(|span| {
            let position = span.notes().position.filter(|(register, _)| *register == key)?;
            Some((span, position.1, is_there(facts, span)?))
        });
        // Those of one register come one after the other: each settles what was before it.
        let holding = of_key.rfind(|(_, _, is_there)| *is_there);
        let expected = holding.map(|(_, position, _)| position);
        if expected != value {
            let name = |it: Option<Value>| it.map_or("nothing".to_owned(), |it| it.to_string());
            let text = format!(
                "register {key} is {} at the end, and the last transaction whose records are there \
                 committed {}",
                name(value),
                name(expected)
            );
            let ops = read.ops().chain(holding.iter().flat_map(|(span, ..)| span.ops()));
            found.push(Anomaly::new("torn-txn", text, ops.collect::<Vec<_>>()));
        }
    }
    found
}

/// Whether the records of a transaction were read at the end; `None` if that is not known.
fn is_there(facts: &Facts<'_>, span: &Span<'_>) -> Option<bool> {
    let last = facts.last.as_ref()?;
    let sends = span.invoked.body.micros().iter().filter_map(|micro| match micro {
        Micro::Send { key, value, .. } => Some((key, value)),
        Micro::Poll(_) => None,
    });
    // Whether all of them are is another check.
    let (key, value) = sends.into_iter().next()?;
    Some(last.get(key)?.values().any(|other| other == value))
}

#[cfg(test)]
mod tests {
    use super::super::testing::Script;
    use super::*;
    use crate::history::{Kind, Notes};

    fn txn(script: Script, kind: Kind, value: Value, position: Value) -> Script {
        let notes = Notes { position: Some((1, position)), ..Notes::default() };
        let body = Body::Txn(vec![Micro::Send { key: 5, offset: None, value }]);
        script.op(1, kind, body.clone(), body).noting(&notes)
    }

    fn read(script: Script, value: Option<Value>) -> Script {
        script.op(8, Kind::Ok, Body::Read { key: 1, value: None }, Body::Read { key: 1, value })
    }

    #[test]
    fn positions_go_with_records() {
        let two = || txn(txn(Script::default(), Kind::Ok, 10, 70), Kind::Info, 11, 71);
        read(two().whole(5, &[(0, 10)]), Some(70)).finds(&[]);
        read(two().whole(5, &[(0, 10), (1, 11)]), Some(71)).finds(&[]);
        // Records without their position, and a position without its records.
        read(two().whole(5, &[(0, 10), (1, 11)]), Some(70)).finds(&["torn-txn"]);
        read(two().whole(5, &[(0, 10)]), Some(71)).finds(&["torn-txn"]);
    }

    #[test]
    fn what_was_aborted_has_no_position() {
        let aborted = || txn(Script::default(), Kind::Fail, 10, 70).whole(5, &[]);
        read(aborted(), None).finds(&[]);
        read(aborted(), Some(70)).finds(&["register", "torn-txn"]);
    }

    #[test]
    fn a_committed_position_is_seen_at_once() {
        let script = txn(txn(Script::default(), Kind::Ok, 10, 70), Kind::Ok, 11, 71);
        read(script, Some(70)).finds(&["register"]);
    }
}
