"""What tests run as processes of their own, to be killed: jobs in one driver, and clients that keep notes."""

from __future__ import annotations

JOBS = """
import os, sys, threading
from contextlib import ExitStack
from pathlib import Path

from ackstream.jobs.archive.job import JOB as ARCHIVE
from ackstream.jobs.correlate.job import JOB as CORRELATE
from ackstream.jobs.mirror import job as mirror
from ackstream.jobs.persist.job import JOB as PERSIST
from ackstream.jobs.query.job import JOB as QUERY
from ackstream.jobs.queues.job import JOB as QUEUES
from ackstream.jobs.settle.job import JOB as SETTLE
from ackstream.jobs.twin.job import INDEX, JOB as TWIN
from ackstream.local import jars
from ackstream.local.submit import JAVA_OPTIONS, quick_start
from ackstream.settings import load
from ackstream.spark.session import session

settings = load()
named = sys.argv[1:]
# where each party has a login of its own, its settings are in a file of its name
logins = os.environ.get("LOGINS")

def of(name):
    return load(Path(logins, f"{name.removesuffix('-index')}.toml")) if logins else settings

spark = session(settings, "storm", jars=jars.resolve("spark"), conf={JAVA_OPTIONS: quick_start()})

def copy():
    try:
        mirror.run(spark.newSession(), of("mirror"), settings.destinations[0], threading.Event())
    finally:
        os._exit(1)

with ExitStack() as stack:
    jobs = (PERSIST, TWIN, CORRELATE, INDEX, SETTLE, QUEUES, QUERY, ARCHIVE)
    chosen = [job for job in jobs if not named or job.name in named]
    queries = [stack.enter_context(job.running(spark, of(job.name))) for job in chosen]
    if not named or "mirror" in named:
        threading.Thread(target=copy, daemon=True).start()
    while not any(query.awaitTermination(1) for query in queries):
        pass
"""

# the clients note what they have done, and when, in a file that a kill does not touch

SUBSCRIBER = """
import sys, threading, time
from ackstream.client import Ack, Subscriber
from ackstream.protocol.ditto.twin.subscriptions import subscription
from ackstream.settings import load

seen = open(sys.argv[1], "a", buffering=1)

def handle(signal):
    seen.write(f"{time.time()} {signal.correlation_id}\\n")
    return Ack(204)

with Subscriber(
    load().kafka, handler=handle, subscriptions=[subscription("events")], labels=["app:seen"], group="app",
    start="earliest",
):
    threading.Event().wait()
"""

PUBLISHER = """
import os, sys, threading, time
from ackstream.client import LogonTimeout, Publisher
from ackstream.settings import load

client, store, notes, stop, topic, rate, window = sys.argv[1:]
log = open(notes, "a", buffering=1)
while True:
    try:
        publisher = Publisher(
            load().kafka, name=client, store=store, window=int(window), ack_timeout=60, logon_timeout=300,
            on_receipt=lambda receipt: log.write(f"{time.time_ns()},{receipt.seq}\\n"),
        )
    except LogonTimeout:
        continue
    break
with publisher:
    while not os.path.exists(stop):
        seq = publisher.next_seq
        publisher.publish(b"%d" % seq, topic=topic)
        # the messages per second are in a file, and may change
        time.sleep(1 / float(open(rate).read()))
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
    log.write(f"{now()},{sample.publisher},{sample.seq}\\n")

log.write(f"{now()},begin,0\\n")
while True:
    try:
        reader = SampleReader(settings.kafka, name=name, handler=handle, role=role)
    except SettleTimeout:
        continue
    break
with reader:
    threading.Event().wait()
"""

CONSUMER = """
import sys
from ackstream.client import QueueConsumer
from ackstream.settings import load

queue, name, notes = sys.argv[1:]
log = open(notes, "a", buffering=1)
options = {"outcomes": ("failed",), "ack_batch": 50, "bind_timeout": 300}
with QueueConsumer(load().kafka, queue=queue, name=name, **options) as consumer:
    while True:
        message = consumer.receive(1.0)
        if message is None:
            continue
        number = int(message.value)
        if number % 7 == 0 and message.count == 1:
            message.settle("failed")
        else:
            message.settle()
            log.write(f"{number}\\n")
"""

# records that are small on the wire and large once decompressed; a line for each: where it is stored, or the refusal

BOMBER = """
import sys
from kafka import KafkaProducer
from kafka.errors import KafkaError

bootstrap, codec, megabytes, *topics = sys.argv[1:]
size = int(megabytes) * 1_000_000
producer = KafkaProducer(
    bootstrap_servers=bootstrap, compression_type=codec, max_request_size=2 * size, retries=0, enable_idempotence=False,
    # another fault may have taken the broker away
    bootstrap_timeout_ms=600_000,
)
for topic in topics:
    try:
        print(topic, "stored at", producer.send(topic, bytes(size), b"key").get(120).offset)
    except KafkaError as error:
        print(topic, "refused:", type(error).__name__)
"""

FOLLOWER = """
import sys, time
from ackstream.client import QueryClient
from ackstream.settings import load

topic, notes = sys.argv[1:]
log = open(notes, "a", buffering=1)
with QueryClient(load().kafka, name="q1", timeout=300) as client:
    stream = client.subscribe(topic, bookmark="EPOCH")
    beside, until = None, 0.0
    while True:
        message = stream.receive(1.0)
        if message is not None:
            log.write(f"{int(message.value)}\\n")
        # subscriptions come and go, too
        if time.monotonic() > until:
            if beside is not None:
                client.unsubscribe(beside)
            beside, until = client.subscribe(topic, handler=id), time.monotonic() + 30
"""

# between clients and a broker: while it is stopped nothing comes through, and nothing is refused; killed, it cuts all

PROXY = """
import asyncio, sys

async def copy(reader, writer):
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()

async def serve(reader, writer):
    ends = [writer]
    try:
        from_broker, to_broker = await asyncio.open_connection("127.0.0.1", int(sys.argv[2]))
        ends.append(to_broker)
        ways = [asyncio.create_task(copy(reader, to_broker)), asyncio.create_task(copy(from_broker, writer))]
        _, others = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in others:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
    except OSError:
        pass
    finally:
        for end in ends:
            end.transport.abort()

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]), backlog=1_000)
    await server.serve_forever()

asyncio.run(main())
"""

ASKING = """
import os, signal, sys, time
from kafka import KafkaConsumer, TopicPartition
from pyspark import TaskContext
from pyspark.sql import SparkSession
from ackstream.dataframe import register

# asks in a session of its own; a worker dies after some rows of the first task, once so many requests are stored
settings, bootstrap, topic, rows, dies_after, stored = *sys.argv[1:4], *map(int, sys.argv[4:])
os.environ["PYSPARK_PYTHON"] = sys.executable

def pass_on(batches):
    context, seen = TaskContext.get(), 0
    for batch in batches:
        yield batch
        seen += batch.num_rows
        if context.partitionId() == context.attemptNumber() == 0 and seen >= dies_after:
            with KafkaConsumer(bootstrap_servers=bootstrap) as consumer:
                partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
                while sum(consumer.end_offsets(partitions).values()) < stored:
                    time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)

builder = SparkSession.builder.master("local[2,3]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "500").getOrCreate()
register(spark)
# long enough for the buffers on the way to be full
frame = spark.range(0, rows, numPartitions=2).selectExpr("CAST(id AS STRING) AS key", "repeat('x', 200) AS value")
frame = frame.mapInArrow(pass_on, "key string, value string")
writer = frame.write.format("ackstream").mode("append").option("settings", settings)
writer.options(topic=topic, labels="rows:done", timeout="2h").save()
"""

ENDED = """
import sys
from pyspark.sql import SparkSession, functions as F
from ackstream.dataframe import register

# counts the outcomes, and their requests, by status
spark = SparkSession.builder.getOrCreate()
register(spark)
outcomes = spark.read.format("ackstream.outcomes").options(settings=sys.argv[1], label="rows:done", status="200")
for row in outcomes.load().groupBy("status").agg(F.count("*"), F.countDistinct("correlation_id")).collect():
    print(*row)
"""
