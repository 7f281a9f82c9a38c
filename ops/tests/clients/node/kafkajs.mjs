// KafkaJS. It has gzip itself; the other codecs come from packages of plain JavaScript and WebAssembly.

import { existsSync, readFileSync } from "node:fs";

import kafkajs from "kafkajs";
import SnappyCodec from "kafkajs-snappy";
import lz4 from "lz4js";
import { ZstdCodec } from "zstd-codec";

const { Kafka, CompressionTypes, CompressionCodecs, logLevel } = kafkajs;
const { BOOTSTRAP, PREFIX, PHASE, DURATION, NAME, SIGNALS } = process.env;
/// How to connect, by librdkafka's names.
const OPTIONS = Object.fromEntries((process.env.OPTIONS ?? "").split("\n").filter(Boolean).map((line) => line.split(/=(.*)/s, 2)));
const REPLICAS = Number(process.env.REPLICAS ?? 3);
const RECORDS = 2000;
const GROUP_RECORDS = 400;
const WITHIN_MS = 40_000;

const zstd = await new Promise((done) => ZstdCodec.run((codec) => done(new codec.Simple())));
CompressionCodecs[CompressionTypes.Snappy] = SnappyCodec;
/// lz4js says of each frame that its blocks refer to each other, which Kafka's brokers and ours refuse. A frame of one block, as
/// all of these are, says so for nothing: the flag of independence is set, and the header's checksum is the one that fits it.
function independent(frame) {
  if (frame.readUInt16BE(4) === 0x4070) {
    frame[4] = 0x60;
    frame[6] = 0x73;
  }
  return frame;
}

CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async (encoder) => independent(Buffer.from(lz4.compress(encoder.buffer))),
  decompress: async (buffer) => Buffer.from(lz4.decompress(buffer)),
});
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => Buffer.from(zstd.compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from(zstd.decompress(buffer)),
});

/// Its log, of which warnings are kept. KafkaJS 2.2.4 is deaf for ever when a consumer is stopped while its fetchers are made anew, as
/// they are when a node comes or goes: new ones begin after the stop (consumer/fetchManager.js:70), are given nothing at once
/// (consumer/runner.js:341) and ask again without a pause (consumer/fetcher.js:53), so that no timer and no socket has its turn.
/// Nothing but the log is called then; an error from it ends them, and the consumer stops.
let refused = 0;
const logCreator = () => ({ namespace, level, log }) => {
  if (level <= logLevel.WARN) console.log(JSON.stringify({ namespace, ...log }));
  const isRefusal = level === logLevel.DEBUG && namespace === "Runner" && log.message === "consumer not running, exiting";
  if (isRefusal && ++refused % 1000 === 0) throw new Error("a fetcher that began after the stop");
};

const kafka = new Kafka({
  clientId: "kafkajs",
  brokers: BOOTSTRAP.split(","),
  ssl: OPTIONS["ssl.ca.location"] && { ca: [readFileSync(OPTIONS["ssl.ca.location"], "utf8")] },
  sasl: OPTIONS["sasl.mechanism"] && {
    mechanism: OPTIONS["sasl.mechanism"].toLowerCase(),
    username: OPTIONS["sasl.username"],
    password: OPTIONS["sasl.password"],
  },
  logLevel: logLevel.DEBUG,
  logCreator,
  retry: { retries: 20, maxRetryTime: 5000 },
});
const admin = kafka.admin();
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

const value = (number) => `${String(number).padStart(8, "0")} ${"abcdefghij".repeat(number % 30)}`;
const numbers = (from, to) => Array.from({ length: to - from }, (_, index) => from + index);

async function check(name, body) {
  let told;
  try {
    told = `ok ${await body()}`;
  } catch (error) {
    console.error(error);
    told = `fail ${error}`;
  }
  console.log(`RESULT ${name} ${told.replace(/\s+/g, " ")}`);
}

function expect(condition, words) {
  if (!condition) throw new Error(words);
}

async function until(what, condition) {
  const deadline = Date.now() + WITHIN_MS;
  while (!(await condition())) {
    expect(Date.now() < deadline, `not within ${WITHIN_MS / 1000} s: ${what}`);
    await sleep(50);
  }
}

function expectAll(got, count) {
  const same = JSON.stringify([...got].sort()) === JSON.stringify(numbers(0, count).map(value).sort());
  expect(same, `${got.length} of ${count} came back as sent`);
}

async function create(name, numPartitions) {
  const topic = PREFIX + name;
  await admin.createTopics({ topics: [{ topic, numPartitions, replicationFactor: REPLICAS }], waitForLeaders: true });
  return topic;
}

async function producer(more = {}) {
  const client = kafka.producer({ idempotent: true, maxInFlightRequests: 1, ...more });
  await client.connect();
  return client;
}

const messages = (from, to) => numbers(from, to).map((number) => ({ key: `${number}`, value: value(number) }));

/// A member of a group: `partitions()` are its own, `got` is what it has read.
async function member(group, topic, got, more = {}) {
  const client = kafka.consumer({ groupId: group, sessionTimeout: 10_000, rebalanceTimeout: 15_000, ...more });
  let assigned = 0;
  client.on(client.events.GROUP_JOIN, ({ payload }) => {
    assigned = (payload.memberAssignment[topic] ?? []).length;
  });
  await client.connect();
  await client.subscribe({ topics: [topic], fromBeginning: true });
  await client.run({
    autoCommitInterval: 500,
    eachMessage: async ({ partition, message }) => got.push({ partition, message }),
  });
  return { partitions: () => assigned, close: () => client.disconnect() };
}

const values = (got) => got.map(({ message }) => message.value.toString());

async function readAll(topic, count, more = {}) {
  const got = [];
  const client = await member(`${PREFIX}read-${topic}`, topic, got, more);
  await until(`${count} records of ${topic}`, () => got.length >= count);
  await sleep(300); // more than there should be would come now
  await client.close();
  return values(got);
}

async function compression(codec) {
  const topic = await create(codec, 2);
  const types = { none: "None", gzip: "GZIP", snappy: "Snappy", lz4: "LZ4", zstd: "ZSTD" };
  const client = await producer();
  for (let from = 0; from < RECORDS; from += 200) {
    const options = { topic, acks: -1, compression: CompressionTypes[types[codec]] };
    await client.send({ ...options, messages: messages(from, from + 200) });
  }
  await client.disconnect();
  expectAll(await readAll(topic, RECORDS), RECORDS);
  return `${RECORDS} records`;
}

async function group() {
  const topic = await create("group", 4);
  const got = [];
  const one = await member(`${PREFIX}group`, topic, got);
  await until("the first member has all", () => one.partitions() === 4);
  const two = await member(`${PREFIX}group`, topic, got);
  await until("two members share", () => one.partitions() === 2 && two.partitions() === 2);
  const client = await producer();
  await client.send({ topic, acks: -1, messages: messages(0, GROUP_RECORDS) });
  await client.disconnect();
  await until("both read", () => got.length >= GROUP_RECORDS);
  await sleep(1000); // both commit
  await two.close();
  await until("the first member has all again", () => one.partitions() === 4);
  await one.close();
  expectAll(values(got), GROUP_RECORDS);
  const more = [];
  const after = await member(`${PREFIX}group`, topic, more);
  await until("the group goes on", () => after.partitions() === 4);
  await sleep(500);
  await after.close();
  expect(more.length === 0, `${more.length} committed records were read again`);
  return "2 members, 4 partitions";
}

async function transactions() {
  const topic = await create("transactions", 1);
  const client = await producer({ transactionalId: `${PREFIX}t`, retry: { retries: 5 } });
  for (const [from, to, end] of [[0, 10, "commit"], [10, 20, "abort"], [10, 15, "commit"]]) {
    const transaction = await client.transaction();
    await transaction.send({ topic, messages: messages(from, to) });
    await transaction[end]();
  }
  await client.disconnect();
  expectAll(await readAll(topic, 15, { readUncommitted: false }), 15);
  return "2 committed, 1 aborted";
}

async function administer() {
  const topic = await create("admin", 1);
  const resource = { type: 2, name: topic };
  const configEntries = [{ name: "retention.ms", value: "123456" }];
  await admin.alterConfigs({ validateOnly: false, resources: [{ ...resource, configEntries }] });
  await until("the config is kept", async () => {
    const { resources } = await admin.describeConfigs({ resources: [resource], includeSynonyms: false });
    const kept = resources[0].configEntries.find(({ configName }) => configName === "retention.ms");
    return kept.configValue === "123456";
  });
  const end = async () => (await admin.fetchTopicOffsets(topic).catch(() => []))[0]?.offset;
  await until("an empty partition ends at 0", async () => (await end()) === "0");
  await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] });
  await until("there are 3 partitions", async () => {
    const { topics } = await admin.fetchTopicMetadata({ topics: [topic] });
    return topics[0].partitions.length === 3;
  });
  expect((await admin.describeCluster()).brokers.length > 0, "the cluster has nodes");
  await admin.listGroups();
  await admin.deleteTopics({ topics: [topic] });
  await until("the topic is gone", async () => !(await admin.listTopics()).includes(topic));
  return "topics, partitions, configs, offsets, cluster, groups";
}

async function kill() {
  const topic = `${PREFIX}kill`;
  const acked = new Set();
  const got = [];
  const reader = await member(`${PREFIX}kill`, topic, got);
  const client = await producer();
  const deadline = Date.now() + Number(DURATION) * 1000;
  for (let from = 0; Date.now() < deadline; from += 5) {
    const batch = numbers(from, from + 5);
    // One partition, and so one leader, for each send: when a part of a send fails, KafkaJS sends more than that part again, and
    // chooses anew where messages without a key go (producer/sendMessages.js). No server could tell those from new ones.
    const partition = (from / 5) % 9;
    const messages = batch.map((number) => ({ partition, value: value(number) }));
    const sent = client.send({ topic, acks: -1, messages });
    await sent.then(() => batch.forEach((number) => acked.add(number)), (error) => console.error(String(error)));
    await sleep(10);
  }
  await client.disconnect();
  expect(acked.size > 0, "nothing was acknowledged");
  const places = new Map();
  await until("all is read", () => {
    for (const { partition, message } of got.splice(0)) {
      const number = Number(message.value.toString().slice(0, 8));
      const known = places.get(number) ?? new Set();
      places.set(number, known.add(`${partition}/${message.offset}`));
    }
    return [...acked].every((number) => places.has(number));
  });
  await reader.close();
  const doubled = [...places.values()].filter((known) => known.size > 1).length;
  expect(doubled === 0, `${doubled} records are in the log twice`);
  return `${acked.size} records`;
}

const signalled = (word) => existsSync(`${SIGNALS}/${word}`);
const numberOf = (message) => Number(message.value.toString().slice(0, 8));

/// Takes what a member reads: tells it, and keeps its number.
const tellInto = (read) => ({
  push({ partition, message }) {
    read.add(numberOf(message));
    console.log("READ", numberOf(message), partition, message.offset);
  },
});

/// Two members share four partitions, until one leaves; nodes are killed.
async function groupThroughKills() {
  const topic = PREFIX + PHASE;
  const acked = new Set();
  const read = new Set();
  const told = tellInto(read);
  const members = [await member(NAME, topic, told), await member(NAME, topic, told)];
  await until("two members share", () => members.every((it) => it.partitions() === 2));
  console.log("READY");
  const client = await producer();
  for (let number = 0; !signalled("stop"); number++) {
    // One after another, and to a partition that is chosen once: see `kill`.
    const sent = client.send({ topic, acks: -1, messages: [{ partition: number % 4, value: value(number) }] });
    await sent.then(() => acked.add(number) && console.log("ACKED", number), (error) => console.error(String(error)));
    await sleep(20);
    if (members.length === 2 && signalled("leave")) {
      await members.pop().close();
      console.log("LEFT");
    }
  }
  await client.disconnect();
  const [one] = members;
  await until("one member has and has read all", () => one.partitions() === 4 && [...acked].every((it) => read.has(it)));
  await one.close();
  const after = await member(NAME, topic, { push: ({ message }) => console.log("AGAIN", numberOf(message)) });
  await until("the group goes on", () => after.partitions() === 4);
  await sleep(500);
  await after.close();
  return `${acked.size} records`;
}

/// Of a record in each of nine partitions, every fifth aborted, while nodes are killed; after an error there is a new producer.
async function transactionsThroughKills() {
  const topic = PREFIX + PHASE;
  let client;
  let number = 0;
  for (let outcome = ""; !(outcome === "COMMITTED" && signalled("stop")); number++) {
    outcome = "ABORTED";
    try {
      client ??= await producer({ transactionalId: NAME });
      const transaction = await client.transaction();
      // A send for each partition: one to several leaders, of which one dies, is acknowledged without what was for the dead one
      // if its partition goes to another of them, which is not asked again (producer/sendMessages.js: `brokersWithoutResponse`).
      for (const partition of numbers(0, 9)) {
        await transaction.send({ topic, messages: [{ partition, value: value(number * 10 + partition) }] });
      }
      if (number % 5 === 4) {
        await transaction.abort();
      } else {
        outcome = "UNKNOWN";
        await transaction.commit();
        outcome = "COMMITTED";
      }
    } catch (error) {
      console.log("transaction", String(error));
      await client?.disconnect().catch(() => {});
      client = undefined;
    }
    console.log(outcome, number);
    if (number === 4) console.log("READY");
  }
  await client.disconnect();
  // Each partition has a record of the last one: what comes before it has been read then.
  const read = new Set();
  const told = tellInto(read);
  const reader = await member(`${NAME}-read`, topic, told, { readUncommitted: false });
  await until("the last transaction", () => numbers(number * 10 - 10, number * 10 - 1).every((it) => read.has(it)));
  await reader.close();
  return `${number} transactions`;
}

/// What an administrator does to a topic: what it is, whether it holds, and what to do for it.
function steps(topic) {
  const groupId = `${PREFIX}group`;
  const resource = { type: 2, name: topic };
  const configEntries = [{ name: "retention.ms", value: "123456" }];
  const exists = async () => (await admin.listTopics()).includes(topic);
  const isKept = async () => {
    const { resources } = await admin.describeConfigs({ resources: [resource], includeSynonyms: false });
    return resources[0].configEntries.some(({ configName, configValue }) => configName === "retention.ms" && configValue === "123456");
  };
  return [
    ["create", exists, () => admin.createTopics({ topics: [{ topic, numPartitions: 1, replicationFactor: REPLICAS }], waitForLeaders: true })],
    ["describe", async () => (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length === 1],
    ["alter the config", isKept, () => admin.alterConfigs({ validateOnly: false, resources: [{ ...resource, configEntries }] })],
    ["list groups", async () => (await admin.listGroups()).groups.some((it) => it.groupId === groupId)],
    ["describe the group", async () => (await admin.describeGroups([groupId])).groups[0].state === "Empty"],
    ["delete", async () => !(await exists()), () => admin.deleteTopics({ topics: [topic] })],
  ];
}

/// Rounds of an administrator's steps while nodes are killed; each may fail for a while.
async function adminThroughKills() {
  let longest = 0;
  for (let round = 0; ; round++) {
    const isLast = signalled("stop");
    for (const [what, holds, act] of steps(`${NAME}-${round}`)) {
      const began = Date.now();
      await until(what, async () => {
        try {
          if (await holds()) return true;
          // KafkaJS asks again for two minutes, also for the deletion of a topic that its first request has
          // deleted, unheard.
          const acted = Promise.resolve(act?.());
          acted.catch(() => {});
          await Promise.race([acted, sleep(5_000)]);
        } catch (error) {
          console.log(what, String(error));
        }
        return false;
      });
      longest = Math.max(longest, Date.now() - began);
    }
    if (round === 0) console.log("READY");
    if (isLast) return `${round + 1} rounds, a step took ${(longest / 1000).toFixed(1)} s at most`;
  }
}

console.log(`VERSION ${JSON.parse(readFileSync(new URL("package.json", import.meta.url))).dependencies.kafkajs}`);
await admin.connect();
if (PHASE === "steady") {
  for (const codec of ["none", "gzip", "snappy", "lz4", "zstd"]) await check(codec, () => compression(codec));
  await check("group", group);
  console.log("RESULT consumer none KafkaJS has classic groups only");
  await check("admin", administer);
  await check("transactions", transactions);
} else if (PHASE === "consumer-kill") {
  console.log(`RESULT ${PHASE} none KafkaJS has classic groups only`);
} else {
  const checks = { kill, "group-kill": groupThroughKills, "transactions-kill": transactionsThroughKills, "admin-kill": adminThroughKills };
  await check(PHASE, checks[PHASE]);
}
await admin.disconnect();
process.exit(0);
