"""aiokafka."""

import asyncio
import time

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from common import BOOTSTRAP, CODECS, GROUP_RECORDS, PHASE, PREFIX, RECORDS, DURATION, WITHIN, Kept
from common import check, expect, expect_all, value


async def until(what, condition):
    deadline = time.monotonic() + WITHIN
    while not await condition():
        expect(time.monotonic() < deadline, f"not within {WITHIN} s: {what}")


async def administrator():
    admin = AIOKafkaAdminClient(bootstrap_servers=BOOTSTRAP)
    await admin.start()
    return admin


async def create(name, partitions):
    admin = await administrator()
    await admin.create_topics([NewTopic(name, partitions, 3)])
    await until(f"{name} has leaders", lambda: has_partitions(admin, name, partitions))
    await admin.close()
    return name


async def has_partitions(admin, name, partitions):
    await asyncio.sleep(0.1)
    described = await admin.describe_topics([name])
    return sum(len(topic["partitions"]) for topic in described) == partitions


async def producer(**more):
    client = AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, acks="all", enable_idempotence=True, **more)
    await client.start()
    return client


async def consumer(group, topic, **more):
    client = AIOKafkaConsumer(
        topic,
        bootstrap_servers=BOOTSTRAP,
        group_id=PREFIX + group,
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
    client, got = await consumer("read-" + topic, topic, **more), []

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
    one, got = await consumer("group", topic), []
    members = [one]

    async def shared(*counts):
        for member in members:
            await poll(member, got)
        return tuple(len(member.assignment()) for member in members) == counts

    await until("the first member has all", lambda: shared(4))
    members.append(await consumer("group", topic))
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
    after, more = await consumer("group", topic), []
    await poll(after, more)
    expect(len(after.assignment()) == 4, "the group goes on")
    await after.stop()
    expect(not more, f"{len(more)} committed records were read again")
    return "2 members, 4 partitions"


async def transactions():
    topic = await create(PREFIX + "transactions", 1)
    client = AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, transactional_id=PREFIX + "t")
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
    kept, reader, client = Kept(), await consumer("kill", topic), await producer(linger_ms=5)

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


print("VERSION", aiokafka.__version__)
if PHASE == "steady":
    for codec in CODECS:
        check(codec, lambda: asyncio.run(compression(codec)))
    check("group", lambda: asyncio.run(group()))
    print("RESULT consumer none")
    check("admin", lambda: asyncio.run(administer()))
    check("transactions", lambda: asyncio.run(transactions()))
else:
    check("kill", lambda: asyncio.run(kill()))
