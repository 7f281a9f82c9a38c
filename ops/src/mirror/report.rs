//! The state of mirrors, gathered from all nodes: each knows of the partitions that it leads.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meridian_admin_api::methods::{MirrorList, MirrorPartitions};
use meridian_admin_api::mirror::{
    ContractReport, LeaseReport, MirrorReport, PartitionReport, PartitionState, SourceLease, Stage,
};
use meridian_admin_api::{Besides, NoArguments};
use serde::Serialize;

use super::{contract, lease, switchover};
use crate::client::{Client, api};
use crate::failure::Failure;
use crate::output::{self, Table};

const BOTH_PROMOTED_ADVICE: &str = "nothing is merged: run `meridian mirror rejoin` at the side with \
                                    the lower link epoch, which keeps what only that side has";
/// A source that was not heard of for longer may have taken any number of records since.
const HEARD_LATELY_MS: u64 = 2000;
/// What `mirror status` shows.
#[derive(Debug, Serialize)]
pub(super) struct Status {
    mirrors: Vec<MirrorStatus>,
    /// By link: how many positions of groups are in which state.
    groups: BTreeMap<String, String>,
    /// Topics here whose own mirrors are bound to be near.
    contracts: Vec<ContractReport>,
    /// Topics here that are written to under a lease only.
    leases: Vec<LeaseReport>,
}

/// One mirror and its partitions.
#[derive(Debug, Serialize)]
struct MirrorStatus {
    topic: String,
    link: String,
    stage: Stage,
    partitions: Vec<PartitionStatus>,
}

/// What a partition does.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(into = "String")]
enum State {
    /// The node that leads it has not said anything of it.
    Starting,
    /// As that node says.
    Said(PartitionState),
    /// No node mirrors it: as operators want it of the whole mirror, or of its link.
    Wanted(Stage),
    /// It was promoted, and its source takes records as well.
    BothPromoted,
}

impl State {
    fn as_str(&self) -> &str {
        match self {
            Self::Starting => "starting",
            Self::Said(state) => state.as_str(),
            Self::Wanted(stage) => stage.as_str(),
            Self::BothPromoted => "both-promoted",
        }
    }

    /// Whether nothing is wrong.
    fn is_well(&self) -> bool {
        match self {
            Self::Starting => true,
            Self::Said(PartitionState::Paused) => true,
            Self::Said(_) => self.follows(),
            Self::Wanted(stage) => matches!(stage, Stage::Paused | Stage::Promoted),
            Self::BothPromoted => false,
        }
    }

    /// Whether it follows its source, or is about to.
    fn follows(&self) -> bool {
        self.fetches() || *self == Self::Said(PartitionState::Verifying)
    }

    /// Whether it fetches what its source has.
    fn fetches(&self) -> bool {
        matches!(self, Self::Said(PartitionState::Mirroring | PartitionState::CatchingUp))
    }

    fn is_paused(&self) -> bool {
        matches!(self, Self::Said(PartitionState::Paused) | Self::Wanted(Stage::Paused))
    }
}

impl From<State> for String {
    fn from(state: State) -> Self {
        state.as_str().to_owned()
    }
}

/// One partition, as the node that mirrors it says.
#[derive(Clone, Debug, Serialize)]
struct PartitionStatus {
    topic: String,
    partition: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<u32>,
    state: State,
    reason: String,
    advice: Option<String>,
    end_offset: Option<i64>,
    source_end_offset: Option<i64>,
    source_seen_ms_ago: Option<u64>,
    lag_records: u64,
    lag_bytes: u64,
    lag_ms: u64,
    source_lag_max_ms: Option<u64>,
    /// Bytes of batches since the node began to follow.
    mirrored_bytes: Option<u64>,
    /// How fast they came since the look before, while somebody watches.
    bytes_per_second: Option<u64>,
    source_records_per_second: Option<f64>,
    source_lease: Option<SourceLease>,
    /// What a newer server says besides.
    #[serde(flatten)]
    besides: Besides,
}

impl From<PartitionReport> for PartitionStatus {
    fn from(report: PartitionReport) -> Self {
        Self {
            topic: report.topic,
            partition: report.partition,
            node: Some(report.node),
            state: State::Said(report.state),
            reason: report.reason,
            advice: report.advice,
            end_offset: report.end_offset,
            source_end_offset: report.source_end_offset,
            source_seen_ms_ago: report.source_seen_ms_ago,
            lag_records: report.lag_records,
            lag_bytes: report.lag_bytes,
            lag_ms: report.lag_ms,
            source_lag_max_ms: report.source_lag_max_ms,
            mirrored_bytes: Some(report.mirrored_bytes),
            bytes_per_second: None,
            source_records_per_second: report.source_records_per_second,
            source_lease: report.source_lease,
            besides: report.besides,
        }
    }
}

impl Status {
    /// Asks all nodes for one mirror, or for all.
    pub(super) async fn ask(client: &Client, topic: Option<&str>) -> Result<Self, Failure> {
        let mut wanted = api::call::<MirrorList>(client, &NoArguments {}).await?;
        wanted.retain(|it| topic.is_none_or(|topic| it.topic == topic));
        let contracts = contract::contracts(client, topic).await?;
        let leases = lease::leases(client, topic).await?;
        if let (Some(topic), [], [], []) =
            (topic, wanted.as_slice(), contracts.as_slice(), leases.as_slice())
        {
            return Err(super::no_mirror(topic));
        }
        let reports = api::call_all::<MirrorPartitions, _>(client).await?;
        let mut mirrors: Vec<_> = wanted.into_iter().map(|it| joined(it, &reports)).collect();
        for mirror in mirrors.iter_mut().filter(|mirror| mirror.stage == Stage::Promoted) {
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
        !self.mirrors.is_empty()
            && self.mirrors.iter().all(|mirror| mirror.stage == Stage::Promoted)
    }

    /// What keeps these mirrors from being switched over.
    pub(super) fn obstacles(&self) -> Vec<String> {
        let others = self.partitions().filter(|it| !it.state.follows());
        let said = |it: &PartitionStatus| {
            format!("{}-{} is {}: {}", it.topic, it.partition, it.state.as_str(), it.reason)
        };
        others.map(said).collect()
    }

    /// Records that are missing, and for how long in milliseconds.
    pub(super) fn lag(&self) -> (u64, u64) {
        let records = self.partitions().map(|it| it.lag_records).sum();
        (records, self.partitions().map(|it| it.lag_ms).max().unwrap_or(0))
    }

    /// Whether every partition has all but what came just now.
    pub(super) fn is_up_to_date(&self) -> bool {
        self.partitions().all(|it| it.state == State::Said(PartitionState::Mirroring))
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
        self.partitions().all(|partition| partition.state.is_well())
            && self.contracts.iter().all(contract::is_kept)
            && self.leases.iter().all(lease::is_held)
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
                    partition.state.as_str().to_owned(),
                    offset(partition.end_offset),
                    offset(partition.source_end_offset),
                    lag(partition.lag_records.to_string()),
                    lag(output::bytes(partition.lag_bytes)),
                    lag(partition.lag_ms.to_string()),
                    partition.bytes_per_second.map_or("-".to_owned(), output::bytes),
                ]);
                if !partition.state.is_well() {
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
        notes.extend(self.contracts.iter().map(contract::render));
        notes.extend(self.leases.iter().map(lease::render));
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
        let mut states = self.partitions().filter_map(|it| it.source_lease.as_ref());
        states.all(|state| *state == SourceLease::Granted)
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
        let resume = match stage {
            Stage::Paused => format!("mirror resume {topic}"),
            _ => format!("link resume {link}"),
        };
        let is_paused = self.partitions.iter().any(|partition| partition.state.is_paused());
        is_paused.then(|| format!("{topic}: paused by an operator; `meridian {resume}` goes on\n"))
    }

    /// What its partitions say of the lease of their source, if its link has one.
    fn lease_states(&self) -> Vec<String> {
        let states = self.partitions.iter().filter_map(|it| it.source_lease.as_ref());
        states.map(SourceLease::to_string).collect::<BTreeSet<String>>().into_iter().collect()
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
        let Ok(there) = switchover::at_source(client, &self.topic).await else { return };
        let Ok(here) = switchover::here(client, &self.topic).await else { return };
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
            partition.state = State::BothPromoted;
            partition.reason.clone_from(&reason);
            partition.advice = Some(BOTH_PROMOTED_ADVICE.to_owned());
        }
    }
}

fn per_second(bytes: u64, elapsed: Duration) -> u64 {
    let milliseconds = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    bytes.saturating_mul(1000) / milliseconds
}

fn joined(mirror: MirrorReport, reports: &[PartitionReport]) -> MirrorStatus {
    let MirrorReport { topic, link, stage, is_link_paused, partitions: count, .. } = mirror;
    let state = match &stage {
        Stage::Mirroring if is_link_paused => State::Wanted(Stage::Paused),
        Stage::Mirroring => State::Starting,
        stage => State::Wanted(stage.clone()),
    };
    let silent = |partition| PartitionStatus {
        topic: topic.clone(),
        partition,
        node: None,
        state: state.clone(),
        reason: match &state {
            State::Wanted(Stage::Paused) => "by an operator",
            State::Wanted(Stage::Promoted) => "a topic of this cluster's own",
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
        source_lease: None,
        besides: Besides::new(),
    };
    // What nodes still say of one that was just promoted is of the time before.
    let reports = if stage == Stage::Promoted { &[] } else { reports };
    let find = |index| {
        let found = reports.iter().find(|it| it.topic == topic && it.partition == index);
        found.cloned().map_or_else(|| silent(index), PartitionStatus::from)
    };
    let partitions = (0..u32::try_from(count).unwrap_or(u32::MAX)).map(find).collect();
    MirrorStatus { topic, link, stage, partitions }
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
                && it.state.fetches()
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
    use crate::mirror::testing::{mirror, partition};

    fn status(state: PartitionState, lag_records: u64) -> Status {
        let mirror = mirror("t", Stage::Mirroring, 2);
        let report = PartitionReport { lag_records, ..partition("t", 1, state) };
        Status {
            mirrors: vec![joined(mirror, &[report])],
            groups: BTreeMap::new(),
            contracts: Vec::new(),
            leases: Vec::new(),
        }
    }

    #[test]
    fn partitions_that_nobody_speaks_of_are_shown_too() {
        let status = status(PartitionState::Mirroring, 0);
        assert!(status.is_well());
        let states: Vec<_> = status.partitions().map(|it| it.state.as_str()).collect();
        assert_eq!(states, ["starting", "mirroring"]);
    }

    #[test]
    fn what_has_stopped_is_explained_below_the_table() {
        let status = status(PartitionState::Diverged, 0);
        assert!(!status.is_well());
        assert!(status.render().ends_with("\nt-1: because; do it\n"));
    }

    #[test]
    fn nothing_is_missing_only_if_that_is_known() {
        let text = status(PartitionState::Mirroring, 0).render();
        let cells = |index: usize| text.lines().nth(index).map(|line| line.split_whitespace());
        let lags = |index| cells(index).unwrap().skip(6).collect::<Vec<_>>().join(" ");
        assert_eq!(lags(1), "- - - -", "{text}");
        assert_eq!(lags(2), "0 20 B 30 -", "{text}");
    }

    #[test]
    fn a_mirror_that_rests_says_what_has_it_go_on() {
        let paused = |stage, is_link_paused: bool| {
            let mut status = status(PartitionState::Mirroring, 0);
            let mirror = MirrorReport { is_link_paused, ..mirror("t", stage, 1) };
            status.mirrors = vec![joined(mirror, &[])];
            assert!(status.is_well());
            status.render()
        };
        assert!(
            paused(Stage::Paused, false)
                .ends_with("\nt: paused by an operator; `meridian mirror resume t` goes on\n")
        );
        assert!(paused(Stage::Mirroring, true).ends_with("`meridian link resume l` goes on\n"));
        assert!(!paused(Stage::Mirroring, false).contains("resume"));
    }

    #[test]
    fn what_was_said_of_a_mirror_before_its_promotion_is_not_shown_after_it() {
        let before = status(PartitionState::SourceDeleted, 0);
        let reports = [0, 1].map(|index| partition("t", index, PartitionState::SourceDeleted));
        let mirror = mirror("t", Stage::Promoted, 2);
        let after = Status { mirrors: vec![joined(mirror, &reports)], ..before };
        assert!(after.is_well() && after.is_promoted());
    }

    #[test]
    fn who_watches_sees_how_fast_bytes_come() {
        let before = status(PartitionState::Mirroring, 0);
        let mut now = status(PartitionState::Mirroring, 0);
        now.mirrors[0].partitions[1].mirrored_bytes = Some(3001);
        now.measure(&before, Duration::from_millis(1500));
        let rates: Vec<_> = now.partitions().map(|it| it.bytes_per_second).collect();
        assert_eq!(rates, [None, Some(2000)]);
        // Another node mirrors it now, and has begun to count anew.
        let mut moved = status(PartitionState::Mirroring, 0);
        moved.measure(&now, Duration::from_secs(1));
        assert!(moved.partitions().all(|it| it.bytes_per_second.is_none()));
    }

    #[test]
    fn a_forecast_counts_what_is_missing_and_what_is_unknown() {
        let forecast = Forecast::of(&status(PartitionState::CatchingUp, 2), true);
        let seen = (forecast.seen_records, forecast.seen_bytes, forecast.milliseconds);
        assert_eq!(seen, (2, 20, 30));
        assert_eq!(forecast.unknown_partitions, [0]);
        // What nobody knows is never called nothing.
        assert_eq!(forecast.records, None);
        assert!(forecast.is_risky());
    }

    #[test]
    fn a_source_that_is_silent_is_unknown_before_its_mirror_has_noticed() {
        let mut status = status(PartitionState::Mirroring, 0);
        status.mirrors[0].partitions.remove(0);
        assert_eq!(Forecast::of(&status, true).records, Some(0));
        assert_eq!(Forecast::of(&status, false).records, None);
        status.mirrors[0].partitions[0].source_seen_ms_ago = Some(HEARD_LATELY_MS + 1);
        assert_eq!(Forecast::of(&status, true).unknown_partitions, [1]);
    }

    #[test]
    fn what_a_source_may_have_taken_is_told_as_of_the_beginning_of_a_long_look() {
        let mut status = status(PartitionState::SourceUnreachable, 2);
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
        let mut status = status(PartitionState::SourceUnreachable, 0);
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
