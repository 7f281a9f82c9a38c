"""aiokafka."""

import asyncio
import time

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.helpers import create_ssl_context

from common import CODECS, DURATION, GROUP_RECORDS, NAME, OPTIONS, PHASE, PREFIX, RECORDS, REPLICAS, WITHIN, Kept, Lacking
from common import admin_kill, check, connection, expect, expect_all, group_kill, number_of, transactions_kill, value


def connected():
    """How to connect: TLS is told by a context."""
    authority = OPTIONS.get("ssl.ca.location")
    return {**connection(), "ssl_context": create_ssl_context(cafile=authority) if authority else None}


async def until(what, condition):
    deadline = time.monotonic() + WITHIN
    while not await condition():
        expect(time.monotonic() < deadline, f"not within {WITHIN} s: {what}")


async def administrator():
    admin = AIOKafkaAdminClient(**connected())
    await admin.start()
    return admin


async def create(name, partitions):
    admin = await administrator()
    await admin.create_topics([NewTopic(name, partitions, REPLICAS)])
    await until(f"{name} has leaders", lambda: has_partitions(admin, name, partitions))
    await admin.close()
    return name


async def has_partitions(admin, name, partitions):
    await asyncio.sleep(0.1)
    described = await admin.describe_topics([name])
    return sum(len(topic["partitions"]) for topic in described) == partitions


async def producer(**more):
    client = AIOKafkaProducer(**connected(), acks="all", enable_idempotence=True, **more)
    await client.start()
    return client


async def consumer(group, topic, **more):
    client = AIOKafkaConsumer(
        topic,
        **connected(),
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **more,
    )
    await client.start()
    return client


async def send(client, topic, numbers):
    sent = [await client.send(topic, value(number), str(number).encode()) for number in numbers]
    await asyncio.wait_for(asyncio.gather(*sent), 30)


async def poll(client, got):
    for records in (await client.getmany(timeout_ms=200)).values():
        got.extend(record.value for record in records)


async def read_all(topic, count, **more):
    client, got = await consumer(PREFIX + "read-" + topic, topic, **more), []

    async def has_all():
        await poll(client, got)
        return len(got) >= count

    await until(f"{count} records of {topic}", has_all)
    await poll(client, got)
    await client.stop()
    return got


async def compression(codec):
    topic = await create(f"{PREFIX}{codec}", 2)
    client = await producer(compression_type=None if codec == "none" else codec, linger_ms=20)
    await send(client, topic, range(RECORDS))
    await client.stop()
    expect_all(await read_all(topic, RECORDS), RECORDS)
    return f"{RECORDS} records"


async def group():
    topic = await create(PREFIX + "group", 4)
    one, got = await consumer(PREFIX + "group", topic), []
    members = [one]

    async def shared(*counts):
        for member in members:
            await poll(member, got)
        return tuple(len(member.assignment()) for member in members) == counts

    await until("the first member has all", lambda: shared(4))
    members.append(await consumer(PREFIX + "group", topic))
    await until("two members share", lambda: shared(2, 2))
    client = await producer()
    await send(client, topic, range(GROUP_RECORDS))
    await client.stop()

    async def both_read():
        return await shared(2, 2) and len(got) >= GROUP_RECORDS

    await until("both read", both_read)
    two = members.pop()
    await one.commit()
    await two.commit()
    await two.stop()
    await until("the first member has all again", lambda: shared(4))
    await one.stop()
    expect_all(got, GROUP_RECORDS)
    after, more = await consumer(PREFIX + "group", topic), []
    await poll(after, more)
    expect(len(after.assignment()) == 4, "the group goes on")
    await after.stop()
    expect(not more, f"{len(more)} committed records were read again")
    return "2 members, 4 partitions"


async def transactions():
    topic = await create(PREFIX + "transactions", 1)
    client = AIOKafkaProducer(**connected(), transactional_id=PREFIX + "t")
    await asyncio.wait_for(client.start(), 30)
    for numbers, end in [
        (range(0, 10), client.commit_transaction),
        (range(10, 20), client.abort_transaction),
        (range(10, 15), client.commit_transaction),
    ]:
        await client.begin_transaction()
        await send(client, topic, numbers)
        await end()
    await client.stop()
    expect_all(await read_all(topic, 15, isolation_level="read_committed"), 15)
    return "2 committed, 1 aborted"


async def administer():
    topic = await create(PREFIX + "admin", 1)
    admin = await administrator()
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "123456"})
    await admin.alter_configs([resource])

    async def is_kept():
        described = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        return "123456" in str(described)

    await until("the config is kept", is_kept)
    await admin.create_partitions({topic: NewPartitions(3)})
    await until("there are 3 partitions", lambda: has_partitions(admin, topic, 3))
    expect(len((await admin.describe_cluster())["brokers"]) > 0, "the cluster has nodes")
    await admin.list_consumer_groups()
    await admin.delete_topics([topic])

    async def is_gone():
        await asyncio.sleep(0.1)
        return topic not in await admin.list_topics()

    await until("the topic is gone", is_gone)
    await admin.close()
    return "topics, partitions, configs, cluster, groups"


async def kill():
    topic = PREFIX + "kill"
    kept, reader, client = Kept(), await consumer(PREFIX + "kill", topic), await producer(linger_ms=5)

    async def read():
        for records in (await reader.getmany(timeout_ms=20)).values():
            for record in records:
                kept.on_read(record.partition, record.offset, record.value)

    async def settle(number, sent):
        try:
            await sent
            kept.on_ack(number)
        except Exception:
            kept.failed += 1

    deadline, number, pending = time.monotonic() + DURATION, 0, []
    while time.monotonic() < deadline:
        for _ in range(5):
            sent = await client.send(topic, value(number))
            pending.append(asyncio.ensure_future(settle(number, sent)))
            number += 1
        await read()
    await asyncio.wait_for(asyncio.gather(*pending), 60)
    await client.stop()

    async def has_read_all():
        await read()
        return kept.is_complete()

    await until("all is read", has_read_all)
    await reader.stop()
    return kept.verdict(idempotent=True)


class Member:
    """A member of the group while its coordinator is killed; also the reader of what is committed."""

    def __init__(self, group, **more):
        self.client = run(consumer(group, PREFIX + PHASE, **more))

    def poll(self, told):
        for partition, records in run(self.client.getmany(timeout_ms=10)).items():
            for record in records:
                told(number_of(record.value), partition.partition, record.offset)

    def commit(self, up_to=None):
        run(self.client.commit(up_to and {TopicPartition(PREFIX + PHASE, it): end for it, end in up_to.items()}))

    def owned(self):
        return len(self.client.assignment())

    def close(self):
        try:
            run(self.client.stop())
        except asyncio.CancelledError:  # of a fetch that waits for its next try: the group has been left before
            print("stop: cancelled")


def groups_through_kills():
    writer = run(producer())

    def write(number, told):
        sent = run(writer.send(PREFIX + PHASE, value(number)))
        sent.add_done_callback(lambda sent: sent.exception() or told(number))

    return group_kill(lambda: Member(NAME, session_timeout_ms=10_000), write, lambda: run(writer.flush()))


class Transactions:
    """A producer with an id."""

    def __init__(self):
        async def start():
            client = AIOKafkaProducer(**connected(), transactional_id=NAME)
            await asyncio.wait_for(client.start(), WITHIN)
            return client

        self.client = run(start())

    def begin(self):
        run(self.client.begin_transaction())

    def send(self, records):
        async def send_all():
            sent = [await self.client.send(PREFIX + PHASE, value(it), partition=to) for it, to in records]
            await asyncio.wait_for(asyncio.gather(*sent), WITHIN)

        run(send_all())

    def commit(self):
        run(asyncio.wait_for(self.client.commit_transaction(), WITHIN))

    def abort(self):
        run(asyncio.wait_for(self.client.abort_transaction(), WITHIN))

    def close(self):
        run(asyncio.wait_for(self.client.stop(), WITHIN))


def transactions_through_kills():
    reader = Member(NAME + "-read", isolation_level="read_committed")
    outcome = transactions_kill(Transactions, reader.poll)
    reader.close()
    return outcome


def steps(admin, topic):
    wanted = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "123456"})
    asked = ConfigResource(ConfigResourceType.TOPIC, topic)
    group = PREFIX + "group"

    def exists():
        return topic in run(admin.list_topics())

    return [
        ("create", exists, lambda: run(admin.create_topics([NewTopic(topic, 1, REPLICAS)]))),
        ("describe", lambda: run(has_partitions(admin, topic, 1)), lambda: None),
        (
            "alter the config",
            lambda: "123456" in str(run(admin.describe_configs([asked]))),
            lambda: run(admin.alter_configs([wanted])),
        ),
        ("list groups", lambda: group in str(run(admin.list_consumer_groups())), lambda: None),
        ("describe the group", lambda: "Empty" in str(run(admin.describe_consumer_groups([group]))), lambda: None),
        ("delete", lambda: not exists(), lambda: run(admin.delete_topics([topic]))),
    ]


def lacking():
    raise Lacking("no group.protocol")


# Nothing goes on between two calls, which follow each other quickly: so one contract serves all Python clients.
loop = asyncio.new_event_loop()
run = loop.run_until_complete
print("VERSION", aiokafka.__version__)
if PHASE == "steady":
    for codec in CODECS:
        check(codec, lambda: asyncio.run(compression(codec)))
    check("group", lambda: asyncio.run(group()))
    check("consumer", lacking)
    check("admin", lambda: asyncio.run(administer()))
    check("transactions", lambda: asyncio.run(transactions()))
elif PHASE == "kill":
    check("kill", lambda: asyncio.run(kill()))
elif PHASE == "group-kill":
    check(PHASE, groups_through_kills)
elif PHASE == "consumer-kill":
    check(PHASE, lacking)
elif PHASE == "transactions-kill":
    check(PHASE, transactions_through_kills)
elif PHASE == "admin-kill":
    admin = run(administrator())
    check(PHASE, lambda: admin_kill(lambda topic: steps(admin, topic)))
