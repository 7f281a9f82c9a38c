//! A topic is there from its creation to its deletion, as every node says in the end; no two have the same
//! id, whatever their names.

use std::collections::BTreeMap;

use super::{Anomaly, Facts, Span};
use crate::history::{Body, Key, Kind};

/// What is known of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    There,
    Absent,
    /// A change is in doubt, and may come yet.
    Unknown,
}

pub(super) fn check(facts: &Facts<'_>) -> Vec<Anomaly> {
    let mut found = Vec::new();
    let mut states: BTreeMap<Key, (State, usize)> = BTreeMap::new();
    let mut ids: BTreeMap<&str, &Span<'_>> = BTreeMap::new();
    for span in &facts.spans {
        let (key, creates, id) = match span.body() {
            Body::CreateTopic { key, id } => (*key, true, id.as_deref()),
            Body::DeleteTopic { key } => (*key, false, None),
            _ => continue,
        };
        if let Some(id) = id
            && let Some(other) = ids.insert(id, span)
        {
            let text = format!("topic {key} has the id of another one: {id}");
            found.push(Anomaly::new("topic-id", text, span.ops().chain(other.ops())));
        }
        let (before, line) = states.get(&key).copied().unwrap_or((State::Absent, span.begin));
        let refusal = span.notes().error.as_deref();
        // What the answer says was there before, and what is there now.
        let (was, is) = match (span.kind(), creates, refusal) {
            (Kind::Ok, true, _) => (State::Absent, State::There),
            (Kind::Ok, false, _) => (State::There, State::Absent),
            (Kind::Fail, true, Some("TopicAlreadyExists")) => (State::There, State::There),
            (Kind::Fail, false, Some("UnknownTopicOrPartition")) => (State::Absent, State::Absent),
            (Kind::Fail, ..) => (before, before),
            (Kind::Info | Kind::Invoke, ..) => (before, State::Unknown),
        };
        if before != was && before != State::Unknown {
            let text = format!("topic {key} was {before:?}, and then was found {was:?}");
            found.push(Anomaly::new("topic", text, span.ops().chain([line])));
        }
        let is = if before == State::Unknown { State::Unknown } else { is };
        states.insert(key, (is, span.end.unwrap_or(span.begin)));
    }
    listings(facts, &states, &mut found);
    found
}

/// What nodes say at the end.
fn listings(facts: &Facts<'_>, states: &BTreeMap<Key, (State, usize)>, found: &mut Vec<Anomaly>) {
    let final_from = facts.final_from().unwrap_or(usize::MAX);
    for span in facts.spans.iter().filter(|span| span.begin > final_from) {
        let Body::Topics { node, keys: Some(keys) } = span.body() else { continue };
        for (key, (state, line)) in states {
            let is_there = keys.contains(key);
            let is_wrong = match state {
                State::There => !is_there,
                State::Absent => is_there,
                State::Unknown => false,
            };
            if is_wrong {
                let text = format!("topic {key} is {state:?}, but not so for node {node}");
                found.push(Anomaly::new("topic", text, span.ops().chain([*line])));
            }
        }
        for key in keys.iter().filter(|key| !states.contains_key(key)) {
            let text = format!("node {node} knows topic {key}, which nobody has created");
            found.push(Anomaly::new("topic", text, span.ops()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Script;
    use super::*;
    use crate::history::Notes;

    fn create(script: Script, kind: Kind, key: Key, id: Option<&str>) -> Script {
        let end = Body::CreateTopic { key, id: id.map(str::to_owned) };
        script.op(1, kind, Body::CreateTopic { key, id: None }, end)
    }

    fn delete(script: Script, kind: Kind, key: Key) -> Script {
        script.op(1, kind, Body::DeleteTopic { key }, Body::DeleteTopic { key })
    }

    fn list(script: Script, keys: &[Key]) -> Script {
        let topics = |keys| Body::Topics { node: 3, keys };
        script.op(2, Kind::Ok, topics(None), topics(Some(keys.to_vec())))
    }

    fn made() -> Script {
        create(Script::default(), Kind::Ok, 1, Some("a"))
    }

    #[test]
    fn what_was_made_is_there_until_it_is_deleted() {
        list(made().last(), &[1]).finds(&[]);
        list(made().last(), &[]).finds(&["topic"]);
        list(delete(made(), Kind::Ok, 1).last(), &[]).finds(&[]);
        list(delete(made(), Kind::Ok, 1).last(), &[1]).finds(&["topic"]);
        list(made().last(), &[1, 2]).finds(&["topic"]);
        // In doubt: both may be.
        list(delete(made(), Kind::Info, 1).last(), &[]).finds(&[]);
        list(delete(made(), Kind::Info, 1).last(), &[1]).finds(&[]);
    }

    #[test]
    fn refusals_say_what_was_there() {
        let refused = |script: Script, why: &str| script.noting(&Notes::error(why.to_owned()));
        let again = |script| refused(create(script, Kind::Fail, 1, None), "TopicAlreadyExists");
        again(made()).finds(&[]);
        again(delete(made(), Kind::Ok, 1)).finds(&["topic"]);
        let gone = |script| refused(delete(script, Kind::Fail, 1), "UnknownTopicOrPartition");
        gone(delete(made(), Kind::Ok, 1)).finds(&[]);
        gone(made()).finds(&["topic"]);
        create(made(), Kind::Ok, 1, Some("b")).finds(&["topic"]);
    }

    #[test]
    fn no_id_comes_twice() {
        create(delete(made(), Kind::Ok, 1), Kind::Ok, 1, Some("b")).finds(&[]);
        create(delete(made(), Kind::Ok, 1), Kind::Ok, 1, Some("a")).finds(&["topic-id"]);
        create(made(), Kind::Ok, 2, Some("a")).finds(&["topic-id"]);
    }
}
