//! A producer whose epoch is over writes nothing; a batch that is repeated keeps its place.

use super::{Anomaly, Facts, log};
use crate::history::{Body, Kind};

pub(super) fn check(facts: &Facts<'_>) -> Vec<Anomaly> {
    let mut found = Vec::new();
    let zombies = log::fenced(facts);
    for (key, offsets) in &facts.seen {
        for (offset, values) in offsets {
            for (value, line) in values {
                if let Some(sent) = zombies.get(value) {
                    let text =
                        format!("value {value} of a zombie is in partition {key} at {offset}");
                    found.push(Anomaly::new("zombie-write", text, [*line, *sent]));
                }
            }
        }
    }
    for span in facts.spans.iter().filter(|span| span.kind() == Kind::Ok) {
        match *span.body() {
            Body::Zombie { key, offset, value } => {
                let text = format!(
                    "value {value} of a zombie was acknowledged in partition {key} at {offset:?}"
                );
                found.push(Anomaly::new("zombie-ack", text, span.ops()));
            }
            Body::Replay { key, offset: Some(offset), value } => {
                let sent = facts.sends.get(&value);
                let first = sent.and_then(|sent| sent.offset);
                if let (Some(sent), Some(first)) = (sent, first.filter(|first| *first != offset)) {
                    let text = format!(
                        "value {value} was acknowledged in partition {key} at {first}, and again \
                         at {offset}"
                    );
                    let ops = span.ops().chain([sent.begin]);
                    found.push(Anomaly::new("replay-moved", text, ops));
                }
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::testing::Script;
    use crate::history::{Body, Kind};

    #[test]
    fn zombies_are_found() {
        let zombie = |offset| Body::Zombie { key: 5, offset, value: 11 };
        let script = |kind, offset| {
            Script::default().acked(1, 5, 0, 10).op(1, kind, zombie(None), zombie(offset))
        };
        script(Kind::Fail, None).whole(5, &[(0, 10)]).finds(&[]);
        script(Kind::Ok, Some(1)).finds(&["zombie-ack"]);
        script(Kind::Info, None).whole(5, &[(0, 10), (1, 11)]).finds(&["zombie-write"]);
    }

    #[test]
    fn a_repeated_batch_keeps_its_offset() {
        let replay = |offset| Body::Replay { key: 5, offset, value: 10 };
        let script = |offset| {
            let script = Script::default().acked(1, 5, 0, 10);
            script.op(1, Kind::Ok, replay(None), replay(Some(offset)))
        };
        script(0).finds(&[]);
        script(1).finds(&["duplicate", "replay-moved"]);
    }
}
