//! librdkafka, through the Rust package `rdkafka`. Built as an example of `ops`, whose tests have it.

#![expect(clippy::disallowed_methods, reason = "a client of real nodes waits in real time")]

mod takeover;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier,
    TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::Message;
use rdkafka::producer::{
    BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer,
};

/// A check's answer, or what went wrong.
type Outcome = Result<String, Box<dyn std::error::Error>>;

const RECORD_COUNT: usize = 2000;
const GROUP_RECORD_COUNT: usize = 400;
const WITHIN: Duration = Duration::from_secs(40);
const ASK_WITHIN: Duration = Duration::from_secs(10);

struct Cluster {
    bootstrap: String,
    prefix: String,
    /// How to connect.
    options: Vec<(String, String)>,
    replica_count: i32,
    runtime: tokio::runtime::Runtime,
}

type Group = Vec<BaseConsumer>;

fn value(number: usize) -> String {
    format!("{number:08} {}", "abcdefghij".repeat(number % 30))
}

fn expect(condition: bool, words: impl Into<String>) -> Result<(), String> {
    if condition { Ok(()) } else { Err(words.into()) }
}

/// Waits for a condition, which does the waiting itself by polling a client.
fn until(what: &str, condition: impl FnMut() -> bool) -> Result<(), String> {
    until_within(WITHIN, what, condition)
}

fn until_within(
    within: Duration,
    what: &str,
    mut condition: impl FnMut() -> bool,
) -> Result<(), String> {
    let deadline = Instant::now() + within;
    while !condition() {
        expect(Instant::now() < deadline, format!("not within {within:?}: {what}"))?;
    }
    Ok(())
}

fn expect_all(mut got: Vec<String>, count: usize) -> Result<(), String> {
    got.sort();
    let sent: Vec<String> = (0..count).map(value).collect();
    expect(got == sent, format!("{} of {count} came back as sent", got.len()))
}

impl Cluster {
    fn config(&self, more: &[(&str, &str)]) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.bootstrap);
        for (name, value) in &self.options {
            config.set(name, value);
        }
        for (name, value) in more {
            config.set(*name, *value);
        }
        config
    }

    fn admin(&self) -> Result<AdminClient<DefaultClientContext>, rdkafka::error::KafkaError> {
        self.config(&[]).create()
    }

    fn create(
        &self,
        name: &str,
        partition_count: i32,
    ) -> Result<String, Box<dyn std::error::Error>> {
        let topic = format!("{}{name}", self.prefix);
        let wanted =
            NewTopic::new(&topic, partition_count, TopicReplication::Fixed(self.replica_count));
        let admin = self.admin()?;
        let created =
            self.runtime.block_on(admin.create_topics([&wanted], &AdminOptions::new()))?;
        created.into_iter().next().ok_or("no answer")?.map_err(|(_, code)| code.to_string())?;
        until("leaders", || self.partition_count(&topic) == partition_count as usize)?;
        Ok(topic)
    }

    fn partition_count(&self, topic: &str) -> usize {
        let metadata =
            self.admin().and_then(|it| it.inner().fetch_metadata(Some(topic), ASK_WITHIN));
        let Ok(metadata) = metadata else { return 0 };
        metadata
            .topics()
            .iter()
            .flat_map(|it| it.partitions())
            .filter(|it| it.leader() >= 0)
            .count()
    }

    fn producer(&self, more: &[(&str, &str)]) -> Result<BaseProducer, rdkafka::error::KafkaError> {
        let options = [("acks", "all"), ("enable.idempotence", "true")];
        self.config(&[&options, more].concat()).create()
    }

    fn consumer(
        &self,
        group: &str,
        topic: &str,
        more: &[(&str, &str)],
    ) -> Result<BaseConsumer, rdkafka::error::KafkaError> {
        let group = format!("{}{group}", self.prefix);
        let options = [
            ("group.id", group.as_str()),
            ("auto.offset.reset", "earliest"),
            ("enable.auto.commit", "false"),
            ("check.crcs", "true"),
        ];
        let consumer: BaseConsumer = self.config(&[&options, more].concat()).create()?;
        consumer.subscribe(&[topic])?;
        Ok(consumer)
    }

    fn read_all(
        &self,
        topic: &str,
        count: usize,
        more: &[(&str, &str)],
    ) -> Result<Vec<String>, Box<dyn std::error::Error>> {
        let consumer = self.consumer(&format!("read-{topic}"), topic, more)?;
        let mut got = Vec::new();
        until(&format!("{count} records of {topic}"), || {
            poll(&consumer, &mut got);
            got.len() >= count
        })?;
        poll(&consumer, &mut got);
        Ok(got)
    }

    fn compression(&self, codec: &str) -> Outcome {
        let topic = self.create(codec, 2)?;
        let producer = self.producer(&[("compression.type", codec), ("linger.ms", "20")])?;
        send(&producer, &topic, 0..RECORD_COUNT)?;
        expect_all(self.read_all(&topic, RECORD_COUNT, &[])?, RECORD_COUNT)?;
        Ok(format!("{RECORD_COUNT} records"))
    }

    fn group(&self, name: &str, options: &[(&str, &str)]) -> Outcome {
        let topic = self.create(name, 4)?;
        let mut got = Vec::new();
        let mut members: Group = vec![self.consumer(name, &topic, options)?];
        until("the first member has all", || shared(&members, &[4], &mut got))?;
        members.push(self.consumer(name, &topic, options)?);
        until("two members share", || shared(&members, &[2, 2], &mut got))?;
        send(&self.producer(&[])?, &topic, 0..GROUP_RECORD_COUNT)?;
        until("both read", || {
            shared(&members, &[2, 2], &mut got) && got.len() >= GROUP_RECORD_COUNT
        })?;
        for member in &members {
            member.commit_consumer_state(CommitMode::Sync)?;
        }
        drop(members.pop());
        until("the first member has all again", || shared(&members, &[4], &mut got))?;
        drop(members);
        expect_all(got, GROUP_RECORD_COUNT)?;
        let (after, mut more) = (vec![self.consumer(name, &topic, options)?], Vec::new());
        until("the group goes on", || shared(&after, &[4], &mut more))?;
        poll(&after[0], &mut more);
        expect(more.is_empty(), format!("{} committed records were read again", more.len()))?;
        Ok("2 members, 4 partitions".to_owned())
    }

    fn transactions(&self) -> Outcome {
        let topic = self.create("transactions", 1)?;
        let id = format!("{}t", self.prefix);
        let producer = self.producer(&[("transactional.id", &id)])?;
        producer.init_transactions(WITHIN)?;
        for (numbers, commit) in [(0..10, true), (10..20, false), (10..15, true)] {
            producer.begin_transaction()?;
            send(&producer, &topic, numbers)?;
            if commit {
                producer.commit_transaction(WITHIN)?;
            } else {
                producer.abort_transaction(WITHIN)?;
            }
        }
        expect_all(self.read_all(&topic, 15, &[("isolation.level", "read_committed")])?, 15)?;
        Ok("2 committed, 1 aborted".to_owned())
    }

    fn administer(&self) -> Outcome {
        let topic = self.create("admin", 1)?;
        let (admin, options) = (self.admin()?, AdminOptions::new());
        let change =
            AlterConfig::new(ResourceSpecifier::Topic(&topic)).set("retention.ms", "123456");
        self.runtime.block_on(admin.alter_configs([&change], &options))?;
        let resource = ResourceSpecifier::Topic(&topic);
        until("the config is kept", || {
            let described = self.runtime.block_on(admin.describe_configs([&resource], &options));
            let described = described.ok().and_then(|all| all.into_iter().next()?.ok());
            let entry = described.as_ref().and_then(|config| config.get("retention.ms"));
            entry.is_some_and(|entry| entry.value.as_deref() == Some("123456"))
        })?;
        let wanted = NewPartitions::new(&topic, 3);
        self.runtime.block_on(admin.create_partitions([&wanted], &options))?;
        until("there are 3 partitions", || self.partition_count(&topic) == 3)?;
        let (_, end) = admin.inner().fetch_watermarks(&topic, 0, ASK_WITHIN)?;
        expect(end == 0, "an empty partition ends at 0")?;
        admin.inner().fetch_group_list(None, ASK_WITHIN)?;
        self.runtime.block_on(admin.delete_topics(&[topic.as_str()], &options))?;
        until("the topic is gone", || {
            let metadata = admin.inner().fetch_metadata(None, ASK_WITHIN);
            metadata.is_ok_and(|it| it.topics().iter().all(|known| known.name() != topic))
        })?;
        Ok("topics, partitions, configs, offsets, groups".to_owned())
    }

    fn kill(&self, time: Duration) -> Outcome {
        let topic = format!("{}kill", self.prefix);
        let options = [("acks", "all"), ("enable.idempotence", "true"), ("linger.ms", "5")];
        let (told, acks) = std::sync::mpsc::channel();
        let config = self.config(&options);
        let producer: ThreadedProducer<Acks> = config.create_with_context(Acks(told))?;
        let reader = self.consumer("kill", &topic, &[])?;
        let mut places: BTreeMap<usize, BTreeSet<(i32, i64)>> = BTreeMap::new();
        let mut read = || {
            let Some(Ok(message)) = reader.poll(Duration::from_millis(5)) else {
                return places.len();
            };
            let text = String::from_utf8_lossy(message.payload().unwrap_or_default()).into_owned();
            if let Some(number) = text.get(..8).and_then(|number| number.parse().ok()) {
                places.entry(number).or_default().insert((message.partition(), message.offset()));
            }
            places.len()
        };
        let deadline = Instant::now() + time;
        let mut sent_count = 0;
        while Instant::now() < deadline {
            let value = value(sent_count);
            let record =
                BaseRecord::<(), str, Box<usize>>::with_opaque_to(&topic, Box::new(sent_count));
            if producer.send(record.payload(value.as_str())).is_ok() {
                sent_count += 1;
            }
            read();
        }
        producer.flush(Duration::from_secs(60))?;
        let acked: BTreeSet<usize> = acks.try_iter().collect();
        expect(!acked.is_empty(), "nothing was acknowledged")?;
        until("all is read", || read() >= acked.len())?;
        let lost = acked.iter().filter(|number| !places.contains_key(number)).count();
        expect(lost == 0, format!("{lost} acknowledged records were not read"))?;
        let doubled = places.values().filter(|places| places.len() > 1).count();
        expect(doubled == 0, format!("{doubled} records are in the log twice"))?;
        Ok(format!("{} records", acked.len()))
    }
}

/// Passes on the numbers of the records that were acknowledged.
struct Acks(std::sync::mpsc::Sender<usize>);

impl rdkafka::ClientContext for Acks {}

impl ProducerContext for Acks {
    type DeliveryOpaque = Box<usize>;

    fn delivery(&self, delivered: &DeliveryResult<'_>, number: Box<usize>) {
        if delivered.is_ok() {
            let _nobody_asks_any_more = self.0.send(*number);
        }
    }
}

fn send(
    producer: &BaseProducer,
    topic: &str,
    numbers: std::ops::Range<usize>,
) -> Result<(), Box<dyn std::error::Error>> {
    for number in numbers {
        let (key, value) = (number.to_string(), value(number));
        producer
            .send(BaseRecord::to(topic).key(&key).payload(&value))
            .map_err(|(error, _)| error)?;
    }
    producer.flush(WITHIN)?;
    Ok(())
}

fn poll(consumer: &BaseConsumer, got: &mut Vec<String>) {
    if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
        got.push(String::from_utf8_lossy(message.payload().unwrap_or_default()).into_owned());
    }
}

/// Lets all members read for a moment; whether each has as many partitions as it should.
fn shared(members: &[BaseConsumer], counts: &[usize], got: &mut Vec<String>) -> bool {
    members.iter().for_each(|member| poll(member, got));
    let assigned = |member: &BaseConsumer| member.assignment().map_or(0, |list| list.count());
    members.iter().map(assigned).eq(counts.iter().copied())
}

fn check(name: &str, outcome: Outcome) {
    let told = match outcome {
        Ok(words) => format!("ok {words}"),
        Err(error) => format!("fail {error}"),
    };
    println!("RESULT {name} {}", told.split_whitespace().collect::<Vec<_>>().join(" "));
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (bootstrap, prefix) = (env::var("BOOTSTRAP")?, env::var("PREFIX")?);
    let options = env::var("OPTIONS").unwrap_or_default();
    let options = options.lines().filter_map(|line| line.split_once('='));
    let options = options.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let replica_count = env::var("REPLICAS").map_or(Ok(3), |count| count.parse())?;
    let cluster = Cluster { bootstrap, prefix, options, replica_count, runtime };
    println!("VERSION rdkafka 0.39.0, librdkafka {}", rdkafka::util::get_rdkafka_version().1);
    match env::var("PHASE")?.as_str() {
        "steady" => steady(&cluster),
        "kill" => {
            let seconds = env::var("DURATION")?.parse()?;
            check("kill", cluster.kill(Duration::from_secs(seconds)));
        }
        phase => check(phase, takeover::run(&cluster, phase)),
    }
    Ok(())
}

fn steady(cluster: &Cluster) {
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        check(codec, cluster.compression(codec));
    }
    check("group", cluster.group("group", &[]));
    check("consumer", cluster.group("consumer", &[("group.protocol", "consumer")]));
    check("admin", cluster.administer());
    check("transactions", cluster.transactions());
}
