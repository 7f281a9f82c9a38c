//! Links to source clusters, and what the links of other clusters may take from this one: `link.*`.

use std::collections::BTreeMap;
use std::ops::Not;

use serde::{Deserialize, Serialize};

use crate::Besides;
use crate::words::words;

/// Creates a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Create {
    /// Its name.
    pub link: String,
    /// Brokers of the source, `host:port,...`.
    pub bootstrap: String,
    /// Most bytes a second that each node pulls over it.
    pub bytes_per_second_max: Option<u64>,
    /// By the names of Kafka's clients; `None` takes one away.
    #[serde(default)]
    pub options: BTreeMap<String, Option<String>>,
}

/// Changes a link. What is not given stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alter {
    /// Its name.
    pub link: String,
    /// Other brokers of the source.
    pub bootstrap: Option<String>,
    /// Most bytes a second that each node pulls over it; 0 lifts the cap.
    pub bytes_per_second_max: Option<u64>,
    /// Whether nothing is pulled over it.
    pub is_paused: Option<bool>,
    /// By the names of Kafka's clients; `None` takes one away.
    #[serde(default)]
    pub options: BTreeMap<String, Option<String>>,
}

/// A link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    /// Its name.
    pub link: String,
    /// Brokers of the source, `host:port,...`.
    pub bootstrap: String,
    /// The cluster that it is to.
    pub source_cluster: String,
    /// Most bytes a second that each node pulls over it.
    pub bytes_per_second_max: Option<u64>,
    /// Whether an operator has it rest.
    pub is_paused: bool,
    /// Topics that follow over it.
    pub mirrors: usize,
    /// How long a failover waits for the source's lease to end.
    #[serde(default)]
    pub promotion_waits_ms: Option<u64>,
    /// Without secrets.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// Access rules here that the link has set.
    #[serde(default)]
    pub carried_rules: usize,
    /// Credentials of users here that the link has set.
    #[serde(default)]
    pub carried_users: usize,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}

/// What has come over a link to one node since its work on it began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// The link.
    pub link: String,
    /// The node.
    pub node: u32,
    /// Bytes of batches.
    pub fetched_bytes: u64,
    /// Bytes that these took on the wire.
    pub wire_bytes: u64,
}

words! {
    /// What came of connecting to a broker.
    Reached {
        /// It answers.
        Ok = "ok",
    }
    /// Why it can't be reached.
    else Failed
}

/// What came of connecting to every broker of a source from one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TestReport {
    /// The link.
    pub link: String,
    /// The cluster that answers.
    pub source_cluster: String,
    /// Whether that is the cluster that the link is to.
    pub is_expected_cluster: bool,
    /// Its brokers.
    pub brokers: Vec<BrokerReport>,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}

/// A broker of a source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BrokerReport {
    /// Its id.
    pub id: i32,
    /// Where it is.
    pub address: String,
    /// Whether it answers.
    pub result: Reached,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}

words! {
    /// What becomes of a link's secrets.
    Resealed {
        /// They are sealed under the key of now.
        Sealed = "sealed",
        /// They were already.
        AsItWas = "as it was",
    }
    /// Why they can't be sealed.
    else Failed
}

/// What becomes of the secrets of a link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResealReport {
    /// The link.
    pub link: String,
    /// What becomes of them.
    pub result: Resealed,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}

/// Grants rights to the link of another cluster, in place of those that it had.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allow {
    /// The name in its certificate.
    pub link: String,
    /// Topics whose records and configs it may read: a regular expression over whole names.
    pub topics: Option<String>,
    /// Groups whose committed offsets it may read: a regular expression over whole names.
    pub groups: Option<String>,
    /// Whether it may read the quotas of clients.
    #[serde(default)]
    pub quotas: bool,
    /// Whether it may take over the topics.
    #[serde(default)]
    pub switchover: bool,
    /// Whether it may read the access rules about these topics and groups.
    #[serde(default)]
    pub acls: bool,
    /// Whether it may read what the passwords of users are checked by.
    #[serde(default)]
    pub users: bool,
}

/// What the link of another cluster may do here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GrantReport {
    /// The name in its certificate.
    pub link: String,
    /// As in [`Allow`].
    pub topics: Option<String>,
    /// As in [`Allow`].
    pub groups: Option<String>,
    /// As in [`Allow`].
    pub quotas: bool,
    /// As in [`Allow`].
    pub switchover: bool,
    /// As in [`Allow`].
    #[serde(default, skip_serializing_if = "Not::not")]
    pub acls: bool,
    /// As in [`Allow`].
    #[serde(default, skip_serializing_if = "Not::not")]
    pub users: bool,
    /// Why the link may do nothing though it has a grant.
    pub unusable: Option<String>,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}
