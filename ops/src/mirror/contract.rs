//! Topics whose mirrors are bound to be near (`mirror.max.lag.ms`), as the leaders of their partitions
//! see it.

use serde::{Deserialize, Serialize};

use super::from_all_nodes;
use crate::client::Client;
use crate::failure::Failure;

/// How far the mirrors of a partition are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Contract {
    pub(super) topic: String,
    partition: u32,
    max_lag_ms: u64,
    lag_ms: u64,
    /// `free`, `throttled` or `refused`.
    verdict: String,
    mirrors: Vec<Position>,
}

/// What a mirror has told.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Position {
    cluster: String,
    end_offset: i64,
    heard_ms_ago: u64,
}

/// What every node says of the partitions that it leads, of one topic or all.
pub(super) async fn contracts(
    client: &Client,
    topic: Option<&str>,
) -> Result<Vec<Contract>, Failure> {
    let mut contracts = Vec::new();
    for said in from_all_nodes(client, "mirror.contracts").await? {
        let contract: Contract = serde_json::from_value(said).map_err(|error| {
            Failure::Invalid(format!("mirror.contracts is not of this version: {error}"))
        })?;
        if topic.is_none_or(|topic| topic == contract.topic) {
            contracts.push(contract);
        }
    }
    contracts.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
    Ok(contracts)
}

impl Contract {
    /// Whether producers are let in.
    pub(super) fn is_kept(&self) -> bool {
        self.verdict != "refused"
    }

    /// In one line.
    pub(super) fn render(&self) -> String {
        let Self { topic, partition, max_lag_ms, lag_ms, verdict, mirrors } = self;
        let mirror = |it: &Position| {
            let Position { cluster, end_offset, heard_ms_ago } = it;
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
}
