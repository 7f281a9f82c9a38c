//! Where a group is: what its members committed last; members of the past commit nothing.

use std::collections::BTreeMap;

use super::{Anomaly, Facts, Span};
use crate::history::{Body, Key, Kind, Offset};

pub(super) fn check(facts: &Facts<'_>) -> Vec<Anomaly> {
    let mut found = Vec::new();
    zombie_commits(facts, &mut found);
    stale_positions(facts, &mut found);
    beyond_the_end(facts, &mut found);
    found
}

/// Commits that count though their generation was over before they began.
fn zombie_commits(facts: &Facts<'_>, found: &mut Vec<Anomaly>) {
    let mut newest: Option<(i64, usize)> = None;
    let mut begun: BTreeMap<usize, Option<(i64, usize)>> = BTreeMap::new();
    let by_end: BTreeMap<usize, &Span<'_>> =
        facts.spans.iter().filter_map(|span| Some((span.end?, span))).collect();
    let begins: BTreeMap<usize, &Span<'_>> =
        facts.spans.iter().map(|span| (span.begin, span)).collect();
    for line in 0..facts.history.len() {
        if begins.contains_key(&line) {
            begun.insert(line, newest);
        }
        let Some(span) = by_end.get(&line).filter(|span| span.kind() == Kind::Ok) else { continue };
        match span.body() {
            Body::Assigned { generation, .. } => {
                newest = newest.max(Some((*generation, line)));
            }
            Body::Commit { generation, .. } => {
                let at_begin = begun.get(&span.begin).copied().flatten();
                if let Some((newer, since)) = at_begin.filter(|(newer, _)| newer > generation) {
                    let text = format!(
                        "a commit of generation {generation} counts, though generation {newer} was \
                         there"
                    );
                    found.push(Anomaly::new("zombie-commit", text, span.ops().chain([since])));
                }
            }
            _ => {}
        }
    }
}

/// Positions that nobody committed, or that were replaced before anybody asked.
fn stale_positions(facts: &Facts<'_>, found: &mut Vec<Anomaly>) {
    let mut commits: BTreeMap<Key, Vec<(Offset, &Span<'_>)>> = BTreeMap::new();
    for span in &facts.spans {
        if let Body::Commit { offsets, .. } = span.body() {
            for (key, offset) in offsets {
                commits.entry(*key).or_default().push((*offset, span));
            }
        }
    }
    for span in facts.spans.iter().filter(|span| span.kind() == Kind::Ok) {
        let Body::Committed(Some(offsets)) = span.body() else { continue };
        for (key, commits) in &commits {
            let counts = |it: &&(Offset, &Span<'_>)| it.1.kind() != Kind::Fail;
            let commits: Vec<_> = commits.iter().filter(counts).collect();
            // A commit that was over before the question began, and replaced whatever ended
            // before it began.
            let is_replaced = |by: &Span<'_>| {
                commits.iter().any(|(_, other)| {
                    other.kind() == Kind::Ok
                        && other.begun_at() > by.ended_at()
                        && other.ended_at() < span.begun_at()
                })
            };
            let candidate = |it: &&&(Offset, &Span<'_>)| {
                it.1.begun_at() < span.ended_at() && !is_replaced(it.1)
            };
            match offsets.get(key) {
                Some(offset) => {
                    let may_be = commits.iter().filter(candidate).any(|(known, _)| known == offset);
                    if !may_be {
                        let text = format!(
                            "the group is at {offset} of partition {key}, where no commit that counts has put it"
                        );
                        found.push(Anomaly::new("stale-position", text, span.ops()));
                    }
                }
                None => {
                    let before = commits
                        .iter()
                        .find(|(_, it)| it.kind() == Kind::Ok && it.ended_at() < span.begun_at());
                    if let Some((offset, commit)) = before {
                        let text = format!(
                            "the group has no position in partition {key}, where {offset} was committed"
                        );
                        found.push(Anomaly::new(
                            "lost-position",
                            text,
                            span.ops().chain(commit.ops()),
                        ));
                    }
                }
            }
        }
    }
}

/// Positions above all records.
fn beyond_the_end(facts: &Facts<'_>, found: &mut Vec<Anomaly>) {
    for span in facts.spans.iter().filter(|span| span.kind() == Kind::Ok) {
        let Body::Committed(Some(offsets)) = span.body() else { continue };
        for (key, offset) in offsets {
            let Some(end) = facts.last_ends.get(key) else { continue };
            if offset > end {
                let text =
                    format!("the group is at {offset} of partition {key}, which ends at {end}");
                found.push(Anomaly::new("position-beyond-end", text, span.ops()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Script;
    use super::*;

    fn commit(generation: i64, offset: Offset) -> Body {
        Body::Commit { generation, offsets: [(5, offset)].into() }
    }

    fn look(script: Script, offset: Option<Offset>) -> Script {
        let offsets = offset.map(|offset| (5, offset)).into_iter().collect();
        script.op(9, Kind::Ok, Body::Committed(None), Body::Committed(Some(offsets)))
    }

    fn committed(script: Script, kind: Kind, generation: i64, offset: Offset) -> Script {
        script.op(1, kind, commit(generation, offset), commit(generation, offset))
    }

    #[test]
    fn the_last_commit_is_what_is_seen() {
        let two = || committed(committed(Script::default(), Kind::Ok, 1, 3), Kind::Ok, 1, 4);
        look(two(), Some(4)).finds(&[]);
        look(two(), Some(3)).finds(&["stale-position"]);
        look(two(), None).finds(&["lost-position"]);
        // In doubt: both may be.
        let doubt = || committed(committed(Script::default(), Kind::Ok, 1, 3), Kind::Info, 1, 4);
        look(doubt(), Some(3)).finds(&[]);
        look(doubt(), Some(4)).finds(&[]);
        // What was refused does not count.
        let refused = committed(committed(Script::default(), Kind::Ok, 1, 3), Kind::Fail, 1, 4);
        look(refused, Some(4)).finds(&["stale-position"]);
    }

    #[test]
    fn commits_of_the_past_are_found() {
        let assigned = Body::Assigned { generation: 2, keys: vec![5] };
        let script = Script::default().op(2, Kind::Ok, assigned.clone(), assigned);
        committed(script, Kind::Ok, 1, 3).finds(&["zombie-commit"]);
        let assigned = Body::Assigned { generation: 2, keys: vec![5] };
        let script = Script::default().op(2, Kind::Ok, assigned.clone(), assigned);
        committed(script, Kind::Ok, 2, 3).finds(&[]);
    }

    #[test]
    fn positions_lie_within_the_log() {
        let script = committed(Script::default(), Kind::Ok, 1, 3);
        look(script, Some(3)).last().ends(9, 5, 2).finds(&["position-beyond-end"]);
    }
}
