//! How many nodes a load needs, and what is left of them when the worst is lost.

use std::time::Duration;

use serde::Serialize;

use super::codec::{FILL_MAX, Layout};
use super::units::{Bytes, three_digits};
use crate::failure::Failure;
use crate::output::Table;

/// What the cluster must take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Need {
    /// Payload bytes each second, on average: what is kept.
    pub(super) write: Bytes,
    /// Payload bytes each second in the worst hour: what must get through.
    pub(super) peak: Bytes,
    /// How many times each byte is read.
    pub(super) fan_out: f64,
    /// How long it is kept.
    pub(super) retention: Duration,
}

/// What one node has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    /// Its disk.
    pub(super) disk: Bytes,
    /// What its disk writes each second.
    pub(super) disk_write: Bytes,
    /// What its network carries each second, each way.
    pub(super) network: Bytes,
}

/// What each second asks of a node at the peak.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Use {
    /// Bytes its disk writes.
    pub(super) disk_write: Bytes,
    /// Bytes that come in over its network.
    pub(super) network_in: Bytes,
    /// Bytes that go out.
    pub(super) network_out: Bytes,
}

/// A cluster for a load.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Hardware {
    /// How records are laid out.
    pub(super) layout: Layout,
    /// Storage groups.
    pub(super) groups: u32,
    /// Nodes in all.
    pub(super) nodes: u32,
    /// Which need decided that: `capacity`, `disk` or `network`.
    pub(super) decided_by: &'static str,
    /// Bytes kept on all disks.
    pub(super) kept: Bytes,
    /// Bytes kept on each disk.
    pub(super) kept_per_node: Bytes,
    /// Share of each disk.
    pub(super) disk_share: f64,
    /// A node at the peak, when nothing is lost.
    pub(super) normal: Use,
    /// The busiest survivor at the peak, when a datacenter and a rack of another are lost.
    pub(super) degraded: Use,
    /// Share of the disk's and network's speed that then is left, the smaller of both.
    pub(super) headroom_degraded: f64,
    /// Payload bytes each second to other datacenters, at the average.
    pub(super) wan: Bytes,
    /// What may be lost.
    pub(super) survives: &'static str,
}

/// A cluster for a load, beside those that each other layout would need.
#[derive(Debug, Serialize)]
pub(super) struct Compared {
    #[serde(flatten)]
    plan: Hardware,
    /// All layouts, Kafka with three replicas last.
    layouts: Vec<Hardware>,
}

/// The plan for this layout, and those for all.
pub(super) fn compare(need: &Need, node: &Node, layout: Layout) -> Result<Compared, Failure> {
    let layouts: Result<Vec<_>, _> =
        Layout::ALL.into_iter().map(|layout| plan(need, node, layout)).collect();
    Ok(Compared { plan: plan(need, node, layout)?, layouts: layouts? })
}

/// The smallest cluster that keeps everything, and takes the peak while the worst is lost.
pub(super) fn plan(need: &Need, node: &Node, layout: Layout) -> Result<Hardware, Failure> {
    if [node.disk, node.disk_write, node.network].iter().any(|bytes| bytes.0 <= 0.0) {
        return Err(Failure::Invalid(
            "--disk, --disk-write and --network must be above 0".to_owned(),
        ));
    }
    let group_nodes = f64::from(layout.group_nodes());
    let kept = need.write.0 * need.retention.as_secs_f64() * layout.overhead();
    // Everything in one group: what that would ask of a node, in units of what a node has.
    let normal = normal_use(need, layout);
    let degraded = degraded_use(need, layout);
    let wants = [
        ("capacity", kept / group_nodes / (node.disk.0 * FILL_MAX)),
        ("disk", normal.disk_write.0.max(degraded.disk_write.0) / node.disk_write.0),
        ("network", most(&normal).max(most(&degraded)) / node.network.0),
    ];
    let (decided_by, want) = wants.into_iter().fold(wants[0], |a, b| if b.1 > a.1 { b } else { a });
    let groups = want.ceil().max(1.0);
    if groups > 1e6 {
        return Err(Failure::Invalid(format!(
            "{} nodes would be needed; give nodes more, or keep less",
            three_digits(groups * group_nodes)
        )));
    }
    let over = |all: Use| Use {
        disk_write: Bytes(all.disk_write.0 / groups),
        network_in: Bytes(all.network_in.0 / groups),
        network_out: Bytes(all.network_out.0 / groups),
    };
    let (normal, degraded) = (over(normal), over(degraded));
    let busy = (degraded.disk_write.0 / node.disk_write.0).max(most(&degraded) / node.network.0);
    let nodes = groups * group_nodes;
    Ok(Hardware {
        layout,
        groups: whole(groups),
        nodes: whole(nodes),
        decided_by,
        kept: Bytes(kept),
        kept_per_node: Bytes(kept / nodes),
        disk_share: kept / nodes / node.disk.0,
        normal,
        degraded,
        headroom_degraded: 1.0 - busy,
        wan: Bytes(need.write.0 * layout.wan()),
        survives: layout.survives(),
    })
}

/// All of the peak in one group, nothing lost, shared evenly. The leader has the record from its
/// producer; it keeps one copy, or part, and sends the others.
fn normal_use(need: &Need, layout: Layout) -> Use {
    let share = need.peak.0 / f64::from(layout.group_nodes());
    let sent = layout.written() - layout.leader_keeps();
    Use {
        disk_write: Bytes(share * layout.written()),
        network_in: Bytes(share * (1.0 + sent)),
        network_out: Bytes(share * (sent + need.fan_out)),
    }
}

/// Load of a node when the worst is lost: leaders are spread over the survivors, and the racks left in
/// the broken datacenter keep a copy of everything.
fn degraded_use(need: &Need, layout: Layout) -> Use {
    let lead = need.peak.0 / f64::from(layout.survivors());
    let keep = need.peak.0 * layout.busiest_degraded();
    Use {
        disk_write: Bytes(keep),
        network_in: Bytes(lead + keep),
        network_out: Bytes(
            lead * (layout.written_degraded() - layout.leader_keeps() + need.fan_out),
        ),
    }
}

fn most(used: &Use) -> f64 {
    used.network_in.0.max(used.network_out.0)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be from 1 to ten million"
)]
fn whole(count: f64) -> u32 {
    count as u32
}

/// As tables.
pub(super) fn render(compared: &Compared) -> String {
    let mut layouts =
        Table::new(&["LAYOUT", "NODES", "KEPT", "TO OTHER DCS", "LEFT AT WORST", "MAY BE LOST"]);
    for plan in &compared.layouts {
        layouts.row([
            plan.layout.name().into(),
            plan.nodes.to_string(),
            plan.kept.to_string(),
            format!("{}/s", plan.wan),
            format!("{:.0} %", plan.headroom_degraded * 100.0),
            plan.survives.into(),
        ]);
    }
    format!("{}\n{}", render_one(&compared.plan), layouts.render())
}

fn render_one(plan: &Hardware) -> String {
    let mut head = Table::new(&["", ""]);
    head.row(["layout".into(), plan.layout.name().into()]);
    head.row(["nodes".into(), format!("{} in {} group(s)", plan.nodes, plan.groups)]);
    head.row(["decided by".into(), plan.decided_by.into()]);
    head.row(["kept".into(), plan.kept.to_string()]);
    head.row([
        "on each disk".into(),
        format!("{} ({:.0} %)", plan.kept_per_node, plan.disk_share * 100.0),
    ]);
    head.row(["to other datacenters".into(), format!("{}/s", plan.wan)]);
    head.row(["may be lost".into(), plan.survives.into()]);
    head.row([
        "left of the busiest survivor".into(),
        format!("{:.0} %", plan.headroom_degraded * 100.0),
    ]);
    let mut nodes = Table::new(&["PEAK, EACH NODE", "DISK WRITES", "NETWORK IN", "NETWORK OUT"]);
    for (name, used) in [("nothing lost", plan.normal), ("worst lost, busiest", plan.degraded)] {
        nodes.row([
            name.into(),
            format!("{}/s", used.disk_write),
            format!("{}/s", used.network_in),
            format!("{}/s", used.network_out),
        ]);
    }
    format!("{}\n{}", head.render().trim_start(), nodes.render())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: Node = Node { disk: Bytes(4e12), disk_write: Bytes(1e9), network: Bytes(1.25e9) };

    fn need(write: f64, days: u64) -> Need {
        Need {
            write: Bytes(write),
            peak: Bytes(write),
            fan_out: 2.0,
            retention: Duration::from_secs(days * 86_400),
        }
    }

    /// By hand: 90 MB/s x 86,400 s x 3 = 23.328 TB; over 9 disks 2.592 TB, of 3.4 usable: 1 group.
    #[test]
    fn one_group_when_a_day_fits() {
        let plan = plan(&need(90e6, 1), &NODE, Layout::Mirror3Dc).unwrap();
        assert_eq!((plan.groups, plan.nodes, plan.decided_by), (1, 9, "capacity"));
        assert_eq!(plan.kept, Bytes(23.328e12));
        assert!((plan.disk_share - 0.648).abs() < 1e-9);
        // Each node writes a third of the load, and takes as much in.
        assert_eq!(plan.normal.disk_write, Bytes(30e6));
        // Leads 10 MB/s: sends two copies and two readers' worth.
        assert_eq!(plan.normal.network_out, Bytes(40e6));
        // Five are left: one of the two in the broken datacenter keeps everything, and leads 18.
        assert_eq!(plan.degraded.disk_write, Bytes(90e6));
        assert_eq!(plan.degraded.network_in, Bytes(108e6));
        assert_eq!(plan.degraded.network_out, Bytes(90e6));
        assert!((plan.headroom_degraded - 0.91).abs() < 1e-9);
        assert_eq!(plan.wan, Bytes(180e6));
    }

    /// By hand: a week is 163.296 TB; 163.296 / 9 / 3.4 = 5.34: 6 groups, 54 nodes.
    #[test]
    fn more_groups_when_a_week_is_kept() {
        let plan = plan(&need(90e6, 7), &NODE, Layout::Mirror3Dc).unwrap();
        assert_eq!((plan.groups, plan.nodes), (6, 54));
        assert_eq!(plan.degraded.disk_write, Bytes(15e6));
    }

    /// By hand: 2 GB/s kept for no time; the busiest survivor writes 2 GB/s: 2 disks' worth, and
    /// takes in 2.4 GB/s: 1.92 networks' worth.
    #[test]
    fn a_survivors_disk_may_decide() {
        let plan = plan(&need(2e9, 0), &NODE, Layout::Mirror3Dc).unwrap();
        assert_eq!((plan.decided_by, plan.groups), ("disk", 2));
        assert_eq!(plan.headroom_degraded, 0.0);
    }

    #[test]
    fn block_4_2_keeps_half_and_sends_half_as_much_again() {
        let plan = plan(&need(90e6, 1), &NODE, Layout::Block42).unwrap();
        assert_eq!((plan.nodes, plan.kept, plan.wan), (9, Bytes(11.664e12), Bytes(270e6)));
    }

    /// By hand: 80 MB/s x 86,400 s x 1.5 = 10.368 TB; over 8 disks 1.296 TB, of 3.4 usable: 1 group. Each
    /// node leads 10 MB/s, keeps a quarter of it and sends five; six are left, with a quarter of all on each.
    #[test]
    fn parts_from_the_first_ack_on_keep_half_and_send_half() {
        let plan = plan(&need(80e6, 1), &NODE, Layout::HotBlock42).unwrap();
        assert_eq!((plan.nodes, plan.kept, plan.wan), (8, Bytes(10.368e12), Bytes(0.0)));
        assert_eq!(plan.normal.disk_write, Bytes(15e6));
        assert_eq!(
            (plan.normal.network_in, plan.normal.network_out),
            (Bytes(22.5e6), Bytes(32.5e6))
        );
        assert_eq!(plan.degraded.disk_write, Bytes(20e6));
        assert_eq!(plan.survives, "2 racks");
    }

    #[test]
    fn a_plan_is_shown_beside_those_of_all_layouts() {
        let compared = compare(&need(90e6, 7), &NODE, Layout::Rs54).unwrap();
        let text = render(&compared);
        assert!(text.starts_with("layout                        rs-5-4\n"), "{text}");
        let row = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap();
        assert_eq!(row("kafka RF 3").split_whitespace().nth(3), Some("54"), "{text}");
        assert_eq!(row("mirror-3-dc").split_whitespace().nth(1), Some("54"), "{text}");
    }

    #[test]
    fn what_cannot_be_built_is_refused() {
        let none = Node { disk: Bytes(0.0), ..NODE };
        assert!(plan(&need(1e6, 1), &none, Layout::Mirror3Dc).is_err());
        assert!(plan(&need(1e18, 365), &NODE, Layout::Mirror3Dc).is_err());
    }
}
