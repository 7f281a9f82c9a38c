//! Looks where the source ends while the link's cap keeps its records from being fetched: a mirror that
//! is held back must know how far.

use std::sync::Arc;

use meridian_base::env::Instant;
use tokio::task::JoinHandle;

use super::{Event, LinkWorker};
use crate::client::Connection;
use crate::mirror::question::{self, Want};

/// When it was looked last.
#[derive(Default)]
pub(super) struct Glancer {
    looked_at: Instant,
    under_way: Option<JoinHandle<()>>,
}

impl Drop for Glancer {
    fn drop(&mut self) {
        if let Some(task) = &self.under_way {
            task.abort();
        }
    }
}

impl LinkWorker {
    /// When to look next: only while something is wanted and may not be fetched yet.
    pub(super) fn glance_at(&self, now: Instant) -> Option<Instant> {
        let is_under_way = self.glancer.under_way.as_ref().is_some_and(|it| !it.is_finished());
        if is_under_way || self.throttle.wait(now).is_zero() {
            return None;
        }
        let idle = self.lanes.iter().filter(|lane| lane.is_held());
        let count = idle.map(|lane| lane.wants.len()).sum();
        (count > 0).then(|| self.glancer.looked_at + self.throttle.glance_every(count))
    }

    /// Looks, if it is time.
    pub(super) fn glance(&mut self) {
        let now = self.clock.now();
        if self.glance_at(now).is_none_or(|at| at > now) {
            return;
        }
        self.glancer.looked_at = now;
        let held = self.lanes.iter().filter(|lane| lane.is_held());
        let held: Vec<(Arc<Connection>, Vec<Want>)> =
            held.map(|lane| (Arc::clone(&lane.connection), lane.wants.clone())).collect();
        let events = self.events.clone();
        self.glancer.under_way = Some(tokio::spawn(async move {
            for (connection, wants) in held {
                // Whoever does not answer is found out by the next fetch.
                let Ok(ends) = question::ends(&connection, &wants).await else { continue };
                let _worker_is_gone = events.send(Event::Glanced { asked_at: now, ends }).await;
            }
        }));
    }
}
