//! No circle of transactions of which each has read what the one before wrote (Adya's G1c, without the
//! order of writes: Kafka does not promise that one).

use std::collections::BTreeMap;

use super::{Anomaly, Facts, Span};
use crate::history::{Body, Kind, Micro, Value};

pub(super) fn check(facts: &Facts<'_>) -> Vec<Anomaly> {
    let is_txn =
        |span: &&Span<'_>| matches!(span.invoked.body, Body::Txn(_)) && span.kind() != Kind::Fail;
    let spans: Vec<&Span<'_>> = facts.spans.iter().filter(is_txn).collect();
    let mut writer: BTreeMap<Value, usize> = BTreeMap::new();
    for (number, span) in spans.iter().enumerate() {
        for micro in span.invoked.body.micros() {
            if let Micro::Send { value, .. } = micro {
                writer.insert(*value, number);
            }
        }
    }
    // Whom each has read from. One in doubt has read what it has read; it counts if it is read itself.
    let read_from: Vec<Vec<usize>> = spans
        .iter()
        .enumerate()
        .map(|(number, span)| {
            let polled = span.body().micros().iter().filter_map(|micro| match micro {
                Micro::Poll(Some(polled)) => Some(polled),
                _ => None,
            });
            let values = polled.flat_map(|polled| polled.values().flatten());
            let mut from: Vec<usize> =
                values.filter_map(|(_, value)| writer.get(value).copied()).collect();
            from.sort_unstable();
            from.dedup();
            // What it wrote itself is another anomaly.
            from.retain(|other| *other != number);
            from
        })
        .collect();
    circle(&read_from).map_or_else(Vec::new, |circle| {
        let text = format!("{} transactions in a circle have read from each other", circle.len());
        let ops = circle.iter().filter_map(|number| spans.get(*number)).flat_map(|it| it.ops());
        vec![Anomaly::new("G1c", text, ops)]
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    New,
    OnPath,
    Done,
}

/// A circle in a graph, given by the successors of each node, if there is one.
fn circle(next: &[Vec<usize>]) -> Option<Vec<usize>> {
    let mut marks = vec![Mark::New; next.len()];
    for root in 0..next.len() {
        if marks[root] != Mark::New {
            continue;
        }
        // The path so far, with how many successors of each node were looked at.
        let mut path = vec![(root, 0)];
        marks[root] = Mark::OnPath;
        while let Some((node, looked_at)) = path.last_mut() {
            let Some(successor) = next[*node].get(*looked_at).copied() else {
                marks[*node] = Mark::Done;
                path.pop();
                continue;
            };
            *looked_at += 1;
            match marks[successor] {
                Mark::New => {
                    marks[successor] = Mark::OnPath;
                    path.push((successor, 0));
                }
                Mark::OnPath => {
                    let nodes = path.iter().map(|(node, _)| *node);
                    return Some(nodes.skip_while(|node| *node != successor).collect());
                }
                Mark::Done => {}
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::testing::Script;
    use super::*;
    use crate::history::Polled;

    /// Sends a value to a partition of its own, and reads one of another.
    fn txn(script: Script, process: i64, kind: Kind, sent: Value, read: Value) -> Script {
        let send = |offset| Micro::Send { key: sent, offset, value: sent };
        let polled: Polled = [(read, vec![(0, read)])].into();
        let begin = Body::Txn(vec![send(None), Micro::Poll(None)]);
        let end = Body::Txn(vec![send(Some(0)), Micro::Poll(Some(polled))]);
        script.op(process, kind, begin, end)
    }

    #[test]
    fn circles_are_found() {
        let chain =
            txn(txn(Script::default().acked(9, 7, 0, 7), 1, Kind::Ok, 10, 7), 2, Kind::Ok, 11, 10);
        chain.finds(&[]);
        let two = txn(txn(Script::default(), 1, Kind::Ok, 10, 11), 2, Kind::Ok, 11, 10);
        two.finds(&["G1c"]);
        let three = txn(Script::default(), 1, Kind::Ok, 10, 12);
        txn(txn(three, 2, Kind::Ok, 11, 10), 3, Kind::Ok, 12, 11).finds(&["G1c"]);
    }

    #[test]
    fn graphs_without_circles_have_none() {
        assert_eq!(circle(&[vec![1, 2], vec![2], vec![], vec![0]]), None);
        assert_eq!(circle(&[vec![1], vec![2], vec![1]]), Some(vec![1, 2]));
    }
}
