//! A condition as nodes and operators' tools exchange it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use meridian_admin_api::{Besides, cluster};
use meridian_base::id::NodeId;

use super::{Condition, Severity};

/// A condition, in words. What a newer binary finds is passed on by an older one as it is.
pub(crate) use meridian_admin_api::cluster::Condition as Finding;

/// A condition that this node knows. `node` is the one that says so of itself.
pub(crate) fn finding_of(condition: &Condition, node: Option<NodeId>) -> Finding {
    Finding {
        condition: condition.name().to_owned(),
        severity: shown(condition.severity()),
        nodes: node.map(NodeId::get).into_iter().collect(),
        what: condition.to_string(),
        mend: condition.mend(),
        about: condition.about(),
        opening: None,
        besides: Besides::new(),
    }
}

/// `node` leads so many partitions that it does not serve yet; nothing if it serves all.
pub(crate) fn opening(node: NodeId, count: usize) -> Option<Finding> {
    let noun = if count == 1 { "partition" } else { "partitions" };
    (count > 0).then(|| Finding {
        condition: "opening".to_owned(),
        severity: shown(Severity::Threatens),
        nodes: vec![node.get()],
        what: format!("{count} {noun} not served yet: the leader reads what the log holds"),
        mend: "wait: those that clients ask for come first".to_owned(),
        about: None,
        opening: Some(count),
        besides: Besides::new(),
    })
}

fn shown(severity: Severity) -> cluster::Severity {
    match severity {
        Severity::Stops => cluster::Severity::Stops,
        Severity::Threatens => cluster::Severity::Threatens,
        Severity::Notes => cluster::Severity::Notes,
    }
}

/// What is worse comes first.
fn rank(finding: &Finding) -> Severity {
    match finding.severity {
        cluster::Severity::Stops => Severity::Stops,
        cluster::Severity::Notes => Severity::Notes,
        cluster::Severity::Threatens | cluster::Severity::Unknown(_) => Severity::Threatens,
    }
}

/// Adds what another node says of the same thing. The words are those of whom it stops most.
fn add(finding: &mut Finding, other: Finding) {
    let partitions = |it: &Finding| it.about.as_ref().map_or(0, |about| about.partitions);
    let (own, others) = (partitions(finding), partitions(&other));
    if others > own {
        finding.what = other.what;
    }
    finding.nodes.extend(other.nodes);
    if let Some(about) = &mut finding.about {
        about.partitions = own + others;
    }
}

/// Makes one line of what several nodes say in the same words, or of the same thing; what stops writes comes first.
pub(crate) fn merge(findings: impl IntoIterator<Item = Finding>) -> Vec<Finding> {
    let mut merged: BTreeMap<(Severity, String, String, String), Finding> = BTreeMap::new();
    for finding in findings {
        let Finding { condition, what, mend, about, .. } = &finding;
        let (what, mend) = match about {
            Some(about) => (about.subject.clone(), String::new()),
            None => (what.clone(), mend.clone()),
        };
        match merged.entry((rank(&finding), condition.clone(), what, mend)) {
            Entry::Occupied(mut known) => add(known.get_mut(), finding),
            Entry::Vacant(place) => drop(place.insert(finding)),
        }
    }
    let mut merged: Vec<Finding> = merged.into_values().collect();
    for finding in &mut merged {
        finding.nodes.sort_unstable();
        finding.nodes.dedup();
        let partitions = finding.about.as_ref().map_or(0, |about| about.partitions);
        if finding.nodes.len() > 1 && partitions > 0 {
            finding.what += &format!("; {partitions} partitions on {} nodes", finding.nodes.len());
        }
    }
    merged
}
