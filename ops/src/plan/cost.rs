//! What it costs a month.

use serde::Serialize;

use super::codec::Layout;
use super::hardware::{self, Need, Node};
use super::units::{Bytes, three_digits};
use crate::failure::Failure;
use crate::output::Table;

const MONTH_S: f64 = 30.0 * 86_400.0;
const GIGABYTE: f64 = 1e9;

/// Prices in any currency.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prices {
    /// A node without its disk, a month.
    pub(super) node: f64,
    /// A gigabyte of disk, a month.
    pub(super) disk_gigabyte: f64,
    /// A gigabyte from one datacenter to another.
    pub(super) wan_gigabyte: f64,
}

/// A month of one layout.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Cost {
    /// The layout.
    pub(super) layout: Layout,
    /// Nodes in all.
    pub(super) nodes: u32,
    /// What the nodes cost.
    pub(super) nodes_cost: f64,
    /// What their disks cost.
    pub(super) disks_cost: f64,
    /// Bytes to other datacenters.
    pub(super) wan: Bytes,
    /// What they cost.
    pub(super) wan_cost: f64,
    /// All of it.
    pub(super) total_cost: f64,
    /// Cost of a month for each terabyte written.
    pub(super) cost_per_written_terabyte: f64,
}

/// A month of each layout, on the cluster that [`hardware::plan`] finds for it.
pub(super) fn plan(need: &Need, node: &Node, prices: &Prices) -> Result<Vec<Cost>, Failure> {
    if need.write.0 <= 0.0 {
        return Err(Failure::Invalid("--write must be above 0".to_owned()));
    }
    Layout::ALL
        .into_iter()
        .map(|layout| {
            let hardware = hardware::plan(need, node, layout)?;
            let nodes = f64::from(hardware.nodes);
            let nodes_cost = nodes * prices.node;
            let disks_cost = nodes * node.disk.0 / GIGABYTE * prices.disk_gigabyte;
            let wan = hardware.wan.0 * MONTH_S;
            let wan_cost = wan / GIGABYTE * prices.wan_gigabyte;
            let total_cost = nodes_cost + disks_cost + wan_cost;
            Ok(Cost {
                layout,
                nodes: hardware.nodes,
                nodes_cost,
                disks_cost,
                wan: Bytes(wan),
                wan_cost,
                total_cost,
                cost_per_written_terabyte: total_cost / (need.write.0 * MONTH_S / 1e12),
            })
        })
        .collect()
}

/// As a table.
pub(super) fn render(rows: &[Cost]) -> String {
    let mut table = Table::new(&[
        "LAYOUT",
        "NODES",
        "FOR NODES",
        "FOR DISKS",
        "TO OTHER DCS",
        "FOR THAT",
        "A MONTH",
        "A TB WRITTEN",
        "MAY BE LOST",
    ]);
    for row in rows {
        table.row([
            row.layout.name().into(),
            row.nodes.to_string(),
            three_digits(row.nodes_cost),
            three_digits(row.disks_cost),
            row.wan.to_string(),
            three_digits(row.wan_cost),
            three_digits(row.total_cost),
            three_digits(row.cost_per_written_terabyte),
            row.layout.survives().into(),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// By hand, mirror-3-dc: 9 nodes x 400 = 3,600; 9 x 4,000 GB x 0.05 = 1,800; 90 MB/s x 2 x
    /// 2,592,000 s = 466,560 GB x 0.02 = 9,331.2; in all 14,731.2 for 233.28 TB.
    #[test]
    fn a_month_is_nodes_disks_and_what_crosses() {
        let need = Need {
            write: Bytes(90e6),
            peak: Bytes(90e6),
            fan_out: 1.0,
            retention: Duration::from_secs(86_400),
        };
        let node = Node { disk: Bytes(4e12), disk_write: Bytes(1e9), network: Bytes(1.25e9) };
        let prices = Prices { node: 400.0, disk_gigabyte: 0.05, wan_gigabyte: 0.02 };
        let rows = plan(&need, &node, &prices).unwrap();
        assert_eq!(rows.len(), 5);
        assert_eq!((rows[0].nodes, rows[0].nodes_cost, rows[0].disks_cost), (9, 3600.0, 1800.0));
        assert!((rows[0].total_cost - 14_731.2).abs() < 1e-6);
        assert!((rows[0].cost_per_written_terabyte - 63.148).abs() < 1e-3);
        // Stripes cross once more, block-4-2 with four parts of a quarter each.
        assert_eq!(rows[2].nodes, 9);
        assert!((rows[2].wan_cost - 13_996.8).abs() < 1e-6);
    }
}
