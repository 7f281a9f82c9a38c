//! Tells the source up to where its records are durable here, if it bounds how far that may be behind
//! (`mirror.max.lag.ms`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use meridian_base::env::Instant;
use meridian_mirror::state::State;
use meridian_protocol::messages::MeridianAdminRequest;
use tokio::task::{JoinHandle, JoinSet};

use super::LinkWorker;
use crate::client::Connection;
use crate::mirror::contracts::{Position, Positions};
use crate::mirror::survey::Survey;

/// How often.
const TELL_EVERY: Duration = Duration::from_millis(200);
/// Time for the source to take it.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// What is told, and when it was last.
#[derive(Default)]
pub(super) struct Teller {
    /// How far mirrors may be behind, by the name of a topic at the source.
    limits_ms: BTreeMap<String, u64>,
    told_at: Instant,
    under_way: Option<JoinHandle<()>>,
}

impl Teller {
    /// When it is to be told again.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        (!self.limits_ms.is_empty()).then(|| self.told_at + TELL_EVERY)
    }

    /// The source was looked at.
    pub(super) fn on_survey(&mut self, survey: &Survey) {
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
    /// Tells the leaders at the source where their mirrors end, if it is time.
    pub(super) fn tell(&mut self) {
        let now = self.clock.now();
        if self.teller.wake_at().is_none_or(|at| at > now) {
            return;
        }
        self.teller.told_at = now;
        if self.teller.under_way.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let cluster = self.node.meta.metadata().cluster_id().map(ToString::to_string);
        let Some(cluster) = cluster else { return };
        let mut by_leader: Vec<(Arc<Connection>, Vec<Position>)> = Vec::new();
        for mirrored in self.partitions.values() {
            let (Some(connection), Some(machine)) = (&mirrored.connection, &mirrored.machine)
            else {
                continue;
            };
            let mirror = &mirrored.target.mirror;
            let status = machine.status(now);
            // Whether what it has is the source's is not known in any other state.
            let follows = matches!(status.state, State::Mirroring | State::CatchingUp);
            if !follows || self.teller.limit_ms(&mirror.source_name).is_none() {
                continue;
            }
            let position = Position {
                topic_id: mirror.source_topic.into(),
                partition: mirrored.target.index,
                end_offset: status.end.get(),
            };
            match by_leader.iter_mut().find(|(known, _)| Arc::ptr_eq(known, connection)) {
                Some((_, positions)) => positions.push(position),
                None => by_leader.push((Arc::clone(connection), vec![position])),
            }
        }
        self.teller.under_way = Some(tokio::spawn(tell_all(self.name.clone(), cluster, by_leader)));
    }
}

async fn tell_all(link: String, cluster: String, all: Vec<(Arc<Connection>, Vec<Position>)>) {
    let mut calls = JoinSet::new();
    for (connection, positions) in all {
        let told = Positions { cluster: cluster.clone(), positions };
        let Ok(body) = serde_json::to_vec(&told) else { continue };
        let body = Bytes::from(body);
        let request = MeridianAdminRequest { method: "mirror.positions".into(), body };
        calls.spawn(async move { connection.call(&request, ANSWER_WITHIN).await });
    }
    while let Some(called) = calls.join_next().await {
        if let Ok(Err(error)) = called {
            // It hears the next one, or takes this mirror for one that is behind.
            tracing::debug!(%link, %error, "the source was not told where its mirror is");
        }
    }
}
