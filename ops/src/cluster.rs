//! `meridian cluster`: what state the whole cluster is in.

use clap::{Args, Subcommand};
use meridian_admin_api::NoArguments;
use meridian_admin_api::cluster::{
    Condition, Geometry, GroupStatus, NodeStatus, Severity, Status, Tolerance,
};
use meridian_admin_api::methods::ClusterStatus;

use crate::client::{Client, api};
use crate::failure::{Exit, Failure};
use crate::output::{self, Table, or_none};
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

/// Whether a condition stops writes now.
pub(crate) fn stops(condition: &Condition) -> bool {
    condition.severity == Severity::Stops
}

/// Whether a condition is as it is meant to be for a while, such as amid an upgrade.
fn is_note(condition: &Condition) -> bool {
    condition.severity == Severity::Notes
}

/// What a condition is, and whose.
pub(crate) fn line(condition: &Condition) -> String {
    let Condition { severity, nodes, what, .. } = condition;
    let ids: Vec<String> = nodes.iter().map(u32::to_string).collect();
    match &ids[..] {
        [] => format!("{severity}: {what}"),
        [id] => format!("{severity}: node {id}: {what}"),
        _ => format!("{severity}: nodes {}: {what}", ids.join(", ")),
    }
}

/// Runs the command.
pub(crate) async fn run(cluster: Cluster) -> Result<Exit, Failure> {
    let Cluster { target, command: Command::Status } = cluster;
    let client = target.connect().await?;
    let status = ask(&client).await?;
    output::print(target.output, &status, render)?;
    Ok(if is_degraded(&status) { Exit::Degraded } else { Exit::Ok })
}

/// The last entry of the metadata log that a node has applied, if it can be asked.
pub(crate) async fn applied_index(client: &Client) -> Option<u64> {
    ask(client).await.ok().map(|status| status.raft.applied_index)
}

/// Asks the cluster for its state.
pub(crate) async fn ask(client: &Client) -> Result<Status, Failure> {
    api::call::<ClusterStatus>(client, &NoArguments {}).await
}

/// Whether what is said of the cluster is said of all it has.
fn is_one_group(status: &Status) -> bool {
    status.groups.len() < 2
}

fn is_degraded(status: &Status) -> bool {
    !faults(status).is_empty()
}

/// What stops or threatens writes, as far as the server says.
pub(crate) fn conditions(status: &Status) -> &[Condition] {
    status.conditions.as_deref().unwrap_or_default()
}

/// All that is not as it should be.
fn faults(status: &Status) -> Vec<String> {
    if let Some(conditions) = &status.conditions {
        return conditions.iter().filter(|it| !is_note(it)).map(line).collect();
    }
    let mut faults = Vec::new();
    if is_one_group(status) {
        if status.tolerates != built_for(&status.geometry) {
            faults.push("less can be lost than it was built for".to_owned());
        }
    } else {
        let short = status.groups.iter().filter(|group| group.tolerates != group.built_for);
        let fault =
            |it: &GroupStatus| format!("less of group {} can be lost than it was built for", it.id);
        faults.extend(short.map(fault));
    }
    if status.partitions.leaderless > 0 {
        faults.push(format!("{} partitions have no leader", status.partitions.leaderless));
    }
    if status.raft.leader.is_none() {
        faults.push("no metadata leader is known".to_owned());
    }
    let away = status.nodes.iter().filter(|node| !node.is_alive());
    faults.extend(away.map(|node| format!("node {} is {}", node.id, node.liveness)));
    faults
}

/// What a cluster of this geometry tolerates when all is well.
fn built_for(geometry: &Geometry) -> Tolerance {
    match geometry {
        Geometry::Mirror3Dc => Tolerance::DatacenterAndRack,
        Geometry::OnePerDc => Tolerance::Datacenter,
        Geometry::Block42 => Tolerance::TwoRacks,
        Geometry::None | Geometry::Unknown(_) => Tolerance::Nothing,
    }
}

fn render(status: &Status) -> String {
    let Status { cluster_id, geometry, tolerates, raft, partitions, .. } = status;
    let conditions = conditions(status);
    let (state, why) = match faults(status) {
        faults if faults.is_empty() => ("well", render_conditions(conditions)),
        faults if conditions.is_empty() => {
            ("DEGRADED", format!("because: {}\n", faults.join(", ")))
        }
        _ => ("DEGRADED", format!("because:\n{}", render_conditions(conditions))),
    };
    let leader = raft.leader.map_or_else(|| "none".to_owned(), |leader| format!("node {leader}"));
    // Without a leader the node goes by old metadata: it lists nodes as alive that may be gone.
    let now = |tolerates: &Tolerance| match raft.leader {
        Some(_) => tolerates.to_string(),
        None => "not known without a metadata leader".to_owned(),
    };
    let of_group = |group: &GroupStatus| {
        let GroupStatus { id, geometry, tolerates, built_for, partitions, .. } = group;
        let tolerates = now(tolerates);
        format!(
            "group {id} ({geometry}): can be lost now: {tolerates} (built for: {built_for}), partitions: {partitions}\n"
        )
    };
    let (shapes, losses) = if is_one_group(status) {
        let (built_for, tolerates) = (built_for(geometry), now(tolerates));
        (geometry.to_string(), format!("can be lost now: {tolerates} (built for: {built_for})\n"))
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
    let lines = |it: &Condition| format!("  {}\n    to mend it: {}\n", line(it), it.mend);
    conditions.iter().map(lines).collect()
}

/// The nodes as a table.
pub(crate) fn render_nodes(nodes: &[NodeStatus]) -> String {
    let header =
        ["NODE", "DC", "RACK", "LIVENESS", "GROUP", "SLOT", "SLOT STATE", "LEADERS", "KAFKA"];
    let mut table = Table::new(&header);
    for node in nodes {
        table.row([
            node.id.to_string(),
            node.dc.clone(),
            node.rack.clone(),
            node.liveness.to_string(),
            or_none(node.group),
            or_none(node.slot),
            or_none(node.slot_state.as_ref()),
            node.leaders.to_string(),
            node.kafka.clone(),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use meridian_admin_api::Besides;

    use super::*;

    #[test]
    fn without_a_metadata_leader_nobody_knows_what_can_be_lost() {
        let mut status = status("DC + rack", "alive", 0);
        status.raft.leader = None;
        let text = render(&status);
        assert!(text.contains("can be lost now: not known without a metadata leader"), "{text}");
        assert!(!text.contains("can be lost now: DC"), "{text}");
    }

    fn status(tolerates: &str, liveness: &str, leaderless: usize) -> Status {
        let json = serde_json::json!({
            "cluster_id": "c", "geometry": "mirror-3-dc", "tolerates": tolerates,
            "raft": {"leader": 1, "term": 2, "applied": 3},
            "partitions": {"total": 4, "leaderless": leaderless},
            "nodes": [{"id": 1, "dc": "A", "rack": "A1", "kafka": "h:1", "liveness": liveness,
                "slot": 0, "slot_state": "good", "leaders": 4, "version": "0.1.0"}],
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn less_than_built_for_is_degraded() {
        assert!(!is_degraded(&status("DC + rack", "alive", 0)));
        assert!(is_degraded(&status("rack", "alive", 0)));
        assert!(is_degraded(&status("DC + rack", "dead", 0)));
        assert!(is_degraded(&status("DC + rack", "alive", 1)));
    }

    #[test]
    fn the_first_lines_answer_what_can_be_lost() {
        let text = render(&status("rack", "alive", 1));
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
        let mut whole = status("DC + rack", "alive", 0);
        whole.conditions = Some(Vec::new());
        assert!(!is_degraded(&whole));
        assert!(render(&whole).starts_with("cluster c (mirror-3-dc) is well\n"));
        let of = |severity: &str, nodes: &[u32], what: &str| {
            serde_json::json!({
                "condition": "x", "severity": severity, "nodes": nodes, "what": what,
                "mend": "`meridian topic delete TOPIC`", "since": 5,
            })
        };
        let mut json = serde_json::to_value(status("DC + rack", "alive", 0)).unwrap();
        json["conditions"] = serde_json::json!([
            of("stops", &[], "group 1 takes no records"),
            of("threatens", &[1, 2], "the disk is full"),
            of("threatens", &[3], "the disk is nearly full"),
            of("notes", &[], "node 2 has an older binary"),
        ]);
        let full: Status = serde_json::from_value(json).unwrap();
        assert!(is_degraded(&full));
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
        noted.conditions = noted.conditions.map(|it| it.into_iter().filter(is_note).collect());
        assert!(!is_degraded(&noted), "an upgrade goes on from node to node");
        let text = render(&noted);
        assert!(text.starts_with("cluster c (mirror-3-dc) is well\n"), "{text}");
        assert!(text.contains("notes: node 2 has an older binary"), "{text}");
    }

    #[test]
    fn a_further_group_is_shown_and_counts() {
        let mut both = status("DC + rack", "alive", 0);
        assert!(!render(&both).contains("group "), "one group is the cluster");
        let group = |id, geometry: &str, tolerates: &str| GroupStatus {
            id,
            geometry: geometry.to_owned().into(),
            tolerates: tolerates.to_owned().into(),
            built_for: tolerates.to_owned().into(),
            partitions: 3,
            besides: Besides::new(),
        };
        both.groups.push(group(1, "mirror-3-dc", "DC + rack"));
        both.groups.push(group(2, "block-4-2", "2 racks"));
        assert!(!is_degraded(&both));
        both.groups[1].tolerates = Tolerance::Rack;
        assert!(is_degraded(&both));
        let head = "cluster c (mirror-3-dc and block-4-2) is DEGRADED\n\
                    group 1 (mirror-3-dc): can be lost now: DC + rack (built for: DC + rack), partitions: 3\n\
                    group 2 (block-4-2): can be lost now: rack (built for: 2 racks), partitions: 3\n\
                    because: less of group 2 can be lost than it was built for\n";
        let text = render(&both);
        assert!(text.starts_with(head), "{text}");
    }

    #[test]
    fn what_a_newer_server_adds_is_passed_on() {
        let json = serde_json::to_value(status("rack", "resting", 0)).unwrap();
        assert_eq!(json["raft"]["applied"], 3);
        assert_eq!(json["nodes"][0]["liveness"], "resting");
    }
}
