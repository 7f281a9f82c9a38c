//! Groups, transactions and administrators while nodes are killed; what is told is judged by the driver.

use std::collections::BTreeSet;
use std::env;
use std::path::Path;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};

use super::{ASK_WITHIN, Acks, Cluster, Outcome, WITHIN, until, until_within, value};

const PARTITION_COUNT: usize = 9;

type Failure = Box<dyn std::error::Error>;

fn signalled(word: &str) -> bool {
    env::var_os("SIGNALS").is_some_and(|folder| Path::new(&folder).join(word).exists())
}

/// What a group, transactions or topics are called.
fn name() -> Result<String, env::VarError> {
    env::var("NAME")
}

/// Reads for a moment; gives the number of what was read.
fn read(member: &BaseConsumer, mut told: impl FnMut(usize, i32, i64)) {
    let Some(Ok(message)) = member.poll(Duration::from_millis(10)) else { return };
    let text = String::from_utf8_lossy(message.payload().unwrap_or_default()).into_owned();
    if let Some(number) = text.get(..8).and_then(|number| number.parse().ok()) {
        told(number, message.partition(), message.offset());
    }
}

fn tell_read(member: &BaseConsumer, read_so_far: &mut BTreeSet<usize>) {
    read(member, |number, partition, offset| {
        read_so_far.insert(number);
        println!("READ {number} {partition} {offset}");
    });
}

fn owned(member: &BaseConsumer) -> usize {
    member.assignment().map_or(0, |list| list.count())
}

/// As while there is no coordinator, it may fail, and is tried again.
fn is_committed(member: &BaseConsumer) -> bool {
    match member.commit_consumer_state(CommitMode::Sync) {
        Ok(()) | Err(KafkaError::ConsumerCommit(RDKafkaErrorCode::NoOffset)) => true,
        Err(error) => {
            println!("commit: {error}");
            false
        }
    }
}

impl Cluster {
    fn topic_of(&self, phase: &str) -> String {
        format!("{}{phase}", self.prefix)
    }

    /// Two members share four partitions, until one leaves; nodes are killed.
    pub(super) fn group_kill(&self, phase: &str, options: &[(&str, &str)]) -> Outcome {
        let (topic, group) = (self.topic_of(phase), name()?);
        let join = || self.member(&group, &topic, options);
        let mut members = vec![join()?, join()?];
        let (mut acked, mut got) = (BTreeSet::new(), BTreeSet::new());
        until("two members share", || {
            members.iter().for_each(|member| tell_read(member, &mut got));
            members.iter().all(|member| owned(member) == 2)
        })?;
        println!("READY");
        let (told, acks) = std::sync::mpsc::channel();
        let config = self.config(&[("acks", "all"), ("enable.idempotence", "true")]);
        let producer: ThreadedProducer<Acks> = config.create_with_context(Acks(told))?;
        let mut note_acks = || {
            for number in acks.try_iter() {
                println!("ACKED {number}");
                acked.insert(number);
            }
        };
        let mut number = 0;
        while !signalled("stop") {
            let value = value(number);
            let record =
                BaseRecord::<(), str, Box<usize>>::with_opaque_to(&topic, Box::new(number));
            if producer.send(record.payload(value.as_str())).is_ok() {
                number += 1;
            }
            note_acks();
            members.iter().for_each(|member| tell_read(member, &mut got));
            if number % 20 == 0 {
                is_committed(&members[number / 20 % members.len()]);
            }
            if members.len() == 2 && signalled("leave") {
                drop(members.pop());
                println!("LEFT");
            }
        }
        producer.flush(WITHIN)?;
        note_acks();
        let one = members.remove(0);
        // A member whose farewell found no coordinator is missed after 45 s.
        until_within(2 * WITHIN, "one member has and has read all", || {
            tell_read(&one, &mut got);
            owned(&one) == 4 && acked.is_subset(&got)
        })?;
        until("all is committed", || is_committed(&one))?;
        drop(one);
        let after = join()?;
        let again = || read(&after, |number, _, _| println!("AGAIN {number}"));
        until("the group goes on", || {
            again();
            owned(&after) == 4
        })?;
        again();
        Ok(format!("{} records", acked.len()))
    }

    fn member(
        &self,
        group: &str,
        topic: &str,
        more: &[(&str, &str)],
    ) -> Result<BaseConsumer, KafkaError> {
        let options = [
            ("group.id", group),
            ("auto.offset.reset", "earliest"),
            ("enable.auto.commit", "false"),
        ];
        let consumer: BaseConsumer = self.config(&[&options, more].concat()).create()?;
        consumer.subscribe(&[topic])?;
        Ok(consumer)
    }

    /// Of a record in each of nine partitions, every fifth aborted, while nodes are killed; after an error there is a
    /// new producer.
    pub(super) fn transactions_kill(&self, phase: &str) -> Outcome {
        let topic = self.topic_of(phase);
        let mut producer = None;
        let mut number = 0;
        let mut outcome = "";
        while !(outcome == "COMMITTED" && signalled("stop")) {
            outcome = "ABORTED";
            if let Err(error) = self.transaction(&topic, &mut producer, number, &mut outcome) {
                println!("transaction: {error}");
                producer = None;
            }
            println!("{outcome} {number}");
            if number == 4 {
                println!("READY");
            }
            number += 1;
        }
        drop(producer);
        // Each partition has a record of the last one: what comes before it has been read then.
        let first = (number - 1) * 10;
        let last: BTreeSet<usize> = (first..first + PARTITION_COUNT).collect();
        let group = format!("{}-read", name()?);
        let reader = self.member(&group, &topic, &[("isolation.level", "read_committed")])?;
        let mut got = BTreeSet::new();
        until("the last transaction", || {
            tell_read(&reader, &mut got);
            last.is_subset(&got)
        })?;
        Ok(format!("{number} transactions"))
    }

    /// One transaction; `outcome` says what may have become of it if there is an error.
    fn transaction(
        &self,
        topic: &str,
        producer: &mut Option<ThreadedProducer<DefaultProducerContext>>,
        number: usize,
        outcome: &mut &str,
    ) -> Result<(), Failure> {
        if producer.is_none() {
            let config = self.config(&[("transactional.id", &name()?)]);
            let made: ThreadedProducer<DefaultProducerContext> = config.create()?;
            made.init_transactions(WITHIN)?;
            *producer = Some(made);
        }
        let Some(producer) = producer.as_ref() else { return Ok(()) };
        producer.begin_transaction()?;
        for partition in 0..PARTITION_COUNT {
            let value = value(number * 10 + partition);
            let record = BaseRecord::<(), str>::to(topic);
            let record = record.partition(partition as i32).payload(value.as_str());
            producer.send(record).map_err(|(error, _)| error)?;
        }
        producer.flush(WITHIN)?;
        if number % 5 == 4 {
            producer.abort_transaction(WITHIN)?;
            return Ok(());
        }
        *outcome = "UNKNOWN";
        producer.commit_transaction(WITHIN)?;
        *outcome = "COMMITTED";
        Ok(())
    }

    /// Rounds of an administrator's steps while nodes are killed; each may fail for a while.
    pub(super) fn admin_kill(&self) -> Outcome {
        let mut longest = Duration::ZERO;
        let mut round = 0;
        loop {
            let is_last = signalled("stop");
            let topic = format!("{}-{round}", name()?);
            for (what, step) in STEPS {
                let began = Instant::now();
                until(what, || match step(self, &topic) {
                    Ok(true) => true,
                    Ok(false) => {
                        std::thread::sleep(Duration::from_millis(100));
                        false
                    }
                    Err(error) => {
                        println!("{what}: {error}");
                        std::thread::sleep(Duration::from_millis(100));
                        false
                    }
                })?;
                longest = longest.max(began.elapsed());
            }
            round += 1;
            if round == 1 {
                println!("READY");
            }
            if is_last {
                let seconds = longest.as_secs_f64();
                return Ok(format!("{round} rounds, a step took {seconds:.1} s at most"));
            }
        }
    }

    fn has(&self, topic: &str) -> Result<bool, Failure> {
        let metadata = self.admin()?.inner().fetch_metadata(None, ASK_WITHIN)?;
        Ok(metadata.topics().iter().any(|known| known.name() == topic))
    }

    fn create_one(&self, topic: &str) -> Result<bool, Failure> {
        if self.has(topic)? {
            return Ok(true);
        }
        let wanted = NewTopic::new(topic, 1, TopicReplication::Fixed(3));
        let admin = self.admin()?;
        self.runtime.block_on(admin.create_topics([&wanted], &AdminOptions::new()))?;
        Ok(false)
    }

    fn alter(&self, topic: &str) -> Result<bool, Failure> {
        let (admin, options) = (self.admin()?, AdminOptions::new());
        let resource = ResourceSpecifier::Topic(topic);
        let described = self.runtime.block_on(admin.describe_configs([&resource], &options))?;
        let config = described.into_iter().next().ok_or("no answer")??;
        let entry = config.get("retention.ms").and_then(|entry| entry.value.as_deref());
        if entry == Some("123456") {
            return Ok(true);
        }
        let change = AlterConfig::new(resource).set("retention.ms", "123456");
        self.runtime.block_on(admin.alter_configs([&change], &options))?;
        Ok(false)
    }

    /// The state of the group of the steady phase, if it is listed.
    fn group_state(&self, only: bool) -> Result<Option<String>, Failure> {
        let group = format!("{}group", self.prefix);
        let asked = only.then_some(group.as_str());
        let groups = self.admin()?.inner().fetch_group_list(asked, ASK_WITHIN)?;
        let found = groups.groups().iter().find(|known| known.name() == group);
        Ok(found.map(|known| known.state().to_owned()))
    }

    fn delete(&self, topic: &str) -> Result<bool, Failure> {
        if !self.has(topic)? {
            return Ok(true);
        }
        let admin = self.admin()?;
        self.runtime.block_on(admin.delete_topics(&[topic], &AdminOptions::new()))?;
        Ok(false)
    }
}

type Step = fn(&Cluster, &str) -> Result<bool, Failure>;

/// What each step is, and what it does unless it finds that it holds.
const STEPS: [(&str, Step); 6] = [
    ("create", Cluster::create_one),
    ("describe", |cluster, topic| Ok(cluster.partition_count(topic) == 1)),
    ("alter the config", Cluster::alter),
    ("list groups", |cluster, _| Ok(cluster.group_state(false)?.is_some())),
    ("describe the group", |cluster, _| Ok(cluster.group_state(true)?.as_deref() == Some("Empty"))),
    ("delete", Cluster::delete),
];

/// Runs the phase, if it is one of these.
pub(super) fn run(cluster: &Cluster, phase: &str) -> Outcome {
    match phase {
        "group-kill" => cluster.group_kill(phase, &[("session.timeout.ms", "10000")]),
        "consumer-kill" => cluster.group_kill(phase, &[("group.protocol", "consumer")]),
        "transactions-kill" => cluster.transactions_kill(phase),
        "admin-kill" => cluster.admin_kill(),
        _ => Err(format!("there is no phase {phase}").into()),
    }
}
