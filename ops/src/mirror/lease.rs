//! Topics that are written to under a lease of their mirror's cluster only (`lease.ms` of its link), as
//! the leaders of their partitions see it.

use meridian_admin_api::methods::MirrorLeases;
use meridian_admin_api::mirror::{LeaseReport, LeaseState};

use crate::client::{Client, api};
use crate::failure::Failure;

/// What every node says of the partitions that it leads, of one topic or all.
pub(super) async fn leases(
    client: &Client,
    topic: Option<&str>,
) -> Result<Vec<LeaseReport>, Failure> {
    let mut leases = api::call_all::<MirrorLeases, _>(client).await?;
    leases.retain(|it| topic.is_none_or(|topic| topic == it.topic));
    leases.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
    Ok(leases)
}

/// Whether producers are let in.
pub(super) fn is_held(lease: &LeaseReport) -> bool {
    lease.state == LeaseState::Held
}

/// In one line.
pub(super) fn render(lease: &LeaseReport) -> String {
    let LeaseReport { topic, partition, cluster, state, left_ms, missing_ms, .. } = lease;
    if is_held(lease) {
        let left_ms = left_ms.unwrap_or_default();
        return format!("{topic}-{partition}: {state}, of cluster {cluster}, for {left_ms} ms\n");
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
