//! `meridian disk`: the disks, what they hold, whether every byte of them is what it was, and how they rest,
//! leave and are replaced.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use meridian_admin_api::NoArguments;
use meridian_admin_api::disk::{Scrub, ScrubState, Standing, Status};
use meridian_admin_api::methods::{DiskScrub, DiskStatus};
use serde::Serialize;

use crate::client::{Client, api, clock};
use crate::cluster;
use crate::consent::Consent;
use crate::failure::{Exit, Failure};
use crate::node::lifecycle::{self, Lifecycle};
use crate::output::{self, Table, or_none};
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
            Ok(if disks.iter().all(Listed::is_well) { Exit::Ok } else { Exit::Degraded })
        }
        Command::Status { which } => {
            let status = status(&client, which.node()).await?;
            output::print(target.output, &status, crate::node::render)?;
            Ok(if is_readable(&status) { Exit::Ok } else { Exit::Degraded })
        }
        Command::Scrub { which, now, wait } => {
            let node = which.node();
            let before = status(&client, node).await?;
            let mut after = api::call_node::<DiskScrub>(&client, node, &Scrub { now }).await?;
            let mut leaders = Leaders::default();
            while wait && !(is_done(&before, &after) && leaders.are_done(&after, clock::now())) {
                tokio::time::sleep(LOOK_EVERY).await;
                after = status(&client, node).await?;
            }
            output::print(target.output, &after, crate::node::render)?;
            Ok(if !wait || is_readable(&after) { Exit::Ok } else { Exit::Degraded })
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

async fn status(client: &Client, node: i32) -> Result<Status, Failure> {
    api::call_node::<DiskStatus>(client, node, &NoArguments {}).await
}

/// A disk, and where it is.
#[derive(Debug, Serialize)]
struct Listed {
    disk: String,
    dc: String,
    rack: String,
    group: Option<u32>,
    slot: Option<usize>,
    #[serde(flatten)]
    said: Said,
}

/// What a node says of its disk.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Said {
    Status(Box<Status>),
    /// It does not answer.
    Nothing {
        node: i32,
        error: String,
    },
}

impl Listed {
    fn is_well(&self) -> bool {
        match &self.said {
            Said::Status(status) => {
                let counts = self.slot.is_none() || status.standing == Standing::Good;
                counts && is_readable(status)
            }
            Said::Nothing { .. } => false,
        }
    }
}

/// What every node with a slot says of its disk; for one that does not answer, why.
async fn list(client: &Client) -> Result<Vec<Listed>, Failure> {
    let mut disks = Vec::new();
    for node in cluster::ask(client).await?.nodes {
        let Ok(id) = i32::try_from(node.id) else { continue };
        let said = match status(client, id).await {
            Ok(status) => Said::Status(Box::new(status)),
            Err(_) if node.slot.is_none() => continue,
            Err(error) => Said::Nothing { node: id, error: error.to_string() },
        };
        disks.push(Listed {
            disk: DiskName(node.id).to_string(),
            dc: node.dc,
            rack: node.rack,
            group: node.group,
            slot: node.slot,
            said,
        });
    }
    Ok(disks)
}

/// Whether a pass has ended since `before`, and its repairs too, as far as they can.
fn is_done(before: &Status, after: &Status) -> bool {
    // Damage that nobody can mend keeps its file.
    let is_emptying = after.emptying && after.unreadable == 0;
    let is_idle = after.scrub.state == ScrubState::Idle && !after.mending && !is_emptying;
    is_idle && after.scrub.passes > before.scrub.passes
}

/// The leaders that make damaged parts of stripes again. What nobody can make again stays damaged: as long as it
/// gets less, it is worth waiting.
#[derive(Debug, Default)]
struct Leaders {
    /// How much was damaged, and since when it has been so much.
    left: Option<(u32, Instant)>,
}

impl Leaders {
    /// Whether nothing is left for them, or they do not get on.
    fn are_done(&mut self, disk: &Status, now: Instant) -> bool {
        let unreadable = disk.unreadable;
        let since = match self.left {
            Some((before, since)) if before == unreadable => since,
            _ => now,
        };
        self.left = Some((unreadable, since));
        unreadable == 0 || now.saturating_duration_since(since) >= MENDED_WITHIN
    }
}

/// Whether all of a disk can be read.
fn is_readable(disk: &Status) -> bool {
    disk.unreadable == 0
}

const COLUMNS: [&str; 17] = [
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
];

fn render(disks: &[Listed], now_ms: i64) -> String {
    let mut table = Table::new(&COLUMNS);
    for disk in disks {
        let mut cells = vec![
            disk.disk.clone(),
            disk.dc.clone(),
            disk.rack.clone(),
            or_none(disk.group),
            or_none(disk.slot),
        ];
        match &disk.said {
            Said::Status(status) => cells.extend(status_cells(status, now_ms)),
            Said::Nothing { error, .. } => {
                cells.push(error.clone());
                cells.resize(COLUMNS.len(), "-".to_owned());
            }
        }
        table.cells(cells);
    }
    table.render()
}

fn status_cells(status: &Status, now_ms: i64) -> [String; 12] {
    let scrub = &status.scrub;
    let scrubbing = match scrub.state {
        ScrubState::Running => format!("file {} of {}", scrub.file, scrub.last_file),
        _ => scrub.state.to_string(),
    };
    [
        status.standing.to_string(),
        or_none(status.mounted_as.as_ref()),
        status.used_bytes.to_string(),
        status.live_bytes.to_string(),
        status.free_bytes.to_string(),
        or_none(status.tiers.as_ref().map(|tiers| tiers.fast_used_bytes)),
        or_none(status.tiers.as_ref().map(|tiers| tiers.capacity_used_bytes)),
        status.corrupt.to_string(),
        status.repaired.to_string(),
        status.unreadable.to_string(),
        scrubbing,
        ago(now_ms - scrub.ended_at_ms),
    ]
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
    use meridian_admin_api::Besides;
    use meridian_admin_api::disk::{MountedAs, ScrubProgress};

    use super::*;

    fn status(standing: Standing, passes: u64, state: ScrubState, unreadable: u32) -> Status {
        Status {
            node: 4,
            standing,
            mounted_as: None,
            incarnation: 1,
            mount_epoch: 1,
            used_bytes: 100,
            live_bytes: 60,
            free_bytes: 900,
            corrupt: 2,
            repaired: 1,
            unreadable,
            mending: unreadable == 2,
            emptying: false,
            scrub: ScrubProgress {
                state,
                file: 2,
                last_file: 7,
                checked_bytes: 0,
                passes,
                began_at_ms: None,
                ended_at_ms: 1_000,
                due_at_ms: None,
                besides: Besides::new(),
            },
            tiers: None,
            besides: Besides::new(),
        }
    }

    fn good(passes: u64, state: ScrubState, unreadable: u32) -> Status {
        status(Standing::Good, passes, state, unreadable)
    }

    fn listed(said: Said) -> Listed {
        let (disk, dc, rack) = ("4/disk".to_owned(), "B".to_owned(), "B1".to_owned());
        Listed { disk, dc, rack, group: Some(2), slot: Some(3), said }
    }

    fn silent() -> Listed {
        listed(Said::Nothing { node: 4, error: "refused".to_owned() })
    }

    #[test]
    fn a_disk_is_well_if_it_counts_and_all_of_it_can_be_read() {
        let is_well = |it: Status| listed(Said::Status(Box::new(it))).is_well();
        assert!(is_well(good(0, ScrubState::Idle, 0)));
        assert!(!is_well(status(Standing::LostData, 0, ScrubState::Idle, 0)));
        assert!(!is_well(good(0, ScrubState::Idle, 1)));
        assert!(!silent().is_well());
        let spare = status(Standing::NotMember, 0, ScrubState::Idle, 0);
        let spare = Listed { slot: None, ..listed(Said::Status(Box::new(spare))) };
        assert!(spare.is_well());
    }

    #[test]
    fn a_scrub_is_done_when_its_pass_and_its_repairs_are() {
        let before = good(3, ScrubState::Idle, 0);
        assert!(!is_done(&before, &good(3, ScrubState::Running, 0)));
        assert!(!is_done(&before, &good(4, ScrubState::Idle, 2)), "it is still mending");
        assert!(is_done(&before, &good(4, ScrubState::Idle, 0)));
        assert!(is_done(&before, &good(4, ScrubState::Idle, 1)), "nobody can mend it");
    }

    #[test]
    fn a_scrub_is_not_done_while_leaders_get_on() {
        let (begun, mut leaders) = (clock::now(), Leaders::default());
        let at = |seconds| begun + Duration::from_secs(seconds);
        let left = |unreadable| good(4, ScrubState::Idle, unreadable);
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
        let of = |it: Status| listed(Said::Status(Box::new(it)));
        let text = render(&[of(good(0, ScrubState::Running, 0))], 601_000);
        assert!(text.contains("file 2 of 7") && text.contains("10 min ago"), "{text}");
        let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().take(5).collect();
        assert_eq!(row, ["4/disk", "B", "B1", "2", "3"], "{text}");
        let mut borrowed = status(Standing::LostData, 0, ScrubState::Idle, 0);
        borrowed.mounted_as = Some(MountedAs::OfNode(9));
        assert!(render(&[of(borrowed)], 0).contains("disk of node 9"));
        let text = render(&[silent()], 0);
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
