//! Topics whose mirrors are bound to be near (`mirror.max.lag.ms`), as the leaders of their partitions
//! see it.

use meridian_admin_api::methods::MirrorContracts;
use meridian_admin_api::mirror::{ContractReport, MirrorPosition, Verdict};

use crate::client::{Client, api};
use crate::failure::Failure;

/// What every node says of the partitions that it leads, of one topic or all.
pub(super) async fn contracts(
    client: &Client,
    topic: Option<&str>,
) -> Result<Vec<ContractReport>, Failure> {
    let mut contracts = api::call_all::<MirrorContracts, _>(client).await?;
    contracts.retain(|it| topic.is_none_or(|topic| topic == it.topic));
    contracts.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
    Ok(contracts)
}

/// Whether producers are let in.
pub(super) fn is_kept(contract: &ContractReport) -> bool {
    contract.verdict != Verdict::Refused
}

/// In one line.
pub(super) fn render(contract: &ContractReport) -> String {
    let ContractReport { topic, partition, max_lag_ms, lag_ms, verdict, mirrors, .. } = contract;
    let mirror = |it: &MirrorPosition| {
        let MirrorPosition { cluster, end_offset, heard_ms_ago, .. } = it;
        format!("cluster {cluster} has all before {end_offset}, heard {heard_ms_ago} ms ago")
    };
    let mirrors: Vec<String> = mirrors.iter().map(mirror).collect();
    let mirrors = match mirrors.as_slice() {
        [] => "no mirror was heard of by its leader".to_owned(),
        mirrors => mirrors.join(", "),
    };
    format!(
        "{topic}-{partition} may be {max_lag_ms} ms ahead of its mirrors and is {lag_ms} ms: \
         producers are {verdict}; {mirrors}\n"
    )
}
