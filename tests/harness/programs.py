"""What tests run as processes of their own, to be killed: jobs in one driver, and clients that keep notes."""

from __future__ import annotations

JOBS = """
import os, sys, threading
from contextlib import ExitStack

from ackstream.jobs.archive.job import JOB as ARCHIVE
from ackstream.jobs.correlate.job import JOB as CORRELATE
from ackstream.jobs.mirror import job as mirror
from ackstream.jobs.persist.job import JOB as PERSIST
from ackstream.jobs.query.job import JOB as QUERY
from ackstream.jobs.queues.job import JOB as QUEUES
from ackstream.jobs.settle.job import JOB as SETTLE
from ackstream.jobs.twin.job import INDEX, JOB as TWIN
from ackstream.local import jars
from ackstream.local.submit import JAVA_OPTIONS, java_options
from ackstream.settings import load
from ackstream.spark.session import session

settings = load()
# compiling nine queries takes longer than the test; the jobs that are killed alone run the product's conf
conf = {
    JAVA_OPTIONS: java_options(),
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
spark = session(settings, "storm", jars=jars.resolve("spark"), conf=conf)

def copy():
    try:
        mirror.run(spark.newSession(), settings, settings.destinations[0], threading.Event())
    finally:
        os._exit(1)

# all of them, unless some are named
jobs = {job.name: job for job in (PERSIST, TWIN, CORRELATE, INDEX, SETTLE, QUEUES, QUERY, ARCHIVE)}
named = sys.argv[1:] or [*jobs, "mirror"]
with ExitStack() as stack:
    queries = [stack.enter_context(jobs[name].running(spark, settings)) for name in named if name != "mirror"]
    if "mirror" in named:
        threading.Thread(target=copy, daemon=True).start()
    while not any(query.awaitTermination(1) for query in queries):
        if not queries:
            threading.Event().wait()
"""

# the clients note what they have done, and when, in a file that a kill does not touch

SUBSCRIBER = """
import sys, threading, time
from ackstream.client import Ack, Subscriber
from ackstream.protocol.ditto.subscriptions import subscription
from ackstream.settings import load

seen = open(sys.argv[1], "a", buffering=1)

def handle(signal):
    seen.write(f"{time.time()} {signal.correlation_id}\\n")
    return Ack(204)

with Subscriber(load().kafka, handle, [subscription("events")], labels=["app:seen"], group="app", start="earliest"):
    threading.Event().wait()
"""

PUBLISHER = """
import os, sys, threading, time
from ackstream.client import LogonTimeout, Publisher
from ackstream.settings import load

store, notes, stop, topic = sys.argv[1:]
log = open(notes, "a", buffering=1)
while True:
    try:
        publisher = Publisher(
            load().kafka, client="p1", store=store, window=50, ack_timeout=60, logon_timeout=300,
            on_receipt=lambda receipt: log.write(f"{time.time_ns()},{receipt.seq}\\n"),
        )
    except LogonTimeout:
        continue
    break
with publisher:
    while not os.path.exists(stop):
        seq = publisher.next_seq
        publisher.publish(b"%d" % seq, topic=topic, seq=seq)
        time.sleep(0.05)
    last = publisher.next_seq - 1
    while publisher.unpersisted_count:
        time.sleep(0.1)
log.write(f"end,{last}\\n")
threading.Event().wait()
"""

READER = """
import sys, threading, time
from ackstream.client import SampleReader, SettleTimeout
from ackstream.settings import load

name, role, notes = sys.argv[1:]
settings = load()
log = open(notes, "a", buffering=1)

def now():
    return time.time_ns() // 1_000_000

def handle(sample):
    log.write(f"{now()},{sample.writer},{sample.seq}\\n")

log.write(f"{now()},begin,0\\n")
while True:
    try:
        reader = SampleReader(settings.kafka, name, handle, role=role)
    except SettleTimeout:
        continue
    break
with reader:
    threading.Event().wait()
"""
