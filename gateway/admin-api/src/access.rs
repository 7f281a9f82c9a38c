//! Access rules, and credentials on their way over a link: `access.*`.

use meridian_access::{Credential, ScramHash};
use serde::{Deserialize, Serialize};

use crate::Besides;
use crate::words::words;

words! {
    /// Whether requests are held to the access rules.
    Mode {
        /// Everybody may do everything.
        Off = "off",
        /// Everybody may do everything; what the rules would deny is counted and logged.
        Report = "report",
        /// Users may do what the rules allow.
        Enforce = "enforce",
    }
}

/// What a node says of the mode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModeReport {
    /// The mode.
    pub mode: Mode,
    /// Number of access rules.
    pub rules: usize,
    /// What users have tried at this node since its start, and no rule allows.
    pub denied: u64,
    /// Those that this node's configuration names.
    pub super_users: Vec<String>,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}

/// Sets the mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetMode {
    /// The mode.
    pub mode: Mode,
}

/// Asks how rules decide, whether they are enforced or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Who: `User:shop`.
    pub principal: String,
    /// From which address.
    pub host: String,
    /// By Kafka's name.
    pub operation: String,
    /// By Kafka's name.
    pub resource_type: String,
    /// Its name.
    pub resource: String,
}

words! {
    /// What decides.
    DecidedBy {
        /// The principal is a super user.
        SuperUser = "super-user",
        /// A rule.
        Rule = "rule",
        /// No rule is about the resource, and those are open to everybody.
        OpenResource = "open-resource",
        /// Nothing allows it.
        Nothing = "nothing",
    }
}

/// What is decided while rules are enforced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The decision.
    pub allowed: bool,
    /// Its reason.
    pub decided_by: DecidedBy,
    /// The rule that decides, if one does.
    pub rule: Option<String>,
    /// Whether that holds now.
    pub mode: Mode,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}

/// The credentials of users. **Holds what passwords are checked by.**
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Credentials {
    /// Those that there are.
    pub credentials: Vec<OfUser>,
    /// Users with a credential that the node could not open: it is there, and what it is is not known.
    pub unopened: Vec<Unopened>,
}

/// A credential of a user.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OfUser {
    /// The user's name.
    pub user: String,
    /// What its password is checked by.
    pub credential: Credential,
}

/// A credential that could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unopened {
    /// The user's name.
    pub user: String,
    /// For which mechanism it is.
    pub mechanism: ScramHash,
}
