//! `meridian disk`: the disks, what they hold, and whether every byte of them is what it was.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::client::{Client, admin, clock};
use crate::cluster;
use crate::failure::{Exit, Failure};
use crate::output::{self, Table};
use crate::target::Target;

/// How often a running scrub is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Inspect and scrub disks
///
/// Each node has one disk: `meridian node drain`, `replace` and `decommission` are for both.
#[derive(Debug, Args)]
pub(crate) struct Disk {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the disks: what they hold, what was damaged, and when they were last scrubbed
    ///
    /// Exit code 2 if a disk does not answer, does not count, or holds damage that is not mended.
    ///
    /// Example: meridian disk list
    List,
    /// Show all that a node says of its disk
    ///
    /// Example: meridian disk status --node 4
    Status {
        /// The node's id
        #[arg(long)]
        node: i32,
    },
    /// Read every byte of a disk, and mend what is damaged from the others
    ///
    /// Disks of a group take turns; with --now this one does not wait for the others.
    ///
    /// Example: meridian disk scrub --node 4 --now --wait
    Scrub {
        /// The node's id
        #[arg(long)]
        node: i32,
        /// Begin at once, even while another disk is being scrubbed
        #[arg(long)]
        now: bool,
        /// Wait until all is read and mended; exit code 2 if something could not be
        #[arg(long)]
        wait: bool,
    },
}

/// Runs the command.
pub(crate) async fn run(disk: Disk) -> Result<Exit, Failure> {
    let Disk { target, command } = disk;
    let client = target.connect().await?;
    client.refresh(Some(&[])).await?;
    match command {
        Command::List => {
            let disks = list(&client).await?;
            output::print(target.output, &disks, |disks| render(disks, clock::wall_time_ms()))?;
            Ok(if disks.iter().all(is_well) { Exit::Ok } else { Exit::Degraded })
        }
        Command::Status { node } => {
            let status = status(&client, node).await?;
            output::print(target.output, &status, crate::node::render)?;
            Ok(if is_well(&status) { Exit::Ok } else { Exit::Degraded })
        }
        Command::Scrub { node, now, wait } => {
            let before = status(&client, node).await?;
            let arguments = json!({ "now": now });
            let mut after = admin::call_node(&client, node, "disk.scrub", &arguments).await?;
            while wait && !is_done(&before, &after) {
                tokio::time::sleep(LOOK_EVERY).await;
                after = status(&client, node).await?;
            }
            output::print(target.output, &after, crate::node::render)?;
            Ok(if !wait || is_well(&after) { Exit::Ok } else { Exit::Degraded })
        }
    }
}

async fn status(client: &Client, node: i32) -> Result<Value, Failure> {
    admin::call_node(client, node, "disk.status", &json!({})).await
}

/// What every node with a slot says of its disk; for one that does not answer, why.
async fn list(client: &Client) -> Result<Vec<Value>, Failure> {
    let mut disks = Vec::new();
    for node in cluster::ask(client).await?.nodes {
        let Ok(id) = i32::try_from(node.id) else { continue };
        let mut disk = match status(client, id).await {
            Ok(disk) => disk,
            Err(_) if node.slot.is_none() => continue,
            Err(error) => json!({ "node": id, "error": error.to_string() }),
        };
        if let Value::Object(fields) = &mut disk {
            fields.insert("dc".to_owned(), node.dc.into());
            fields.insert("rack".to_owned(), node.rack.into());
            fields.insert("slot".to_owned(), node.slot.into());
        }
        disks.push(disk);
    }
    Ok(disks)
}

/// Whether a pass has ended since `before`, and its repairs too, as far as they can.
fn is_done(before: &Value, after: &Value) -> bool {
    let passes = |status: &Value| status["scrub"]["passes"].as_u64();
    // Damage that nobody can mend keeps its file.
    let is_emptying = after["emptying"] == true && after["unreadable"] == 0;
    let is_idle = after["scrub"]["state"] == "idle" && after["mending"] != true && !is_emptying;
    is_idle && passes(after) > passes(before)
}

fn is_well(disk: &Value) -> bool {
    let counts = disk["slot"].is_null() || disk["standing"] == "Good";
    disk["error"].is_null() && counts && disk["unreadable"] == 0
}

fn render(disks: &[Value], now_ms: i64) -> String {
    let mut table = Table::new(&[
        "NODE",
        "DC",
        "RACK",
        "SLOT",
        "STANDING",
        "MOUNTED AS",
        "USED",
        "LIVE",
        "FREE",
        "ON FAST",
        "ON CAPACITY",
        "CORRUPT",
        "REPAIRED",
        "UNREADABLE",
        "SCRUB",
        "LAST SCRUB",
    ]);
    for disk in disks {
        let text = |value: &Value| match value {
            Value::Null => "-".to_owned(),
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        let scrub = &disk["scrub"];
        let running = scrub["state"] == "running";
        let progress = format!("file {} of {}", text(&scrub["file"]), text(&scrub["last_file"]));
        let standing = if disk["error"].is_null() { &disk["standing"] } else { &disk["error"] };
        let ended = scrub["ended_at_ms"].as_i64().map(|ended_ms| ago(now_ms - ended_ms));
        table.cells(vec![
            text(&disk["node"]),
            text(&disk["dc"]),
            text(&disk["rack"]),
            text(&disk["slot"]),
            text(standing),
            mounted_as(&disk["mounted_as"]),
            text(&disk["used_bytes"]),
            text(&disk["live_bytes"]),
            text(&disk["free_bytes"]),
            text(&disk["tiers"]["fast_used_bytes"]),
            text(&disk["tiers"]["capacity_used_bytes"]),
            text(&disk["corrupt"]),
            text(&disk["repaired"]),
            text(&disk["unreadable"]),
            if running { progress } else { text(&scrub["state"]) },
            ended.unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    table.render()
}

/// What a disk was found to be when its node started.
fn mounted_as(found: &Value) -> String {
    match (found.as_str(), &found["of-node"]) {
        (Some(found), _) => found.to_owned(),
        (None, Value::Null) => "-".to_owned(),
        (None, node) => format!("disk of node {node}"),
    }
}

fn ago(past_ms: i64) -> String {
    match past_ms.max(0) / 1000 {
        seconds @ 0..120 => format!("{seconds} s ago"),
        seconds @ 120..7200 => format!("{} min ago", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h ago", seconds / 3600),
        seconds => format!("{} d ago", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(standing: &str, passes: u64, state: &str, unreadable: u64) -> Value {
        json!({
            "node": 4, "dc": "B", "rack": "B1", "slot": 3, "standing": standing,
            "used_bytes": 100, "live_bytes": 60, "free_bytes": 900,
            "corrupt": 2, "repaired": 1, "unreadable": unreadable, "mending": unreadable == 2,
            "scrub": {"state": state, "file": 2, "last_file": 7, "passes": passes,
                "ended_at_ms": 1_000},
        })
    }

    #[test]
    fn a_disk_is_well_if_it_counts_and_all_of_it_can_be_read() {
        assert!(is_well(&disk("Good", 0, "idle", 0)));
        assert!(!is_well(&disk("LostData", 0, "idle", 0)));
        assert!(!is_well(&disk("Good", 0, "idle", 1)));
        assert!(!is_well(&json!({"node": 4, "error": "refused"})));
    }

    #[test]
    fn a_scrub_is_done_when_its_pass_and_its_repairs_are() {
        let before = disk("Good", 3, "idle", 0);
        assert!(!is_done(&before, &disk("Good", 3, "running", 0)));
        assert!(!is_done(&before, &disk("Good", 4, "idle", 2)), "it is still mending");
        assert!(is_done(&before, &disk("Good", 4, "idle", 0)));
        assert!(is_done(&before, &disk("Good", 4, "idle", 1)), "nobody can mend it");
    }

    #[test]
    fn the_list_says_how_far_a_scrub_is() {
        let text = render(&[disk("Good", 0, "running", 0)], 601_000);
        assert!(text.contains("file 2 of 7") && text.contains("10 min ago"), "{text}");
        let mut borrowed = disk("LostData", 0, "idle", 0);
        borrowed["mounted_as"] = json!({ "of-node": 9 });
        assert!(render(&[borrowed], 0).contains("disk of node 9"));
        let text = render(&[json!({"node": 5, "error": "refused"})], 0);
        assert!(text.contains("refused"), "{text}");
    }

    #[test]
    fn times_are_short() {
        assert_eq!(
            [0, 150_000, 7_200_000, 864_000_000].map(ago),
            ["0 s ago", "2 min ago", "2 h ago", "10 d ago"]
        );
    }
}
