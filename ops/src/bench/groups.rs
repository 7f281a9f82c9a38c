//! `meridian bench groups`: many groups of KIP-848, whose members commit at a steady rate.
//!
//! Members share the connections of a lane: what is measured is the coordinator, not the number of
//! sockets. Commits are due at fixed times whatever the server does, and latency counts from then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use meridian_protocol::messages::{
    ConsumerGroupHeartbeatRequest, ConsumerGroupTopic, OffsetCommitPartition, OffsetCommitRequest,
    OffsetCommitTopic,
};
use meridian_protocol::{ErrorCode, Uuid};
use serde::Serialize;
use tokio::task::JoinSet;

use super::meter::{self, Meter};
use super::report::Report;
use crate::client::clock::{self, Backoff};
use crate::client::{Client, ClientError, Connection, Lane, REQUEST_TIMEOUT, admin, groups};
use crate::failure::Failure;

/// Time for all members to join.
const JOIN_TIMEOUT: Duration = Duration::from_secs(120);
/// Entries that come anyway: nodes that are slow and back, blocks of producer ids.
const METADATA_ENTRIES_MAX: u64 = 20;
const REBALANCE_TIMEOUT_MS: i32 = 60_000;

/// What a run of groups is like.
#[derive(Debug, Clone, Args)]
pub(super) struct Groups {
    /// The topic that all groups read; it gets a partition for each member
    #[arg(long, short, default_value = "bench-groups")]
    topic: String,
    /// Groups
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    groups: u32,
    /// Members of each group
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    members: u32,
    /// Commits a second, over all groups
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// Seconds of commits
    #[arg(long, default_value_t = 10, value_name = "SECONDS")]
    duration: u64,
    /// Seconds of commits at the start that do not count
    #[arg(long, default_value_t = 2, value_name = "SECONDS")]
    warmup: u64,
    /// Connections to each broker
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    connections: u32,
}

/// What a run of groups came to.
#[derive(Debug, Serialize)]
pub(super) struct GroupsReport {
    groups: u32,
    members: u32,
    joined_s: f64,
    /// Entries of the metadata log during the commits, all causes together.
    metadata_entries: Option<u64>,
    commits: Report,
}

impl GroupsReport {
    /// Whether the metadata log saw none of the commits.
    pub(super) fn is_metadata_quiet(&self) -> bool {
        self.metadata_entries.is_some_and(|count| count <= METADATA_ENTRIES_MAX)
    }

    pub(super) fn render(&self) -> String {
        let entries = self
            .metadata_entries
            .map_or_else(|| "an unknown number of".to_owned(), |count| count.to_string());
        format!(
            "{} groups of {} members joined and were balanced in {:.2} s; {entries} entries in the \
             metadata log during the commits\n{}",
            self.groups,
            self.members,
            self.joined_s,
            self.commits.render()
        )
    }
}

/// A member as it stands.
#[derive(Debug, Clone)]
struct Member {
    id: String,
    epoch: i32,
    owned: Vec<i32>,
    /// When its next heartbeat is due.
    beat_at: Instant,
    committed: i64,
}

/// A group and its members.
struct Group {
    client: Client,
    config: Groups,
    name: String,
    lane: Lane,
    topic: Uuid,
    connection: Arc<Connection>,
    members: Vec<Member>,
    meter: Arc<Meter>,
}

/// Runs it.
pub(super) async fn run(
    client: &Client,
    config: Groups,
) -> Result<(GroupsReport, Option<ClientError>), Failure> {
    admin::ensure_topic(client, &config.topic, Some(config.members)).await?;
    let topic = client.topic(&config.topic).await?.id;
    let begun = clock::now();
    let started = Arc::new(Meter::new("commit", begun));
    let mut joining = JoinSet::new();
    for index in 0..config.groups {
        joining.spawn(Group::start(
            client.clone(),
            config.clone(),
            index,
            topic,
            Arc::clone(&started),
        ));
    }
    let mut groups = Vec::new();
    while let Some(joined) = joining.join_next().await {
        match joined {
            Ok(group) => groups.push(group?),
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        }
    }
    let joined_s = clock::now().saturating_duration_since(begun).as_secs_f64();

    let before = crate::cluster::applied_index(client).await;
    let start = clock::now();
    let warm = start + Duration::from_secs(config.warmup);
    let end = warm + Duration::from_secs(config.duration);
    let meter = Arc::new(Meter::new("commit", warm));
    let progress = meter::show_progress(start, vec![Arc::clone(&meter)]);
    let mut running = JoinSet::new();
    let count = f64::from(config.groups) * f64::from(config.members);
    #[expect(clippy::cast_precision_loss, reason = "a rate is no more exact")]
    let every = Duration::from_secs(1).mul_f64(count / config.rate as f64);
    for (turn, member) in (0u32..).zip(groups.into_iter().flat_map(Group::split)) {
        let member = Group { meter: Arc::clone(&meter), ..member };
        let first = start + every.mul_f64(f64::from(turn) / count);
        running.spawn(member.commit(first, every, end));
    }
    let failed = super::first_failure(running).await;
    progress.abort();
    let after = crate::cluster::applied_index(client).await;
    let partitions = usize::try_from(config.members).unwrap_or(usize::MAX);
    let report = GroupsReport {
        groups: config.groups,
        members: config.members,
        joined_s,
        metadata_entries: after.zip(before).and_then(|(after, before)| after.checked_sub(before)),
        commits: Report::new("groups", &config.topic, partitions).with(&meter),
    };
    Ok((report, failed))
}

impl Group {
    /// Has all members join, and waits until each has its share.
    async fn start(
        client: Client,
        config: Groups,
        index: u32,
        topic: Uuid,
        meter: Arc<Meter>,
    ) -> Result<Self, ClientError> {
        let name = format!("bench-{index}");
        let lane = Lane(index % config.connections);
        let connection = Self::find(&client, &name, lane).await?;
        let now = clock::now();
        let member = |number: u32| Member {
            id: format!("member-{number}"),
            epoch: 0,
            owned: Vec::new(),
            beat_at: now,
            committed: 0,
        };
        let members = (0..config.members).map(member).collect();
        let mut group = Self { client, config, name, lane, topic, connection, members, meter };
        let mut backoff = Backoff::until(JOIN_TIMEOUT);
        loop {
            for index in 0..group.members.len() {
                group.beat(index).await?;
            }
            let is_balanced = group.members.iter().all(|member| member.owned.len() == 1);
            let epoch = group.members.first().map(|member| member.epoch);
            let is_settled = group.members.iter().all(|member| Some(member.epoch) == epoch);
            if (is_balanced && is_settled) || !backoff.pause().await {
                return Ok(group);
            }
        }
    }

    async fn find(client: &Client, name: &str, lane: Lane) -> Result<Arc<Connection>, ClientError> {
        let mut backoff = Backoff::until(REQUEST_TIMEOUT);
        loop {
            let found = match groups::coordinator(client, name).await {
                Ok(node) => client.node(node, lane).await,
                Err(error) => Err(error),
            };
            match found {
                Err(error) if error.is_retriable() && backoff.pause().await => {
                    client.refresh(Some(&[])).await?;
                }
                found => return found,
            }
        }
    }

    /// One heartbeat of a member; it does as it is told at once.
    async fn beat(&mut self, index: usize) -> Result<(), ClientError> {
        let Some(member) = self.members.get(index).cloned() else { return Ok(()) };
        let joins = member.epoch == 0;
        let owned = ConsumerGroupTopic { topic_id: self.topic, partitions: member.owned.clone() };
        let request = ConsumerGroupHeartbeatRequest {
            group_id: self.name.as_str().into(),
            member_id: member.id.as_str().into(),
            member_epoch: member.epoch,
            rebalance_timeout_ms: if joins { REBALANCE_TIMEOUT_MS } else { -1 },
            subscribed_topic_names: joins.then(|| vec![self.config.topic.as_str().into()]),
            topic_partitions: Some(if joins || member.owned.is_empty() {
                Vec::new()
            } else {
                vec![owned]
            }),
            ..Default::default()
        };
        let mut backoff = Backoff::until(JOIN_TIMEOUT);
        let told = loop {
            match self.connection.call(&request, REQUEST_TIMEOUT).await {
                Ok(told) if !told.error_code.is_retriable() => break told,
                Err(error) if !error.is_retriable() => return Err(error),
                _ => {}
            }
            if !backoff.pause().await {
                let what = format!("heartbeat of {} in {}", member.id, self.name);
                return Err(ClientError::Server {
                    what,
                    code: ErrorCode::RequestTimedOut,
                    message: None,
                });
            }
            self.connection = Self::find(&self.client, &self.name, self.lane).await?;
        };
        let interval =
            Duration::from_millis(u64::try_from(told.heartbeat_interval_ms).unwrap_or(0));
        let Some(member) = self.members.get_mut(index) else { return Ok(()) };
        member.beat_at = clock::now() + interval.max(Duration::from_secs(1));
        if told.error_code.is_none() {
            member.epoch = told.member_epoch;
            if let Some(assignment) = told.assignment {
                let topics = assignment.topic_partitions.into_iter();
                member.owned = topics.flat_map(|topic| topic.partitions).collect();
            }
        } else {
            // Fenced: it joins again.
            self.meter.count_trouble(0, 1);
            member.epoch = 0;
            member.owned.clear();
        }
        Ok(())
    }

    /// Its members, each by itself.
    fn split(mut self) -> Vec<Self> {
        let alone = |member| Self {
            client: self.client.clone(),
            config: self.config.clone(),
            name: self.name.clone(),
            lane: self.lane,
            topic: self.topic,
            connection: Arc::clone(&self.connection),
            members: vec![member],
            meter: Arc::clone(&self.meter),
        };
        std::mem::take(&mut self.members).into_iter().map(alone).collect()
    }

    /// Commits at a steady rate.
    async fn commit(
        mut self,
        first: Instant,
        every: Duration,
        end: Instant,
    ) -> Result<(), ClientError> {
        let mut due = first;
        while due < end {
            clock::sleep(due.saturating_duration_since(clock::now())).await;
            self.beat_if_due().await?;
            self.commit_one(0, due).await?;
            due += every;
        }
        Ok(())
    }

    async fn beat_if_due(&mut self) -> Result<(), ClientError> {
        let now = clock::now();
        let due = |(index, member): (usize, &Member)| (member.beat_at <= now).then_some(index);
        let late: Vec<usize> = self.members.iter().enumerate().filter_map(due).collect();
        for index in late {
            self.beat(index).await?;
        }
        Ok(())
    }

    async fn commit_one(&mut self, index: usize, due: Instant) -> Result<(), ClientError> {
        let Some(member) = self.members.get_mut(index) else { return Ok(()) };
        member.committed += 1;
        let partition = |partition_index: &i32| OffsetCommitPartition {
            partition_index: *partition_index,
            committed_offset: member.committed,
            ..Default::default()
        };
        let topic = OffsetCommitTopic {
            name: self.config.topic.as_str().into(),
            topic_id: self.topic,
            partitions: member.owned.iter().map(partition).collect(),
        };
        let request = OffsetCommitRequest {
            group_id: self.name.as_str().into(),
            generation_id_or_member_epoch: member.epoch,
            member_id: member.id.as_str().into(),
            topics: vec![topic],
            ..Default::default()
        };
        let code = match self.connection.call(&request, REQUEST_TIMEOUT).await {
            Ok(answer) => answer
                .topics
                .iter()
                .flat_map(|topic| &topic.partitions)
                .map(|it| it.error_code)
                .find(|code| !code.is_none())
                .unwrap_or_default(),
            Err(error) if error.is_retriable() => ErrorCode::NotCoordinator,
            Err(error) => return Err(error),
        };
        if code.is_none() {
            self.meter.count_batch(clock::now(), 1, 0, due);
        } else if code.is_retriable() {
            self.meter.count_trouble(1, 0);
            self.connection = Self::find(&self.client, &self.name, self.lane).await?;
        } else {
            self.meter.count_trouble(0, 1);
            self.beat(index).await?;
        }
        Ok(())
    }
}
