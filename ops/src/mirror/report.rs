//! The state of mirrors, gathered from all nodes: each knows of the partitions that it leads.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use meridian_protocol::messages::MeridianAdminRequest;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::contract::{self, Contract};
use super::lease::{self, Lease};
use super::switchover::Standing;
use crate::client::{Client, ClientError, Lane, REQUEST_TIMEOUT, admin};
use crate::failure::Failure;
use crate::output::{self, Table};

/// A partition's state while the node that leads it has not said anything of it.
const STARTING: &str = "starting";
const PAUSED: &str = "paused";
/// The stage and state of a mirror that is none any more.
const PROMOTED: &str = "promoted";
/// The state of a promoted mirror whose source takes records as well.
const BOTH_PROMOTED: &str = "both-promoted";
const BOTH_PROMOTED_ADVICE: &str = "nothing is merged: run `meridian mirror rejoin` at the side with \
                                    the lower link epoch, which keeps what only that side has";
/// A source that was not heard of for longer may have taken any number of records since.
const HEARD_LATELY_MS: u64 = 2000;
/// States in which nothing is wrong.
const WELL: [&str; 6] = [STARTING, "verifying", "catching-up", "mirroring", PAUSED, PROMOTED];

/// What `mirror status` shows.
#[derive(Debug, Serialize)]
pub(super) struct Status {
    mirrors: Vec<MirrorStatus>,
    /// By link: how many positions of groups are in which state.
    groups: BTreeMap<String, String>,
    /// Topics here whose own mirrors are bound to be near.
    contracts: Vec<Contract>,
    /// Topics here that are written to under a lease only.
    leases: Vec<Lease>,
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
    #[serde(default)]
    source_lag_max_ms: Option<u64>,
    /// Bytes of batches since the node began to follow.
    #[serde(default)]
    mirrored_bytes: Option<u64>,
    /// How fast they came since the look before, while somebody watches.
    #[serde(default)]
    bytes_per_second: Option<u64>,
    #[serde(default)]
    source_records_per_second: Option<f64>,
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
        let contracts = contract::contracts(client, topic).await?;
        let leases = lease::leases(client, topic).await?;
        if let (Some(topic), [], [], []) =
            (topic, wanted.as_slice(), contracts.as_slice(), leases.as_slice())
        {
            return Err(super::no_mirror(topic));
        }
        let reports = reports(client).await?;
        let mut mirrors: Vec<_> = wanted.into_iter().map(|it| joined(it, &reports)).collect();
        for mirror in mirrors.iter_mut().filter(|mirror| mirror.stage == PROMOTED) {
            mirror.compare(client).await;
        }
        let mut groups: BTreeMap<_, _> =
            super::groups::summary(&super::groups::stewards(client).await?).into_iter().collect();
        groups.retain(|link, _| mirrors.iter().any(|mirror| mirror.link == *link));
        Ok(Self { mirrors, groups, contracts, leases })
    }

    /// Says how much came since a look before.
    pub(super) fn measure(&mut self, before: &Self, elapsed: Duration) {
        for partition in self.mirrors.iter_mut().flat_map(|mirror| &mut mirror.partitions) {
            let is_it = |it: &&PartitionStatus| {
                (&it.topic, it.partition) == (&partition.topic, partition.partition)
            };
            let then = before.partitions().find(is_it).and_then(|it| it.mirrored_bytes);
            // Another node counts from nothing.
            let came = partition.mirrored_bytes.zip(then);
            let came = came.and_then(|(now, then)| now.checked_sub(then));
            partition.bytes_per_second = came.map(|bytes| per_second(bytes, elapsed));
        }
    }

    /// Whether none of these is a mirror any more.
    pub(super) fn is_promoted(&self) -> bool {
        !self.mirrors.is_empty() && self.mirrors.iter().all(|mirror| mirror.stage == PROMOTED)
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

    /// Whether every partition has all but what came just now.
    pub(super) fn is_up_to_date(&self) -> bool {
        self.partitions().all(|it| it.state == "mirroring")
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
            && self.contracts.iter().all(Contract::is_kept)
            && self.leases.iter().all(Lease::is_held)
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
            "BYTES/S",
        ];
        let mut table = Table::new(&header);
        let mut notes = Vec::new();
        for mirror in &self.mirrors {
            for partition in &mirror.partitions {
                let offset =
                    |offset: Option<i64>| offset.map_or("-".to_owned(), |it| it.to_string());
                // As long as nobody knows where the source ends, nobody knows that nothing is missing.
                let lag = |text: String| match partition.source_end_offset {
                    Some(_) => text,
                    None => "-".to_owned(),
                };
                table.cells(vec![
                    mirror.topic.clone(),
                    mirror.link.clone(),
                    partition.partition.to_string(),
                    partition.state.clone(),
                    offset(partition.end_offset),
                    offset(partition.source_end_offset),
                    lag(partition.lag_records.to_string()),
                    lag(output::bytes(partition.lag_bytes)),
                    lag(partition.lag_ms.to_string()),
                    partition.bytes_per_second.map_or("-".to_owned(), output::bytes),
                ]);
                if !WELL.contains(&partition.state.as_str()) {
                    let advice = partition.advice.as_deref().unwrap_or_default();
                    let place = format!("{}-{}", mirror.topic, partition.partition);
                    notes.push(format!("{place}: {}; {advice}\n", partition.reason));
                }
            }
            notes.extend(mirror.paused());
        }
        for (link, counts) in &self.groups {
            notes.push(format!(
                "positions of groups over {link}: {counts} (`meridian mirror groups` shows each)\n"
            ));
        }
        notes.extend(self.mirrors.iter().filter_map(MirrorStatus::lease));
        notes.extend(self.contracts.iter().map(Contract::render));
        notes.extend(self.leases.iter().map(Lease::render));
        match (self.mirrors.is_empty(), notes.is_empty()) {
            (true, false) => notes.concat(),
            (_, true) => table.render(),
            (false, false) => format!("{}\n{}", table.render(), notes.concat()),
        }
    }
}

impl Status {
    /// Whether the source of every mirror writes under a lease of this cluster, so that it takes nothing
    /// once the mirror is promoted; true as well if no link asks for that.
    pub(super) fn is_covered(&self) -> bool {
        let states = self.mirrors.iter().flat_map(MirrorStatus::lease_states);
        states.into_iter().all(|state| state == "granted")
    }

    /// The report for a command that began so long ago: what a source may have taken since does not count.
    pub(super) fn asked_before(mut self, ago: Duration) -> Self {
        let ago_ms = u64::try_from(ago.as_millis()).unwrap_or(u64::MAX);
        for partition in self.mirrors.iter_mut().flat_map(|mirror| &mut mirror.partitions) {
            let seen_ago = partition.source_seen_ms_ago.map(|it| it.saturating_sub(ago_ms));
            partition.source_seen_ms_ago = seen_ago;
        }
        self
    }
}

impl MirrorStatus {
    /// Who let it rest, and what to do about it: that is no fault, but easily forgotten.
    fn paused(&self) -> Option<String> {
        let Self { topic, link, stage, .. } = self;
        let resume = match stage.as_str() {
            "paused" => format!("mirror resume {topic}"),
            _ => format!("link resume {link}"),
        };
        let is_paused = self.partitions.iter().any(|partition| partition.state == PAUSED);
        is_paused.then(|| format!("{topic}: paused by an operator; `meridian {resume}` goes on\n"))
    }

    /// What its partitions say of the lease of their source, if its link has one.
    fn lease_states(&self) -> Vec<&str> {
        let states = self.partitions.iter().filter_map(|it| it.more.get("source_lease")?.as_str());
        states.collect::<std::collections::BTreeSet<&str>>().into_iter().collect()
    }

    /// How the lease of its source is, if its link has one.
    fn lease(&self) -> Option<String> {
        let (topic, link, states) = (&self.topic, &self.link, self.lease_states());
        (!states.is_empty()).then(|| {
            format!("{topic}: lease of its source over link {link}: {}\n", states.join(", "))
        })
    }

    /// Looks whether the source of a promoted mirror takes records too: then both sides diverge, and
    /// nothing ever merges them by itself.
    async fn compare(&mut self, client: &Client) {
        // A source that is gone, or is no meridian, says nothing of itself.
        let Ok(there) = Standing::at_source(client, &self.topic).await else { return };
        let Ok(here) = Standing::here(client, &self.topic).await else { return };
        let is_same = here.mirrors.is_some_and(|it| it.topic_id == there.topic_id);
        // Without a lease of this side, which was promoted, it takes none.
        let is_barred = there.needs_lease_of.as_ref() == Some(&here.cluster);
        if !(is_same && there.takes_records && here.takes_records) || is_barred {
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

fn per_second(bytes: u64, elapsed: Duration) -> u64 {
    let milliseconds = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    bytes.saturating_mul(1000) / milliseconds
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
        "mirroring" if mirror["is_link_paused"] == true => PAUSED,
        "mirroring" => STARTING,
        stage => stage,
    };
    let silent = |partition| PartitionStatus {
        topic: topic.clone(),
        partition,
        state: state.to_owned(),
        reason: match state {
            PAUSED => "by an operator",
            PROMOTED => "a topic of this cluster's own",
            _ => "no node has said anything of it yet",
        }
        .to_owned(),
        advice: None,
        end_offset: None,
        source_end_offset: None,
        source_seen_ms_ago: None,
        lag_records: 0,
        lag_bytes: 0,
        lag_ms: 0,
        source_lag_max_ms: None,
        source_records_per_second: None,
        mirrored_bytes: None,
        bytes_per_second: None,
        more: BTreeMap::new(),
    };
    // What nodes still say of one that was just promoted is of the time before.
    let reports = if stage == PROMOTED { &[] } else { reports };
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
    /// Records that would be lost; `null` if nobody here knows.
    records: Option<u64>,
    /// Records that were missing when the source was last heard of, and their size.
    seen_records: u64,
    seen_bytes: u64,
    /// How long the oldest of them had been missing.
    milliseconds: u64,
    /// How long ago the source of the partition that was longest without was last heard of: what it
    /// took since is not seen.
    unheard_ms: Option<u64>,
    /// Records that the source may have taken since, at the pace of before.
    unseen_records_estimate: Option<u64>,
    /// Producers of the source are refused when records have been missing for so long
    /// (`mirror.max.lag.ms`): what they write in that time is the most that can be lost.
    lag_max_ms: Option<u64>,
    /// Partitions of which nobody knows how far they are behind now.
    unknown_partitions: Vec<u32>,
}

/// What a source may have taken since it was last heard of.
fn unseen(partition: &PartitionStatus) -> Option<u64> {
    let rate = partition.source_records_per_second?;
    let seconds = partition.source_seen_ms_ago? as f64 / 1000.0;
    Some((rate * seconds).ceil() as u64)
}

impl Forecast {
    /// What would be lost of these mirrors. Of a source that does not answer now nobody knows it, also
    /// before its mirrors have noticed.
    pub(super) fn of(status: &Status, is_source_reachable: bool) -> Self {
        let is_known = |it: &&PartitionStatus| {
            is_source_reachable
                && matches!(it.state.as_str(), "mirroring" | "catching-up")
                && it.source_end_offset.is_some()
                && it.source_seen_ms_ago.is_none_or(|ago_ms| ago_ms <= HEARD_LATELY_MS)
        };
        let unknown: Vec<_> = status.partitions().filter(|it| !is_known(it)).collect();
        let seen_records = status.partitions().map(|it| it.lag_records).sum();
        Self {
            records: unknown.is_empty().then_some(seen_records),
            seen_records,
            seen_bytes: status.partitions().map(|it| it.lag_bytes).sum(),
            milliseconds: status.partitions().map(|it| it.lag_ms).max().unwrap_or(0),
            unheard_ms: status.partitions().filter_map(|it| it.source_seen_ms_ago).max(),
            unseen_records_estimate: unknown.iter().map(|it| unseen(it)).sum(),
            lag_max_ms: status.partitions().filter_map(|it| it.source_lag_max_ms).max(),
            unknown_partitions: unknown.iter().map(|it| it.partition).collect(),
        }
    }

    /// Whether something may be lost.
    pub(super) fn is_risky(&self) -> bool {
        self.records != Some(0)
    }

    /// In words.
    pub(super) fn render(&self) -> String {
        let Self { seen_records, milliseconds, unknown_partitions, .. } = self;
        let size = output::bytes(self.seen_bytes);
        if let Some(records) = self.records {
            return format!(
                "would be lost: {records} records, about {size}, seen at the source up to \
                 {milliseconds} ms ago\n"
            );
        }
        let heard = self.unheard_ms.map_or_else(
            || "the source was not heard of since this node began to follow it".to_owned(),
            |ms| format!("the source was last heard of {:.1} s ago", ms as f64 / 1000.0),
        );
        let count = unknown_partitions.len();
        let mut text = format!(
            "would be lost: unknown for {count} partitions: {heard}\n\
             missing then: {seen_records} records, about {size}\n"
        );
        match (self.unseen_records_estimate, self.unheard_ms) {
            (Some(records), Some(_)) => text.push_str(&format!(
                "taken since then, at the pace of before: about {records} records, if the source lived \
                 on\n"
            )),
            _ => text.push_str("taken since then: nobody here can tell\n"),
        }
        text.push_str(&match self.lag_max_ms {
            Some(ms) => format!(
                "at most: what producers wrote within {ms} ms; then the source refused them \
                 (mirror.max.lag.ms)\n"
            ),
            None => "at most: no bound; mirror.max.lag.ms on the source topic would set one\n"
                .to_owned(),
        });
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
        Status {
            mirrors: vec![joined(&mirror, &[report])],
            groups: BTreeMap::new(),
            contracts: Vec::new(),
            leases: Vec::new(),
        }
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
    fn nothing_is_missing_only_if_that_is_known() {
        let text = status("mirroring", 0).render();
        let cells = |index: usize| text.lines().nth(index).map(|line| line.split_whitespace());
        let lags = |index| cells(index).unwrap().skip(6).collect::<Vec<_>>().join(" ");
        assert_eq!(lags(1), "- - - -", "{text}");
        assert_eq!(lags(2), "0 20 B 30 -", "{text}");
    }

    #[test]
    fn a_mirror_that_rests_says_what_has_it_go_on() {
        let paused = |stage: &str, is_link_paused: bool| {
            let mut status = status("mirroring", 0);
            let mirror = json!({"topic": "t", "link": "l", "stage": stage, "partitions": 1,
                "is_link_paused": is_link_paused});
            status.mirrors = vec![joined(&mirror, &[])];
            assert!(status.is_well());
            status.render()
        };
        assert!(
            paused("paused", false)
                .ends_with("\nt: paused by an operator; `meridian mirror resume t` goes on\n")
        );
        assert!(paused("mirroring", true).ends_with("`meridian link resume l` goes on\n"));
        assert!(!paused("mirroring", false).contains("resume"));
    }

    #[test]
    fn what_was_said_of_a_mirror_before_its_promotion_is_not_shown_after_it() {
        let before = status("source-deleted", 0);
        let reports: Vec<_> = before.partitions().cloned().collect();
        let mirror = json!({"topic": "t", "link": "l", "stage": "promoted", "partitions": 2});
        let after = Status { mirrors: vec![joined(&mirror, &reports)], ..before };
        assert!(after.is_well() && after.is_promoted());
    }

    #[test]
    fn who_watches_sees_how_fast_bytes_come() {
        let before = status("mirroring", 0);
        let mut now = status("mirroring", 0);
        now.mirrors[0].partitions[1].mirrored_bytes = Some(3001);
        now.measure(&before, Duration::from_millis(1500));
        let rates: Vec<_> = now.partitions().map(|it| it.bytes_per_second).collect();
        assert_eq!(rates, [None, Some(2000)]);
        // Another node mirrors it now, and has begun to count anew.
        let mut moved = status("mirroring", 0);
        moved.measure(&now, Duration::from_secs(1));
        assert!(moved.partitions().all(|it| it.bytes_per_second.is_none()));
    }

    #[test]
    fn a_forecast_counts_what_is_missing_and_what_is_unknown() {
        let forecast = Forecast::of(&status("catching-up", 2), true);
        let seen = (forecast.seen_records, forecast.seen_bytes, forecast.milliseconds);
        assert_eq!(seen, (2, 20, 30));
        assert_eq!(forecast.unknown_partitions, [0]);
        // What nobody knows is never called nothing.
        assert_eq!(forecast.records, None);
        assert!(forecast.is_risky());
    }

    #[test]
    fn a_source_that_is_silent_is_unknown_before_its_mirror_has_noticed() {
        let mut status = status("mirroring", 0);
        status.mirrors[0].partitions.remove(0);
        assert_eq!(Forecast::of(&status, true).records, Some(0));
        assert_eq!(Forecast::of(&status, false).records, None);
        status.mirrors[0].partitions[0].source_seen_ms_ago = Some(HEARD_LATELY_MS + 1);
        assert_eq!(Forecast::of(&status, true).unknown_partitions, [1]);
    }

    #[test]
    fn what_a_source_may_have_taken_is_told_as_of_the_beginning_of_a_long_look() {
        let mut status = status("source-unreachable", 2);
        for (partition, ago_ms) in status.mirrors[0].partitions.iter_mut().zip([900, 200]) {
            partition.source_seen_ms_ago = Some(ago_ms);
            partition.source_records_per_second = Some(100.0);
        }
        // The second one was heard of while it was looked whether the source answers.
        let forecast = Forecast::of(&status.asked_before(Duration::from_millis(400)), false);
        assert_eq!((forecast.seen_records, forecast.unseen_records_estimate), (2, Some(50)));
    }

    #[test]
    fn a_forecast_without_the_source_is_unknown_and_says_what_may_be() {
        let mut status = status("source-unreachable", 0);
        let partition = |it: &mut PartitionStatus| {
            it.source_seen_ms_ago = Some(12_300);
            it.source_records_per_second = Some(10.0);
        };
        status.mirrors[0].partitions.iter_mut().for_each(partition);
        let text = Forecast::of(&status, true).render();
        assert!(text.contains("unknown for 2 partitions: the source was last heard of 12.3 s ago"));
        assert!(text.contains("about 246 records"), "{text}");
        assert!(text.contains("at most: no bound"), "{text}");
        status.mirrors[0].partitions[1].source_lag_max_ms = Some(5000);
        let text = Forecast::of(&status, true).render();
        assert!(text.contains("at most: what producers wrote within 5000 ms"), "{text}");
    }
}
