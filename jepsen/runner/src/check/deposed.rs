//! A leader that was replaced, and is refused by the disks, serves its readers no longer.

use super::{Anomaly, Facts};
use crate::history::{Body, Kind};

pub(super) fn check(facts: &Facts<'_>) -> Vec<Anomaly> {
    let mut found = Vec::new();
    for span in facts.spans.iter().filter(|span| span.kind() == Kind::Ok) {
        if let Body::Deposed { key, node, goes_on: Some(true) } = span.body() {
            let text = format!(
                "node {node} was replaced as the leader of partition {key}, and serves its readers \
                 without what its successor has acknowledged"
            );
            found.push(Anomaly::new("deposed-leader", text, span.ops()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::testing::Script;
    use crate::history::{Body, Kind};

    #[test]
    fn who_was_replaced_must_stop() {
        let deposed = |goes_on| Body::Deposed { key: 5, node: 2, goes_on };
        let script =
            |goes_on| Script::default().op(1, Kind::Ok, deposed(None), deposed(Some(goes_on)));
        script(false).finds(&[]);
        script(true).finds(&["deposed-leader"]);
        Script::default().op(1, Kind::Fail, deposed(None), deposed(None)).finds(&[]);
    }
}
