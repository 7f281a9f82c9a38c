use proptest::prelude::*;

use super::*;

const SESSION: Duration = Duration::from_secs(45);

/// The topics of a test, by name.
#[derive(Debug, Default)]
struct World {
    topics: BTreeMap<String, TopicCount>,
    version: u64,
}

impl World {
    fn of(topics: &[(&str, u32)]) -> Self {
        let mut world = Self::default();
        for (name, partition_count) in topics {
            world.set(name, *partition_count);
        }
        world
    }

    fn set(&mut self, name: &str, partition_count: u32) {
        self.version += 1;
        let next = TopicId::new(100 + self.topics.len() as u128);
        let topic = self.topics.get(name).map_or(next, |known| known.topic);
        self.topics.insert(name.to_owned(), TopicCount { topic, partition_count });
    }

    fn count(&self) -> usize {
        self.topics.values().map(|topic| topic.partition_count as usize).sum()
    }

    fn partitions(&self, name: &str) -> Partitions {
        let TopicCount { topic, partition_count } = self.topics[name];
        (0..partition_count).map(|index| TopicPartition { topic, index }).collect()
    }
}

impl Topics for World {
    fn version(&self) -> TopicsVersion {
        TopicsVersion { partition_count: self.version, topic_count: self.topics.len() }
    }

    fn find(&self, name: &str) -> Option<TopicCount> {
        self.topics.get(name).copied()
    }

    fn for_each(&self, look: &mut dyn FnMut(&str, TopicCount)) {
        self.topics.iter().for_each(|(name, topic)| look(name, *topic));
    }
}

fn at(seconds: u64) -> Instant {
    Instant::from_micros(seconds * 1_000_000)
}

fn limits() -> ConsumerGroupLimits {
    ConsumerGroupLimits { session_timeout: SESSION, member_count_max: 4 }
}

fn group() -> ConsumerGroup {
    ConsumerGroup::new(limits(), 0)
}

fn names(list: &[&str]) -> Option<BTreeSet<String>> {
    Some(list.iter().map(|name| (*name).to_owned()).collect())
}

fn join(member_id: &str, topics: &[&str]) -> ConsumerHeartbeat {
    ConsumerHeartbeat {
        member_id: member_id.to_owned(),
        epoch: JOIN_EPOCH,
        rebalance_timeout: Some(Duration::from_secs(10)),
        names: names(topics),
        owned: Some(Partitions::new()),
        ..Default::default()
    }
}

fn join_static(member_id: &str, instance_id: &str) -> ConsumerHeartbeat {
    ConsumerHeartbeat { instance_id: Some(instance_id.to_owned()), ..join(member_id, &["t"]) }
}

/// A heartbeat with nothing to say.
fn beat(member_id: &str, epoch: i32) -> ConsumerHeartbeat {
    ConsumerHeartbeat { member_id: member_id.to_owned(), epoch, ..Default::default() }
}

fn owning(member_id: &str, epoch: i32, owned: &Partitions) -> ConsumerHeartbeat {
    ConsumerHeartbeat { owned: Some(owned.clone()), ..beat(member_id, epoch) }
}

fn reply(epoch: i32, assignment: Option<Partitions>) -> Result<ConsumerReply, ConsumerGroupError> {
    Ok(ConsumerReply { epoch, assignment })
}

fn fenced(ours: i32, theirs: i32) -> Result<ConsumerReply, ConsumerGroupError> {
    Err(ConsumerGroupError::FencedEpoch { ours, theirs })
}

fn unknown(member_id: &str) -> Result<ConsumerReply, ConsumerGroupError> {
    Err(ConsumerGroupError::UnknownMember { member_id: member_id.to_owned() })
}

#[test]
fn the_next_deadline_is_when_a_member_is_removed() {
    let world = World::of(&[("t", 4)]);
    let mut group = group();
    assert_eq!(group.next_deadline(), None);
    let all = world.partitions("t");
    assert_eq!(group.heartbeat(at(0), join("a", &["t"]), &world), reply(1, Some(all)));
    assert_eq!(group.next_deadline(), Some(at(45)));
    group.heartbeat(at(1), join("b", &["t"]), &world).expect("a member");
    // The first must release half, for which it has ten seconds.
    group.heartbeat(at(2), beat("a", 1), &world).expect("a member");
    assert_eq!(group.next_deadline(), Some(at(12)));
    group.tick(at(11));
    assert_eq!(group.members().count(), 2);
    group.tick(at(12));
    assert_eq!((group.members().count(), group.next_deadline()), (1, Some(at(46))));
}

#[test]
fn a_partition_goes_to_the_next_member_once_the_last_has_let_go() {
    let world = World::of(&[("t", 4)]);
    let mut group = group();
    let all = world.partitions("t");
    let first = group.heartbeat(at(0), join("a", &["t"]), &world);
    assert_eq!(first, reply(1, Some(all.clone())));
    assert_eq!(group.state(), ConsumerGroupState::Stable);

    // The second gets nothing yet.
    let second = group.heartbeat(at(1), join("b", &["t"]), &world);
    assert_eq!(second, reply(2, Some(Partitions::new())));
    assert_eq!(group.state(), ConsumerGroupState::Reconciling);

    // The first is told to let go, and stays in its epoch until it has.
    let told = group.heartbeat(at(2), beat("a", 1), &world).unwrap();
    let kept = told.assignment.clone().unwrap();
    assert_eq!((told.epoch, kept.len()), (1, 2));
    assert_eq!(group.heartbeat(at(3), owning("a", 1, &all), &world), reply(1, None));
    assert_eq!(group.heartbeat(at(3), beat("b", 2), &world), reply(2, None));

    // It has.
    assert_eq!(group.heartbeat(at(4), owning("a", 1, &kept), &world), reply(2, None));
    let rest = &all - &kept;
    assert_eq!(group.heartbeat(at(5), beat("b", 2), &world), reply(2, Some(rest)));
    assert_eq!(group.state(), ConsumerGroupState::Stable);
}

#[test]
fn who_does_not_let_go_in_time_is_removed() {
    let world = World::of(&[("t", 2)]);
    let mut group = group();
    let all = world.partitions("t");
    group.heartbeat(at(0), join("a", &["t"]), &world).unwrap();
    group.heartbeat(at(0), join("b", &["t"]), &world).unwrap();
    group.heartbeat(at(1), beat("a", 1), &world).unwrap();
    // Heartbeats alone do not help.
    group.heartbeat(at(8), owning("a", 1, &all), &world).unwrap();
    group.tick(at(10));
    assert_eq!(group.members().count(), 2);
    group.tick(at(11));
    assert_eq!(group.heartbeat(at(11), owning("a", 1, &all), &world), unknown("a"));
    let told = group.heartbeat(at(12), beat("b", 2), &world);
    assert_eq!(told, reply(3, Some(all)));
}

#[test]
fn who_is_not_heard_from_is_removed_and_its_partitions_go_on() {
    let world = World::of(&[("t", 2)]);
    let mut group = group();
    group.heartbeat(at(0), join("a", &["t"]), &world).unwrap();
    group.tick(at(44));
    assert_eq!(group.members().count(), 1);
    group.heartbeat(at(44), beat("a", 1), &world).unwrap();
    group.tick(at(45));
    assert_eq!(group.members().count(), 1, "it was heard from");
    group.tick(at(44 + 45));
    assert_eq!(group.state(), ConsumerGroupState::Empty);
    assert_eq!(group.check_commit("a", 1, some()), unknown("a").map(drop));
    assert_eq!(group.check_commit("", -1, some()), Ok(()));
}

/// A partition that nobody has.
fn some() -> impl Iterator<Item = TopicPartition> {
    [TopicPartition { topic: TopicId::new(9), index: 0 }].into_iter()
}

#[test]
fn a_commit_that_a_new_epoch_overtook_is_taken_for_what_the_member_had_before() {
    let world = World::of(&[("t", 2)]);
    let mut group = group();
    group.heartbeat(at(0), join("a", &["t"]), &world).unwrap();
    let all = world.partitions("t");
    let [first, second] = [0, 1].map(|at| *all.iter().nth(at).expect("two"));
    let commit = |group: &ConsumerGroup, id: &str, epoch, partitions: &[TopicPartition]| {
        group.check_commit(id, epoch, partitions.iter().copied())
    };
    let stale = |ours, theirs| Err(ConsumerGroupError::StaleEpoch { ours, theirs });
    // Another member comes; the first lets one go and is in the next epoch with the other.
    group.heartbeat(at(1), join("b", &["t"]), &world).unwrap();
    group.heartbeat(at(2), owning("a", 1, &all), &world).unwrap();
    let kept: Partitions = group.members["a"].assigned.clone();
    assert_eq!(kept.len(), 1);
    assert_eq!(commit(&group, "a", 1, &[first, second]), Ok(()), "it has not let go yet");
    group.heartbeat(at(3), owning("a", 1, &kept), &world).unwrap();
    let lost = *all.difference(&kept).next().expect("one");
    let kept = *kept.first().expect("one");
    assert_eq!(commit(&group, "a", 2, &[kept]), Ok(()));
    assert_eq!(commit(&group, "a", 1, &[kept]), Ok(()), "on its way when the epoch rose");
    assert_eq!(commit(&group, "a", 1, &[kept, lost]), stale(2, 1));
    assert_eq!(commit(&group, "a", 3, &[kept]), stale(2, 3));
    assert_eq!(commit(&group, "a", 0, &[kept]), stale(2, 0));
    // The other one has it since epoch 2 only.
    group.heartbeat(at(4), beat("b", 2), &world).unwrap();
    assert_eq!(commit(&group, "b", 2, &[lost]), Ok(()));
    assert_eq!(commit(&group, "b", 1, &[lost]), stale(2, 1));
}

#[test]
fn wrong_epochs_are_refused() {
    let world = World::of(&[("t", 2)]);
    let mut group = group();
    let all = world.partitions("t");
    group.heartbeat(at(0), join("a", &["t"]), &world).unwrap();
    let bumped = ConsumerHeartbeat { names: names(&["t", "u"]), ..beat("a", 1) };
    assert_eq!(group.heartbeat(at(0), bumped, &world), reply(2, None));
    let none = Partitions::new();
    let strange: Partitions = [TopicPartition { topic: TopicId::new(9), index: 0 }].into();
    let cases = [
        (beat("a", 3), fenced(2, 3)),
        // One behind, as if the answer was lost: only with nothing but what it has.
        (beat("a", 1), fenced(2, 1)),
        (owning("a", 1, &strange), fenced(2, 1)),
        (owning("a", 1, &all), reply(2, None)),
        (owning("a", 1, &none), reply(2, None)),
        (beat("a", 2), reply(2, None)),
        (beat("b", 1), unknown("b")),
        (beat("b", LEAVE_EPOCH), unknown("b")),
        (ConsumerHeartbeat { instance_id: Some("i".to_owned()), ..beat("a", 2) }, unknown("a")),
    ];
    for (said, expected) in cases {
        assert_eq!(group.heartbeat(at(1), said.clone(), &world), expected, "{said:?}");
    }
    for (epoch, expected) in [(2, None), (1, Some(1)), (3, Some(3)), (-1, Some(-1))] {
        let stale = expected.map(|theirs| ConsumerGroupError::StaleEpoch { ours: 2, theirs });
        assert_eq!(group.check_commit("a", epoch, some()).err(), stale, "{epoch}");
        assert_eq!(group.check_fetch("a", epoch).err(), stale, "{epoch}");
    }
    assert_eq!(group.check_fetch("", -1), Ok(()));
    assert_eq!(group.check_fetch("b", 2), unknown("b").map(drop));
    assert_eq!(group.check_commit("", -1, some()), unknown("").map(drop), "there are members");
}

#[test]
fn a_group_has_only_so_many_members() {
    let world = World::of(&[("t", 1)]);
    let mut group = group();
    for id in ["a", "b", "c", "d"] {
        group.heartbeat(at(0), join(id, &["t"]), &world).unwrap();
    }
    let told = group.heartbeat(at(0), join("e", &["t"]), &world);
    assert_eq!(told, Err(ConsumerGroupError::TooManyMembers { count_max: 4 }));
    assert!(group.heartbeat(at(0), join("d", &["t"]), &world).is_ok(), "it is in already");
}

#[test]
fn a_static_member_comes_back_to_what_it_had() {
    let world = World::of(&[("t", 4)]);
    let mut group = group();
    let had = group.heartbeat(at(0), join_static("a", "i"), &world).unwrap().assignment;
    let error = group.heartbeat(at(1), join_static("z", "i"), &world);
    let expected = ConsumerGroupError::UnreleasedInstance {
        instance_id: "i".to_owned(),
        member_id: "a".to_owned(),
    };
    assert_eq!(error, Err(expected));

    let leave =
        ConsumerHeartbeat { instance_id: Some("i".to_owned()), ..beat("a", LEAVE_STATIC_EPOCH) };
    assert_eq!(group.heartbeat(at(2), leave, &world), reply(LEAVE_STATIC_EPOCH, None));
    group.heartbeat(at(3), join("other", &["u"]), &world).unwrap();
    let epoch = group.epoch();
    let back = group.heartbeat(at(4), join_static("z", "i"), &world);
    assert_eq!(back, reply(epoch, had));
    assert_eq!(group.epoch(), epoch, "nothing is shared out anew");

    let old = ConsumerHeartbeat { instance_id: Some("i".to_owned()), ..beat("a", 1) };
    let told = group.heartbeat(at(5), old, &world);
    assert_eq!(told, Err(ConsumerGroupError::FencedInstance { instance_id: "i".to_owned() }));
    // Not back in time.
    let leave =
        ConsumerHeartbeat { instance_id: Some("i".to_owned()), ..beat("z", LEAVE_STATIC_EPOCH) };
    group.heartbeat(at(6), leave, &world).unwrap();
    group.tick(at(4 + 45));
    assert!(group.members().all(|(id, _)| id != "z"));
}

#[test]
fn leaving_for_good_frees_everything() {
    let world = World::of(&[("t", 2)]);
    let mut group = group();
    group.heartbeat(at(0), join("a", &["t"]), &world).unwrap();
    group.heartbeat(at(0), join("b", &["t"]), &world).unwrap();
    let left = group.heartbeat(at(1), beat("a", LEAVE_EPOCH), &world);
    assert_eq!(left, reply(LEAVE_EPOCH, None));
    let told = group.heartbeat(at(2), beat("b", 2), &world);
    assert_eq!(told, reply(3, Some(world.partitions("t"))));
}

#[test]
fn patterns_match_whole_names_and_topics_that_come_later() {
    let mut world = World::of(&[("orders-1", 1), ("orders-22", 1), ("my-orders-1", 1)]);
    let mut group = group();
    let pattern = |text: &str| ConsumerHeartbeat {
        names: None,
        pattern: Some(text.to_owned()),
        ..join("a", &[])
    };
    let told = group.heartbeat(at(0), pattern("orders-\\d+|none"), &world).unwrap();
    let expected = &world.partitions("orders-1") | &world.partitions("orders-22");
    assert_eq!(told, ConsumerReply { epoch: 1, assignment: Some(expected.clone()) });
    assert!(group.is_subscribed("orders-1") && !group.is_subscribed("my-orders-1"));

    world.set("orders-3", 2);
    let told = group.heartbeat(at(1), beat("a", 1), &world);
    assert_eq!(told, reply(2, Some(&expected | &world.partitions("orders-3"))));
    world.set("elsewhere", 2);
    assert_eq!(group.heartbeat(at(2), beat("a", 2), &world), reply(2, None));

    for text in ["(", "orders)|(x", "(a{1000}){1000}"] {
        let told = group.heartbeat(at(3), pattern(text), &world);
        assert!(matches!(told, Err(ConsumerGroupError::InvalidPattern { .. })), "{text}: {told:?}");
    }
    // None any more.
    let gone = ConsumerHeartbeat { pattern: Some(String::new()), ..beat("a", 2) };
    let told = group.heartbeat(at(4), gone, &world).unwrap();
    assert_eq!(told.assignment, Some(Partitions::new()));
}

/// The topics of a test, of which the member that is heard from sees some.
struct Seen<'w> {
    world: &'w World,
    names: &'w [&'w str],
    sight: u64,
}

impl Topics for Seen<'_> {
    fn version(&self) -> TopicsVersion {
        self.world.version()
    }

    fn find(&self, name: &str) -> Option<TopicCount> {
        self.world.find(name)
    }

    fn for_each(&self, look: &mut dyn FnMut(&str, TopicCount)) {
        self.world.for_each(look);
    }

    fn sight(&self) -> Option<u64> {
        Some(self.sight)
    }

    fn is_seen(&self, name: &str) -> bool {
        self.names.contains(&name)
    }
}

#[test]
fn a_pattern_means_the_topics_that_its_own_member_sees() {
    let world = World::of(&[("orders-1", 2), ("orders-2", 2), ("bills", 1)]);
    let (one, two) = (world.partitions("orders-1"), world.partitions("orders-2"));
    let seen = |names, sight| Seen { world: &world, names, sight };
    let pattern = |member_id: &str| ConsumerHeartbeat {
        names: None,
        pattern: Some("orders-.*".to_owned()),
        ..join(member_id, &[])
    };
    let mut group = group();
    let first = group.heartbeat(at(0), pattern("a"), &seen(&["orders-1"], 1)).unwrap();
    assert_eq!(first.assignment, Some(one));
    let second = group.heartbeat(at(0), pattern("b"), &seen(&["orders-2"], 1)).unwrap();
    assert_eq!(second.assignment, Some(two.clone()), "whatever the other member sees");
    assert_eq!(group.heartbeat(at(1), beat("a", 1), &seen(&["orders-1"], 1)), reply(2, None));

    // Its rights are taken away, and others are given.
    let other = seen(&["orders-2", "bills"], 2);
    let told = group.heartbeat(at(2), beat("a", 2), &other).unwrap().assignment;
    assert_eq!(told, Some(Partitions::new()), "it lets go");
    let told = group.heartbeat(at(2), beat("b", 2), &seen(&["orders-2"], 2)).unwrap().assignment;
    let half = told.expect("the other half is for the first");
    assert!(half.is_subset(&two) && half.len() == 1);
    let released = group.heartbeat(at(3), owning("b", 2, &half), &seen(&["orders-2"], 2)).unwrap();
    assert_eq!(released.epoch, 3);
    let told = group.heartbeat(at(3), owning("a", 2, &Partitions::new()), &other).unwrap();
    assert_eq!(told, ConsumerReply { epoch: 3, assignment: Some(&two - &half) });
}

#[test]
fn topics_that_a_member_names_are_taken_away_with_its_rights() {
    let world = World::of(&[("t", 1), ("u", 1)]);
    let seen = |names, sight| Seen { world: &world, names, sight };
    let both = &world.partitions("t") | &world.partitions("u");
    let mut group = group();
    let told = group.heartbeat(at(0), join("a", &["t", "u"]), &seen(&["t", "u"], 1)).unwrap();
    assert_eq!(told.assignment, Some(both));
    let told = group.heartbeat(at(1), beat("a", 1), &seen(&["t"], 2)).unwrap();
    assert_eq!(told, ConsumerReply { epoch: 1, assignment: Some(world.partitions("t")) });
    let told = group.heartbeat(at(2), owning("a", 1, &world.partitions("t")), &seen(&["t"], 2));
    assert_eq!(told.unwrap().epoch, 2);
    assert_eq!(group.heartbeat(at(3), beat("a", 2), &seen(&["t"], 2)), reply(2, None));
}

#[test]
fn new_partitions_are_shared_out() {
    let mut world = World::of(&[("t", 1)]);
    let mut group = group();
    group.heartbeat(at(0), join("a", &["t"]), &world).unwrap();
    world.set("t", 3);
    let told = group.heartbeat(at(1), beat("a", 1), &world);
    assert_eq!(told, reply(2, Some(world.partitions("t"))));
}

#[test]
fn half_a_record_makes_everything_be_shared_out_anew() {
    let world = World::of(&[("t", 4)]);
    let mut group = group();
    group.heartbeat(at(0), join("a", &["t"]), &world).unwrap();
    let old = Record::default().with(group.take_changes());
    group.heartbeat(at(0), join("b", &["t"]), &world).unwrap();
    let changes = group.take_changes();
    for cut in 0..changes.len() {
        let record = old.clone().with(changes[..cut].to_vec());
        let mut next = record.restore(at(1));
        let mut epochs = BTreeMap::from([("a", 1), ("b", 2)]);
        let mut has: BTreeMap<&str, Partitions> = BTreeMap::new();
        for round in 0..12 {
            for (id, epoch) in &mut epochs {
                let owned = has.entry(id).or_default();
                let said = owning(id, *epoch, owned);
                match next.heartbeat(at(2 + round), said, &world) {
                    Ok(told) => {
                        *epoch = told.epoch;
                        *owned = told.assignment.unwrap_or_else(|| owned.clone());
                    }
                    Err(_) => {
                        let told = next.heartbeat(at(2 + round), join(id, &["t"]), &world).unwrap();
                        *epoch = told.epoch;
                        *owned = told.assignment.unwrap_or_default();
                    }
                }
            }
        }
        assert_eq!(next.state(), ConsumerGroupState::Stable, "cut at {cut}");
        assert_eq!(&has["a"] | &has["b"], world.partitions("t"));
        assert_eq!((has["a"].len(), has["b"].len()), (2, 2), "cut at {cut}");
    }
}

#[test]
fn a_topic_that_only_a_former_member_wanted_is_not_missed() {
    let world = World::of(&[("t", 2), ("u", 2)]);
    let mut group = group();
    group.heartbeat(at(0), join("a", &["t"]), &world).unwrap();
    group.heartbeat(at(0), join("b", &["t", "u"]), &world).unwrap();
    group.heartbeat(at(1), beat("b", LEAVE_EPOCH), &world).unwrap();
    group.heartbeat(at(1), beat("a", 1), &world).unwrap();
    let next = Record::default().with(group.take_changes()).restore(at(2));
    assert_eq!((next.state(), next.epoch()), (group.state(), group.epoch()));
    assert_eq!(next.state(), ConsumerGroupState::Stable);
}

/// What a log would say of a group.
#[derive(Clone, Debug, Default)]
struct Record {
    group: Option<ConsumerGroupImage>,
    members: BTreeMap<String, ConsumerMemberImage>,
}

impl Record {
    fn with(mut self, changes: Vec<ConsumerChange>) -> Self {
        for change in changes {
            match change {
                ConsumerChange::Group(image) => self.group = Some(image),
                ConsumerChange::Member(id, Some(image)) => drop(self.members.insert(id, *image)),
                ConsumerChange::Member(id, None) => drop(self.members.remove(&id)),
            }
        }
        self
    }

    fn restore(&self, now: Instant) -> ConsumerGroup {
        let image = self.group.clone().unwrap_or_default();
        ConsumerGroup::restore(limits(), image, self.members.clone(), now)
    }
}

/// A client as the protocol has it: what it owns, and what it has been told and not done yet.
#[derive(Clone, Debug, Default)]
struct Client {
    is_running: bool,
    epoch: i32,
    owned: Partitions,
    /// Whether the last answer was lost, so that everything is said again.
    says_all: bool,
    told: Option<Partitions>,
}

#[derive(Clone, Debug)]
enum Event {
    /// A heartbeat whose answer arrives, or is lost.
    Beat {
        client: usize,
        is_lost: bool,
    },
    /// The client does what it was told last.
    Obey {
        client: usize,
    },
    Start {
        client: usize,
    },
    Stop {
        client: usize,
        says_so: bool,
    },
    Resubscribe {
        client: usize,
        both: bool,
    },
    Grow,
    Wait {
        seconds: u64,
    },
    /// Another coordinator takes over.
    Takeover,
}

fn event() -> impl Strategy<Value = Event> {
    let client = 0usize..4;
    prop_oneof![
        12 => (client.clone(), prop::bool::weighted(0.15))
            .prop_map(|(client, is_lost)| Event::Beat { client, is_lost }),
        8 => client.clone().prop_map(|client| Event::Obey { client }),
        3 => client.clone().prop_map(|client| Event::Start { client }),
        1 => (client.clone(), any::<bool>())
            .prop_map(|(client, says_so)| Event::Stop { client, says_so }),
        1 => (client, any::<bool>()).prop_map(|(client, both)| Event::Resubscribe { client, both }),
        1 => Just(Event::Grow),
        2 => (1u64..20).prop_map(|seconds| Event::Wait { seconds }),
        2 => Just(Event::Takeover),
    ]
}

/// A group, its record, and clients that do as the protocol says.
struct Play {
    world: World,
    group: ConsumerGroup,
    record: Record,
    clients: Vec<Client>,
    now: u64,
}

impl Play {
    fn new() -> Self {
        Self {
            world: World::of(&[("t", 5), ("u", 3)]),
            group: group(),
            record: Record::default(),
            clients: vec![Client::default(); 4],
            now: 0,
        }
    }

    fn id(client: usize) -> String {
        format!("m{client}")
    }

    fn run(&mut self, event: &Event) {
        match event {
            Event::Beat { client, is_lost } => self.beat(*client, *is_lost, None),
            Event::Obey { client } => self.obey(*client),
            Event::Start { client } => {
                if !self.clients[*client].is_running {
                    self.clients[*client] = Client { is_running: true, ..Client::default() };
                    self.beat(*client, false, None);
                }
            }
            Event::Stop { client, says_so } => {
                let was = std::mem::take(&mut self.clients[*client]);
                if was.is_running && *says_so {
                    let said = beat(&Self::id(*client), LEAVE_EPOCH);
                    let _gone_already = self.group.heartbeat(at(self.now), said, &self.world);
                }
            }
            Event::Resubscribe { client, both } => {
                let wanted: &[&str] = if *both { &["t", "u"] } else { &["t"] };
                self.beat(*client, false, names(wanted));
            }
            Event::Grow => {
                let count = self.world.topics["t"].partition_count;
                self.world.set("t", (count + 1).min(9));
            }
            Event::Wait { seconds } => {
                self.now += seconds;
                self.group.tick(at(self.now));
            }
            Event::Takeover => {
                self.group = self.record.restore(at(self.now));
            }
        }
        self.record = std::mem::take(&mut self.record).with(self.group.take_changes());
        self.check();
    }

    fn beat(&mut self, index: usize, is_lost: bool, topics: Option<BTreeSet<String>>) {
        let client = &mut self.clients[index];
        if !client.is_running {
            return;
        }
        let mut said = match &client.told {
            // It is about to do as it was told: what it owns, it says when it has.
            Some(_) => beat(&Self::id(index), client.epoch),
            None => owning(&Self::id(index), client.epoch, &client.owned),
        };
        if client.epoch == JOIN_EPOCH || client.says_all {
            // It will be told again.
            client.told = None;
            said = ConsumerHeartbeat {
                epoch: client.epoch,
                owned: Some(client.owned.clone()),
                ..join(&Self::id(index), &["t", "u"])
            };
        }
        if topics.is_some() {
            said.names = topics;
        }
        match self.group.heartbeat(at(self.now), said, &self.world) {
            _ if is_lost => client.says_all = true,
            Ok(told) => {
                client.epoch = told.epoch;
                client.says_all = false;
                client.told = told.assignment.or(client.told.take());
            }
            // It gives everything up and joins again.
            Err(_) => *client = Client { is_running: true, ..Client::default() },
        }
        let next = &self.group;
        assert!(next.target_epoch() <= next.epoch());
    }

    fn obey(&mut self, index: usize) {
        let client = &mut self.clients[index];
        if let Some(told) = client.told.take() {
            client.owned = told;
        }
    }

    /// Nobody consumes what somebody else consumes, who the group still counts on.
    fn check(&self) {
        let mut owners: BTreeMap<TopicPartition, usize> = BTreeMap::new();
        for (index, client) in self.clients.iter().enumerate() {
            let is_member = self.group.members().any(|(id, _)| id == Self::id(index));
            // One that was removed learns it later; Kafka's clients stop by themselves in time.
            if !client.is_running || !is_member || client.epoch == JOIN_EPOCH {
                continue;
            }
            for partition in &client.owned {
                if let Some(other) = owners.insert(*partition, index) {
                    panic!("{partition:?} is consumed by {other} and {index}");
                }
            }
        }
        let mut held: BTreeMap<TopicPartition, &str> = BTreeMap::new();
        for (id, member) in self.group.members() {
            assert!(
                member.epoch <= self.group.target_epoch() || member.epoch <= self.group.epoch()
            );
            for partition in member.assigned.iter().chain(&member.to_revoke) {
                assert_eq!(held.insert(*partition, id), None, "two own {partition:?}");
                assert_eq!(&*self.group.owners[partition], id);
            }
        }
        assert_eq!(held.len(), self.group.owners.len());
    }

    /// After the faults everybody gets to work.
    fn settle(&mut self) {
        for _ in 0..12 {
            for client in 0..self.clients.len() {
                self.run(&Event::Beat { client, is_lost: false });
                self.run(&Event::Obey { client });
            }
            self.run(&Event::Wait { seconds: 5 });
        }
        let running: Vec<&Client> = self.clients.iter().filter(|it| it.is_running).collect();
        if running.is_empty() {
            return;
        }
        assert_eq!(self.group.state(), ConsumerGroupState::Stable);
        let owned: usize = running.iter().map(|client| client.owned.len()).sum();
        let is_all_wanted = self.group.is_subscribed("u");
        let expected =
            if is_all_wanted { self.world.count() } else { self.world.partitions("t").len() };
        assert_eq!(owned, expected);
        assert!(running.iter().all(|client| client.epoch == self.group.target_epoch()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn no_partition_has_two_owners_and_all_get_to_work(
        events in prop::collection::vec(event(), 1..120),
    ) {
        let mut play = Play::new();
        for event in &events {
            play.run(event);
        }
        play.settle();
    }

    #[test]
    fn a_takeover_at_any_point_changes_nothing(
        events in prop::collection::vec(event(), 1..60),
    ) {
        let mut play = Play::new();
        for event in &events {
            play.run(event);
            let next = play.record.restore(at(play.now));
            prop_assert_eq!(next.state(), play.group.state());
            prop_assert_eq!(next.all().collect::<Vec<_>>(), play.group.all().collect::<Vec<_>>());
        }
    }
}
