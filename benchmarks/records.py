"""A million requests by record headers: three unchanged producers, three parties, kill -9 of correlate, an oracle.

``python -m benchmarks.records --requests 20000`` is a trial; its figures are printed and not written.
"""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from deltalake import DeltaTable

from ackstream.jobs.archive.job import JOB as ARCHIVE
from ackstream.local import jars, machine
from benchmarks import common, starting
from benchmarks.asking import plan
from benchmarks.asking.oracle import Answered, Asked, Oracle
from benchmarks.contenders.programs import MODULE
from tests.harness.processes import LoggedProcess

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ackstream.settings import Settings
    from benchmarks.common import Bench
    from tests.harness.processes import Program

REQUESTS, SMALL_REQUESTS = 1_000_000, 3_000
RATE = 2_500
"""Requests per second, of all producers together."""
KILLS = (1 / 3, 2 / 3)
"""After these parts of the requests, correlate is killed, and started again."""
STEP_SECONDS, SAID_SECONDS, POLL_SECONDS = 0.05, 20.0, 1.0
PATIENCE_SECONDS = 900.0
"""Maximum seconds from the last request until everything is decided and read."""
JAVA = ("-Xmx256m", "-XX:TieredStopAtLevel=1")
METHOD = (
    "Three programs write requests by record headers at a fixed rate: Kafka's Java client (Avro, every tenth of its "
    "requests as a CloudEvent), kafka-python (Protobuf, without correlation-id) and Kafka's console producer (JSON), "
    "to two topics. Three programs answer by the plan of benchmarks/asking/plan.py, also in a topic of the "
    "application. correlate is a program of its own, which is killed twice by SIGKILL with all its processes, and "
    "started at once. Then the oracle reads the topics of requests and answers, works out each reply from the plan and "
    "the timestamps of the records, and compares: each reply by its headers and its body, once for each request, "
    "repeated ones byte by byte; after archive has run, each row of outcomes, signals and acknowledgements."
)


def measure(bench: Bench) -> dict[str, Any]:
    """Run the load, then judge.

    :raises RuntimeError: in a trial, which is the check: something is wrong
    """
    count = SMALL_REQUESTS if bench.small else bench.requests
    settings = bench.settings("records")
    topic = settings.kafka.topic
    for name in (*plan.REQUEST_TOPICS, plan.OWN_ACK_TOPIC):
        bench.offsets.create(topic(name), settings.kafka.partitions)
        # a topic made a moment ago has no leader yet, and a party would read nothing of it
        bench.offsets.ends(topic(name))
    settings = settings.model_copy(update={"correlate": settings.correlate.model_copy(update=_further(settings))})
    seconds: dict[str, float] = {}
    began = time.monotonic()
    kills = _load(bench, settings, count)
    seconds["requests_and_replies"] = time.monotonic() - began
    # millions of tuples stay until the end
    gc.disable()
    oracle = _judged_replies(bench, settings, count)
    seconds["oracle_replies"] = time.monotonic() - began - sum(seconds.values())
    query = ARCHIVE.start(bench.spark, settings, available_now=True)
    query.awaitTermination()
    seconds["archive"] = time.monotonic() - began - sum(seconds.values())
    rows = {
        "outcomes": oracle.outcomes(_rows(settings, "outcomes")),
        "signals": oracle.signals(_rows(settings, "signals")),
        "acknowledgements": oracle.acknowledgements(_rows(settings, "acknowledgements")),
    }
    seconds["oracle_tables"] = time.monotonic() - began - sum(seconds.values())
    if letters := bench.offsets.count(topic("dead-letters")):
        oracle.wrong("dead letters", letters)
    figures = {
        "method": METHOD,
        "versions": _versions(),
        "requests": count,
        "answers": sum(map(len, oracle.answers)),
        "producers": list(plan.PRODUCERS),
        "parties": list(plan.LABELS),
        "kills": kills,
        "violations": sum(oracle.violations.values()),
        "violations_by_kind": dict(oracle.violations),
        "repeated_replies": oracle.repeated,
        "rows": rows,
        **dict(oracle.summary()),
        "seconds": seconds,
        "requests_a_second": count / seconds["requests_and_replies"],
        "messages_a_second": (count + sum(map(len, oracle.answers))) / seconds["requests_and_replies"],
    }
    bench.say(json.dumps(common.rounded({name: figures[name] for name in figures if name != "method"})))
    for words in oracle.words:
        bench.console.print(f"VIOLATION {words}", markup=False, highlight=False)
    if oracle.violations and count < REQUESTS:
        raise RuntimeError(f"{figures['violations']} violations: {dict(oracle.violations)}")
    return figures


def _further(settings: Settings) -> dict[str, tuple[str, ...]]:
    names = {"request_topics": plan.REQUEST_TOPICS, "ack_topics": (plan.OWN_ACK_TOPIC,)}
    return {key: tuple(re.escape(settings.kafka.topic(name)) for name in found) for key, found in names.items()}


# -- the load ----------------------------------------------------------------------------------------------------------


def _load(bench: Bench, settings: Settings, count: int) -> list[dict[str, float]]:
    """Send and answer all requests, killing correlate meanwhile, until all is decided; return the kills."""
    replies, kills = settings.kafka.topic("replies"), list[dict[str, float]]()
    further = {f"ACKSTREAM_CORRELATE_{key.upper()}": json.dumps(found) for key, found in _further(settings).items()}
    waiting: list[str] = []
    with ExitStack() as stack:
        correlate = stack.enter_context(
            starting.running(bench, "correlate", ["submit", "correlate"], settings, **further)
        )
        parties = [_party(bench, settings, label, count) for label in range(len(plan.LABELS))]
        for party in parties:
            stack.callback(party.kill)
        feeder = _Feeder(bench, settings, count)
        stack.callback(feeder.kill)
        feeder.start()
        began = said = time.monotonic()
        left = [round(count * part) for part in KILLS]
        over = None
        while over is None or (waiting := _open(bench, settings, count)):
            correlate.check()
            for one in (*parties, feeder):
                if one.status not in (None, 0):
                    one.check()
            if left and feeder.sent >= left[0]:
                left.pop(0)
                kills.append(_killed(bench, correlate, began, feeder.sent))
            if over is None and not left and feeder.status == 0 and all(party.status == 0 for party in parties):
                over = time.monotonic() + PATIENCE_SECONDS
                bench.say("All requests and answers are sent")
            if over is not None and time.monotonic() > over:
                # the oracle has the details
                bench.say(f"[red]Not done: {'; '.join(waiting)}[/red]")
                break
            if time.monotonic() > said + SAID_SECONDS:
                said = time.monotonic()
                done = [one.status is not None for one in (feeder, *parties)]
                bench.say(
                    f"{feeder.sent:,} requests, {bench.offsets.count(replies):,} replies, ended: {done}, {waiting}"
                )
            time.sleep(POLL_SECONDS)
    return kills


def _killed(bench: Bench, correlate: Program, began: float, sent: int) -> dict[str, float]:
    correlate.kill()
    correlate.start()
    bench.say(f"correlate was killed after {sent:,} requests")
    return {"after_seconds": time.monotonic() - began, "after_requests": sent}


def _open(bench: Bench, settings: Settings, count: int) -> list[str]:
    """Return the remaining work of correlate: replies, and partitions that it has not processed to their ends."""
    there = bench.offsets.count(settings.kafka.topic("replies"))
    found = [f"{there:,} of {count:,} replies"] if there < count else []
    place = Path(settings.lake.checkpoint("correlate"))
    batch = max((int(path.name) for path in place.glob("commits/*") if path.name.isdigit()), default=-1)
    # a version, metadata, then the offsets
    lines = (place / "offsets" / str(batch)).read_text("utf-8").splitlines()[2:] if batch >= 0 else []
    read: dict[str, dict[str, int]] = {}
    for line in lines:
        read |= json.loads(line)
    for name in (*plan.REQUEST_TOPICS, plan.OWN_ACK_TOPIC, plan.ACK_TOPIC):
        topic = settings.kafka.topic(name)
        for partition, (_, end) in bench.offsets.ends(topic).items():
            if (done := read.get(topic, {}).get(str(partition), 0)) < end:
                found.append(f"{name}-{partition}: {done:,} of {end:,}")
    if not found:
        # some are there twice after a crash
        there = len({message.key() for message in bench.offsets.read(settings.kafka.topic("replies"))})
        found += [f"{there:,} of {count:,} replies"] * (there < count)
    return found


def _party(bench: Bench, settings: Settings, label: int, count: int) -> LoggedProcess:
    more = [settings.kafka.bootstrap, settings.kafka.topic_prefix, str(label), str(count)]
    command = [sys.executable, "-m", "benchmarks.asking.parties", *more]
    own = os.environ | {"PYTHONPATH": str(common.ROOT)}
    return LoggedProcess(f"party-{label}", command, own, bench.directory)


class _Feeder:
    """The three producers, and the thread that gives them their lines at the rate.

    :ivar sent: how many lines they were given
    """

    def __init__(self, bench: Bench, settings: Settings, count: int) -> None:
        self._count, self.sent = count, 0
        kafka = settings.kafka
        first, second = map(kafka.topic, plan.REQUEST_TOPICS)
        java = str(machine.find_java().program)
        spark = Path(pyspark.__file__).parent / "jars" / "*"
        client = [jar for jar in jars.resolve("spark") if jar.name.startswith("kafka-clients")]
        console = [*jars.resolve("console", module=MODULE), *jars.resolve("broker")]
        options = ["parse.headers=true", "headers.separator=;", "parse.key=true"]
        commands = {
            "java": [
                java, *JAVA, "-cp", _path([*client, spark]), str(Path(__file__).parent / "asking" / "Orders.java"),
                kafka.bootstrap, first,
            ],
            "python": [sys.executable, "-m", "benchmarks.asking.orders", kafka.bootstrap, first, second],
            "console": [
                java, *JAVA, "-cp", _path(console), "org.apache.kafka.tools.ConsoleProducer",
                "--bootstrap-server", kafka.bootstrap, "--topic", second,
                *[part for option in options for part in ("--property", option)],
            ],
        }  # fmt: skip
        self._logs = {name: bench.directory / f"{name}.log" for name in commands}
        self._programs = {name: _start(command, self._logs[name]) for name, command in commands.items()}
        self._thread = threading.Thread(target=self._feed, daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def _feed(self) -> None:
        began = time.monotonic()
        inputs = [one.stdin for one in self._programs.values()]
        while self.sent < self._count:
            due = min(self._count, int((time.monotonic() - began) * RATE))
            numbers = range(self.sent, due)
            for index, target in enumerate(inputs):
                assert target is not None
                mine = [plan.line(number) for number in numbers if number % len(inputs) == index]
                target.write(b"".join(mine))
                target.flush()
            self.sent = due
            time.sleep(STEP_SECONDS)
        for target in inputs:
            assert target is not None
            target.close()

    @property
    def status(self) -> int | None:
        """The exit status of the first producer that failed, else 0 once all have ended."""
        found = [one.poll() for one in self._programs.values()]
        return next((status for status in found if status), None if None in found else 0)

    def check(self) -> None:
        """Raise an error with the log of a producer that failed."""
        for name, one in self._programs.items():
            if one.poll():
                raise RuntimeError(f"The producer {name} failed: {self._logs[name].read_text('utf-8')[-3000:]}")

    def kill(self) -> None:
        """End the producers that run."""
        for one in self._programs.values():
            one.kill()
            one.wait()


def _path(found: Iterable[Path]) -> str:
    return os.pathsep.join(map(str, found))


def _start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    own = os.environ | {"PYTHONPATH": str(common.ROOT)}
    with log.open("wb") as output:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, env=own)


# -- the judgement -----------------------------------------------------------------------------------------------------


def _judged_replies(bench: Bench, settings: Settings, count: int) -> Oracle:
    """Read the requests, the answers and the replies from their topics, and judge the replies."""
    oracle = Oracle(count)
    for name in plan.REQUEST_TOPICS:
        for message in bench.offsets.read(settings.kafka.topic(name)):
            headers = dict(message.headers())
            given, place = headers.get("correlation-id") or headers.get("ce_id"), _place(message)
            identity = "-".join(map(str, place)) if given is None else given.decode()
            oracle.ask(int(message.key()), Asked(identity, *place, message.timestamp()[1]))
    positions = {label.encode(): index for index, label in enumerate(plan.LABELS)}
    for name in (plan.ACK_TOPIC, plan.OWN_ACK_TOPIC):
        for message in bench.offsets.read(settings.kafka.topic(name)):
            headers = dict(message.headers())
            status, extend = int(headers.get("status", b"200")), int(headers.get("extend", b"0s")[:-1])
            time_, label = message.timestamp()[1], positions[headers["label"]]
            one = Answered(time_, *_place(message), label, status, "ditto-weak-ack" in headers, 1_000 * extend)
            oracle.answers[int(message.key())].append(one)
    oracle.decide()
    bench.say("The oracle has decided")
    for message in bench.offsets.read(settings.kafka.topic("replies")):
        oracle.reply(dict(message.headers()), message.key(), message.value())
    oracle.finish_replies()
    bench.say(f"The replies are judged: {dict(oracle.violations) or 'all are right'}")
    return oracle


def _place(message: Any) -> tuple[str, int, int]:
    return message.topic(), message.partition(), message.offset()


ROWS = {
    "outcomes": (
        "correlation_id", "reply_id", "status", "completed_by", "requested", "missing", "unneeded", "started_at",
        "decided_at",
    ),
    "signals": ("correlation_id", "topic", "partition", "offset", "received_at"),
    "acknowledgements": (
        "correlation_id", "label", "status", "weak", "received_at", "disposition", "topic", "partition", "offset",
    ),
}  # fmt: skip
"""The columns that are judged."""


def _rows(settings: Settings, table: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, its times in epoch milliseconds."""
    found = DeltaTable(settings.lake.table(table), storage_options=settings.lake.storage_options)
    for batch in found.to_pyarrow_dataset().to_batches(columns=list(ROWS[table])):
        columns = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if pa.types.is_timestamp(column.type):
                column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())  # noqa: PLW2901
            columns[name] = column.to_pylist()
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))


def _versions() -> dict[str, str]:
    spark = [jar.stem for jar in (Path(pyspark.__file__).parent / "jars").glob("avro-1*.jar")]
    found = [*spark, *(jar.stem for jar in jars.resolve("spark") if jar.name.startswith("kafka-clients"))]
    found += [jar.stem for jar in jars.resolve("console", module=MODULE)]
    return {name: number for name, _, number in (stem.rpartition("-") for stem in found)} | {
        name: version(name) for name in ("kafka-python", "confluent-kafka", "deltalake")
    }


if __name__ == "__main__":
    common.main("records", measure, requests=REQUESTS)
