//! While a transaction is open, no leader says that all is decided beyond its first record, and nobody
//! who reads only what is decided is shown it or anything after it.

use std::collections::BTreeMap;

use super::{Anomaly, Facts};
use crate::history::{Body, Key, Kind, Micro, Offset};

pub(super) fn check(facts: &Facts<'_>) -> Vec<Anomaly> {
    let mut found = Vec::new();
    // One that was committed was open until its end: it cannot have been aborted by its coordinator
    // meanwhile.
    for span in facts.spans.iter().filter(|span| span.kind() == Kind::Ok) {
        let Body::Txn(micros) = span.body() else { continue };
        let first = first_offsets(micros);
        for (key, stable) in &span.notes().stable {
            if let Some(open_from) = first.get(key).filter(|first| **first < *stable) {
                let text = format!(
                    "partition {key} was stable up to {stable}, with a transaction open from \
                     {open_from} on"
                );
                found.push(Anomaly::new("unstable", text, span.ops()));
            }
        }
        for micro in micros {
            let Micro::Poll(Some(polled)) = micro else { continue };
            for (key, records) in polled {
                let Some(open_from) = first.get(key) else { continue };
                let beyond = records.iter().find(|(offset, _)| offset >= open_from);
                if let Some((offset, value)) = beyond {
                    let text = format!(
                        "value {value} of partition {key} was read at {offset}, with a transaction \
                         open from {open_from} on"
                    );
                    found.push(Anomaly::new("precommitted-read", text, span.ops()));
                }
            }
        }
    }
    found
}

/// The first record of a transaction in each partition, as far as it is known.
fn first_offsets(micros: &[Micro]) -> BTreeMap<Key, Offset> {
    let mut first: BTreeMap<Key, Offset> = BTreeMap::new();
    for micro in micros {
        if let Micro::Send { key, offset: Some(offset), .. } = micro {
            let known = first.entry(*key).or_insert(*offset);
            *known = (*known).min(*offset);
        }
    }
    first
}

#[cfg(test)]
mod tests {
    use super::super::testing::Script;
    use super::*;
    use crate::history::{Notes, Polled};

    fn send(offset: Option<Offset>) -> Micro {
        Micro::Send { key: 5, offset, value: 10 }
    }

    fn told(stable: Offset) -> Script {
        let notes = Notes { stable: vec![(5, stable)], ..Notes::default() };
        let (begin, end) = (Body::Txn(vec![send(None)]), Body::Txn(vec![send(Some(3))]));
        Script::default().op(1, Kind::Ok, begin, end).noting(&notes)
    }

    #[test]
    fn what_is_stable_ends_before_an_open_transaction() {
        told(3).finds(&[]);
        told(4).finds(&["unstable"]);
    }

    #[test]
    fn nothing_is_read_beyond_an_open_transaction() {
        let read = |records: &[(Offset, i64)]| {
            let polled: Polled = [(5, records.to_vec())].into();
            let begin = Body::Txn(vec![send(None), Micro::Poll(None)]);
            let end = Body::Txn(vec![send(Some(3)), Micro::Poll(Some(polled))]);
            Script::default().acked(2, 5, 2, 9).acked(2, 5, 4, 11).op(1, Kind::Ok, begin, end)
        };
        read(&[(2, 9)]).finds(&[]);
        // Its own record is no better than another's.
        read(&[(3, 10)]).finds(&["precommitted-read"]);
        read(&[(4, 11)]).finds(&["precommitted-read"]);
    }
}
