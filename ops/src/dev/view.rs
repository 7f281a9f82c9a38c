//! What `meridian dev` shows: a table that is kept current on a terminal, lines elsewhere.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::layout::{Layout, NodeState};
use crate::client::metadata::ClusterView;
use crate::client::{Client, clock};
use crate::failure::Failure;
use crate::output::{self, Table};
use crate::sys;

/// How often lines repeat how the cluster is, where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// How often the cluster is asked for its leaders.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// News shown below the table.
const NOTES_COUNT_MAX: usize = 6;
/// Clears the terminal and goes to its first line.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// What is shown.
pub(super) struct View {
    /// Goes before each line, to tell two clusters apart.
    prefix: String,
    is_terminal: bool,
    notes: Vec<String>,
    leaders: watch::Receiver<Option<Arc<ClusterView>>>,
    next_line: Instant,
}

impl View {
    /// Shows this cluster; who leads what is asked for in the background. Two clusters, told apart by
    /// their numbers, share a terminal line by line.
    pub(super) fn new(client: Client, number: Option<u8>) -> Self {
        let (sender, leaders) = watch::channel(None);
        tokio::spawn(async move {
            while !sender.is_closed() {
                // While nobody answers, nobody is known to lead.
                sender.send_replace(client.refresh(None).await.ok());
                clock::sleep(ASK_EVERY).await;
            }
        });
        Self {
            prefix: number.map(|number| format!("cluster {number}: ")).unwrap_or_default(),
            is_terminal: number.is_none() && std::io::stdout().is_terminal(),
            notes: Vec::new(),
            leaders,
            next_line: clock::now() + LINE_EVERY,
        }
    }

    /// Tells news.
    pub(super) fn note(&mut self, news: &str) -> Result<(), Failure> {
        if !self.is_terminal {
            return output::text(&format!("{}{news}\n", self.prefix));
        }
        if self.notes.len() == NOTES_COUNT_MAX {
            self.notes.remove(0);
        }
        self.notes.push(news.to_owned());
        Ok(())
    }

    /// Shows how the cluster is.
    pub(super) fn show(&mut self, layout: &Layout) -> Result<(), Failure> {
        let known = self.leaders.borrow().clone();
        if self.is_terminal {
            let table = table(layout, known.as_deref());
            let notes = self.notes.join("\n");
            let help =
                "Ctrl-C ends the cluster; `meridian dev kill|pause|resume|restart` breaks it";
            return output::text(&format!("{CLEAR}{table}\n{help}\n\n{notes}\n"));
        }
        if clock::now() >= self.next_line {
            self.next_line = clock::now() + LINE_EVERY;
            let summary = summary(layout, known.as_deref());
            return output::text(&format!("{}{summary}\n", self.prefix));
        }
        Ok(())
    }
}

fn table(layout: &Layout, known: Option<&ClusterView>) -> String {
    let (leaders, _) = known.map(ClusterView::leader_counts).unwrap_or_default();
    let mut table = Table::new(&["NODE", "DC", "RACK", "STATE", "LEADERS", "RSS", "PID", "KAFKA"]);
    for node in &layout.nodes {
        let rss = node.pid.and_then(sys::resident_bytes);
        let leads = i32::try_from(node.id).ok().and_then(|id| leaders.get(&id));
        table.row([
            node.id.to_string(),
            node.dc.clone(),
            node.rack.clone(),
            node.state.name().to_owned(),
            leads.copied().unwrap_or(0).to_string(),
            rss.map_or_else(|| "-".to_owned(), output::bytes),
            node.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            node.clients().to_string(),
        ]);
    }
    format!("{}\n{}\n", table.render(), summary(layout, known))
}

fn summary(layout: &Layout, known: Option<&ClusterView>) -> String {
    let up_count = layout.nodes.iter().filter(|node| node.state == NodeState::Up).count();
    let rss_bytes: u64 =
        layout.nodes.iter().filter_map(|node| node.pid.and_then(sys::resident_bytes)).sum();
    let partitions = match known {
        None => "the cluster does not answer".to_owned(),
        Some(view) => {
            let (leaders, leaderless_count) = view.leader_counts();
            let count = leaders.values().sum::<usize>() + leaderless_count;
            format!(
                "{} topics, {count} partitions, {leaderless_count} leaderless",
                view.topics.len()
            )
        }
    };
    format!(
        "{up_count} of {} nodes up, {partitions}, {} resident",
        layout.nodes.len(),
        output::bytes(rss_bytes)
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use meridian_protocol::Uuid;

    use super::super::layout::{Shape, prepare};
    use super::*;
    use crate::client::metadata::{Partition, Topic};

    #[test]
    fn nodes_are_shown_with_what_they_lead() {
        let data = std::env::temp_dir().join(format!("meridian-dev-view-{}", std::process::id()));
        std::fs::create_dir_all(&data).unwrap();
        let mut layout = prepare(&data, Shape::new(3, 1).unwrap(), None).unwrap();
        std::fs::remove_dir_all(&data).unwrap();
        layout.nodes[0].state = NodeState::Up;
        let led_by = |leader| Partition {
            leader,
            leader_epoch: 0,
            replicas: Vec::new(),
            in_sync: Vec::new(),
        };
        let topic = Topic {
            id: Uuid::ZERO,
            is_internal: false,
            partitions: vec![led_by(Some(1)), led_by(Some(1)), led_by(None)],
        };
        let view =
            ClusterView { topics: BTreeMap::from([("t".to_owned(), topic)]), ..Default::default() };
        let table = table(&layout, Some(&view));
        let first = table.lines().nth(1).unwrap();
        let cells: Vec<_> = first.split_whitespace().collect();
        assert_eq!(cells, ["1", "A", "A1", "up", "2", "-", "-", "127.0.0.1:9092"]);
        assert!(
            table
                .ends_with("1 of 3 nodes up, 1 topics, 3 partitions, 1 leaderless, 0 B resident\n")
        );
        assert!(summary(&layout, None).contains("does not answer"));
    }
}
