"""A million rows of a DataFrame are requests; a Python worker is killed in the middle, and each row is answered once.

``python -m benchmarks.rows --requests 20000`` is a trial; its figures are printed and not written.
"""

from __future__ import annotations

import json
import re
import sys
import time
from contextlib import ExitStack
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

from ackstream.dataframe import acknowledge, register
from ackstream.dataframe.requests import AT_ONCE
from benchmarks import common, starting
from tests.harness.processes import LoggedProcess, environment
from tests.harness.programs import ASKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ackstream.settings import Settings
    from benchmarks.common import Bench

ROWS, SMALL_ROWS = 1_000_000, 8 * AT_ONCE
TOPIC, LABEL = "orders", "rows:done"
POLL_SECONDS, SAID_SECONDS, PATIENCE_SECONDS = 1.0, 20.0, 1_800.0
METHOD = (
    "A Spark program with a session of its own (two tasks) writes the rows by df.write.format('ackstream'). A Python "
    "worker of its first task kills itself by SIGKILL once half of the task's rows have passed it, and Spark runs the "
    "task again. Another Spark session reads the topic as a stream and acknowledges each batch by "
    "acknowledge(label).after(batch). correlate is a program of its own. At the end all outcomes are read by "
    "spark.read.format('ackstream.outcomes'): one for each row, positive; each copy of a row is a dead letter, and "
    "nothing else is."
)


def measure(bench: Bench) -> dict[str, Any]:
    """Send requests, answer, and judge; raise a ``RuntimeError`` in a trial in which something is wrong."""
    rows = SMALL_ROWS if bench.small else bench.requests
    settings = bench.settings("rows")
    topic = settings.kafka.topic(TOPIC)
    bench.offsets.create(topic, settings.kafka.partitions)
    bench.offsets.ends(topic)
    file = bench.directory / "rows.toml"
    kafka = {"bootstrap": settings.kafka.bootstrap, "topic_prefix": settings.kafka.topic_prefix}
    file.write_text("[kafka]\n" + "".join(f"{key} = {json.dumps(text)}\n" for key, text in kafka.items()), "utf-8")
    register(bench.spark)
    seconds = _ask(bench, settings, rows, str(file))
    began = time.monotonic()
    found = bench.spark.read.format("ackstream.outcomes").option("settings", str(file)).load()
    ended = found.groupBy("status", "completed_by").agg(F.count("*"), F.countDistinct("correlation_id")).collect()
    seconds["outcomes_read"] = time.monotonic() - began
    copies = bench.offsets.count(topic) - rows
    figures = {
        "method": METHOD,
        "versions": {name: version(name) for name in ("pyspark", "kafka-python", "pyarrow")},
        "rows": rows,
        "copies_of_the_killed_task": copies,
        "dead_letters": bench.offsets.count(settings.kafka.topic("dead-letters")),
        "outcomes": [tuple(row) for row in ended],
        "seconds": seconds,
        "rows_asked_a_second": (rows + copies) / seconds["asking"],
        "rows_answered_a_second": rows / seconds["answered"],
    }
    bench.say(json.dumps(common.rounded({name: figures[name] for name in figures if name != "method"})))
    expected = [(200, "acknowledgements", rows, rows)], copies
    if (figures["outcomes"], figures["dead_letters"]) != expected or not copies:
        raise RuntimeError(
            f"not {expected}, or no copies: {figures['outcomes']}, {figures['dead_letters']} dead letters"
        )
    return figures


def _ask(bench: Bench, settings: Settings, rows: int, file: str) -> dict[str, float]:
    """Run the requesting and the acknowledging job until all is decided; return the seconds of both."""
    seconds: dict[str, float] = {}
    topic, own = settings.kafka.topic(TOPIC), settings.kafka
    names = {"ACKSTREAM_CORRELATE_REQUEST_TOPICS": json.dumps([re.escape(topic)])}
    sizes = map(str, (rows, rows // 4, rows // 4))
    command = [sys.executable, "-c", ASKING, file, own.bootstrap, topic, *sizes]
    with ExitStack() as stack:
        correlate = stack.enter_context(
            starting.running(bench, "correlate", ["submit", "correlate"], settings, **names)
        )
        source = bench.spark.readStream.format("kafka").option("kafka.bootstrap.servers", own.bootstrap)
        source = source.options(subscribe=topic, startingOffsets="earliest", includeHeaders="true")
        outcomes = bench.spark.readStream.format("ackstream.outcomes").option("settings", file).load()
        party, seen = acknowledge(LABEL, kafka=own), [0]

        def answer(batch: DataFrame, _: int) -> None:
            party.after(batch)

        def see(batch: DataFrame, _: int) -> None:
            seen[0] += batch.count()

        queries = [
            each.writeStream.foreachBatch(how).start() for each, how in ((source.load(), answer), (outcomes, see))
        ]
        for query in queries:
            stack.callback(query.stop)
        began = said = time.monotonic()
        asking = LoggedProcess("asking", command, environment(settings), bench.directory)
        stack.callback(asking.kill)
        while "answered" not in seconds:
            correlate.check()
            if asking.status:
                asking.check()
            if asking.ended:
                seconds.setdefault("asking", time.monotonic() - began)
            copies = bench.offsets.count(topic) - rows
            letters = bench.offsets.count(own.topic("dead-letters"))
            if "asking" in seconds and seen[0] >= rows and letters >= copies:
                seconds["answered"] = time.monotonic() - began
            if time.monotonic() > said + SAID_SECONDS:
                said = time.monotonic()
                bench.say(f"{bench.offsets.count(topic):,} requests and copies, {seen[0]:,} answered")
            if time.monotonic() > began + PATIENCE_SECONDS or not all(query.isActive for query in queries):
                why = [query.exception() for query in queries]
                raise RuntimeError(f"{seen[0]:,} of {rows:,} rows are answered, {letters:,} dead letters: {why}")
            time.sleep(POLL_SECONDS)
    return seconds


if __name__ == "__main__":
    common.main("rows", measure, requests=ROWS)
