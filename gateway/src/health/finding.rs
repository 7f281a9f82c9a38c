//! A condition as nodes and operators' tools exchange it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

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
    /// What nodes say of one thing that they share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) about: Option<About>,
    /// Partitions that each of the nodes leads and does not serve yet, if it is about that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) opening: Option<usize>,
}

/// One thing of the cluster that several nodes speak of, each in the words of what it sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct About {
    pub(super) subject: String,
    /// How many partitions of the node it stops, if that is counted.
    #[serde(default)]
    pub(super) partitions: usize,
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
            about: condition.about(),
            opening: None,
        }
    }

    /// Adds what another node says of the same thing. The words are those of whom it stops most.
    fn add(&mut self, other: Self) {
        let partitions = |it: &Self| it.about.as_ref().map_or(0, |about| about.partitions);
        let (own, others) = (partitions(self), partitions(&other));
        if others > own {
            self.what = other.what;
        }
        self.nodes.extend(other.nodes);
        if let Some(about) = &mut self.about {
            about.partitions = own + others;
        }
    }

    /// `node` leads so many partitions that it does not serve yet; nothing if it serves all.
    pub(crate) fn opening(node: NodeId, count: usize) -> Option<Self> {
        let noun = if count == 1 { "partition" } else { "partitions" };
        (count > 0).then(|| Self {
            condition: "opening".to_owned(),
            severity: Severity::Threatens.name().to_owned(),
            nodes: vec![node.get()],
            what: format!("{count} {noun} not served yet: the leader reads what the log holds"),
            mend: "wait: those that clients ask for come first".to_owned(),
            about: None,
            opening: Some(count),
        })
    }

    /// What is worse comes first.
    fn rank(&self) -> Severity {
        let all = [Severity::Stops, Severity::Threatens, Severity::Notes];
        all.into_iter().find(|it| it.name() == self.severity).unwrap_or(Severity::Threatens)
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
        match merged.entry((finding.rank(), condition.clone(), what, mend)) {
            Entry::Occupied(mut known) => known.get_mut().add(finding),
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
