//! Topics that are written to under a lease of their mirror's cluster only (`lease.ms` of its link), as
//! the leaders of their partitions see it.

use serde::{Deserialize, Serialize};

use super::from_all_nodes;
use crate::client::Client;
use crate::failure::Failure;

/// How the lease of a partition is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Lease {
    pub(super) topic: String,
    partition: u32,
    cluster: String,
    /// `lease-held` or `lease-missing`.
    state: String,
    left_ms: Option<u64>,
    missing_ms: Option<u64>,
}

/// What every node says of the partitions that it leads, of one topic or all.
pub(super) async fn leases(client: &Client, topic: Option<&str>) -> Result<Vec<Lease>, Failure> {
    let mut leases = Vec::new();
    for said in from_all_nodes(client, "mirror.leases").await? {
        let lease: Lease = serde_json::from_value(said).map_err(|error| {
            Failure::Invalid(format!("mirror.leases is not of this version: {error}"))
        })?;
        if topic.is_none_or(|topic| topic == lease.topic) {
            leases.push(lease);
        }
    }
    leases.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
    Ok(leases)
}

impl Lease {
    /// Whether producers are let in.
    pub(super) fn is_held(&self) -> bool {
        self.state == "lease-held"
    }

    /// In one line.
    pub(super) fn render(&self) -> String {
        let Self { topic, partition, cluster, state, left_ms, missing_ms } = self;
        if self.is_held() {
            let left_ms = left_ms.unwrap_or_default();
            return format!(
                "{topic}-{partition}: {state}, of cluster {cluster}, for {left_ms} ms\n"
            );
        }
        let since = missing_ms.map_or_else(
            || "its leader never had one".to_owned(),
            |missing_ms| format!("it ended {missing_ms} ms ago"),
        );
        format!(
            "{topic}-{partition}: {state}, {since}: producers are refused until the mirror of cluster \
             {cluster} is heard of (`meridian mirror status {topic}` there; `meridian link test`). If it \
             was promoted, `meridian mirror rejoin {topic} --link LINK` here; if it is gone for good and was not, \
             `meridian mirror drop-lease {topic}` here\n"
        )
    }
}
