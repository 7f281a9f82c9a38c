//! A condition as nodes and operators' tools exchange it.

use std::collections::BTreeMap;

use meridian_base::id::NodeId;
use serde::{Deserialize, Serialize};

use super::{Condition, Severity};

/// A condition, in words. What a newer binary finds is passed on by an older one as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Finding {
    /// Its name.
    pub(crate) condition: String,
    /// `stops`, `threatens` or `notes`.
    pub(crate) severity: String,
    /// The nodes that say so of themselves; none if it is said of the cluster.
    #[serde(default)]
    pub(crate) nodes: Vec<u32>,
    /// What it is.
    pub(crate) what: String,
    /// What an operator does about it.
    pub(crate) mend: String,
}

impl Finding {
    /// `node` is the one that says so of itself.
    pub(crate) fn of(condition: &Condition, node: Option<NodeId>) -> Self {
        Self {
            condition: condition.name().to_owned(),
            severity: condition.severity().name().to_owned(),
            nodes: node.map(NodeId::get).into_iter().collect(),
            what: condition.to_string(),
            mend: condition.mend(),
        }
    }

    /// What is worse comes first.
    fn rank(&self) -> Severity {
        let all = [Severity::Stops, Severity::Threatens, Severity::Notes];
        all.into_iter().find(|it| it.name() == self.severity).unwrap_or(Severity::Threatens)
    }
}

/// Makes one line of what several nodes say in the same words; what stops writes comes first.
pub(crate) fn merge(findings: impl IntoIterator<Item = Finding>) -> Vec<Finding> {
    let mut merged: BTreeMap<(Severity, String, String, String), Finding> = BTreeMap::new();
    for finding in findings {
        let Finding { condition, what, mend, .. } = &finding;
        let key = (finding.rank(), condition.clone(), what.clone(), mend.clone());
        match merged.get_mut(&key) {
            Some(known) => known.nodes.extend(finding.nodes),
            None => drop(merged.insert(key, finding)),
        }
    }
    let mut merged: Vec<Finding> = merged.into_values().collect();
    for finding in &mut merged {
        finding.nodes.sort_unstable();
        finding.nodes.dedup();
    }
    merged
}
