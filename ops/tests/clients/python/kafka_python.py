"""kafka-python."""

import queue
import threading
import time

import kafka
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
from kafka.errors import KafkaTimeoutError
from kafka.structs import OffsetAndMetadata, TopicPartition

from common import CODECS, DURATION, GROUP_RECORDS, NAME, OPTIONS, PHASE, PREFIX, RECORDS, REPLICAS, WITHIN, Kept, Lacking
from common import admin_kill, check, connection, expect, expect_all, group_kill, number_of, transactions_kill, until, value

CONNECTION = {**connection(), "ssl_cafile": OPTIONS.get("ssl.ca.location")}
admin = KafkaAdminClient(**CONNECTION)


def create(name, partitions):
    admin.create_topics([NewTopic(name, partitions, REPLICAS)])
    until(f"{name} has leaders", lambda: partition_count(name) == partitions)
    return name


def partition_count(name):
    time.sleep(0.1)
    described = [it for it in admin.describe_topics([name]) if not it.get("error_code")]
    return sum(len(topic["partitions"]) for topic in described)


def producer(**more):
    return KafkaProducer(**CONNECTION, acks="all", enable_idempotence=True, **more)


def consumer(group, *topics, **more):
    return KafkaConsumer(
        *topics,
        **CONNECTION,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **more,
    )


def send(client, topic, numbers):
    sent = [client.send(topic, value(number), str(number).encode()) for number in numbers]
    client.flush(30)
    for future in sent:
        future.get(30)


def poll(client, got):
    for records in client.poll(200).values():
        got.extend(record.value for record in records)


def read_all(topic, count, **more):
    client, got = consumer(PREFIX + "read-" + topic, topic, **more), []
    until(f"{count} records of {topic}", lambda: poll(client, got) or len(got) >= count)
    poll(client, got)
    client.close()
    return got


def compression(codec):
    topic = create(f"{PREFIX}{codec}", 2)
    client = producer(compression_type=None if codec == "none" else codec, linger_ms=20)
    send(client, topic, range(RECORDS))
    client.close()
    expect_all(read_all(topic, RECORDS), RECORDS)
    return f"{RECORDS} records"


def group():
    topic = create(PREFIX + "group", 4)
    one, got = consumer(PREFIX + "group", topic), []
    members = [one]

    def shared(*counts):
        for member in members:
            poll(member, got)
        return tuple(len(member.assignment()) for member in members) == counts

    until("the first member has all", lambda: shared(4))
    members.append(consumer(PREFIX + "group", topic))
    until("two members share", lambda: shared(2, 2))
    client = producer()
    send(client, topic, range(GROUP_RECORDS))
    client.close()
    until("both read", lambda: shared(2, 2) and len(got) >= GROUP_RECORDS)
    two = members.pop()
    one.commit()
    two.commit()
    two.close()
    until("the first member has all again", lambda: shared(4))
    one.close()
    expect_all(got, GROUP_RECORDS)
    after, more = consumer(PREFIX + "group", topic), []
    until("the group goes on", lambda: poll(after, more) or len(after.assignment()) == 4)
    poll(after, more)
    after.close()
    expect(not more, f"{len(more)} committed records were read again")
    return "2 members, 4 partitions"


def transactions():
    topic = create(PREFIX + "transactions", 1)
    client = producer(transactional_id=PREFIX + "t")
    client.init_transactions()
    for numbers, end in [
        (range(0, 10), client.commit_transaction),
        (range(10, 20), client.abort_transaction),
        (range(10, 15), client.commit_transaction),
    ]:
        client.begin_transaction()
        send(client, topic, numbers)
        end()
    client.close()
    expect_all(read_all(topic, 15, isolation_level="read_committed"), 15)
    return "2 committed, 1 aborted"


def configs(topic):
    return str(admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)]))


def administer():
    topic = create(PREFIX + "admin", 1)
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "123456"})])
    until("the config is kept", lambda: "123456" in configs(topic))
    admin.create_partitions({topic: NewPartitions(3)})
    until("there are 3 partitions", lambda: partition_count(topic) == 3)
    expect(len(admin.describe_cluster()["brokers"]) > 0, "the cluster has nodes")
    admin.list_groups()
    admin.delete_topics([topic])
    until("the topic is gone", lambda: topic not in admin.list_topics())
    return "topics, partitions, configs, cluster, groups"


def kill():
    topic = PREFIX + "kill"
    kept, reader, client = Kept(), consumer(PREFIX + "kill", topic), producer(linger_ms=5)

    def read():
        for partition, records in reader.poll(20).items():
            for record in records:
                kept.on_read(partition.partition, record.offset, record.value)

    deadline, number = time.monotonic() + DURATION, 0
    while time.monotonic() < deadline:
        for _ in range(5):
            sent = client.send(topic, value(number))
            sent.add_callback(lambda _, number=number: kept.on_ack(number))
            number += 1
        read()
    client.flush(60)
    client.close()
    until("all is read", lambda: read() or kept.is_complete())
    reader.close()
    return kept.verdict(idempotent=True)


class Member:
    """A member of the group while its coordinator is killed; also the reader of what is committed."""

    def __init__(self, group, **more):
        self.client = consumer(group, PREFIX + PHASE, **more)
        self.close = self.client.close

    def commit(self, up_to=None):
        told = up_to and {TopicPartition(PREFIX + PHASE, it): OffsetAndMetadata(end, "", -1) for it, end in up_to.items()}
        self.client.commit(told)

    def poll(self, told):
        for partition, records in self.client.poll(10).items():
            for record in records:
                told(number_of(record.value), partition.partition, record.offset)

    def owned(self):
        return len(self.client.assignment())


def groups_through_kills():
    writer = producer()

    def write(number, told):
        writer.send(PREFIX + PHASE, value(number)).add_callback(lambda _: told(number))

    return group_kill(lambda: Member(NAME, session_timeout_ms=10_000), write, lambda: writer.flush(WITHIN))


def patiently(call):
    """A call that is given up after a while. kafka-python 3.0.12 forgets a transaction's request when the coordinator that it
    has just found does not answer (producer/sender.py: the exception of `await_ready` skips the retry), and waits forever."""
    told = queue.Queue()

    def run():
        try:
            told.put((call(), None))
        except Exception as error:
            told.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        _, error = told.get(timeout=10)
    except queue.Empty:
        raise TimeoutError(f"{call.__name__} does not end") from None
    if error:
        raise error


class Transactions:
    """A producer with an id."""

    def __init__(self):
        self.client = producer(transactional_id=NAME)
        patiently(self.client.init_transactions)
        self.begin = self.client.begin_transaction

    def send(self, records):
        sent = [self.client.send(PREFIX + PHASE, value(number), partition=partition) for number, partition in records]
        self.client.flush(WITHIN)
        for future in sent:
            future.get(WITHIN)

    def commit(self):
        patiently(self.client.commit_transaction)

    def abort(self):
        patiently(self.client.abort_transaction)

    def close(self):
        try:
            self.client.close(timeout=0)
        except KafkaTimeoutError as error:  # it waits even so for what a forgotten request holds back
            print("close:", error)


def transactions_through_kills():
    reader = Member(NAME + "-read", isolation_level="read_committed")
    outcome = transactions_kill(Transactions, reader.poll)
    reader.close()
    return outcome


def anew(call):
    """A call by an administrator of its own. kafka-python 3.0.12 goes on asking the coordinator that a group once had, and
    the controller that it first heard of (admin/client.py: only a node that answers can tell it of another)."""
    asking = KafkaAdminClient(**CONNECTION)
    try:
        return call(asking)
    finally:
        asking.close()


def steps(topic):
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "123456"})
    group = PREFIX + "group"

    def exists():
        return topic in admin.list_topics()

    return [
        ("create", exists, lambda: anew(lambda it: it.create_topics([NewTopic(topic, 1, REPLICAS)]))),
        ("describe", lambda: partition_count(topic) == 1, lambda: None),
        ("alter the config", lambda: "123456" in configs(topic), lambda: admin.alter_configs([resource])),
        ("list groups", lambda: group in str(admin.list_groups()), lambda: None),
        ("describe the group", lambda: "Empty" in str(anew(lambda it: it.describe_groups([group]))), lambda: None),
        ("delete", lambda: not exists(), lambda: anew(lambda it: it.delete_topics([topic]))),
    ]


def lacking():
    raise Lacking("no group.protocol")


print("VERSION", kafka.__version__)
if PHASE == "steady":
    for codec in CODECS:
        check(codec, lambda: compression(codec))
    check("group", group)
    check("consumer", lacking)
    check("admin", administer)
    check("transactions", transactions)
elif PHASE == "kill":
    check("kill", kill)
elif PHASE == "group-kill":
    check(PHASE, groups_through_kills)
elif PHASE == "consumer-kill":
    check(PHASE, lacking)
elif PHASE == "transactions-kill":
    check(PHASE, transactions_through_kills)
elif PHASE == "admin-kill":
    check(PHASE, lambda: admin_kill(steps))
