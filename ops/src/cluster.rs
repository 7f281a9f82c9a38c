//! `meridian cluster`: what state the whole cluster is in.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};

use crate::client::{Client, admin};
use crate::failure::{Exit, Failure};
use crate::output::{self, Table};
use crate::target::Target;

/// Inspect the cluster
#[derive(Debug, Args)]
pub(crate) struct Cluster {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what can be lost right now without losing records or service
    ///
    /// Lists whatever stops or threatens writes, with the command that mends it; exit code 2 if that is
    /// anything.
    ///
    /// Example: meridian cluster status -o json
    Status,
}

/// The state of the cluster, as one of its nodes knows it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ClusterStatus {
    cluster_id: String,
    geometry: String,
    /// Decided by the server: "DC + rack", "DC", "rack", "nothing" or "not serving".
    tolerates: String,
    /// All groups, the first one too; a server that knows of one says nothing.
    #[serde(default)]
    groups: Vec<GroupStatus>,
    pub(crate) nodes: Vec<NodeStatus>,
    raft: RaftStatus,
    partitions: PartitionStatus,
    /// What stops or threatens writes, worst first; an older server does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    conditions: Option<Vec<Condition>>,
    /// What a newer server says besides.
    #[serde(flatten)]
    more: BTreeMap<String, serde_json::Value>,
}

/// A state that stops or threatens writes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Condition {
    condition: String,
    /// `stops`, `threatens` or `notes`.
    severity: String,
    /// The nodes that say so of themselves; none if it is said of the cluster.
    nodes: Vec<u32>,
    what: String,
    mend: String,
    #[serde(flatten)]
    more: BTreeMap<String, serde_json::Value>,
}

impl Condition {
    /// Whether it stops writes now.
    pub(crate) fn stops(&self) -> bool {
        self.severity == "stops"
    }

    /// Whether it is as it is meant to be for a while, such as amid an upgrade.
    fn is_note(&self) -> bool {
        self.severity == "notes"
    }

    /// What it is, and whose.
    pub(crate) fn line(&self) -> String {
        let Self { severity, nodes, what, .. } = self;
        let ids: Vec<String> = nodes.iter().map(u32::to_string).collect();
        match &ids[..] {
            [] => format!("{severity}: {what}"),
            [id] => format!("{severity}: node {id}: {what}"),
            _ => format!("{severity}: nodes {}: {what}", ids.join(", ")),
        }
    }

    /// What to do about it.
    pub(crate) fn mend(&self) -> &str {
        &self.mend
    }
}

/// A storage group.
#[derive(Debug, Serialize, Deserialize)]
struct GroupStatus {
    id: u32,
    geometry: String,
    tolerates: String,
    built_for: String,
    partitions: usize,
}

/// The state of one node, as the cluster sees it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NodeStatus {
    pub(crate) id: u32,
    pub(crate) dc: String,
    pub(crate) rack: String,
    pub(crate) kafka: String,
    pub(crate) liveness: String,
    #[serde(default)]
    pub(crate) group: Option<u32>,
    pub(crate) slot: Option<usize>,
    pub(crate) slot_state: Option<serde_json::Value>,
    pub(crate) leaders: usize,
    #[serde(flatten)]
    more: BTreeMap<String, serde_json::Value>,
}

impl NodeStatus {
    /// Whether the cluster hears of it.
    pub(crate) fn is_alive(&self) -> bool {
        self.liveness.eq_ignore_ascii_case("alive")
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct RaftStatus {
    leader: Option<u32>,
    term: u64,
    #[serde(flatten)]
    more: BTreeMap<String, serde_json::Value>,
}

#[derive(Debug, Serialize, Deserialize)]
struct PartitionStatus {
    total: usize,
    leaderless: usize,
    #[serde(flatten)]
    more: BTreeMap<String, serde_json::Value>,
}

/// Runs the command.
pub(crate) async fn run(cluster: Cluster) -> Result<Exit, Failure> {
    let Cluster { target, command: Command::Status } = cluster;
    let client = target.connect().await?;
    let status = ask(&client).await?;
    output::print(target.output, &status, render)?;
    Ok(if status.is_degraded() { Exit::Degraded } else { Exit::Ok })
}

/// The last entry of the metadata log that a node has applied, if it can be asked.
pub(crate) async fn applied_index(client: &Client) -> Option<u64> {
    let status = ask(client).await.ok()?;
    status.raft.more.get("applied_index")?.as_u64()
}

/// Asks the cluster for its state.
pub(crate) async fn ask(client: &Client) -> Result<ClusterStatus, Failure> {
    let arguments = serde_json::Value::Object(serde_json::Map::new());
    let answer = admin::admin_query(client, "cluster.status", &arguments).await?;
    serde_json::from_slice(&answer).map_err(|error| {
        Failure::Invalid(format!("the answer to cluster.status is not of this version: {error}"))
    })
}

impl ClusterStatus {
    /// Whether what is said of the cluster is said of all it has.
    fn is_one_group(&self) -> bool {
        self.groups.len() < 2
    }

    fn is_degraded(&self) -> bool {
        !self.faults().is_empty()
    }

    /// What stops or threatens writes, as far as the server says.
    pub(crate) fn conditions(&self) -> &[Condition] {
        self.conditions.as_deref().unwrap_or_default()
    }

    /// All that is not as it should be.
    fn faults(&self) -> Vec<String> {
        if let Some(conditions) = &self.conditions {
            return conditions.iter().filter(|it| !it.is_note()).map(Condition::line).collect();
        }
        let mut faults = Vec::new();
        if self.is_one_group() {
            if self.tolerates != built_for(&self.geometry) {
                faults.push("less can be lost than it was built for".to_owned());
            }
        } else {
            let short = self.groups.iter().filter(|group| group.tolerates != group.built_for);
            let fault = |it: &GroupStatus| {
                format!("less of group {} can be lost than it was built for", it.id)
            };
            faults.extend(short.map(fault));
        }
        if self.partitions.leaderless > 0 {
            faults.push(format!("{} partitions have no leader", self.partitions.leaderless));
        }
        if self.raft.leader.is_none() {
            faults.push("no metadata leader is known".to_owned());
        }
        let is_away = |node: &&NodeStatus| !node.is_alive();
        let away = self.nodes.iter().filter(is_away);
        faults.extend(away.map(|node| format!("node {} is {}", node.id, node.liveness)));
        faults
    }
}

/// What a cluster of this geometry tolerates when all is well.
fn built_for(geometry: &str) -> &'static str {
    match geometry {
        "mirror-3-dc" => "DC + rack",
        "one-per-dc" => "DC",
        "block-4-2" => "2 racks",
        _ => "nothing",
    }
}

fn render(status: &ClusterStatus) -> String {
    let ClusterStatus { cluster_id, geometry, tolerates, raft, partitions, .. } = status;
    let (state, why) = match status.faults() {
        faults if faults.is_empty() => ("well", render_conditions(status.conditions())),
        faults if status.conditions().is_empty() => {
            ("DEGRADED", format!("because: {}\n", faults.join(", ")))
        }
        _ => ("DEGRADED", format!("because:\n{}", render_conditions(status.conditions()))),
    };
    let leader = raft.leader.map_or_else(|| "none".to_owned(), |leader| format!("node {leader}"));
    // Without a leader the node goes by old metadata: it lists nodes as alive that may be gone.
    let now = |tolerates: &str| match raft.leader {
        Some(_) => tolerates.to_owned(),
        None => "not known without a metadata leader".to_owned(),
    };
    let of_group = |group: &GroupStatus| {
        let GroupStatus { id, geometry, tolerates, built_for, partitions } = group;
        let tolerates = now(tolerates);
        format!(
            "group {id} ({geometry}): can be lost now: {tolerates} (built for: {built_for}), partitions: {partitions}\n"
        )
    };
    let (shapes, losses) = if status.is_one_group() {
        let (built_for, tolerates) = (built_for(geometry), now(tolerates));
        (geometry.clone(), format!("can be lost now: {tolerates} (built for: {built_for})\n"))
    } else {
        let shapes: Vec<&str> = status.groups.iter().map(|it| it.geometry.as_str()).collect();
        (shapes.join(" and "), status.groups.iter().map(of_group).collect())
    };
    format!(
        "cluster {cluster_id} ({shapes}) is {state}\n{losses}{why}\
         metadata leader: {leader}, term {}\n\
         partitions: {}, leaderless: {}\n\n{}",
        raft.term,
        partitions.total,
        partitions.leaderless,
        render_nodes(&status.nodes)
    )
}

/// Each condition, and below it what to do about it.
fn render_conditions(conditions: &[Condition]) -> String {
    let line = |it: &Condition| format!("  {}\n    to mend it: {}\n", it.line(), it.mend());
    conditions.iter().map(line).collect()
}

/// The nodes as a table.
pub(crate) fn render_nodes(nodes: &[NodeStatus]) -> String {
    let header =
        ["NODE", "DC", "RACK", "LIVENESS", "GROUP", "SLOT", "SLOT STATE", "LEADERS", "KAFKA"];
    let mut table = Table::new(&header);
    for node in nodes {
        let slot_state = match &node.slot_state {
            None => "-".to_owned(),
            Some(serde_json::Value::String(state)) => state.clone(),
            Some(state) => state.to_string(),
        };
        table.row([
            node.id.to_string(),
            node.dc.clone(),
            node.rack.clone(),
            node.liveness.clone(),
            node.group.map_or_else(|| "-".to_owned(), |group| group.to_string()),
            node.slot.map_or_else(|| "-".to_owned(), |slot| slot.to_string()),
            slot_state,
            node.leaders.to_string(),
            node.kafka.clone(),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_metadata_leader_nobody_knows_what_can_be_lost() {
        let mut status = status("DC + rack", "Alive", 0);
        status.raft.leader = None;
        let text = render(&status);
        assert!(text.contains("can be lost now: not known without a metadata leader"), "{text}");
        assert!(!text.contains("can be lost now: DC"), "{text}");
    }

    fn status(tolerates: &str, liveness: &str, leaderless: usize) -> ClusterStatus {
        let json = serde_json::json!({
            "cluster_id": "c", "geometry": "mirror-3-dc", "tolerates": tolerates,
            "raft": {"leader": 1, "term": 2, "applied": 3},
            "partitions": {"total": 4, "leaderless": leaderless},
            "nodes": [{"id": 1, "dc": "A", "rack": "A1", "kafka": "h:1", "liveness": liveness,
                "slot": 0, "slot_state": "Good", "leaders": 4, "version": "0.1.0"}],
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn less_than_built_for_is_degraded() {
        assert!(!status("DC + rack", "Alive", 0).is_degraded());
        assert!(status("rack", "Alive", 0).is_degraded());
        assert!(status("DC + rack", "Dead", 0).is_degraded());
        assert!(status("DC + rack", "Alive", 1).is_degraded());
    }

    #[test]
    fn the_first_lines_answer_what_can_be_lost() {
        let text = render(&status("rack", "Alive", 1));
        assert!(text.starts_with("cluster c (mirror-3-dc) is DEGRADED\ncan be lost now: rack "));
        assert!(text.contains("partitions: 4, leaderless: 1\n"));
        let because =
            "because: less can be lost than it was built for, 1 partitions have no leader\n";
        assert!(text.contains(because), "{text}");
        let text = render(&status("DC + rack", "draining", 0));
        assert!(text.contains("\nbecause: node 1 is draining\n"), "{text}");
        assert!(!render(&status("DC + rack", "alive", 0)).contains("because"));
    }

    #[test]
    fn each_condition_is_a_line_with_what_mends_it() {
        let mut whole = status("DC + rack", "Alive", 0);
        whole.conditions = Some(Vec::new());
        assert!(!whole.is_degraded());
        assert!(render(&whole).starts_with("cluster c (mirror-3-dc) is well\n"));
        let of = |severity: &str, nodes: &[u32], what: &str| {
            serde_json::json!({
                "condition": "x", "severity": severity, "nodes": nodes, "what": what,
                "mend": "`meridian topic delete TOPIC`", "since": 5,
            })
        };
        let mut json = serde_json::to_value(status("DC + rack", "Alive", 0)).unwrap();
        json["conditions"] = serde_json::json!([
            of("stops", &[], "group 1 takes no records"),
            of("threatens", &[1, 2], "the disk is full"),
            of("threatens", &[3], "the disk is nearly full"),
            of("notes", &[], "node 2 has an older binary"),
        ]);
        let full: ClusterStatus = serde_json::from_value(json).unwrap();
        assert!(full.is_degraded());
        let text = render(&full);
        let lines = "cluster c (mirror-3-dc) is DEGRADED\n\
                     can be lost now: DC + rack (built for: DC + rack)\n\
                     because:\n  stops: group 1 takes no records\n    \
                     to mend it: `meridian topic delete TOPIC`\n  \
                     threatens: nodes 1, 2: the disk is full\n";
        assert!(text.starts_with(lines), "{text}");
        assert!(text.contains("threatens: node 3: the disk is nearly full\n"), "{text}");
        assert_eq!(serde_json::to_value(&full).unwrap()["conditions"][0]["since"], 5);
        let mut noted = full;
        noted.conditions =
            noted.conditions.map(|it| it.into_iter().filter(Condition::is_note).collect());
        assert!(!noted.is_degraded(), "an upgrade goes on from node to node");
        let text = render(&noted);
        assert!(text.starts_with("cluster c (mirror-3-dc) is well\n"), "{text}");
        assert!(text.contains("notes: node 2 has an older binary"), "{text}");
    }

    #[test]
    fn a_further_group_is_shown_and_counts() {
        let mut both = status("DC + rack", "Alive", 0);
        assert!(!render(&both).contains("group "), "one group is the cluster");
        let group = |id, geometry: &str, tolerates: &str| GroupStatus {
            id,
            geometry: geometry.to_owned(),
            tolerates: tolerates.to_owned(),
            built_for: tolerates.to_owned(),
            partitions: 3,
        };
        both.groups.push(group(1, "mirror-3-dc", "DC + rack"));
        both.groups.push(group(2, "block-4-2", "2 racks"));
        assert!(!both.is_degraded());
        both.groups[1].tolerates = "rack".to_owned();
        assert!(both.is_degraded());
        let head = "cluster c (mirror-3-dc and block-4-2) is DEGRADED\n\
                    group 1 (mirror-3-dc): can be lost now: DC + rack (built for: DC + rack), partitions: 3\n\
                    group 2 (block-4-2): can be lost now: rack (built for: 2 racks), partitions: 3\n\
                    because: less of group 2 can be lost than it was built for\n";
        let text = render(&both);
        assert!(text.starts_with(head), "{text}");
    }

    #[test]
    fn what_a_newer_server_adds_is_passed_on() {
        let json = serde_json::to_value(status("rack", "Alive", 0)).unwrap();
        assert_eq!(json["raft"]["applied"], 3);
        assert_eq!(json["nodes"][0]["version"], "0.1.0");
    }
}
