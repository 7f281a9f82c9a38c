"""What the Python clients share: the records, the checks' frame, and how results are told."""

import os
import sys
import time
import traceback

BOOTSTRAP = os.environ["BOOTSTRAP"]
PREFIX = os.environ["PREFIX"]
PHASE = os.environ["PHASE"]
NAME = os.environ.get("NAME", "")
# How to connect, by librdkafka's names.
OPTIONS = dict(line.split("=", 1) for line in os.environ.get("OPTIONS", "").splitlines())
REPLICAS = int(os.environ.get("REPLICAS", "3"))
DURATION = float(os.environ.get("DURATION", "20"))
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
RECORDS = 2000
GROUP_RECORDS = 400
WITHIN = 40


class Lacking(Exception):
    """The client has no such thing."""


def connection():
    """The options as clients written in Python name them."""
    names = {
        "security.protocol": "security_protocol",
        "sasl.mechanism": "sasl_mechanism",
        "sasl.username": "sasl_plain_username",
        "sasl.password": "sasl_plain_password",
    }
    return {"bootstrap_servers": BOOTSTRAP, **{name: OPTIONS[key] for key, name in names.items() if key in OPTIONS}}


def value(number):
    """The value of record `number`: the number, and something that compresses."""
    return f"{number:08d} {'abcdefghij' * (number % 30)}".encode()


def check(name, body):
    """Runs one check and tells what came of it."""
    try:
        outcome, words = "ok", body()
    except Lacking as lacking:
        outcome, words = "none", str(lacking)
    except Exception as error:  # whatever a client raises is its verdict
        traceback.print_exc()
        outcome, words = "fail", f"{type(error).__name__}: {error}"
    print("RESULT", name, outcome, " ".join(str(words).split()), flush=True)


def expect(condition, words):
    if not condition:
        raise AssertionError(words)


def until(what, condition, within=WITHIN):
    """Calls `condition` until it holds; it does the waiting itself, by polling a client."""
    deadline = time.monotonic() + within
    while not condition():
        expect(time.monotonic() < deadline, f"not within {within} s: {what}")


def expect_all(got, count):
    """`got` must be the values 0 to `count`, in any order, each once."""
    expect(sorted(got) == sorted(value(n) for n in range(count)), f"{len(got)} of {count} came back as sent")


class Kept:
    """What was acknowledged and what was read while nodes were killed."""

    def __init__(self):
        self.acked = set()
        self.failed = 0
        self.places = {}  # value -> where it lies in the log

    def on_ack(self, number):
        self.acked.add(number)

    def on_read(self, partition, offset, payload):
        self.places.setdefault(int(payload[:8]), set()).add((partition, offset))

    def is_complete(self):
        return self.acked <= self.places.keys()

    def verdict(self, idempotent):
        lost = len(self.acked - self.places.keys())
        doubled = sum(len(places) > 1 for places in self.places.values())
        expect(self.acked, "nothing was acknowledged")
        expect(lost == 0, f"{lost} of {len(self.acked)} acknowledged records were not read")
        expect(not idempotent or doubled == 0, f"{doubled} records are in the log twice")
        twice = "" if idempotent else f", {doubled} twice in the log"
        return f"{len(self.acked)} records{twice}"


def signalled(word):
    """Whether the driver has asked for this: `leave` or `stop`."""
    return os.path.exists(os.path.join(os.environ["SIGNALS"], word))


def tell(*words):
    """A line that the driver judges by: written at once, for callbacks tell others, and libraries write to the same file."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def number_of(payload):
    """The number of the record with this value."""
    return int(payload[:8])


def group_kill(join, write, flush):
    """Two members share four partitions, until one leaves; nodes are killed. `join()` makes a member, which polls
    (telling number, partition and offset), commits (where it is, or up to an offset of each partition), says how many
    partitions it has, and closes; `write(number, told)`."""
    acked, read, ends = set(), set(), {}
    members = [join(), join()]

    def on_ack(number):
        acked.add(number)
        tell("ACKED", number)

    def on_read(number, partition, offset):
        read.add(number)
        ends[partition] = max(ends.get(partition, 0), offset + 1)
        tell("READ", number, partition, offset)

    def turn():
        for member in members:
            member.poll(on_read)

    def commit(member, *up_to):
        try:
            member.commit(*up_to)
            return True
        except Exception as error:  # as while there is no coordinator: tried again later
            return print("commit:", error)

    until("two members share", lambda: turn() or [it.owned() for it in members] == [2, 2])
    tell("READY")
    number = 0
    while not signalled("stop"):
        write(number, on_ack)
        number += 1
        turn()
        if number % 20 == 0:
            commit(members[number // 20 % len(members)])
        if len(members) == 2 and signalled("leave"):
            members.pop().close()
            tell("LEFT")
    flush()
    [one] = members
    has_all = lambda: turn() or one.owned() == 4 and acked <= read
    until("one member has and has read all", has_all, 2 * WITHIN)
    # A rebalance has put it back to what was committed before: where it is may be before what it has read.
    until("all is committed", lambda: commit(one, ends))
    one.close()
    after = join()
    until("the group goes on", lambda: after.poll(lambda *it: tell("AGAIN", it[0])) or after.owned() == 4)
    after.poll(lambda *it: tell("AGAIN", it[0]))
    after.close()
    return f"{len(acked)} records"


def transactions_kill(start, read):
    """Transactions of a record in each of nine partitions, every fifth aborted, while nodes are killed. `start()` makes a
    producer with begin, send, commit, abort and close; after an error there is a new one. `read(told)` polls what is committed."""
    client, number, outcome, places = None, 0, "", set()
    while not (outcome == "COMMITTED" and signalled("stop")):
        outcome = "ABORTED"
        try:
            client = client or start()
            client.begin()
            client.send([(number * 10 + partition, partition) for partition in range(9)])
            if number % 5 == 4:
                client.abort()
            else:
                outcome = "UNKNOWN"
                client.commit()
                outcome = "COMMITTED"
        except Exception as error:  # as when a coordinator has died: the outcome says what may have been done
            print("transaction:", type(error).__name__, error)
            client = client and client.close()
            time.sleep(0.1)
        tell(outcome, number)
        if number == 4:
            tell("READY")
        number += 1
    client.close()

    def on_read(number, partition, offset):
        places.add(number)
        tell("READ", number, partition, offset)

    # Each partition has a record of the last one: what comes before it has been read then.
    last = {(number - 1) * 10 + partition for partition in range(9)}
    until("the last transaction", lambda: read(on_read) or last <= places)
    return f"{number} transactions"


def admin_kill(steps):
    """Rounds of an administrator's steps while nodes are killed: `steps(topic)` gives for each what it is, whether it
    holds, and what to do for it. Either may fail for a while."""
    number, longest = 0, 0
    while True:
        is_last = signalled("stop")
        for what, holds, act in steps(f"{NAME}-{number}"):
            began = time.monotonic()

            def attempt():
                try:
                    return holds() or act()
                except Exception as error:
                    print(what, type(error).__name__, error)
                time.sleep(0.1)

            until(what, attempt)
            longest = max(longest, time.monotonic() - began)
        number += 1
        if number == 1:
            tell("READY")
        if is_last:
            return f"{number} rounds, a step took {longest:.1f} s at most"
