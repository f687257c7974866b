"""The course of the demo: the jobs start, commands go to the devices of ``fleet``, and all of it is checked and shown.

The wheel includes this file, and ``ackstream demo`` runs it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import shlex
import shutil
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ackstream.client import Command, Requester, Responder
from ackstream.errors import AckstreamError, LocalError
from ackstream.gateway import exchange as gateway
from ackstream.gateway.server import Server
from ackstream.jobs.archive import job as archive
from ackstream.jobs.correlate import job as correlate
from ackstream.jobs.twin import job as twin
from ackstream.kafka import topics
from ackstream.kafka.clients import connect_admin
from ackstream.kafka.parties import OPERATOR
from ackstream.lake import tables
from ackstream.lake.schemas import ALL_TABLES
from ackstream.local.machine import is_free, shared_with_tests
from ackstream.protocol.ditto.labels import TWIN_PERSISTED
from ackstream.settings import Gateway, Kafka, Settings
from ackstream.spark.job import query_cause
from ackstream.spark.progress import consumed_offsets
from ackstream.spark.session import quiet_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql.streaming.query import StreamingQuery
    from rich.console import Console

    from ackstream.cli.terminal import Interrupts

traffic = shared_with_tests("demo/fleet.py")
SecuredBroker = shared_with_tests("demo/secured.py").SecuredBroker
"""The devices, the commands to them, and the checks."""

DEVICES = 50
START_SECONDS = 60.0
CATCH_UP_SECONDS = 60.0
GRACE_SECONDS = 60.0
"""The lag of Spark that the requester tolerates; replies do not change, since the broker's clock decides."""

POLL_SECONDS = 0.2


def run(own: Settings, console: Console, number: int, rate: float, interrupts: Interrupts, stack: ExitStack) -> bool:
    """Run the jobs and send the commands, ``rate`` per second; return whether all counts add up."""
    began = time.monotonic()
    logs = own.local.data / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    # those of the libraries
    form = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    logging.basicConfig(filename=logs / "demo.log", filemode="w", format=form)
    logging.captureWarnings(capture=True)
    how = "which was running" if own.kafka.topic_prefix else "started for the demo"
    how += ", with a login for each party" * own.kafka.security.logs_in
    console.print(f"Kafka at {own.kafka.bootstrap}, {how}", highlight=False)
    console.print(f"To watch from another terminal: {_environment(own)}{invocation()} watch", highlight=False)
    spark = stack.enter_context(quiet_session(own, "demo"))
    # PySpark installs its own Ctrl-C handler
    interrupts.listen()
    with console.status("Starting the jobs"):
        archiving = stack.enter_context(archive.JOB.running(spark, _as_party(own, "archive")))
        correlating = stack.enter_context(correlate.JOB.running(spark, _as_party(own, "correlate")))
        keeping = stack.enter_context(twin.JOB.running(spark, _as_party(own, "twin")))
        indexing = stack.enter_context(twin.INDEX.running(spark, _as_party(own, "twin")))
        # stop() waits for the running batch; after an error there is no point in that
        process = spark.sparkContext._gateway.proc
        stack.push(lambda kind, _error, _trace: process.kill() if kind else None)
        healthy = partial(_check_health, [correlating, archiving, keeping, indexing], interrupts, own)
        _wait(lambda: correlating.lastProgress is not None, healthy, START_SECONDS)
        devices = traffic.fleet(DEVICES)
        things = list(devices)
        requester = stack.enter_context(Requester(_as_party(own, "requester").kafka, grace=GRACE_SECONDS))
        _create(requester, things, healthy)
        address = stack.enter_context(_serve_gateway(_as_party(own, "gateway")))
    asked = ",".join((TWIN_PERSISTED, *traffic.LABELS))
    url = f"{address}/api/2/things/{things[-1]}/attributes/speed?timeout=10s&requested-acks={asked}"
    console.print(
        "Spark runs correlate (signals + acks → replies, ledger), archive (ledger → Delta tables)",
        "and twin (commands → things, events)",
        f"The gateway is at {address}: the live page at /, the API at /doc. Try it while commands are being sent:",
        f"curl -X PUT '{url}' -H 'content-type: application/json' -d 42",
        f"{len(devices)} devices; sending {number:,} commands, {rate:g} per second",
        "",
        sep="\n", soft_wrap=True, highlight=False, markup=False,
    )  # fmt: skip
    party = _as_party(own, "responder")
    handler = partial(traffic.respond, devices)
    responder = stack.enter_context(Responder(party.kafka, handler=handler, labels=traffic.LABELS))
    sent = traffic.send_all(requester, things, number, rate, console, healthy)
    with console.status("Waiting for the last acknowledgements and for the tables"):
        _wait(lambda: not (responder.statistics.delayed or responder.statistics.sending), healthy)
        reads = {keeping: ("signals",), correlating: ("signals", "acks", "twin-acks"), archiving: ("ledger",)}
        with connect_admin(own.kafka) as client:
            complete = _wait(lambda: caught_up(client, own.kafka, reads), healthy, CATCH_UP_SECONDS)
        findings = traffic.check(traffic.gather(spark, own, sent))
        own_tables = [name for name, table in ALL_TABLES.items() if table.writer in ("archive", "twin")]
        rows = {name: tables.read(spark, own.lake, name).count() for name in own_tables}
    traffic.show(console, own, sent, devices, rows)
    traffic.show_findings(console, findings, caught_up=complete)
    traffic.title(console, "How to query them")
    program = f"ACKSTREAM_LAKE_PATH={shlex.quote(own.lake.path)} {invocation()}"
    question = "SELECT thing_id, status, count(*) AS n FROM outcomes WHERE status <> 200 GROUP BY ALL ORDER BY ALL"
    for name, line in ("predefined questions", "outcomes slowest-labels"), ("SQL", f'sql "{question}"'):
        console.print(Text(f"# {name}", style="dim"))
        # unwrapped, so that it can be copied
        console.print(f"{program} {line}", soft_wrap=True, highlight=False, markup=False)
    console.print(f"\nThe whole demo took {time.monotonic() - began:.0f} s.", highlight=False)
    return all(not finding.wrong for finding in findings)


def _as_party(settings: Settings, party: str) -> Settings:
    """Return the settings of one party of the demo, with a login of its own where there are logins."""
    secured = settings.kafka.security.logs_in
    return SecuredBroker(settings).as_user(settings, party) if secured else settings


@contextmanager
def _serve_gateway(settings: Settings) -> Iterator[str]:
    """Serve the gateway for a block, at a free port if the configured one is in use; yield its address."""
    # no password: the gateway listens on the loopback address only
    port = settings.gateway.port
    own = settings.model_copy(update={"gateway": Gateway(port=port if is_free(port) else 0)})
    address: Future[str] = Future()
    with gateway.connected(own) as dependencies:
        server = Server(dependencies, address.set_result)

        def serve() -> None:
            try:
                asyncio.run(server.serve())
            except SystemExit:
                # uvicorn exits when it cannot listen
                address.set_exception(LocalError("The gateway cannot listen on any port of this machine."))

        thread = threading.Thread(target=serve, name="ackstream-gateway", daemon=True)
        thread.start()
        try:
            yield address.result()
        finally:
            server.should_exit = True
            thread.join()


def _create(requester: Requester, things: Sequence[str], healthy: Callable[[], None]) -> None:
    futures = [
        requester.send(Command.create_thing(thing_id), acks=[TWIN_PERSISTED], timeout=START_SECONDS)
        for thing_id in things
    ]
    _wait(lambda: all(future.done() for future in futures), healthy)
    for reply in (future.result() for future in futures):
        if not reply.ok:
            raise AckstreamError(f"The twin did not create {reply.envelope.topic.thing_id}: {reply.explanation}")


def _check_health(queries: Sequence[StreamingQuery], interrupts: Interrupts, own: Settings) -> None:
    interrupts.check()
    for query in queries:
        if not query.isActive:
            why = query_cause(str(query.exception() or "without an error")).strip().partition("\n")[0]
            log = own.local.data / "logs" / "spark-demo.log"
            raise AckstreamError(f"The job {query.name} has stopped unexpectedly: {why} (see {log}).")


def _wait(done: Callable[[], bool], healthy: Callable[[], None], seconds: float = math.inf) -> bool:
    until = time.monotonic() + seconds
    while not (found := done()) and time.monotonic() < until:
        healthy()
        time.sleep(POLL_SECONDS)
    return found


def caught_up(client: Any, kafka: Kafka, queries: Mapping[StreamingQuery, tuple[str, ...]]) -> bool:
    """Return whether each query has read its topics to the end, in order, since each writes the input of the next."""
    for query, names in queries.items():
        ends = topics.ends(client, topics.replicas(client, map(kafka.topic, names)))
        consumed = consumed_offsets(query)
        if any(consumed.get(partition, 0) < end for partition, end in ends.items()):
            return False
    return True


def invocation() -> str:
    """Return how to invoke this program again."""
    beside = Path(sys.executable).with_name("ackstream")
    found = shutil.which("ackstream")
    if found is not None and Path(found).absolute() == beside.absolute():
        return "ackstream"
    return _short(beside) if beside.exists() else f"{_short(Path(sys.executable))} -m ackstream"


def _short(path: Path) -> str:
    """Quote a path for the shell, relative to the working directory if it is below it."""
    path = path.absolute()
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def _environment(own: Settings) -> str:
    """Return the variable that another terminal needs to reach the Kafka of the demo, as a shell takes it."""
    if own.kafka.security.logs_in:
        return f"ACKSTREAM_CONF={SecuredBroker(own).settings_file(OPERATOR)} "
    return own.kafka.topic_prefix and f"ACKSTREAM_KAFKA_TOPIC_PREFIX={own.kafka.topic_prefix} "
