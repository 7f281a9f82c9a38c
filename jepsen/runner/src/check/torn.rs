//! A transaction is seen whole or not at all, and not before it is committed.

use super::{Anomaly, Facts};
use crate::history::{Body, Kind, Micro};

pub(super) fn check(facts: &Facts<'_>) -> Vec<Anomaly> {
    let mut found = Vec::new();
    for span in &facts.spans {
        let Body::Txn(micros) = &span.invoked.body else { continue };
        let (mut there, mut missing) = (Vec::new(), Vec::new());
        for micro in micros {
            let Micro::Send { key, value, .. } = micro else { continue };
            // What was not read whole at the end says nothing of what is missing.
            let Some(last) = facts.last.as_ref().and_then(|last| last.get(key)) else { continue };
            let is_there = last.values().any(|other| other == value);
            if is_there { there.push(*value) } else { missing.push(*value) }
        }
        if !there.is_empty() && !missing.is_empty() {
            let text = format!("of a transaction {there:?} are there, and {missing:?} are not");
            found.push(Anomaly::new("torn-txn", text, span.ops()));
        } else if span.kind() == Kind::Ok && !missing.is_empty() {
            let text = format!("a transaction was committed, and {missing:?} are not there");
            found.push(Anomaly::new("lost-write", text, span.ops()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::testing::Script;
    use super::*;
    use crate::history::{Key, Value};

    fn txn(script: Script, kind: Kind, sends: &[(Key, Value)]) -> Script {
        let micro =
            |(key, value): &(Key, Value)| Micro::Send { key: *key, offset: None, value: *value };
        let body = Body::Txn(sends.iter().map(micro).collect());
        script.op(1, kind, body.clone(), body)
    }

    #[test]
    fn half_a_transaction_is_found() {
        let script = |kind| txn(Script::default(), kind, &[(5, 10), (6, 11)]);
        let both = script(Kind::Ok).whole(5, &[(0, 10)]).whole(6, &[(0, 11)]);
        both.finds(&[]);
        let half = script(Kind::Ok).whole(5, &[(0, 10)]).whole(6, &[]);
        half.finds(&["torn-txn"]);
        let half = script(Kind::Info).whole(5, &[(0, 10)]).whole(6, &[]);
        half.finds(&["torn-txn"]);
        let none = script(Kind::Info).whole(5, &[]).whole(6, &[]);
        none.finds(&[]);
        let none = script(Kind::Ok).whole(5, &[]).whole(6, &[]);
        none.finds(&["lost-write"]);
    }

    #[test]
    fn an_aborted_transaction_is_never_read() {
        let script = txn(Script::default(), Kind::Fail, &[(5, 10)]);
        script.whole(5, &[(0, 10)]).finds(&["G1a"]);
    }
}
