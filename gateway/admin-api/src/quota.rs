//! What nodes hold of quotas: `quota.*`.

use serde::{Deserialize, Serialize};

use crate::Besides;

/// What one node holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Holdings {
    /// The node.
    pub node: u32,
    /// Whether quotas hold for the whole cluster or for each node: `cluster`, or `broker`.
    pub scope: String,
    /// Of how many entities this node divides the rates.
    pub home_of: usize,
    /// Of the entities that were here in the last seconds.
    pub quotas: Vec<Holding>,
}

/// What a node holds of one entity's quota.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Holding {
    /// Kafka's name.
    pub quota: String,
    /// The user; none if the quota is not one of users.
    pub user: Option<String>,
    /// The client id; none if the quota is not one of client ids.
    pub client_id: Option<String>,
    /// The address; none if the quota is not one of addresses.
    pub ip: Option<String>,
    /// The quota: units in a second.
    pub per_second: f64,
    /// How fast clients may be at this node.
    pub share_per_second: f64,
    /// How long that holds, in milliseconds, if the home has lent it.
    pub lease_ms: Option<u64>,
    /// How fast clients were.
    pub used_per_second: f64,
    /// How fast they would be without it.
    pub demand_per_second: f64,
    /// Units that were used beyond it, and are still to be paid.
    pub debt: f64,
    /// Which node divides the rate; none where each node has all of it.
    pub home: Option<u32>,
    /// Of a newer node.
    #[serde(flatten)]
    pub besides: Besides,
}
