//! Tells the source up to where its records are durable here, if it bounds how far that may be behind
//! (`mirror.max.lag.ms`), and grants it the writer's lease, if the link has one (`lease.ms`).

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use meridian_admin_api::Method;
use meridian_admin_api::methods::MirrorPositions;
use meridian_admin_api::mirror::{Heard, Position, Positions};
use meridian_base::env::Instant;
use meridian_base::id::PartitionId;
use meridian_mirror::state::State;
use meridian_protocol::messages::MeridianAdminRequest;
use tokio::task::{JoinHandle, JoinSet};

use super::{Event, LinkWorker, Mirrored};
use crate::client::{Client, ClientError, Lane};
use crate::mirror::survey::Survey;

/// How often.
const TELL_EVERY: Duration = Duration::from_millis(200);
/// Not behind fetches, whose answers are long on a slow link.
const LANE: Lane = Lane(4);
/// Time for the source to take it.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// What is told, and when it was last.
#[derive(Default)]
pub(super) struct Teller {
    /// Whether the source is known to be no meridian cluster: no other has ears for it.
    is_deaf: bool,
    /// How far mirrors may be behind, by the name of a topic at the source.
    limits_ms: BTreeMap<String, u64>,
    told_at: Instant,
    under_way: Option<JoinHandle<()>>,
}

impl Teller {
    /// The source was looked at.
    pub(super) fn on_survey(&mut self, survey: &Survey) {
        let mut described = survey.topics.values().filter(|topic| topic.is_described).peekable();
        if described.peek().is_some() {
            self.is_deaf = !described.any(|topic| topic.is_meridian);
        }
        let limits =
            survey.topics.iter().filter_map(|(name, it)| Some((name.clone(), it.lag_max_ms?)));
        self.limits_ms = limits.collect();
    }

    /// How far the mirrors of a topic may be behind.
    pub(super) fn limit_ms(&self, source_name: &str) -> Option<u64> {
        self.limits_ms.get(source_name).copied()
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        if let Some(task) = &self.under_way {
            task.abort();
        }
    }
}

impl LinkWorker {
    /// When it is to be told again, if it is to be told at all.
    pub(super) fn tell_at(&self) -> Option<Instant> {
        let has_news = !self.teller.limits_ms.is_empty() || self.lease().is_some();
        (has_news && !self.teller.is_deaf).then(|| self.teller.told_at + TELL_EVERY)
    }

    /// Tells the leaders at the source where their mirrors end, if it is time, and that those are
    /// not promoted.
    pub(super) fn tell(&mut self) {
        let now = self.clock.now();
        if self.tell_at().is_none_or(|at| at > now) {
            return;
        }
        self.teller.told_at = now;
        if self.teller.under_way.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let cluster = self.node.meta.metadata().cluster_id().map(ToString::to_string);
        let Some(cluster) = cluster else { return };
        let by_leader = self.by_leader();
        let mut grants = self.grants(&by_leader);
        let told = |(leader, led): (i32, Vec<PartitionId>)| {
            let led = led.iter().filter_map(|id| self.partitions.get(id));
            let positions = led.filter_map(|it| self.position(now, it)).collect();
            let lease = grants.remove(&leader);
            (leader, Positions { cluster: cluster.clone(), positions, lease })
        };
        let told = by_leader.into_iter().map(told);
        let told: Vec<_> =
            told.filter(|(_, it)| !it.positions.is_empty() || it.lease.is_some()).collect();
        let (name, events) = (self.name.clone(), self.events.clone());
        let client = self.client.clone();
        self.teller.under_way = Some(tokio::spawn(async move {
            let answers = tell_all(&name, client, told).await;
            let _worker_is_gone = events.send(Event::Told(answers)).await;
        }));
    }

    /// The partitions that each leader at the source leads.
    fn by_leader(&self) -> BTreeMap<i32, Vec<PartitionId>> {
        let mut by_leader: BTreeMap<i32, Vec<PartitionId>> = BTreeMap::new();
        for (partition, mirrored) in &self.partitions {
            if let Some(leader) = mirrored.leader {
                by_leader.entry(leader).or_default().push(*partition);
            }
        }
        by_leader
    }

    /// Where a mirror ends whose source bounds how far that may be behind.
    fn position(&self, now: Instant, mirrored: &Mirrored) -> Option<Position> {
        let (machine, mirror) = (mirrored.machine.as_ref()?, &mirrored.target.mirror);
        let status = machine.status(now);
        // Whether what it has is the source's is not known in any other state.
        let follows = matches!(status.state, State::Mirroring | State::CatchingUp);
        if !follows || self.teller.limit_ms(&mirror.source_name).is_none() {
            return None;
        }
        Some(Position {
            topic_id: mirror.source_topic.into(),
            partition: mirrored.target.index,
            end_offset: status.end.get(),
        })
    }
}

/// Tells every leader; gives who has answered, and what.
async fn tell_all(link: &str, client: Client, all: Vec<(i32, Positions)>) -> Vec<(i32, Heard)> {
    let mut calls = JoinSet::new();
    for (leader, told) in all {
        let client = client.clone();
        calls.spawn(async move {
            let told = tokio::time::timeout(ANSWER_WITHIN, tell(&client, leader, &told)).await;
            (leader, told.unwrap_or_else(|_| Err("no answer".to_owned())))
        });
    }
    let mut answers = Vec::new();
    while let Some(called) = calls.join_next().await {
        match called {
            Ok((leader, Ok(answer))) => answers.push((leader, answer)),
            // It hears the next one, or takes this mirror for one that is behind.
            Ok((leader, Err(error))) => {
                tracing::debug!(%link, leader, %error, "the source was not told of its mirror");
            }
            Err(_this_node_ends) => {}
        }
    }
    answers
}

async fn tell(client: &Client, leader: i32, told: &Positions) -> Result<Heard, String> {
    let body = serde_json::to_vec(told).map_err(|error| error.to_string())?;
    let method = MirrorPositions::NAME.into();
    let request = MeridianAdminRequest { method, body: Bytes::from(body) };
    let asked = async {
        let response = client.node(leader, LANE).await?.call(&request, ANSWER_WITHIN).await?;
        let message = response.error_message.as_deref();
        ClientError::check(|| MirrorPositions::NAME.to_owned(), response.error_code, message)?;
        Ok::<_, ClientError>(response)
    };
    let response = asked.await.map_err(|error| error.to_string())?;
    // An older version has nothing to say.
    Ok(serde_json::from_slice(&response.body).unwrap_or_default())
}
