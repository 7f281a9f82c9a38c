//! `meridian disk`: the disks, what they hold, whether every byte of them is what it was, and how they rest,
//! leave and are replaced.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::client::{Client, admin, clock};
use crate::cluster;
use crate::consent::Consent;
use crate::failure::{Exit, Failure};
use crate::node::lifecycle::{self, Lifecycle};
use crate::output::{self, Table};
use crate::target::Target;

/// How often a running scrub is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How long a leader may take to make a damaged part of a stripe again, twice over: it looks every half minute.
const MENDED_WITHIN: Duration = Duration::from_secs(60);

/// Inspect and scrub disks, and let them rest, leave or be replaced
///
/// Each node has one disk, whose name is the node's id and `disk`, as `disk list` shows it: 4/disk. The id alone
/// does as well. What becomes of the disk becomes of its node: `meridian node drain` and `meridian disk drain` are
/// one thing.
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
    /// Example: meridian disk status 4/disk
    Status {
        #[command(flatten)]
        which: Which,
    },
    /// Read every byte of a disk, and mend what is damaged from the others
    ///
    /// Disks of a group take turns; with --now this one does not wait for the others.
    ///
    /// Example: meridian disk scrub 4/disk --now --wait
    Scrub {
        #[command(flatten)]
        which: Which,
        /// Begin at once, even while another disk is being scrubbed
        #[arg(long)]
        now: bool,
        /// Wait until all is read and mended, also by the leaders of its partitions; exit code 2 if something
        /// could not be
        #[arg(long)]
        wait: bool,
    },
    /// Let a disk rest with its node: leaders move away, its slot stays, and the node may be stopped
    ///
    /// Refused (exit code 3) if the group would not survive what rests or is down then.
    ///
    /// Example: meridian disk drain 4/disk --wait
    Drain {
        /// Its name
        disk: DiskName,
        /// Wait until its node leads nothing
        #[arg(long)]
        wait: bool,
    },
    /// End a disk's rest, or call off its decommission while it is still there
    ///
    /// Example: meridian disk undrain 4/disk
    Undrain {
        /// Its name
        disk: DiskName,
    },
    /// Give a disk's slot to another disk of the same datacenter, which fills itself from its peers
    ///
    /// A disk whose node is dead for ten minutes (`heal.after_s`) is replaced without this command.
    ///
    /// Example: meridian disk replace 4/disk --with 10/disk --wait --yes
    Replace {
        /// Its name
        disk: DiskName,
        /// The disk that takes the slot [default: the best spare]
        #[arg(long, value_name = "DISK")]
        with: Option<DiskName>,
        /// Wait until the new disk counts
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        consent: Consent,
    },
    /// Remove a disk for good, with its node: its slot moves to a spare disk, and the cluster forgets the node
    ///
    /// Refused (exit code 3) without a spare in its datacenter, or while too much else is away.
    ///
    /// Example: meridian disk decommission 4/disk --wait --yes
    Decommission {
        /// Its name
        disk: DiskName,
        /// Wait until the cluster has forgotten it
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        consent: Consent,
    },
}

/// One disk, by its name or by its node.
#[derive(Clone, Copy, Debug, Args)]
#[group(required = true, multiple = false)]
struct Which {
    /// Its name
    disk: Option<DiskName>,
    /// Its node's id
    #[arg(long)]
    node: Option<u32>,
}

impl Which {
    fn node(self) -> i32 {
        let node = self.disk.map(|DiskName(node)| node).or(self.node).unwrap_or_default();
        i32::try_from(node).unwrap_or(i32::MAX)
    }
}

/// The name of a disk: that of its node, and of its place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DiskName(u32);

impl FromStr for DiskName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let node = text.strip_suffix("/disk").unwrap_or(text);
        let wrong = |_| {
            format!("{text:?} is no disk's name, such as 4/disk; `meridian disk list` shows them")
        };
        node.parse().map(Self).map_err(wrong)
    }
}

impl fmt::Display for DiskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/disk", self.0)
    }
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
        Command::Status { which } => {
            let status = status(&client, which.node()).await?;
            output::print(target.output, &status, crate::node::render)?;
            Ok(if is_well(&status) { Exit::Ok } else { Exit::Degraded })
        }
        Command::Scrub { which, now, wait } => {
            let node = which.node();
            let before = status(&client, node).await?;
            let arguments = json!({ "now": now });
            let mut after = admin::call_node(&client, node, "disk.scrub", &arguments).await?;
            let mut leaders = Leaders::default();
            while wait && !(is_done(&before, &after) && leaders.are_done(&after, clock::now())) {
                tokio::time::sleep(LOOK_EVERY).await;
                after = status(&client, node).await?;
            }
            output::print(target.output, &after, crate::node::render)?;
            Ok(if !wait || is_well(&after) { Exit::Ok } else { Exit::Degraded })
        }
        Command::Drain { disk: DiskName(id), wait } => {
            live(&client, target, Lifecycle::Drain { id, wait }).await
        }
        Command::Undrain { disk: DiskName(id) } => {
            live(&client, target, Lifecycle::Undrain { id }).await
        }
        Command::Replace { disk: DiskName(id), with, wait, consent } => {
            let with = with.map(|DiskName(node)| node);
            live(&client, target, Lifecycle::Replace { id, with, wait, consent }).await
        }
        Command::Decommission { disk: DiskName(id), wait, consent } => {
            live(&client, target, Lifecycle::Decommission { id, wait, consent }).await
        }
    }
}

/// What is done to a disk is done to its node.
async fn live(client: &Client, target: Target, command: Lifecycle) -> Result<Exit, Failure> {
    let stand = lifecycle::run(client, command).await?;
    output::print(target.output, &stand, crate::node::render)?;
    Ok(Exit::Ok)
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
            fields.insert("disk".to_owned(), DiskName(node.id).to_string().into());
            fields.insert("dc".to_owned(), node.dc.into());
            fields.insert("rack".to_owned(), node.rack.into());
            fields.insert("group".to_owned(), node.group.into());
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

/// The leaders that make damaged parts of stripes again. What nobody can make again stays damaged: as long as it
/// gets less, it is worth waiting.
#[derive(Debug, Default)]
struct Leaders {
    /// How much was damaged, and since when it has been so much.
    left: Option<(u64, Instant)>,
}

impl Leaders {
    /// Whether nothing is left for them, or they do not get on.
    fn are_done(&mut self, disk: &Value, now: Instant) -> bool {
        let unreadable = disk["unreadable"].as_u64().unwrap_or(0);
        let since = match self.left {
            Some((before, since)) if before == unreadable => since,
            _ => now,
        };
        self.left = Some((unreadable, since));
        unreadable == 0 || now.saturating_duration_since(since) >= MENDED_WITHIN
    }
}

fn is_well(disk: &Value) -> bool {
    let counts = disk["slot"].is_null() || disk["standing"] == "Good";
    disk["error"].is_null() && counts && disk["unreadable"] == 0
}

fn render(disks: &[Value], now_ms: i64) -> String {
    let mut table = Table::new(&[
        "DISK",
        "DC",
        "RACK",
        "GROUP",
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
            text(&disk["disk"]),
            text(&disk["dc"]),
            text(&disk["rack"]),
            text(&disk["group"]),
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
            "disk": "4/disk", "node": 4, "dc": "B", "rack": "B1", "group": 2, "slot": 3, "standing": standing,
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
    fn a_scrub_is_not_done_while_leaders_get_on() {
        let (begun, mut leaders) = (clock::now(), Leaders::default());
        let at = |seconds| begun + Duration::from_secs(seconds);
        let left = |unreadable| disk("Good", 4, "idle", unreadable);
        assert!(!leaders.are_done(&left(3), at(0)));
        assert!(!leaders.are_done(&left(3), at(59)));
        assert!(!leaders.are_done(&left(1), at(61)), "they made two again");
        assert!(!leaders.are_done(&left(1), at(120)));
        assert!(leaders.are_done(&left(1), at(121)), "nobody makes it again");
        assert!(Leaders::default().are_done(&left(0), at(0)));
    }

    #[test]
    fn a_disk_has_its_nodes_name() {
        assert_eq!("4/disk".parse(), Ok(DiskName(4)));
        assert_eq!("4".parse(), Ok(DiskName(4)));
        assert_eq!(DiskName(4).to_string(), "4/disk");
        for wrong in ["", "disk", "4/", "4/disk/5", "-4", "four"] {
            assert!(wrong.parse::<DiskName>().is_err_and(|text| text.contains("disk list")));
        }
    }

    #[test]
    fn the_list_says_how_far_a_scrub_is() {
        let text = render(&[disk("Good", 0, "running", 0)], 601_000);
        assert!(text.contains("file 2 of 7") && text.contains("10 min ago"), "{text}");
        let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().take(5).collect();
        assert_eq!(row, ["4/disk", "B", "B1", "2", "3"], "{text}");
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
