"""librdkafka, through Confluent's Python package."""

import time

import confluent_kafka
from confluent_kafka import Consumer, ConsumerGroupState, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from common import BOOTSTRAP, CODECS, DURATION, GROUP_RECORDS, NAME, OPTIONS, PHASE, PREFIX, RECORDS, REPLICAS, WITHIN, Kept
from common import admin_kill, check, expect, expect_all, group_kill, number_of, transactions_kill, until, value

CONNECTION = {"bootstrap.servers": BOOTSTRAP, **OPTIONS}
admin = AdminClient(CONNECTION)


def create(name, partitions):
    admin.create_topics([NewTopic(name, partitions, REPLICAS)])[name].result(30)
    until(f"{name} has leaders", lambda: has_leaders(name, partitions))
    return name


def has_leaders(name, partitions):
    topic = admin.list_topics(name, timeout=10).topics[name]
    return len(topic.partitions) == partitions and all(it.leader >= 0 for it in topic.partitions.values())


def producer(**more):
    return Producer({**CONNECTION, "acks": "all", "enable.idempotence": True, **more})


def consumer_options(group):
    options = {**CONNECTION, "group.id": group, "auto.offset.reset": "earliest"}
    return {**options, "check.crcs": True, "enable.auto.commit": False}


def consumer(group, **more):
    return Consumer({**consumer_options(PREFIX + group), **more})


def send(client, topic, numbers):
    errors = []
    for number in numbers:
        client.produce(topic, value(number), str(number), on_delivery=lambda e, _: e and errors.append(e))
    expect(client.flush(30) == 0 and not errors, f"not acknowledged: {errors[:1]}")


def poll(client, got):
    message = client.poll(0.2)
    if message is not None:
        if message.error():
            raise KafkaException(message.error())
        got.append(message.value())


def read_all(topic, count, **more):
    client, got = consumer("read-" + topic, **more), []
    client.subscribe([topic])
    until(f"{count} records of {topic}", lambda: poll(client, got) or len(got) >= count)
    poll(client, got)
    client.close()
    return got


def compression(codec):
    topic = create(f"{PREFIX}{codec}", 2)
    send(producer(**{"compression.type": codec, "linger.ms": 20}), topic, range(RECORDS))
    expect_all(read_all(topic, RECORDS), RECORDS)
    return f"{RECORDS} records"


def group(name, **more):
    topic = create(PREFIX + name, 4)
    one, two, got = consumer(name, **more), consumer(name, **more), []

    def shared(first, second):
        poll(one, got)
        if second:
            poll(two, got)
        return (len(one.assignment()), len(two.assignment()) if second else 0) == (first, second)

    one.subscribe([topic])
    until("the first member has all", lambda: shared(4, 0))
    two.subscribe([topic])
    until("two members share", lambda: shared(2, 2))
    send(producer(), topic, range(GROUP_RECORDS))
    until("both read", lambda: shared(2, 2) and len(got) >= GROUP_RECORDS)
    one.commit(asynchronous=False)
    two.commit(asynchronous=False)
    two.close()
    until("the first member has all again", lambda: shared(4, 0))
    one.close()
    expect_all(got, GROUP_RECORDS)
    after, again = consumer(name, **more), []
    after.subscribe([topic])
    until("the group goes on", lambda: poll(after, again) or len(after.assignment()) == 4)
    poll(after, again)
    after.close()
    expect(not again, f"{len(again)} committed records were read again")
    return "2 members, 4 partitions"


def transactions():
    topic = create(PREFIX + "transactions", 1)
    client = producer(**{"transactional.id": PREFIX + "t"})
    client.init_transactions(30)
    for numbers, end in [
        (range(0, 10), client.commit_transaction),
        (range(10, 20), client.abort_transaction),
        (range(10, 15), client.commit_transaction),
    ]:
        client.begin_transaction()
        send(client, topic, numbers)
        end(30)
    expect_all(read_all(topic, 15, **{"isolation.level": "read_committed"}), 15)
    return "2 committed, 1 aborted"


def retention(topic):
    described = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)])
    return next(iter(described.values())).result(30)["retention.ms"].value


def administer():
    topic = create(PREFIX + "admin", 1)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    change = ConfigEntry("retention.ms", "123456", incremental_operation=AlterConfigOpType.SET)
    resource.add_incremental_config(change)
    admin.incremental_alter_configs([resource])[resource].result(30)
    until("the config is kept", lambda: retention(topic) == "123456")
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    until("there are 3 partitions", lambda: has_leaders(topic, 3))
    offsets = admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.latest()})
    expect(next(iter(offsets.values())).result(30).offset == 0, "an empty partition ends at 0")
    expect(len(admin.describe_cluster().result(30).nodes) > 0, "the cluster has nodes")
    expect(admin.list_consumer_groups().result(30).errors == [], "groups are listed")
    admin.delete_topics([topic])[topic].result(30)
    until("the topic is gone", lambda: topic not in admin.list_topics(timeout=10).topics)
    return "topics, partitions, configs, offsets, cluster, groups"


def kill():
    topic = PREFIX + "kill"
    kept, reader, client = Kept(), consumer("kill"), producer(**{"linger.ms": 5})
    reader.subscribe([topic])

    def read():
        message = reader.poll(0.005)
        if message is not None and not message.error():
            kept.on_read(message.partition(), message.offset(), message.value())

    def told(error, number):
        kept.on_ack(number) if error is None else setattr(kept, "failed", kept.failed + 1)

    deadline, number = time.monotonic() + DURATION, 0
    while time.monotonic() < deadline:
        client.produce(topic, value(number), on_delivery=lambda e, _, number=number: told(e, number))
        number += 1
        client.poll(0)
        read()
    expect(client.flush(60) == 0, "records were never acknowledged")
    until("all is read", lambda: read() or kept.is_complete())
    reader.close()
    return kept.verdict(idempotent=True)


class Member:
    """A member of the group while its coordinator is killed; also the reader of what is committed."""

    def __init__(self, group, **more):
        self.client = Consumer({**consumer_options(group), **more})
        self.client.subscribe([PREFIX + PHASE])

    def poll(self, told):
        message = self.client.poll(0.01)
        if message is not None and not message.error():
            told(number_of(message.value()), message.partition(), message.offset())

    def commit(self, up_to=None):
        more = {"offsets": [TopicPartition(PREFIX + PHASE, it, end) for it, end in up_to.items()]} if up_to else {}
        try:
            self.client.commit(asynchronous=False, **more)
        except KafkaException as error:
            if error.args[0].name() != "_NO_OFFSET":
                raise

    def owned(self):
        return len(self.client.assignment())

    def close(self):
        self.client.close()


def groups_through_kills(**more):
    writer = producer()

    def write(number, told):
        writer.produce(PREFIX + PHASE, value(number), on_delivery=lambda error, _: error or told(number))
        writer.poll(0)

    return group_kill(lambda: Member(NAME, **more), write, lambda: writer.flush(WITHIN))


class Transactions:
    """A producer with an id."""

    def __init__(self):
        self.client = producer(**{"transactional.id": NAME})
        self.client.init_transactions(WITHIN)
        self.begin = self.client.begin_transaction

    def send(self, records):
        errors = []
        for number, partition in records:
            self.client.produce(
                PREFIX + PHASE, value(number), partition=partition, on_delivery=lambda e, _: e and errors.append(e)
            )
        expect(self.client.flush(WITHIN) == 0 and not errors, f"not acknowledged: {errors[:1]}")

    def commit(self):
        self.client.commit_transaction(WITHIN)

    def abort(self):
        self.client.abort_transaction(WITHIN)

    def close(self):
        """Nothing is left of it for librdkafka to end."""
        self.client.purge()


def transactions_through_kills():
    reader = Member(NAME + "-read", **{"isolation.level": "read_committed"})
    outcome = transactions_kill(Transactions, reader.poll)
    reader.close()
    return outcome


def steps(topic):
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    resource.add_incremental_config(ConfigEntry("retention.ms", "123456", incremental_operation=AlterConfigOpType.SET))
    group = PREFIX + "group"

    def exists():
        return topic in admin.list_topics(timeout=10).topics

    def listed():
        return group in [it.group_id for it in admin.list_consumer_groups(request_timeout=5).result(30).valid]

    def described():
        # A new one: librdkafka goes on asking the coordinator that a group once had while that answers at all, as it does
        # when it is no coordinator any more.
        asking = AdminClient(CONNECTION)
        return asking.describe_consumer_groups([group])[group].result(30).state == ConsumerGroupState.EMPTY

    return [
        ("create", exists, lambda: admin.create_topics([NewTopic(topic, 1, REPLICAS)])[topic].result(30)),
        ("describe", lambda: has_leaders(topic, 1), lambda: None),
        (
            "alter the config",
            lambda: retention(topic) == "123456",
            lambda: admin.incremental_alter_configs([resource])[resource].result(30),
        ),
        ("list groups", listed, lambda: None),
        ("describe the group", described, lambda: None),
        ("delete", lambda: not exists(), lambda: admin.delete_topics([topic])[topic].result(30)),
    ]


print("VERSION", f"confluent-kafka {confluent_kafka.__version__}, librdkafka {confluent_kafka.libversion()[0]}")
if PHASE == "steady":
    for codec in CODECS:
        check(codec, lambda: compression(codec))
    check("group", lambda: group("group"))
    check("consumer", lambda: group("consumer", **{"group.protocol": "consumer"}))
    check("admin", administer)
    check("transactions", transactions)
elif PHASE == "kill":
    check("kill", kill)
elif PHASE == "group-kill":
    check(PHASE, lambda: groups_through_kills(**{"session.timeout.ms": 10_000}))
elif PHASE == "consumer-kill":
    check(PHASE, lambda: groups_through_kills(**{"group.protocol": "consumer"}))
elif PHASE == "transactions-kill":
    check(PHASE, transactions_through_kills)
elif PHASE == "admin-kill":
    check(PHASE, lambda: admin_kill(steps))
