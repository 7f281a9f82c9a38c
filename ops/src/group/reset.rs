//! `meridian group reset-offsets`: where a group goes on.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args};
use meridian_protocol::messages::ListOffsetsPartition;
use serde::Serialize;

use super::{TopicChoice, parse_topic, refuse_if_active};
use crate::client::groups::{self, TopicPartition};
use crate::client::{Client, clock};
use crate::failure::Failure;
use crate::output::{self, Format, Table};

/// Move where a group that has no members goes on
///
/// Shows the plan and changes nothing, unless --execute is given. Refuses (exit code 3) if the group
/// has members. Positions beyond the ends of a partition are moved to the end.
///
/// Example: meridian group reset-offsets reports --topic orders --to-datetime 2026-01-31T09:00:00Z --execute
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("place").required(true))]
#[command(group = ArgGroup::new("scope").required(true))]
pub(super) struct ResetOffsets {
    /// Its id
    group: String,
    /// A topic, or some of its partitions; may be repeated
    #[arg(long, short, group = "scope", value_name = "TOPIC[:PARTITION,...]", value_parser = parse_topic)]
    topic: Vec<TopicChoice>,
    /// All partitions that the group has a position in
    #[arg(long, group = "scope")]
    all_topics: bool,
    /// Lines of TOPIC,PARTITION,OFFSET to take positions from
    #[arg(long, groups = ["scope", "place"], value_name = "FILE")]
    from_file: Option<PathBuf>,
    /// To the first record
    #[arg(long, group = "place")]
    to_earliest: bool,
    /// To the end
    #[arg(long, group = "place")]
    to_latest: bool,
    /// To where it is: only moves what lies beyond the ends
    #[arg(long, group = "place")]
    to_current: bool,
    /// To an offset
    #[arg(long, group = "place")]
    to_offset: Option<i64>,
    /// By so many records: negative to read them again
    #[arg(long, group = "place", allow_negative_numbers = true)]
    shift_by: Option<i64>,
    /// To the first record at or after a time (UTC)
    #[arg(long, group = "place", value_name = "YYYY-MM-DDTHH:MM:SS[.mmm]Z", value_parser = parse_datetime)]
    to_datetime: Option<i64>,
    /// To the first record of the last so many s, m, h or d
    #[arg(long, group = "place", value_name = "DURATION", value_parser = parse_duration)]
    by_duration: Option<Duration>,
    /// Do it
    #[arg(long, conflicts_with = "dry_run")]
    execute: bool,
    /// Only show what would be done, as without --execute
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Serialize)]
struct Plan {
    group: String,
    executed: bool,
    positions: Vec<Move>,
}

#[derive(Debug, Serialize)]
struct Move {
    topic: String,
    partition: i32,
    from: Option<i64>,
    to: i64,
}

impl ResetOffsets {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<(), Failure> {
        let current = groups::positions(client, &self.group).await?;
        let current: BTreeMap<TopicPartition, i64> =
            current.into_iter().map(|(key, position)| (key, position.offset)).collect();
        let wanted = self.wanted(client, &current).await?;
        let target = within_ends(client, wanted).await?;
        let positions = target.iter().map(|((topic, partition), to)| Move {
            topic: topic.clone(),
            partition: *partition,
            from: current.get(&(topic.clone(), *partition)).copied(),
            to: *to,
        });
        let plan = Plan {
            group: self.group.clone(),
            executed: self.execute,
            positions: positions.collect(),
        };
        if self.execute {
            refuse_if_active(client, &self.group).await?;
            groups::set_positions(client, &self.group, &target).await?;
        }
        output::print(format, &plan, render)
    }

    /// Where the group is to go on, not yet looking at what there is to read.
    async fn wanted(
        &self,
        client: &Client,
        current: &BTreeMap<TopicPartition, i64>,
    ) -> Result<BTreeMap<TopicPartition, i64>, Failure> {
        if let Some(path) = &self.from_file {
            let text = fs::read_to_string(path).map_err(Failure::file(path))?;
            return parse_file(&text);
        }
        let mut partitions = Vec::new();
        for topic in &self.topic {
            partitions.extend(topic.resolve(client).await?);
        }
        if self.all_topics {
            partitions.extend(current.keys().cloned());
            if partitions.is_empty() {
                let message = format!("group {} has no position anywhere", self.group);
                return Err(Failure::Invalid(message));
            }
        }
        if let Some(offset) = self.to_offset {
            return Ok(partitions.into_iter().map(|key| (key, offset)).collect());
        }
        if self.to_current || self.shift_by.is_some() {
            let by = self.shift_by.unwrap_or(0);
            let shift = |key: TopicPartition| {
                let missing = || {
                    Failure::Invalid(format!(
                        "group {} has no position in {}-{}; give --to-earliest, --to-latest or \
                         --to-offset",
                        self.group, key.0, key.1
                    ))
                };
                let offset = current.get(&key).ok_or_else(missing)?.saturating_add(by);
                Ok((key, offset))
            };
            return partitions.into_iter().map(shift).collect();
        }
        let now_ms = clock::wall_time_ms();
        // What is negative means something else to ListOffsets.
        let back = |by: Duration| {
            now_ms.saturating_sub(i64::try_from(by.as_millis()).unwrap_or(i64::MAX)).max(0)
        };
        let timestamp = match (self.to_datetime, self.by_duration) {
            (Some(at_ms), _) => at_ms,
            (None, Some(by)) => back(by),
            (None, None) if self.to_earliest => ListOffsetsPartition::TIMESTAMP_EARLIEST,
            (None, None) => ListOffsetsPartition::TIMESTAMP_LATEST,
        };
        let mut found = super::describe::ends(client, &partitions, timestamp).await?;
        // No record is as new as that: the end.
        let newer: Vec<TopicPartition> =
            found.iter().filter(|(_, at)| **at < 0).map(|(key, _)| key.clone()).collect();
        let latest = ListOffsetsPartition::TIMESTAMP_LATEST;
        found.extend(super::describe::ends(client, &newer, latest).await?);
        Ok(found)
    }
}

async fn within_ends(
    client: &Client,
    wanted: BTreeMap<TopicPartition, i64>,
) -> Result<BTreeMap<TopicPartition, i64>, Failure> {
    let earliest = ListOffsetsPartition::TIMESTAMP_EARLIEST;
    let latest = ListOffsetsPartition::TIMESTAMP_LATEST;
    let starts = super::describe::ends(client, wanted.keys(), earliest).await?;
    let ends = super::describe::ends(client, wanted.keys(), latest).await?;
    let clamp = |(key, offset): (TopicPartition, i64)| {
        let start = starts.get(&key).copied().unwrap_or(0);
        let end = ends.get(&key).copied().unwrap_or(i64::MAX);
        (key, offset.min(end).max(start))
    };
    Ok(wanted.into_iter().map(clamp).collect())
}

fn render(plan: &Plan) -> String {
    let mut table = Table::new(&["TOPIC", "PARTITION", "FROM", "TO"]);
    for it in &plan.positions {
        table.row([
            it.topic.clone(),
            it.partition.to_string(),
            it.from.map_or_else(|| "-".to_owned(), |from| from.to_string()),
            it.to.to_string(),
        ]);
    }
    let mut text = table.render();
    if !plan.executed {
        text.push_str("\nnothing was changed; add --execute to do it\n");
    }
    text
}

fn parse_file(text: &str) -> Result<BTreeMap<TopicPartition, i64>, Failure> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let mut positions = BTreeMap::new();
    for line in lines {
        let (key, offset) = parse_line(line)?;
        if positions.insert(key, offset).is_some() {
            return Err(Failure::Invalid(format!("\"{line}\" names a partition once more")));
        }
    }
    Ok(positions)
}

fn parse_line(line: &str) -> Result<(TopicPartition, i64), Failure> {
    let bad = || Failure::Invalid(format!("\"{line}\" is no TOPIC,PARTITION,OFFSET"));
    let mut fields = line.trim().rsplitn(3, ',');
    let mut next = || fields.next().map(str::trim).ok_or_else(bad);
    let offset: i64 = next()?.parse().map_err(|_| bad())?;
    let partition: i32 = next()?.parse().map_err(|_| bad())?;
    let topic = next()?.to_owned();
    if offset < 0 || partition < 0 || topic.is_empty() {
        return Err(bad());
    }
    Ok(((topic, partition), offset))
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let bad = || "write it as a number and s, m, h or d, such as 90m".to_owned();
    let unit_at = text.char_indices().last().map_or(0, |(at, _)| at);
    let (number, unit) = text.split_at(unit_at);
    let number: u64 = number.parse().map_err(|_| bad())?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(bad()),
    };
    Ok(Duration::from_secs(number.saturating_mul(seconds)))
}

fn days_of(year: i64, month: i64) -> i64 {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Milliseconds since 1970 of a time of the proleptic Gregorian calendar, in UTC.
fn parse_datetime(text: &str) -> Result<i64, String> {
    let bad = || format!("\"{text}\" is no time such as 2026-01-31T09:00:00Z");
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, time) = text.split_once('T').ok_or_else(bad)?;
    let numbers = |text: &str, separator: char| -> Option<Vec<i64>> {
        text.split(separator).map(|number| number.parse().ok()).collect()
    };
    let (time, millis) = time.split_once('.').unwrap_or((time, "0"));
    let millis: i64 =
        format!("{millis:0<3}").get(..3).and_then(|it| it.parse().ok()).ok_or_else(bad)?;
    let (date, time) = numbers(date, '-').zip(numbers(time, ':')).ok_or_else(bad)?;
    let (&[year, month, day], &[hour, minute, second]) = (&date[..], &time[..]) else {
        return Err(bad());
    };
    let is_valid = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=days_of(year, month)).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0..=60).contains(&second);
    if !is_valid {
        return Err(bad());
    }
    // Years that begin in March: the leap day is their last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    let days_to_1970 = 719_468;
    Ok((((days - days_to_1970) * 24 + hour) * 60 + minute) * 60_000 + second * 1000 + millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_milliseconds_since_1970() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2000-02-29T12:34:56.7Z", Some(951_827_696_700)),
            ("2026-01-31T09:00:00.025", Some(1_769_850_000_025)),
            ("2026-13-01T00:00:00Z", None),
            ("2026-01-31", None),
            ("2026-02-29T00:00:00Z", None),
            ("2100-02-29T00:00:00Z", None),
            ("2026-04-31T00:00:00Z", None),
            ("2026-04-00T00:00:00Z", None),
            ("2026-04-01T24:00:00Z", None),
            ("2026-04-01T00:00:00.\u{e9}Z", None),
            ("", None),
            ("yesterday", None),
        ] {
            assert_eq!(parse_datetime(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(parse_duration("90m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_duration("1d"), Ok(Duration::from_secs(86_400)));
        for bad in
            ["90", "", "m", "-5m", "1.5h", "5\u{b5}", "\u{b5}", "5 m", "99999999999999999999d"]
        {
            assert!(parse_duration(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn positions_are_read_from_lines() {
        let parsed = parse_file("a,b,0,5\n\nt,1, 7\n").unwrap();
        let expected = BTreeMap::from([(("a,b".to_owned(), 0), 5), (("t".to_owned(), 1), 7)]);
        assert_eq!(parsed, expected);
        for bad in ["t,1", "t,one,5", "t,-1,5", "t,1,-5", ",1,5", "t,1,5\nt,1,6", "t,1,5,"] {
            assert!(parse_file(bad).is_err(), "{bad:?}");
        }
    }
}
