//! `meridian mirror pause`: ends when no leader of the mirror's partitions fetches any more.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use meridian_admin_api::methods::{MirrorList, MirrorPartitions, MirrorPause};
use meridian_admin_api::mirror::{MirrorReport, PartitionReport, Stage};
use meridian_admin_api::{NoArguments, OfTopic};
use tokio::task::JoinSet;

use super::render;
use crate::client::{Client, api, clock};
use crate::failure::{Exit, Failure};
use crate::output::{self, Format};

/// How long the leaders may take: they hear of it within a second or so.
const HOLDS_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a leader may take to say what it fetches: as long as it waits for its own workers, and the way.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// What a leader of some of a mirror's partitions says of them.
#[derive(Debug, PartialEq, Eq)]
enum Leader {
    Rests,
    /// It has not heard of the pause, or the mirror was resumed since.
    Unaware,
    Fetches(BTreeSet<u32>),
    Silent,
}

impl Leader {
    /// From what a node says of all mirrors first, and of the partitions that it mirrors after that.
    fn of(topic: &str, mirrors: &[MirrorReport], partitions: &[PartitionReport]) -> Self {
        if mirrors.iter().any(|it| it.topic == topic && it.stage == Stage::Mirroring) {
            return Self::Unaware;
        }
        let fetched = partitions.iter().filter(|it| it.topic == topic);
        let fetched: BTreeSet<u32> = fetched.map(|it| it.partition).collect();
        if fetched.is_empty() { Self::Rests } else { Self::Fetches(fetched) }
    }
}

impl fmt::Display for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rests => f.write_str("has stopped"),
            Self::Unaware => f.write_str("has not heard that the mirror is paused"),
            Self::Fetches(partitions) => {
                let indexes: Vec<String> = partitions.iter().map(u32::to_string).collect();
                write!(f, "still fetches partitions {}", indexes.join(", "))
            }
            Self::Silent => f.write_str("does not answer"),
        }
    }
}

/// Pauses a mirror and waits until it rests.
pub(super) async fn run(client: &Client, format: Format, topic: &str) -> Result<Exit, Failure> {
    let request = OfTopic { topic: topic.to_owned() };
    let mirror = api::command::<MirrorPause>(client, &request).await?;
    output::print(format, &[mirror], |mirrors| render(mirrors))?;
    holds(client, topic).await
}

/// Waits until a mirror that was just paused rests. Says what has not stopped if that takes too long.
async fn holds(client: &Client, topic: &str) -> Result<Exit, Failure> {
    let start = clock::now();
    loop {
        let going = going(client, topic).await?;
        if going.is_empty() {
            return Ok(Exit::Ok);
        }
        if start.elapsed() >= HOLDS_WITHIN {
            eprint!("{}", unstopped(topic, &going));
            return Ok(Exit::Degraded);
        }
        clock::sleep(LOOK_EVERY).await;
    }
}

fn unstopped(topic: &str, going: &[(i32, Leader)]) -> String {
    let line = |(node, leader): &(i32, Leader)| format!("  node {node} {leader}\n");
    let lines: String = going.iter().map(line).collect();
    let seconds = HOLDS_WITHIN.as_secs();
    format!(
        "{topic} is paused, but after {seconds} s not everything has stopped:\n{lines}\
         `meridian mirror list` shows whether it was resumed, `meridian cluster status` how the nodes are\n"
    )
}

/// The leaders of a mirror's partitions that have not stopped. Who leads from now on does not begin.
async fn going(client: &Client, topic: &str) -> Result<Vec<(i32, Leader)>, Failure> {
    let partitions = client.topic(topic).await?.partitions;
    let leaders: BTreeSet<i32> = partitions.iter().filter_map(|it| it.leader).collect();
    let mut asked = JoinSet::new();
    for node in leaders {
        let (client, topic) = (client.clone(), topic.to_owned());
        asked.spawn(async move {
            let said = tokio::time::timeout(ANSWER_WITHIN, ask(&client, node, &topic)).await;
            (node, said.ok().and_then(Result::ok).unwrap_or(Leader::Silent))
        });
    }
    let mut going = asked.join_all().await;
    going.retain(|(_, leader)| *leader != Leader::Rests);
    going.sort_by_key(|(node, _)| *node);
    Ok(going)
}

async fn ask(client: &Client, node: i32, topic: &str) -> Result<Leader, Failure> {
    let mirrors = api::call_node::<MirrorList>(client, node, &NoArguments {}).await?;
    let partitions = api::call_node::<MirrorPartitions>(client, node, &NoArguments {}).await?;
    Ok(Leader::of(topic, &mirrors, &partitions))
}

#[cfg(test)]
mod tests {
    use meridian_admin_api::mirror::PartitionState;

    use super::*;
    use crate::mirror::testing::{mirror, partition};

    #[test]
    fn a_leader_rests_once_it_has_heard_of_the_pause_and_fetches_nothing_of_the_mirror() {
        let mirrors = |stage| [mirror("t", stage, 3), mirror("u", Stage::Mirroring, 1)];
        let other = [partition("u", 0, PartitionState::Mirroring)];
        let [of_other] = other.clone();
        let both = [of_other, partition("t", 2, PartitionState::Mirroring)];
        assert_eq!(Leader::of("t", &mirrors(Stage::Mirroring), &[]), Leader::Unaware);
        assert_eq!(Leader::of("t", &mirrors(Stage::Paused), &other), Leader::Rests);
        let fetches = Leader::of("t", &mirrors(Stage::Paused), &both);
        assert_eq!(fetches, Leader::Fetches(BTreeSet::from([2])));
        assert_eq!(Leader::of("t", &mirrors(Stage::Promoted), &other), Leader::Rests);
    }

    #[test]
    fn what_has_not_stopped_is_said_by_node() {
        let going = [(2, Leader::Fetches(BTreeSet::from([0, 4]))), (3, Leader::Silent)];
        let text = unstopped("t", &going);
        let lines = "t is paused, but after 10 s not everything has stopped:\n  \
                     node 2 still fetches partitions 0, 4\n  node 3 does not answer\n";
        assert!(text.starts_with(lines), "{text}");
    }
}
