//! What one producer sends to a partition stays in its order.

use std::collections::BTreeMap;

use super::{Anomaly, Facts};
use crate::history::{Key, Offset, Process, Value};

pub(super) fn check(facts: &Facts<'_>) -> Vec<Anomaly> {
    let place = places(facts);
    // Values ascend in the order in which a worker sends them; a process is one worker.
    let mut latest: BTreeMap<(Process, Key), (Offset, Value)> = BTreeMap::new();
    let mut order: Vec<_> = facts.sends.iter().collect();
    order.sort_by_key(|(value, sent)| (sent.begin, **value));
    let mut found = Vec::new();
    for (value, sent) in order {
        let Some(offset) = place.get(&(sent.key, *value)) else { continue };
        let before = latest.insert((sent.process, sent.key), (*offset, *value));
        if let Some((earlier, other)) = before.filter(|(earlier, _)| earlier > offset) {
            let text = format!(
                "in partition {} value {other} is at {earlier}, and {value}, which was sent later, \
                 at {offset}",
                sent.key
            );
            let first = facts.sends.get(&other).map(|it| it.begin);
            let ops = [Some(sent.begin), first].into_iter().flatten();
            found.push(Anomaly::new("nonmonotonic-send", text, ops));
        }
    }
    found
}

/// Where each value is, as far as anybody knows.
fn places(facts: &Facts<'_>) -> BTreeMap<(Key, Value), Offset> {
    let mut places = BTreeMap::new();
    for (key, offsets) in &facts.seen {
        for (offset, values) in offsets {
            for value in values.keys() {
                places.entry((*key, *value)).or_insert(*offset);
            }
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::super::testing::Script;
    use crate::history::{Body, Kind, Micro};

    #[test]
    fn later_sends_have_higher_offsets() {
        Script::default().acked(1, 5, 0, 10).acked(1, 5, 1, 11).finds(&[]);
        Script::default().acked(1, 5, 1, 10).acked(1, 5, 0, 11).finds(&["nonmonotonic-send"]);
        // Others may come in between.
        Script::default().acked(1, 5, 1, 10).acked(2, 5, 0, 11).finds(&[]);
    }

    #[test]
    fn the_order_within_one_operation_counts() {
        let send = |offsets: [Option<i64>; 2]| {
            let micro = |(value, offset)| Micro::Send { key: 5, offset, value };
            Body::Send((10..).zip(offsets).map(micro).collect())
        };
        let none = send([None, None]);
        let wrong = send([Some(1), Some(0)]);
        Script::default().op(1, Kind::Ok, none, wrong).finds(&["nonmonotonic-send"]);
    }
}
