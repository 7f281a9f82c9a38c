//! How soon mirrors follow what is new: the first record of a mirror that was just created, of a topic that a rule
//! takes, of a partition that was added at the source.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use meridian_protocol::ErrorCode;
use meridian_protocol::records::BatchBuilder;

use super::clusters::{Pair, TRUE_WITHIN};
use super::report::quantile;
use crate::client::{CALL_TIMEOUT, Client, producer};
use crate::clock;
use crate::failure::Failure;
use crate::history::Key;

const SOURCE: usize = 0;
const MIRROR: usize = 1;
const LATEST: i64 = -1;
/// How often it is looked whether a record is there.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// A topic to which partitions are added.
const GROWING: &str = "first-growing";

/// What is new, and within which time its first record is to be mirrored.
const KINDS: [(&str, Duration); 4] = [
    ("mirror create", Duration::from_secs(1)),
    ("mirror create, itself included", Duration::MAX),
    ("new topic", Duration::from_secs(2)),
    ("new partition", Duration::from_secs(2)),
];

/// Of each kind: the times from the beginning of the command to when the mirror showed the record; of the first from
/// its end.
pub(super) struct Firsts {
    times: [Vec<Duration>; KINDS.len()],
}

impl Firsts {
    pub(super) fn line(&self) -> String {
        let mut text = String::from("first record mirrored after");
        for ((kind, _), times) in KINDS.iter().zip(&self.times) {
            let (half, all) = (quantile(times, 50), quantile(times, 100));
            let count = times.len();
            let _in_memory = write!(text, " {kind} ({count}): p50 {half:.2?}, max {all:.2?};");
        }
        text.trim_end_matches(';').to_owned()
    }

    pub(super) fn findings(&self) -> Vec<String> {
        let late = |((kind, limit), times): (&(&str, Duration), &Vec<Duration>)| {
            let count = times.iter().filter(|time| **time > *limit).count();
            (count > 0).then(|| format!("after {kind}: {count} took more than {limit:?}"))
        };
        KINDS.iter().zip(&self.times).filter_map(late).collect()
    }
}

/// Measures each kind so many times.
pub(super) fn run(pair: &Pair, count: usize) -> Result<Firsts, Failure> {
    let link = pair.sides[SOURCE].name;
    let create = |topic: &str| pair.command(SOURCE, &["topic", "create", topic, "-p", "1"]);
    let mirror = |option: &[&str]| {
        pair.command(MIRROR, &[&["mirror", "create"], option, &["--link", link]].concat())
    };
    let mut firsts = Firsts { times: Default::default() };
    let [created, create_included, followed, grown] = &mut firsts.times;
    for number in 0..count {
        // Names of a run live as long as it does.
        let topic: &'static str = format!("first-created-{number}").leak();
        create(topic)?;
        produce(pair, topic, 0)?;
        let begun = clock::now();
        mirror(&[topic])?;
        let took = begun.elapsed();
        let all = until_mirrored(pair, topic, 0, begun)?;
        created.push(all - took);
        create_included.push(all);
    }
    mirror(&["--topics", "first-followed-.*"])?;
    for number in 0..count {
        let topic: &'static str = format!("first-followed-{number}").leak();
        let begun = clock::now();
        create(topic)?;
        produce(pair, topic, 0)?;
        followed.push(until_mirrored(pair, topic, 0, begun)?);
    }
    create(GROWING)?;
    mirror(&[GROWING])?;
    produce(pair, GROWING, 0)?;
    until_mirrored(pair, GROWING, 0, clock::now())?;
    for key in (1..).take(count) {
        let begun = clock::now();
        let partition_count = (key + 1).to_string();
        pair.command(SOURCE, &["topic", "alter", GROWING, "-p", &partition_count])?;
        produce(pair, GROWING, key)?;
        grown.push(until_mirrored(pair, GROWING, key, begun)?);
    }
    Ok(firsts)
}

/// A record, as soon as the partition takes one.
fn produce(pair: &Pair, topic: &'static str, key: Key) -> Result<(), Failure> {
    let mut client = pair.client(SOURCE, 0, topic);
    let mut builder = BatchBuilder::new();
    builder.append(clock::wall_ms(), None, Some(b"first"), &[]);
    let request = producer::request(topic, key, builder.build(), None);
    soon(&format!("{topic}-{key} takes no record"), || {
        let leader = client.leader(key).ok()?;
        let answer = client.call_at(leader, &request, CALL_TIMEOUT).ok();
        let verdict =
            answer.map_or(Err(ErrorCode::NotLeaderOrFollower), |it| producer::verdict(&it));
        verdict.map_err(|_| client.forget_leader(key)).ok()
    })?;
    Ok(())
}

/// How long after `begun` the mirror has a record.
fn until_mirrored(
    pair: &Pair,
    topic: &'static str,
    key: Key,
    begun: Instant,
) -> Result<Duration, Failure> {
    let mut client: Client = pair.client(MIRROR, 0, topic);
    soon(&format!("{topic}-{key} is not mirrored"), || {
        client.list_offset(key, LATEST).ok().filter(|end| *end > 0)
    })?;
    Ok(begun.elapsed())
}

fn soon<T>(never: &str, mut look: impl FnMut() -> Option<T>) -> Result<T, Failure> {
    let deadline = clock::now() + TRUE_WITHIN;
    while clock::now() < deadline {
        if let Some(found) = look() {
            return Ok(found);
        }
        clock::sleep(LOOK_EVERY);
    }
    Err(Failure::Cluster(never.to_owned()))
}
