//! For how long given disks keep everything.

use serde::Serialize;

use super::codec::{FILL_MAX, Layout};
use super::units::{Bytes, three_digits, time};
use crate::failure::Failure;
use crate::output::Table;

/// One layout on given disks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Retention {
    /// The layout.
    pub(super) layout: Layout,
    /// Payload bytes that the disks hold.
    pub(super) payload: Bytes,
    /// For how long that is all that is written.
    pub(super) retention_s: f64,
    /// How many times as long as Kafka with three replicas.
    pub(super) of_kafka: f64,
}

/// What so many disks keep of so many payload bytes a second, by layout.
pub(super) fn plan(write: Bytes, nodes: u32, disk: Bytes) -> Result<Vec<Retention>, Failure> {
    if write.0 <= 0.0 {
        return Err(Failure::Invalid("--write must be above 0".to_owned()));
    }
    let payload = |layout: Layout| {
        // Nodes beyond whole groups are spares, which keep nothing; Kafka's brokers are not grouped.
        let used = match layout {
            Layout::KafkaRf3 => nodes,
            layout => nodes / layout.group_nodes() * layout.group_nodes(),
        };
        f64::from(used) * disk.0 * FILL_MAX / layout.overhead()
    };
    let of_kafka = payload(Layout::KafkaRf3);
    let row = |layout| Retention {
        layout,
        payload: Bytes(payload(layout)),
        retention_s: payload(layout) / write.0,
        of_kafka: payload(layout) / of_kafka,
    };
    let rows: Vec<Retention> =
        Layout::ALL.into_iter().map(row).filter(|it| it.payload.0 > 0.0).collect();
    match rows.len() {
        0 | 1 => Err(Failure::Invalid(format!(
            "--nodes {nodes}: a storage group has nine nodes, or eight in one datacenter"
        ))),
        _ => Ok(rows),
    }
}

/// As a table.
pub(super) fn render(rows: &[Retention]) -> String {
    let mut table = Table::new(&["LAYOUT", "PAYLOAD", "RETENTION", "OF KAFKA", "MAY BE LOST"]);
    for row in rows {
        table.row([
            row.layout.name().into(),
            row.payload.to_string(),
            time(row.retention_s),
            format!("{} x", three_digits(row.of_kafka)),
            row.layout.survives().into(),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: 9 x 16 TB x 0.85 = 122.4 TB; / 3 = 40.8 TB; at 500 MB/s 81,600 s.
    #[test]
    fn disks_keep_their_size_over_the_copies() {
        let rows = plan(Bytes(5e8), 9, Bytes(16e12)).unwrap();
        assert!((rows[0].retention_s - 81_600.0).abs() < 1e-6);
        let of_kafka = |nodes| -> Vec<String> {
            let rows = plan(Bytes(5e8), nodes, Bytes(16e12)).unwrap();
            rows.iter().map(|row| three_digits(row.of_kafka)).collect()
        };
        assert_eq!(of_kafka(72), ["1.00", "1.67", "2.00", "2.00", "1.00"]);
        // The ninth node is a spare of the eight.
        assert_eq!(of_kafka(9), ["1.00", "1.67", "2.00", "1.78", "1.00"]);
    }

    #[test]
    fn what_is_no_group_keeps_nothing() {
        let layouts = |nodes| {
            let rows = plan(Bytes(5e8), nodes, Bytes(16e12))?;
            Ok::<_, Failure>(rows.into_iter().map(|row| row.layout).collect::<Vec<_>>())
        };
        assert_eq!(layouts(8).unwrap(), [Layout::HotBlock42, Layout::KafkaRf3]);
        assert!(layouts(7).is_err());
    }

    #[test]
    fn nothing_written_is_refused() {
        assert!(plan(Bytes(0.0), 9, Bytes(1e12)).is_err());
    }
}
