//! What a program told while nodes were killed, record by record, and whether it adds up. Pure.
//!
//! ```text
//! group          ACKED 17 ... READ 17 partition offset ... LEFT ... READ ... AGAIN 17
//! transactions   COMMITTED 4 (or ABORTED, UNKNOWN) ... READ 40 to 48, each in its partition
//! ```
//! A transaction has a record in each of nine partitions, whose numbers are ten times its own and the partition's.

use std::collections::{BTreeMap, BTreeSet};

/// Partitions that a group shares.
pub(super) const GROUP_PARTITION_COUNT: u32 = 4;
/// Partitions that each transaction writes to.
pub(super) const TRANSACTION_PARTITION_COUNT: u32 = 9;
/// Numbers of records that each transaction may use.
const NUMBERS_PER_TRANSACTION: u64 = 10;

/// Where a record lies.
type Place = (u32, i64);

/// How a transaction ended, as its producer was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Committed,
    Aborted,
    /// The commit was asked for and answered with an error.
    Unknown,
}

/// What a program told.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    acked: BTreeSet<u64>,
    places: BTreeMap<u64, BTreeSet<Place>>,
    has_left: bool,
    /// Records read since.
    read_since_count: u64,
    again: BTreeSet<u64>,
    transactions: BTreeMap<u64, End>,
}

impl Ledger {
    /// Reads a program's lines; what is none of these is noise.
    pub(super) fn read(output: &str) -> Self {
        let mut ledger = Self::default();
        for line in output.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
            match (words.first().copied(), number(1)) {
                (Some("LEFT"), _) => ledger.has_left = true,
                (Some("ACKED"), Some(record)) => _ = ledger.acked.insert(record),
                (Some("AGAIN"), Some(record)) => _ = ledger.again.insert(record),
                (Some("COMMITTED"), Some(id)) => ledger.end(id, End::Committed),
                (Some("ABORTED"), Some(id)) => ledger.end(id, End::Aborted),
                (Some("UNKNOWN"), Some(id)) => ledger.end(id, End::Unknown),
                (Some("READ"), Some(record)) => {
                    if let (Some(partition), Some(offset)) = (number(2), number(3)) {
                        ledger.on_read(record, partition as u32, offset as i64);
                    }
                }
                _ => {}
            }
        }
        ledger
    }

    fn end(&mut self, id: u64, end: End) {
        self.transactions.insert(id, end);
    }

    fn on_read(&mut self, record: u64, partition: u32, offset: i64) {
        self.places.entry(record).or_default().insert((partition, offset));
        self.read_since_count += u64::from(self.has_left);
    }

    /// Everything acknowledged was read, is in the log once, and went on after a member left.
    ///
    /// # Errors
    /// What does not add up.
    pub(super) fn judge_group(&self) -> Result<String, String> {
        expect(!self.acked.is_empty(), || "nothing was acknowledged".to_owned())?;
        let lost = self.acked.iter().filter(|record| !self.places.contains_key(record)).count();
        expect(lost == 0, || format!("{lost} of {} acknowledged were not read", self.acked.len()))?;
        self.expect_none_doubled()?;
        expect(self.has_left, || "no member left".to_owned())?;
        expect(self.read_since_count > 0, || "nothing was read after a member left".to_owned())?;
        let again = self.again.len();
        expect(again == 0, || format!("{again} committed records were read again"))?;
        Ok(format!("{} records", self.acked.len()))
    }

    /// Committed transactions were read whole and once, aborted ones not at all, the others either way.
    ///
    /// # Errors
    /// What does not add up.
    pub(super) fn judge_transactions(&self) -> Result<String, String> {
        let count = |end| self.transactions.values().filter(|known| **known == end).count();
        let (committed, aborted) = (count(End::Committed), count(End::Aborted));
        expect(committed > 0 && aborted > 0, || {
            format!("{committed} transactions committed, {aborted} aborted: there must be both")
        })?;
        self.expect_none_doubled()?;
        for record in self.places.keys() {
            let id = record / NUMBERS_PER_TRANSACTION;
            expect(self.transactions.contains_key(&id), || {
                format!("record {record} is of no transaction that was told of")
            })?;
        }
        for (id, end) in &self.transactions {
            let first = id * NUMBERS_PER_TRANSACTION;
            let read = self.places.range(first..first + NUMBERS_PER_TRANSACTION).count();
            let whole = TRANSACTION_PARTITION_COUNT as usize;
            expect(read == 0 || read == whole, || {
                format!("transaction {id} is torn: {read} of {whole} records were read")
            })?;
            match end {
                End::Committed => expect(read > 0, || format!("transaction {id} is lost"))?,
                End::Aborted => {
                    expect(read == 0, || format!("transaction {id} was aborted, but is read"))?
                }
                End::Unknown => {}
            }
        }
        let unknown = count(End::Unknown);
        Ok(format!("{committed} transactions committed, {aborted} aborted, {unknown} unknown"))
    }

    fn expect_none_doubled(&self) -> Result<(), String> {
        let doubled = self.places.values().filter(|places| places.len() > 1).count();
        expect(doubled == 0, || format!("{doubled} records are in the log twice"))
    }
}

fn expect(holds: bool, words: impl Fn() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(words()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(change: impl Fn(String) -> String) -> Result<String, String> {
        let reads = |from: u32| -> String {
            (from..from + 4).map(|n| format!("ACKED {n}\nREAD {n} {} {n}\n", n % 4)).collect()
        };
        Ledger::read(&change(format!("noise 1\n{}LEFT\n{}", reads(0), reads(4)))).judge_group()
    }

    fn transactions(change: impl Fn(String) -> String) -> Result<String, String> {
        let reads = |id: u32| -> String {
            (0..9).map(|p| format!("READ {} {p} {id}\n", id * 10 + p)).collect()
        };
        let told = "COMMITTED 0\nABORTED 1\nUNKNOWN 2\nUNKNOWN 3\n";
        Ledger::read(&change(format!("{told}{}{}", reads(0), reads(3)))).judge_transactions()
    }

    #[test]
    fn a_group_that_adds_up_passes() {
        assert_eq!(group(|told| told), Ok("8 records".to_owned()));
        // What was read before its commit was lost may be read again.
        assert!(group(|told| told + "READ 1 1 1\n").is_ok());
    }

    #[test]
    fn a_group_fails_by_what_it_loses_doubles_or_forgets() {
        let table = [
            ("READ 2 2 2\n", "", "1 of 8 acknowledged were not read"),
            ("READ 2 2 2\n", "READ 2 2 2\nREAD 2 2 7\n", "1 records are in the log twice"),
            ("LEFT\n", "", "no member left"),
            ("noise 1\n", "AGAIN 3\n", "1 committed records were read again"),
        ];
        for (from, to, words) in table {
            assert_eq!(group(|told| told.replace(from, to)), Err(words.to_owned()));
        }
        let early = group(|told| told.replace("LEFT\n", "") + "LEFT\n");
        assert_eq!(early, Err("nothing was read after a member left".to_owned()));
        assert_eq!(group(|_| String::new()), Err("nothing was acknowledged".to_owned()));
    }

    #[test]
    fn transactions_that_add_up_pass() {
        let words = "1 transactions committed, 1 aborted, 2 unknown";
        assert_eq!(transactions(|told| told), Ok(words.to_owned()));
        // A reader whose place is not committed yet may be given the same again.
        assert_eq!(transactions(|told| told + "READ 4 4 0\n"), Ok(words.to_owned()));
    }

    #[test]
    fn transactions_fail_by_what_is_lost_torn_doubled_or_seen() {
        let table = [
            ("READ 4 4 0\n", "", "transaction 0 is torn: 8 of 9 records were read"),
            ("READ 34 4 3\n", "", "transaction 3 is torn: 8 of 9 records were read"),
            ("READ 4 4 0\n", "READ 4 4 0\nREAD 4 4 9\n", "1 records are in the log twice"),
            ("UNKNOWN 2\n", "COMMITTED 2\n", "transaction 2 is lost"),
            ("UNKNOWN 3\n", "ABORTED 3\n", "transaction 3 was aborted, but is read"),
            ("UNKNOWN 3\n", "", "record 30 is of no transaction that was told of"),
            ("ABORTED 1\n", "", "1 transactions committed, 0 aborted: there must be both"),
        ];
        for (from, to, words) in table {
            assert_eq!(transactions(|told| told.replace(from, to)), Err(words.to_owned()));
        }
    }
}
