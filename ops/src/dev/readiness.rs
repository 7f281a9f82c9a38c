//! Whether all that was asked for is there: every node serves, and every one knows of all storage groups.

use std::time::{Duration, Instant};

use meridian_admin_api::NoArguments;
use meridian_admin_api::methods::ClusterStatus;
use tokio::sync::watch;

use super::layout::Layout;
use crate::client::{Client, api, clock};

/// Nodes that serve form their groups within a second or two.
const GROUPS_TIMEOUT: Duration = Duration::from_secs(60);
/// How often a node is asked for the groups that it knows of.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// What is to be said, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// All is there.
    Ready,
    /// All nodes serve, and for long, but groups are missing.
    Late,
}

/// Decides what is to be said of a cluster that starts.
#[derive(Debug, Default)]
pub(super) struct Readiness {
    late_at: Option<Instant>,
    is_late: bool,
    is_ready: bool,
}

impl Readiness {
    pub(super) fn step(&mut self, now: Instant, all_serve: bool, has_groups: bool) -> Option<News> {
        if self.is_ready || !all_serve {
            return None;
        }
        if has_groups {
            self.is_ready = true;
            return Some(News::Ready);
        }
        let late_at = *self.late_at.get_or_insert(now + GROUPS_TIMEOUT);
        if now < late_at || self.is_late {
            return None;
        }
        self.is_late = true;
        Some(News::Late)
    }
}

/// Asks until every node knows of all groups, which is then seen in what is given back.
pub(super) fn watch_groups(layout: &Layout, client: Client) -> watch::Receiver<bool> {
    let (known, watched) = watch::channel(false);
    let nodes: Vec<u32> = layout.nodes.iter().map(|node| node.id).collect();
    let wanted_count = layout.shape.group_count();
    tokio::spawn(async move {
        for node in nodes {
            while !known.is_closed() && group_count(&client, node).await < Some(wanted_count) {
                clock::sleep(ASK_EVERY).await;
            }
        }
        known.send_replace(true);
    });
    watched
}

/// How many groups a node knows of, if it says so.
async fn group_count(client: &Client, node: u32) -> Option<usize> {
    let node = i32::try_from(node).ok()?;
    // Which node is where.
    client.refresh(Some(&[])).await.ok()?;
    let asked = api::call_node::<ClusterStatus>(client, node, &NoArguments {}).await;
    Some(asked.ok()?.groups.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_ready_when_its_groups_are_there_and_says_once_that_they_are_late() {
        let start = clock::now();
        let mut cluster = Readiness::default();
        assert_eq!(cluster.step(start, false, false), None);
        assert_eq!(cluster.step(start, false, true), None, "a node does not serve");
        let serving = start + 9 * GROUPS_TIMEOUT;
        assert_eq!(cluster.step(serving, true, false), None);
        let late = serving + GROUPS_TIMEOUT;
        assert_eq!(cluster.step(late - Duration::from_nanos(1), true, false), None);
        assert_eq!(cluster.step(late, true, false), Some(News::Late));
        assert_eq!(cluster.step(late, true, false), None, "it was said");
        assert_eq!(cluster.step(late, true, true), Some(News::Ready));
        assert_eq!(cluster.step(late, true, true), None, "it was said");
    }
}
