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
    let usable = f64::from(nodes) * disk.0 * FILL_MAX;
    Ok(Layout::ALL
        .into_iter()
        .map(|layout| Retention {
            layout,
            payload: Bytes(usable / layout.overhead()),
            retention_s: usable / layout.overhead() / write.0,
            of_kafka: Layout::KafkaRf3.overhead() / layout.overhead(),
        })
        .collect())
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
        let of_kafka: Vec<String> = rows.iter().map(|row| three_digits(row.of_kafka)).collect();
        assert_eq!(of_kafka, ["1.00", "1.67", "2.00", "1.00"]);
    }

    #[test]
    fn nothing_written_is_refused() {
        assert!(plan(Bytes(0.0), 9, Bytes(1e12)).is_err());
    }
}
