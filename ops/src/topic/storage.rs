//! How a topic's records are stored: what lies in copies, what in stripes or objects, and changing it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use clap::{Args, Subcommand};
use meridian_admin_api::methods::TopicStorage;
use meridian_admin_api::topic::{GroupHolding, OfPartition, Storage as PartitionStorage};
use serde::Serialize;

use crate::client::{Client, admin, api, clock};
use crate::failure::{Exit, Failure};
use crate::output::{self, Format, Table};

/// The configs that say how a topic is stored.
const CLASS: &str = "meridian.storage.class";
const AFTER_MS: &str = "meridian.cold.after.ms";
const AFTER_BYTES: &str = "meridian.cold.after.bytes";
/// How often a conversion is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Show how a topic's records are stored, or change it
#[derive(Debug, Args)]
pub(super) struct Storage {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Describe(Describe),
    Convert(Convert),
}

/// Show what is held of a topic: copies, stripes, objects, and bytes stored for each byte written
///
/// The figures are what the disks and the object store themselves say. Exit code 2 if parts of stripes or
/// objects are missing.
///
/// Example: meridian topic storage describe orders
#[derive(Debug, Args)]
struct Describe {
    /// The topic
    topic: String,
}

/// Change how a topic's records are stored, while it is being written and read
///
/// From then on records that are old enough are packed into stripes of the class's code, or into objects
/// of the object store that the nodes are configured with. What is packed already stays as it is until
/// retention deletes it: going back to copies, or on to another class, is for records that are not cold yet.
///
/// In a cluster of several storage groups the topic moves to the group of its class within seconds: what is
/// written from then on goes there, and what was written stays in the group that it is in.
///
/// Example: meridian topic storage convert orders --class rs-5-4 --after-ms 3600000 --wait 600
#[derive(Debug, Args)]
struct Convert {
    /// The topic
    topic: String,
    /// Its new class: mirror-3-dc keeps copies; rs-5-4 and block-4-2 pack cold records, at 1.8 and 1.5
    /// bytes stored for each byte; object puts them into the object store; hot-block-4-2 puts all records
    /// in parts at once, on eight racks of one datacenter. mirror-3-dc,cold=rs-5-4 and the like, which `storage
    /// describe` shows, are taken too
    #[arg(long)]
    class: Class,
    /// Age at which records are cold, in milliseconds; -1 never by age
    #[arg(long, allow_negative_numbers = true)]
    after_ms: Option<i64>,
    /// Newest bytes of each partition that stay in copies; -1 goes by age alone
    #[arg(long, allow_negative_numbers = true)]
    after_bytes: Option<i64>,
    /// Wait until the topic is in its group and all that is cold is packed, at most so many seconds; exit
    /// code 2 if it is not by then
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,
}

/// Those with a cold class are also taken as a topic's configuration says them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Class {
    #[value(name = "mirror-3-dc")]
    Mirror3Dc,
    #[value(name = "rs-5-4", alias = "mirror-3-dc,cold=rs-5-4")]
    Rs54,
    #[value(name = "block-4-2", alias = "mirror-3-dc,cold=block-4-2")]
    Block42,
    #[value(alias = "mirror-3-dc,cold=object")]
    Object,
    #[value(name = "hot-block-4-2")]
    HotBlock42,
}

impl Class {
    fn config(self) -> &'static str {
        match self {
            Self::Mirror3Dc => "mirror-3-dc",
            Self::Rs54 => "mirror-3-dc,cold=rs-5-4",
            Self::Block42 => "mirror-3-dc,cold=block-4-2",
            Self::Object => "mirror-3-dc,cold=object",
            Self::HotBlock42 => "block-4-2",
        }
    }
}

/// A topic's partitions, and all of them together.
#[derive(Debug, Serialize)]
struct Described {
    topic: String,
    class: String,
    payload_bytes: u64,
    /// On the nodes' disks.
    stored_bytes: u64,
    object_stored_bytes: u64,
    /// In groups that partitions have left since: until retention deletes it.
    left_behind: Vec<GroupHolding>,
    partitions: Vec<PartitionStorage>,
    /// What a conversion leaves as it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    stays: Option<Stays>,
}

/// What stays as it was before a conversion, until retention deletes it.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Stays {
    /// Bytes that were packed into stripes, or into objects.
    stripes_bytes: u64,
    objects_bytes: u64,
    /// Groups that hold what was written before, and are no longer written to.
    groups: Vec<u32>,
}

impl Stays {
    /// What is left of `before`, now that records are stored as this class says.
    fn of(class: Class, before: &Described, after: &[PartitionStorage]) -> Self {
        let is_new = before.class != class.config();
        let packed = |of: fn(&PartitionStorage) -> u64| {
            before.partitions.iter().filter(|_| is_new).map(of).sum()
        };
        // One that is yet to move leaves the group that it is in.
        let left = after.iter().flat_map(|it| {
            let own = (!it.is_in_place).then_some(it.group);
            it.former_groups.iter().copied().chain(own)
        });
        let groups: BTreeSet<u32> = left.collect();
        Self {
            stripes_bytes: packed(|it| it.cold_bytes),
            objects_bytes: packed(|it| it.object_bytes),
            groups: groups.into_iter().collect(),
        }
    }

    /// A line for each place, and none if nothing stays.
    fn render(&self) -> String {
        let packed = [(self.stripes_bytes, "stripes"), (self.objects_bytes, "objects")];
        let packed = packed.into_iter().filter(|(bytes, _)| *bytes > 0).map(|(bytes, place)| {
            format!("{bytes} bytes that were packed before stay in {place} until retention deletes them\n")
        });
        let group = |group: &u32| {
            format!("what was written in group {group} stays there until retention deletes it\n")
        };
        packed.chain(self.groups.iter().map(group)).collect()
    }
}

impl Storage {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<Exit, Failure> {
        let (described, is_done) = match self.command {
            Command::Describe(describe) => (ask(client, &describe.topic).await?, true),
            Command::Convert(convert) => convert.run(client).await?,
        };
        output::print(format, &described, render)?;
        let is_whole = described.partitions.iter().all(is_whole);
        Ok(if is_whole && is_done { Exit::Ok } else { Exit::Degraded })
    }
}

impl Convert {
    /// How it is stored then, and whether all that was waited for is done.
    async fn run(self, client: &Client) -> Result<(Described, bool), Failure> {
        let number = |name: &str, value: Option<i64>| {
            value.map(|value| (name.to_owned(), Some(value.to_string())))
        };
        // While a partition is without a leader nobody knows: then nothing is said of it.
        let before = ask(client, &self.topic).await.ok();
        let mut changes = vec![(CLASS.to_owned(), Some(self.class.config().to_owned()))];
        changes.extend(number(AFTER_MS, self.after_ms));
        changes.extend(number(AFTER_BYTES, self.after_bytes));
        admin::alter_configs(client, &self.topic, &changes).await?;
        let (begun, patience) = (clock::now(), Duration::from_secs(self.wait.unwrap_or(0)));
        while begun.elapsed() < patience {
            // A leader may not have heard of the change yet, and while a partition moves there is none.
            let is_done = |it: &PartitionStorage| it.class == self.class.config() && is_settled(it);
            if let Ok(described) = ask(client, &self.topic).await
                && described.partitions.iter().all(is_done)
            {
                return Ok((self.with_what_stays(before.as_ref(), described), true));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let described = ask(client, &self.topic).await?;
        Ok((self.with_what_stays(before.as_ref(), described), self.wait.is_none()))
    }

    fn with_what_stays(&self, before: Option<&Described>, after: Described) -> Described {
        let stays = before.map(|before| Stays::of(self.class, before, &after.partitions));
        Described { stays, ..after }
    }
}

/// Whether a partition is in its group, all that is cold is packed, and its copies are gone.
fn is_settled(partition: &PartitionStorage) -> bool {
    partition.is_in_place
        && partition.to_pack_bytes == 0
        && is_whole(partition)
        && partition.surplus_parts == 0
}

/// Whether all that is packed can be read, as far as is known.
fn is_whole(partition: &PartitionStorage) -> bool {
    partition.missing_parts == 0
        && partition.missing_objects == 0
        && partition.object_error.is_none()
}

/// Asks each partition's leader.
async fn ask(client: &Client, topic: &str) -> Result<Described, Failure> {
    let count = client.topic(topic).await?.partitions.len();
    let mut partitions = Vec::with_capacity(count);
    for partition in (0u32..).take(count) {
        let request = OfPartition { topic: topic.to_owned(), partition };
        let index = i32::try_from(partition).unwrap_or(i32::MAX);
        partitions.push(api::call_leader::<TopicStorage>(client, topic, index, &request).await?);
    }
    let sum = |of: fn(&PartitionStorage) -> u64| partitions.iter().map(of).sum();
    Ok(Described {
        topic: topic.to_owned(),
        class: partitions.first().map_or_else(String::new, |it| it.class.clone()),
        payload_bytes: sum(|it| it.hot_bytes + it.cold_bytes + it.object_bytes),
        stored_bytes: sum(|it| it.copies_stored_bytes + it.parts_stored_bytes),
        object_stored_bytes: sum(|it| it.object_stored_bytes),
        left_behind: left_behind(&partitions),
        partitions,
        stays: None,
    })
}

/// What partitions have in groups that they are in no more, group by group.
fn left_behind(partitions: &[PartitionStorage]) -> Vec<GroupHolding> {
    let mut left: BTreeMap<u32, u64> = BTreeMap::new();
    for it in partitions {
        for held in it.groups.iter().filter(|held| held.group != it.group) {
            *left.entry(held.group).or_default() += held.stored_bytes;
        }
    }
    let held = |(group, stored_bytes)| GroupHolding { group, stored_bytes };
    left.into_iter().map(held).collect()
}

fn ratio(stored_bytes: u64, payload_bytes: u64) -> String {
    if payload_bytes == 0 {
        return "-".to_owned();
    }
    format!("{:.2}", stored_bytes as f64 / payload_bytes as f64)
}

/// The groups that still hold what was put before a move, and how many bytes.
fn former(partition: &PartitionStorage) -> String {
    let former = partition.former_groups.iter().map(|group| {
        let held = partition.groups.iter().find(|held| held.group == *group);
        held.map_or(group.to_string(), |held| format!("{group} ({})", held.stored_bytes))
    });
    let former: Vec<String> = former.collect();
    if former.is_empty() { "-".to_owned() } else { former.join(",") }
}

fn render(described: &Described) -> String {
    let Described { topic, class, payload_bytes, stored_bytes, object_stored_bytes, .. } =
        described;
    let partitions = &described.partitions;
    let mut text = format!(
        "{topic}: {class}; {payload_bytes} bytes, {stored_bytes} stored, {} for each\n",
        ratio(*stored_bytes, *payload_bytes)
    );
    if let Some(store) = partitions.iter().find_map(|it| it.object_store.as_ref()) {
        text.push_str(&format!("object store: {object_stored_bytes} bytes in {store}\n"));
    }
    let left_behind = described.left_behind.iter().filter(|_| described.stays.is_none());
    for GroupHolding { group, stored_bytes } in left_behind {
        text.push_str(&format!(
            "group {group}: {stored_bytes} of the bytes stored, put there before a move, until retention deletes them\n"
        ));
    }
    text.extend(described.stays.as_ref().map(Stays::render));
    for (index, it) in partitions.iter().enumerate() {
        if let Some(error) = &it.object_error {
            text.push_str(&format!("partition {index}: {error}\n"));
        }
    }
    text.push('\n');
    let mut table = Table::new(&[
        "PARTITION",
        "GROUP",
        "BEFORE",
        "HOT",
        "STORED",
        "EACH",
        "COLD",
        "STORED",
        "EACH",
        "STRIPES",
        "OBJECTS",
        "IN THEM",
        "TO PACK",
        "MISSING PARTS",
        "MISSING OBJECTS",
        "SLOTS HEARD",
    ]);
    for (index, it) in partitions.iter().enumerate() {
        table.row([
            index.to_string(),
            it.group.to_string(),
            former(it),
            it.hot_bytes.to_string(),
            it.copies_stored_bytes.to_string(),
            ratio(it.copies_stored_bytes, it.hot_bytes),
            it.cold_bytes.to_string(),
            it.parts_stored_bytes.to_string(),
            ratio(it.parts_stored_bytes, it.cold_bytes),
            it.stripes.to_string(),
            it.objects.to_string(),
            it.object_bytes.to_string(),
            it.to_pack_bytes.to_string(),
            it.missing_parts.to_string(),
            it.missing_objects.to_string(),
            it.slots_heard.to_string(),
        ]);
    }
    text.push_str(&table.render());
    text
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn a_class_is_also_taken_as_the_configuration_of_a_topic_says_it() {
        for class in [Class::Mirror3Dc, Class::Rs54, Class::Block42, Class::Object] {
            assert_eq!(Class::from_str(class.config(), false), Ok(class));
        }
        assert_eq!(Class::from_str("block-4-2", false), Ok(Class::Block42), "of cold records");
        assert!(Class::from_str("mirror-3-dc,cold=rs-6-3", false).is_err());
    }

    #[test]
    fn a_description_says_what_a_byte_costs() {
        let partition = PartitionStorage {
            class: Class::Rs54.config().to_owned(),
            group: 1,
            is_in_place: true,
            slots_heard: 9,
            hot_bytes: 0,
            cold_bytes: 1000,
            stripes: 1,
            copies_stored_bytes: 60,
            parts_stored_bytes: 1810,
            ..PartitionStorage::default()
        };
        assert!(is_settled(&partition));
        let described = Described {
            topic: "t".to_owned(),
            class: partition.class.clone(),
            payload_bytes: 1000,
            stored_bytes: 1870,
            object_stored_bytes: 0,
            left_behind: Vec::new(),
            partitions: vec![partition],
            stays: None,
        };
        let text = render(&described);
        assert!(
            text.starts_with("t: mirror-3-dc,cold=rs-5-4; 1000 bytes, 1870 stored, 1.87 for each")
        );
        assert!(text.lines().last().is_some_and(|line| line.contains("1.81")), "{text}");
    }

    #[test]
    fn a_conversion_says_what_it_leaves() {
        let partition = |group, former_groups: &[u32], is_in_place| PartitionStorage {
            group,
            former_groups: former_groups.to_vec(),
            is_in_place,
            cold_bytes: 1000,
            object_bytes: 10,
            ..PartitionStorage::default()
        };
        let before = Described {
            topic: "t".to_owned(),
            class: Class::Rs54.config().to_owned(),
            payload_bytes: 0,
            stored_bytes: 0,
            object_stored_bytes: 0,
            left_behind: Vec::new(),
            partitions: vec![partition(1, &[], true), partition(1, &[], true)],
            stays: None,
        };
        // One has moved, one is about to.
        let after = [partition(2, &[1], true), partition(1, &[], false)];
        let stays = Stays::of(Class::HotBlock42, &before, &after);
        let left = Stays { stripes_bytes: 2000, objects_bytes: 20, groups: vec![1] };
        assert_eq!(stays, left);
        assert_eq!(
            stays.render(),
            "2000 bytes that were packed before stay in stripes until retention deletes them\n\
             20 bytes that were packed before stay in objects until retention deletes them\n\
             what was written in group 1 stays there until retention deletes it\n"
        );
        let again = Stays::of(Class::Rs54, &before, &before.partitions);
        assert_eq!(again.render(), "", "it is of that class already");
    }

    #[test]
    fn a_description_says_what_a_move_has_left_behind() {
        let held = |group, stored_bytes| GroupHolding { group, stored_bytes };
        let moved = |bytes_before| PartitionStorage {
            group: 2,
            former_groups: vec![1],
            groups: vec![held(1, bytes_before), held(2, 1500)],
            ..PartitionStorage::default()
        };
        let partitions = vec![moved(300), moved(0), moved(30)];
        let left_behind = left_behind(&partitions);
        assert_eq!(left_behind, [held(1, 330)]);
        let described = Described {
            topic: "t".to_owned(),
            class: Class::HotBlock42.config().to_owned(),
            payload_bytes: 3110,
            stored_bytes: 4830,
            object_stored_bytes: 0,
            left_behind,
            partitions,
            stays: None,
        };
        let text = render(&described);
        assert!(text.contains("group 1: 330 of the bytes stored"), "{text}");
        assert!(text.contains("1 (300)") && text.contains("1 (0)"), "{text}");
    }
}
