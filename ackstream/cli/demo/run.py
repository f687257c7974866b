"""Run the demo from start to summary."""

from __future__ import annotations

import logging
import math
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from ackstream.cli.console.interrupts import Interrupts
from ackstream.cli.console.session import kill, quiet_session
from ackstream.cli.demo import summary
from ackstream.cli.demo.check import caught_up, check, gather
from ackstream.cli.demo.environment import as_party, environment, serve_gateway
from ackstream.cli.demo.traffic import LABELS, fleet, respond, send_all
from ackstream.client import Command, Requester, Responder
from ackstream.errors import AckstreamError
from ackstream.jobs.archive import job as archive
from ackstream.jobs.correlate import job as correlate
from ackstream.jobs.twin import job as twin
from ackstream.kafka.clients import connect_admin
from ackstream.kafka.parties import OPERATOR
from ackstream.lake import tables
from ackstream.lake.schemas import ALL_TABLES
from ackstream.local.secured import SecuredBroker
from ackstream.protocol.ditto.labels import TWIN_PERSISTED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql.streaming.query import StreamingQuery
    from rich.console import Console

    from ackstream.settings import Settings

DEVICES = 50
START_SECONDS = 60.0
CATCH_UP_SECONDS = 60.0
GRACE_SECONDS = 60.0
"""How far Spark may lag on a busy machine; replies do not change, since the broker's clock decides."""

POLL_SECONDS = 0.2


def demo(settings: Settings, console: Console, number: int, rate: float, *, secure: bool = False) -> bool:
    """Run the demo with a number of commands, ``rate`` per second; return whether all counts add up.

    :param secure: with TLS, and each party with a login and ACLs of its own
    :raises AckstreamError: a prerequisite is missing; the sentence names the remedy
    :raises KeyboardInterrupt: interrupted; nothing is left running
    """
    with Interrupts() as interrupts:
        try:
            with ExitStack() as stack:
                try:
                    own = stack.enter_context(environment(settings, console, secure=secure))
                    return _demo(own, console, number, rate, interrupts, stack)
                finally:
                    interrupts.ignore()
        except Exception as error:  # noqa: BLE001 - re-raised
            # errors during an interrupted shutdown carry no information
            if interrupts.seen:
                raise KeyboardInterrupt from None
            raise _reason(error) from None


def _reason(error: BaseException) -> BaseException:
    """Return the first product error in the chain of causes, else the error itself."""
    found, step = error, error.__context__
    while step is not None:
        found = step if isinstance(step, AckstreamError) else found
        step = step.__context__
    return found


def _demo(own: Settings, console: Console, number: int, rate: float, interrupts: Interrupts, stack: ExitStack) -> bool:
    began = time.monotonic()
    _log_to(own.local.data / "logs" / "demo.log")
    prefix, secured = own.kafka.topic_prefix, own.kafka.security.logs_in
    how = "which was running" if prefix else "started for the demo" + (", with a login for each party" * secured)
    console.print(
        f"Kafka at {own.kafka.bootstrap}, {how}",
        f"To watch from another terminal: {_environment(own)}{summary.invocation()} watch",
        sep="\n", highlight=False,
    )  # fmt: skip
    spark = stack.enter_context(quiet_session(own, "demo"))
    # PySpark installs its own Ctrl-C handler
    interrupts.listen()
    with console.status("Starting the jobs"):
        archiving = stack.enter_context(archive.JOB.running(spark, as_party(own, "archive")))
        correlating = stack.enter_context(correlate.JOB.running(spark, as_party(own, "correlate")))
        keeping, indexing = stack.enter_context(twin.running(spark, as_party(own, "twin")))
        # stop() waits for the running batch; after an error there is no point in that
        stack.push(lambda kind, _error, _trace: kill(spark) if kind else None)
        queries = [correlating, archiving, keeping, indexing]
        healthy = _health(queries, interrupts, own.local.data / "logs" / "spark-demo.log")
        _wait(lambda: correlating.lastProgress is not None, healthy, START_SECONDS)
        devices = fleet(DEVICES)
        things = list(devices)
        requester = stack.enter_context(Requester(as_party(own, "requester").kafka, grace=GRACE_SECONDS))
        _create(requester, things, healthy)
        address = stack.enter_context(serve_gateway(as_party(own, "gateway")))
    asked = ",".join((TWIN_PERSISTED, *LABELS))
    url = f"{address}/api/2/things/{things[-1]}/attributes/speed?timeout=10s&requested-acks={asked}"
    console.print(
        "Spark runs correlate (signals + acks → replies, ledger), archive (ledger → Delta tables)",
        "and twin (commands → things, events)",
        f"The gateway is at {address}: the live page at /, the API at /doc. Try it while commands are being sent:",
        f"curl -X PUT '{url}' -H 'content-type: application/json' -d 42",
        sep="\n", soft_wrap=True, highlight=False, markup=False,
    )  # fmt: skip
    fleet_settings = as_party(own, "responder")
    responder = stack.enter_context(Responder(fleet_settings.kafka, handler=partial(respond, devices), labels=LABELS))
    console.print(f"{len(devices)} devices; sending {number:,} commands, {rate:g} per second", highlight=False)
    console.print()
    tally = send_all(requester, things, number, rate, console, healthy)
    with console.status("Waiting for the last acknowledgements and for the tables"):
        _wait(lambda: not (responder.statistics.delayed or responder.statistics.sending), healthy)
        reads = {keeping: ("signals",), correlating: ("signals", "acks", "twin-acks"), archiving: ("ledger",)}
        with connect_admin(own.kafka) as client:
            complete = _wait(lambda: caught_up(client, own.kafka, reads), healthy, CATCH_UP_SECONDS)
        evidence = gather(spark, own, tally)
        own_tables = [name for name, table in ALL_TABLES.items() if table.writer in ("archive", "twin")]
        rows = {name: tables.read(spark, own.lake, name).count() for name in own_tables}
    findings = check(evidence)
    summary.show(console, tally, devices)
    summary.show_tables(console, own, rows)
    summary.show_findings(console, findings, caught_up=complete)
    summary.show_queries(console, own)
    console.print(f"The whole demo took {time.monotonic() - began:.0f} s.", highlight=False)
    return all(not finding.differences for finding in findings)


def _environment(own: Settings) -> str:
    """Return the variable that another terminal needs to reach the Kafka of the demo, as a shell takes it."""
    if own.kafka.security.logs_in:
        return f"ACKSTREAM_CONF={SecuredBroker(own).settings_file(OPERATOR)} "
    return own.kafka.topic_prefix and f"ACKSTREAM_KAFKA_TOPIC_PREFIX={own.kafka.topic_prefix} "


def _create(requester: Requester, things: Sequence[str], healthy: Callable[[], None]) -> None:
    """Create the things and wait until the twin has persisted them."""
    futures = [
        requester.send(Command.create_thing(thing_id), acks=[TWIN_PERSISTED], timeout=START_SECONDS)
        for thing_id in things
    ]
    _wait(lambda: all(future.done() for future in futures), healthy)
    for reply in (future.result() for future in futures):
        if not reply.ok:
            raise AckstreamError(f"The twin did not create {reply.envelope.topic.thing_id}: {reply.explanation}")


def _health(queries: list[StreamingQuery], interrupts: Interrupts, log: Path) -> Callable[[], None]:
    def healthy() -> None:
        interrupts.check()
        for query in queries:
            if not query.isActive:
                why = str(query.exception() or "without an error").strip().partition("\n")[0]
                raise AckstreamError(f"The job {query.name} has stopped unexpectedly: {why} (see {log}).")

    return healthy


def _wait(done: Callable[[], bool], healthy: Callable[[], None], seconds: float = math.inf) -> bool:
    """Wait for a condition and return it, at the latest after some seconds."""
    until = time.monotonic() + seconds
    while not (found := done()) and time.monotonic() < until:
        healthy()
        time.sleep(POLL_SECONDS)
    return found


def _log_to(path: Path) -> None:
    """Redirect library logs to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=path, filemode="w", format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    logging.captureWarnings(capture=True)
