"""Spark behind a command: its output goes to a file, and the JVM ends with the command."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

from pyspark import SparkContext, java_gateway
from pyspark.sql import SparkSession

from ackstream.cli.terminal import Terminal, uninterrupted
from ackstream.errors import LocalError
from ackstream.local import jars, machine, submit
from ackstream.local.submit import JAVA_OPTIONS
from ackstream.spark.session import session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackstream.settings import Settings

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseParallelGC"
"""Options for a JVM that lives for minutes, which would never regain the time spent on optimising its code. The code of
four queries exceeds the default of 48 MB, at which the compiler would stop. The parallel collector takes a fifth less
processor time than the default one, whose pauses are shorter."""

END_SECONDS = 10
"""How long to wait for a JVM to end before it is killed."""


def quick_start() -> str:
    """Return the options of a driver that lives for minutes: ``QUICK_START``, and the archive of its classes."""
    return f"{QUICK_START} {submit.java_options()}".strip()


@contextmanager
def quiet_session(settings: Settings, name: str) -> Iterator[SparkSession]:
    """Start Spark for a block, or use an active session and leave it running; raise LocalError with the remedy.

    The JVM and its Python workers write to ``DATA/logs/spark-NAME.log``; progress is shown on standard error. If the
    block raises, the JVM is killed.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    console = Terminal(stderr=True)
    machine.find_java()
    paths = jars.resolve("spark", console)
    log = settings.local.data.absolute() / "logs" / f"spark-{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output, _launching(output) as launched:
        try:
            with console.status("Starting Spark"):
                try:
                    options = f"{quick_start()} {settings.spark.conf.get(JAVA_OPTIONS, '')}".strip()
                    spark = session(settings, name, jars=paths, conf={JAVA_OPTIONS: options})
                except Exception as error:
                    raise LocalError(f"Spark did not start: correct what its log {log} reports.") from error
            # it would print a stack trace when the JVM is killed
            spark.sparkContext._accumulatorServer.handle_error = lambda *_: None  # noqa: SLF001 - its base class's hook
            yield spark
            spark.stop()
        except BaseException:
            _end(launched, 0)
            raise
        _end(launched, END_SECONDS)


def kill(spark: SparkSession) -> None:
    """Kill the JVM of a session at once; the session is unusable afterwards."""
    spark.sparkContext._gateway.proc.kill()  # noqa: SLF001 - PySpark has no public way to end its JVM


def _end(launched: list[subprocess.Popen[Any]], patience: float) -> None:
    """End the JVM of a session; kill it after ``patience`` seconds."""
    gateway = SparkContext._gateway  # noqa: SLF001 - see above
    if gateway is not None:
        # Python would report to the JVM each object that it collects from now on, and print that this failed
        gateway._gateway_client.is_connected = False  # noqa: SLF001
    for process in launched:
        if process.stdin is not None:
            # the JVM ends when its standard input is closed
            with suppress(OSError):
                process.stdin.close()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    # the next session starts a JVM of its own
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - see above


@contextmanager
def _launching(output: IO[bytes]) -> Iterator[list[subprocess.Popen[Any]]]:
    """Redirect the output of the JVM that PySpark starts, and yield its process."""
    # PySpark forgets a JVM whose start was interrupted, and that JVM would never end
    launched: list[subprocess.Popen[Any]] = []

    def launch(command: list[str], **options: Any) -> subprocess.Popen[Any]:
        with uninterrupted():
            process: subprocess.Popen[Any] = subprocess.Popen(command, stdout=output, stderr=output, **options)  # noqa: S603 - spark-submit
            launched.append(process)
        return process

    before, java_gateway.Popen = java_gateway.Popen, launch
    try:
        yield launched
    finally:
        java_gateway.Popen = before
