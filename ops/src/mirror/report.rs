//! The state of mirrors, gathered from all nodes: each knows of the partitions that it leads.

use std::collections::BTreeMap;

use bytes::Bytes;
use meridian_protocol::messages::MeridianAdminRequest;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::switchover::Standing;
use crate::client::{Client, ClientError, Lane, REQUEST_TIMEOUT, admin};
use crate::failure::Failure;
use crate::output::{self, Table};

/// A partition's state while the node that leads it has not said anything of it.
const STARTING: &str = "starting";
/// The state of a promoted mirror whose source takes records as well.
const BOTH_PROMOTED: &str = "both-promoted";
const BOTH_PROMOTED_ADVICE: &str = "nothing is merged: stop the producers of the side with the lower \
                                    link epoch, see docs/operators.md, Change sides";
/// States in which nothing is wrong.
const WELL: [&str; 6] = [STARTING, "verifying", "catching-up", "mirroring", "paused", "promoted"];

/// What `mirror status` shows.
#[derive(Debug, Serialize)]
pub(super) struct Status {
    mirrors: Vec<MirrorStatus>,
    /// By link: how many positions of groups are in which state.
    groups: BTreeMap<String, String>,
}

/// One mirror and its partitions.
#[derive(Debug, Serialize)]
struct MirrorStatus {
    topic: String,
    link: String,
    stage: String,
    partitions: Vec<PartitionStatus>,
}

/// One partition, as the node that mirrors it says.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct PartitionStatus {
    topic: String,
    partition: u32,
    state: String,
    reason: String,
    advice: Option<String>,
    end_offset: Option<i64>,
    source_end_offset: Option<i64>,
    #[serde(default)]
    source_seen_ms_ago: Option<u64>,
    lag_records: u64,
    lag_bytes: u64,
    lag_ms: u64,
    /// What a newer server says besides.
    #[serde(flatten)]
    more: BTreeMap<String, Value>,
}

impl Status {
    /// Asks all nodes for one mirror, or for all.
    pub(super) async fn ask(client: &Client, topic: Option<&str>) -> Result<Self, Failure> {
        let mirrors = admin::call(client, "mirror.list", &json!({})).await?;
        let mirrors = mirrors.as_array().map(Vec::as_slice).unwrap_or_default();
        let wanted = mirrors.iter().filter(|it| topic.is_none_or(|topic| it["topic"] == topic));
        let wanted: Vec<&Value> = wanted.collect();
        if let (Some(topic), []) = (topic, wanted.as_slice()) {
            return Err(Failure::Invalid(format!(
                "topic {topic} is no mirror; `meridian mirror list` shows which are"
            )));
        }
        let reports = reports(client).await?;
        let mut mirrors: Vec<_> = wanted.into_iter().map(|it| joined(it, &reports)).collect();
        for mirror in mirrors.iter_mut().filter(|mirror| mirror.stage == "promoted") {
            mirror.compare(client).await;
        }
        let mut groups: BTreeMap<_, _> =
            super::groups::summary(&super::groups::stewards(client).await?).into_iter().collect();
        groups.retain(|link, _| mirrors.iter().any(|mirror| mirror.link == *link));
        Ok(Self { mirrors, groups })
    }

    /// What keeps these mirrors from being switched over.
    pub(super) fn obstacles(&self) -> Vec<String> {
        let follows = |it: &&PartitionStatus| {
            matches!(it.state.as_str(), "mirroring" | "catching-up" | "verifying")
        };
        let others = self.partitions().filter(|it| !follows(it));
        others
            .map(|it| format!("{}-{} is {}: {}", it.topic, it.partition, it.state, it.reason))
            .collect()
    }

    /// Records that are missing, and for how long in milliseconds.
    pub(super) fn lag(&self) -> (u64, u64) {
        let records = self.partitions().map(|it| it.lag_records).sum();
        (records, self.partitions().map(|it| it.lag_ms).max().unwrap_or(0))
    }

    /// The link of the first of these mirrors.
    pub(super) fn link(&self) -> &str {
        self.mirrors.first().map_or("", |mirror| &mirror.link)
    }

    /// Where the partitions end here, as far as that is known.
    pub(super) fn ends(&self) -> BTreeMap<u32, i64> {
        self.partitions().filter_map(|it| Some((it.partition, it.end_offset?))).collect()
    }

    /// Whether nothing has stopped and every source answers.
    pub(super) fn is_well(&self) -> bool {
        self.partitions().all(|partition| WELL.contains(&partition.state.as_str()))
    }

    fn partitions(&self) -> impl Iterator<Item = &PartitionStatus> {
        self.mirrors.iter().flat_map(|mirror| &mirror.partitions)
    }

    /// As a table, and below it what to do.
    pub(super) fn render(&self) -> String {
        let header = [
            "TOPIC",
            "LINK",
            "PARTITION",
            "STATE",
            "END",
            "SOURCE END",
            "LAG",
            "LAG BYTES",
            "LAG MS",
        ];
        let mut table = Table::new(&header);
        let mut notes = Vec::new();
        for mirror in &self.mirrors {
            for partition in &mirror.partitions {
                let offset =
                    |offset: Option<i64>| offset.map_or("-".to_owned(), |it| it.to_string());
                table.cells(vec![
                    mirror.topic.clone(),
                    mirror.link.clone(),
                    partition.partition.to_string(),
                    partition.state.clone(),
                    offset(partition.end_offset),
                    offset(partition.source_end_offset),
                    partition.lag_records.to_string(),
                    output::bytes(partition.lag_bytes),
                    partition.lag_ms.to_string(),
                ]);
                if !WELL.contains(&partition.state.as_str()) {
                    let advice = partition.advice.as_deref().unwrap_or_default();
                    let place = format!("{}-{}", mirror.topic, partition.partition);
                    notes.push(format!("{place}: {}; {advice}\n", partition.reason));
                }
            }
        }
        for (link, counts) in &self.groups {
            notes.push(format!(
                "positions of groups over {link}: {counts} (`meridian mirror groups` shows each)\n"
            ));
        }
        match notes.is_empty() {
            true => table.render(),
            false => format!("{}\n{}", table.render(), notes.concat()),
        }
    }
}

impl MirrorStatus {
    /// Looks whether the source of a promoted mirror takes records too: then both sides diverge, and
    /// nothing ever merges them by itself.
    async fn compare(&mut self, client: &Client) {
        // A source that is gone, or is no meridian, says nothing of itself.
        let Ok(there) = Standing::at_source(client, &self.topic).await else { return };
        let Ok(here) = Standing::here(client, &self.topic).await else { return };
        let is_same = here.mirrors.is_some_and(|it| it.topic_id == there.topic_id);
        if !(is_same && there.takes_records && here.takes_records) {
            return;
        }
        let reason = format!(
            "cluster {} takes records too; its link epoch is {}, that of this side {}",
            there.cluster, there.link_epoch, here.link_epoch
        );
        for partition in &mut self.partitions {
            partition.state = BOTH_PROMOTED.to_owned();
            partition.reason.clone_from(&reason);
            partition.advice = Some(BOTH_PROMOTED_ADVICE.to_owned());
        }
    }
}

/// What every node says of the partitions that it mirrors. One that is down says nothing.
async fn reports(client: &Client) -> Result<Vec<PartitionStatus>, Failure> {
    let view = client.refresh(Some(&[])).await?;
    let mut reports = Vec::new();
    for node in view.brokers.keys() {
        let Ok(connection) = client.node(*node, Lane::CONTROL).await else { continue };
        let body = Bytes::from_static(b"{}");
        let request = MeridianAdminRequest { method: "mirror.partitions".into(), body };
        let Ok(response) = connection.call(&request, REQUEST_TIMEOUT).await else { continue };
        let what = || format!("mirrors of node {node}");
        ClientError::check(what, response.error_code, response.error_message.as_deref())?;
        let said: Vec<PartitionStatus> =
            serde_json::from_slice(&response.body).map_err(|error| {
                Failure::Invalid(format!(
                    "the answer of node {node} is not of this version: {error}"
                ))
            })?;
        reports.extend(said);
    }
    Ok(reports)
}

fn joined(mirror: &Value, reports: &[PartitionStatus]) -> MirrorStatus {
    let text = |name: &str| mirror[name].as_str().unwrap_or_default().to_owned();
    let (topic, stage) = (text("topic"), text("stage"));
    let state = match stage.as_str() {
        "mirroring" if mirror["is_link_paused"] == true => "paused",
        "mirroring" => STARTING,
        stage => stage,
    };
    let silent = |partition| PartitionStatus {
        topic: topic.clone(),
        partition,
        state: state.to_owned(),
        reason: "no node has said anything of it yet".to_owned(),
        advice: None,
        end_offset: None,
        source_end_offset: None,
        source_seen_ms_ago: None,
        lag_records: 0,
        lag_bytes: 0,
        lag_ms: 0,
        more: BTreeMap::new(),
    };
    let count = u32::try_from(mirror["partitions"].as_u64().unwrap_or(0)).unwrap_or(0);
    let find = |index| {
        let found = reports.iter().find(|it| it.topic == topic && it.partition == index);
        found.cloned().unwrap_or_else(|| silent(index))
    };
    let partitions = (0..count).map(find).collect();
    MirrorStatus { link: text("link"), topic, stage, partitions }
}

/// What a promotion would lose, if the source is gone for good.
#[derive(Debug, Serialize)]
pub(super) struct Forecast {
    records: u64,
    bytes: u64,
    /// Age of the oldest record that would be lost, as far as it is known.
    milliseconds: u64,
    /// How long ago the source of the partition that was longest without was last heard of: what it
    /// took since is in no figure.
    unheard_ms: Option<u64>,
    /// Partitions of which nobody knows how far they are behind now.
    unknown_partitions: Vec<u32>,
}

impl Forecast {
    /// What would be lost of these mirrors.
    pub(super) fn of(status: &Status) -> Self {
        let is_known = |it: &&PartitionStatus| {
            matches!(it.state.as_str(), "mirroring" | "catching-up")
                && it.source_end_offset.is_some()
        };
        let unknown = status.partitions().filter(|it| !is_known(it)).map(|it| it.partition);
        Self {
            records: status.partitions().map(|it| it.lag_records).sum(),
            bytes: status.partitions().map(|it| it.lag_bytes).sum(),
            milliseconds: status.partitions().map(|it| it.lag_ms).max().unwrap_or(0),
            unheard_ms: status.partitions().filter_map(|it| it.source_seen_ms_ago).max(),
            unknown_partitions: unknown.collect(),
        }
    }

    /// Whether something may be lost.
    pub(super) fn is_risky(&self) -> bool {
        self.records > 0 || !self.unknown_partitions.is_empty()
    }

    /// In words.
    pub(super) fn render(&self) -> String {
        let Self { records, bytes, milliseconds, unheard_ms, unknown_partitions } = self;
        let mut text = format!(
            "would be lost: {records} records, about {}, seen at the source up to {milliseconds} ms \
             ago\n",
            output::bytes(*bytes)
        );
        if !unknown_partitions.is_empty() {
            let count = unknown_partitions.len();
            text.push_str(&format!(
                "of {count} partitions this is what was last seen: their source does not answer or \
                 they do not follow it\n"
            ));
            let heard = unheard_ms.map_or_else(
                || "the source was not heard of since this node began to follow it".to_owned(),
                |ms| format!("the source was last heard of {ms} ms ago; what it took since is not counted"),
            );
            text.push_str(&format!("{heard}\n"));
        }
        text
    }

    /// Why nothing was promoted.
    pub(super) fn refusal(&self, topic: &str) -> Failure {
        Failure::Refused(format!(
            "{topic} is not promoted: records may be missing here; wait until `meridian mirror \
             status {topic}` shows no lag, or give --accept-loss"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(state: &str, lag_records: u64) -> Status {
        let mirror = json!({"topic": "t", "link": "l", "stage": "mirroring", "partitions": 2,
            "is_link_paused": false});
        let report = json!({"topic": "t", "partition": 1, "node": 3, "state": state,
            "reason": "because", "advice": "do it", "end_offset": 5, "source_end_offset": 7,
            "lag_records": lag_records, "lag_bytes": 20, "lag_ms": 30, "mirrored_bytes": 1});
        let report = serde_json::from_value(report).unwrap();
        Status { mirrors: vec![joined(&mirror, &[report])], groups: BTreeMap::new() }
    }

    #[test]
    fn partitions_that_nobody_speaks_of_are_shown_too() {
        let status = status("mirroring", 0);
        assert!(status.is_well());
        let states: Vec<_> = status.partitions().map(|it| it.state.as_str()).collect();
        assert_eq!(states, [STARTING, "mirroring"]);
    }

    #[test]
    fn what_has_stopped_is_explained_below_the_table() {
        let status = status("diverged", 0);
        assert!(!status.is_well());
        assert!(status.render().ends_with("\nt-1: because; do it\n"));
    }

    #[test]
    fn a_forecast_counts_what_is_missing_and_what_is_unknown() {
        let forecast = Forecast::of(&status("catching-up", 2));
        assert_eq!((forecast.records, forecast.bytes, forecast.milliseconds), (2, 20, 30));
        assert_eq!(forecast.unknown_partitions, [0]);
        assert!(forecast.is_risky());
    }
}
