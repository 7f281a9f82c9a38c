"""What the Python clients share: the records, the checks' frame, and how results are told."""

import os
import time
import traceback

BOOTSTRAP = os.environ["BOOTSTRAP"]
PREFIX = os.environ["PREFIX"]
PHASE = os.environ["PHASE"]
DURATION = float(os.environ.get("DURATION", "20"))
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
RECORDS = 2000
GROUP_RECORDS = 400
WITHIN = 40


class Lacking(Exception):
    """The client has no such thing."""


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
