//! The audit of start records, as far as clients see them: what each leader says of the epochs of its log
//! agrees with what all others say, whenever they were asked. A leader that was replaced may know less;
//! nobody knows anything else. What was read was written in the epoch that the log has at its offset.
//!
//! ```text
//!   asked early    0..40 | 1..90            epoch 1 was being written: its end may grow
//!   asked late     0..40 | 1..97 | 4..130   2 and 3 wrote nothing
//! ```

use std::collections::BTreeMap;

use super::{Anomaly, Facts, Span};
use crate::history::{Body, Epoch, Key, Offset};

/// Epochs, and where each ends.
type Told<'a> = &'a [(Epoch, Offset)];

pub(super) fn check(facts: &Facts<'_>) -> Vec<Anomaly> {
    let mut found = Vec::new();
    let mut by_key: BTreeMap<Key, Vec<(Told<'_>, &Span<'_>)>> = BTreeMap::new();
    for span in &facts.spans {
        let Body::Lineage { key, epochs: Some(epochs) } = span.body() else { continue };
        if let Some(text) = disorder(epochs) {
            let text = format!("partition {key}: {text}");
            found.push(Anomaly::new("lineage", text, span.ops()));
            continue;
        }
        by_key.entry(*key).or_default().push((epochs, span));
    }
    let mut newest_of: BTreeMap<Key, (Told<'_>, &Span<'_>)> = BTreeMap::new();
    for (key, answers) in by_key {
        let Some(newest) = answers.iter().max_by_key(|(told, _)| told.last()).copied() else {
            continue;
        };
        newest_of.insert(key, newest);
        for (told, span) in answers {
            if let Some(text) = contradiction(told, newest.0) {
                let text = format!("partition {key}: {text}");
                found.push(Anomaly::new("lineage", text, span.ops().chain(newest.1.ops())));
            }
        }
    }
    for span in &facts.spans {
        for (key, from, to, epoch) in &span.notes().epochs {
            let Some((told, newest)) = newest_of.get(key) else { continue };
            let at = |offset: &Offset| told.iter().find(|(_, end)| offset < end);
            let is_other = |offset| at(offset).filter(|(known, _)| known != epoch);
            if let Some((known, _)) = is_other(from).or_else(|| is_other(to)) {
                let text = format!(
                    "partition {key} was read from {from} to {to} as written in epoch {epoch}, where \
                     the log has epoch {known}"
                );
                found.push(Anomaly::new("lineage", text, span.ops().chain(newest.ops())));
            }
        }
    }
    found
}

/// What is wrong with an answer by itself.
fn disorder(told: Told<'_>) -> Option<String> {
    let bad = told.windows(2).find(|pair| pair[0].0 >= pair[1].0 || pair[0].1 > pair[1].1)?;
    Some(format!("epoch {} ends at {}, and {} at {}", bad[0].0, bad[0].1, bad[1].0, bad[1].1))
}

/// Where an answer says what cannot be if the newest one is right.
fn contradiction(told: Told<'_>, newest: Told<'_>) -> Option<String> {
    let known: BTreeMap<Epoch, Offset> = newest.iter().copied().collect();
    let mut start = 0;
    for (index, (epoch, end)) in told.iter().enumerate() {
        let is_being_written = index + 1 == told.len();
        let agrees = match known.get(epoch) {
            Some(later) if is_being_written => end <= later,
            Some(later) => end == later,
            // Its leader wrote nothing that counted, and that is what was told of it.
            None => *end == start,
        };
        if !agrees {
            let later = known.get(epoch).map_or("unknown".to_owned(), |end| format!("up to {end}"));
            return Some(format!("epoch {epoch} went up to {end}; later it is {later}"));
        }
        start = *end;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Script, polled};
    use super::*;
    use crate::history::{Kind, Micro, Notes};

    fn told(early: Told<'_>, late: Told<'_>) -> Script {
        Script::default().lineage(1, 5, early).lineage(2, 5, late)
    }

    #[test]
    fn epochs_that_are_over_stay_as_they_were() {
        told(&[(0, 40), (1, 90)], &[(0, 40), (1, 97), (4, 130)]).finds(&[]);
        // Who was replaced may be asked late.
        told(&[(0, 40), (1, 97), (4, 130)], &[(0, 40), (1, 90)]).finds(&[]);
        told(&[(0, 40), (1, 90)], &[(0, 41), (1, 97)]).finds(&["lineage"]);
        told(&[(0, 40), (1, 90)], &[(1, 97)]).finds(&["lineage"]);
    }

    #[test]
    fn what_was_told_of_the_last_epoch_counts() {
        // Its leader told an end, its successor cut it off.
        told(&[(0, 40), (1, 90)], &[(0, 40), (1, 89), (2, 95)]).finds(&["lineage"]);
        told(&[(0, 40), (1, 90)], &[(0, 40), (2, 95)]).finds(&["lineage"]);
        told(&[(0, 40), (1, 40)], &[(0, 40), (2, 95)]).finds(&[]);
    }

    #[test]
    fn two_leaders_of_one_epoch_are_found() {
        told(&[(0, 40), (1, 60)], &[(0, 42), (1, 50)]).finds(&["lineage"]);
    }

    #[test]
    fn epochs_ascend() {
        Script::default().lineage(1, 5, &[(1, 4), (0, 9)]).finds(&["lineage"]);
        Script::default().lineage(1, 5, &[(1, 4), (1, 9)]).finds(&["lineage"]);
        Script::default().lineage(1, 5, &[(0, 9), (1, 4)]).finds(&["lineage"]);
    }

    #[test]
    fn what_is_read_is_of_the_log() {
        let read = |run| {
            let notes = Notes { epochs: vec![run], ..Notes::default() };
            let begin = Body::Poll(vec![Micro::Poll(None)]);
            let script = Script::default().op(1, Kind::Ok, begin, polled(5, &[])).noting(&notes);
            script.lineage(2, 5, &[(0, 40), (1, 97), (4, 130)])
        };
        read((5, 30, 39, 0)).finds(&[]);
        read((5, 40, 96, 1)).finds(&[]);
        // Beyond what anybody told.
        read((5, 200, 201, 7)).finds(&[]);
        read((5, 30, 40, 0)).finds(&["lineage"]);
        read((5, 50, 50, 2)).finds(&["lineage"]);
    }
}
