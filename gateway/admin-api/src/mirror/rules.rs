//! Rules: which topics are mirrored as they come, and whose committed offsets are carried.

use serde::{Deserialize, Serialize};

use crate::Besides;
use crate::words::words;

words! {
    /// What becomes of a mirror whose source is deleted or recreated.
    Policy {
        /// It stops until an operator decides.
        Stop = "stop",
        /// It is deleted too, or begins anew.
        Follow = "follow",
        /// It becomes a topic of its own.
        Promote = "promote",
    }
}

words! {
    /// What a rule is about.
    Subject {
        /// Topics that are mirrored.
        Topics = "topics",
        /// Groups whose committed offsets are carried.
        Groups = "groups",
    }
}

/// Makes a rule, or changes the one with this pattern. It is about topics or about groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutRule {
    /// The link.
    pub link: String,
    /// Topics whose whole name matches.
    pub topics: Option<String>,
    /// Groups whose whole name matches.
    pub groups: Option<String>,
    /// But not those that match this.
    pub exclude: Option<String>,
    /// What the names of mirrors have before those of their sources.
    #[serde(default)]
    pub prefix: String,
    /// What becomes of a mirror when its source is deleted: it stops, if not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_delete: Option<Policy>,
    /// What becomes of a mirror when its source is recreated: it stops, if not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_recreate: Option<Policy>,
}

/// Forgets a rule, by its pattern or by the mirror that is to begin anew by it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteRule {
    /// The link.
    pub link: String,
    /// As in [`PutRule`].
    pub topics: Option<String>,
    /// As in [`PutRule`].
    pub groups: Option<String>,
    /// The mirror.
    pub mirror: Option<String>,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleReport {
    /// The link.
    pub link: String,
    /// What it is about.
    pub of: Subject,
    /// Those whose whole name matches.
    pub include: String,
    /// But not those that match this.
    pub exclude: Option<String>,
    /// What the names of mirrors have before those of their sources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// The mirror that begins anew, if the rule is only there for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rename: Option<String>,
    /// What becomes of a mirror when its source is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_delete: Option<Policy>,
    /// What becomes of a mirror when its source is recreated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_recreate: Option<Policy>,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}
