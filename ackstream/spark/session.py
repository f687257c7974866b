"""All Spark sessions: those of jobs, with the signals that end them cleanly, and those of commands."""

import logging
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from py4j.protocol import Py4JNetworkError
from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession
from rich.console import Console

from ackstream.errors import AckstreamError, LocalError, StartError, cause
from ackstream.kafka.clients import EXPECTED, failure
from ackstream.kafka.connection import wait_for_silence
from ackstream.local import jars as jvm_jars
from ackstream.local import submit
from ackstream.local.machine import check_surroundings, keep_private, link_error
from ackstream.observe import logs
from ackstream.observe.endpoint import serving
from ackstream.settings import Kafka, Settings

log = logging.getLogger(__name__)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""The variable that ``spark-submit`` sets for the Python it starts."""
ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
"""The variable with the arguments for the ``spark-submit`` that PySpark starts."""


def session(
    settings: Settings, name: str, *, jars: Sequence[Path] = (), conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Build (or get) the process's Spark session; ``conf`` overrides all other entries, and ``jars`` add to theirs."""
    # Under ``spark-submit``, it sets master, memory and conf. Otherwise they come from the settings, which override
    # ``conf/spark-defaults.conf``; ``jars`` must be known before the JVM starts.
    for key, value in FIXED.items():
        if (given := settings.spark.conf.get(key, value)) != value:
            raise StartError(f"The setting spark.conf has {key} = {given}: remove it. Stored values need {value}.")
    submitted, entries = SUBMITTED in os.environ, {"spark.app.name": name}
    if submitted:
        SparkContext._ensure_initialized()  # noqa: SLF001 - connects to the JVM, before a context is made in it
        # `ackstream submit` gives spark-submit all entries
        own = {} if SparkConf().contains(submit.MERGED) else settings.spark.conf
    else:
        # executors must run an interpreter in which the product is installed; under spark-submit it is given
        os.environ |= {"PYSPARK_PYTHON": sys.executable, **os.environ, **submit.local_variables(settings.spark.master)}
        memory = {"spark.driver.memory": settings.spark.driver_memory}
        entries |= {"spark.master": settings.spark.master, **submit.defaults(), **memory}
        own = submit.own_entries(settings, jars)
    # the product's log levels; `ackstream submit` passes the same to the JVM that spark-submit starts
    os.environ.setdefault("LOG4J_CONFIGURATION_FILE", submit.log_configuration(settings.log.format))
    entries |= {**own, **(conf or {}), **FIXED}
    if jars:
        entries["spark.jars"] = ",".join([*map(str, jars), *filter(None, [entries.get("spark.jars")])])
    if not submitted and SparkContext._gateway is None:  # noqa: SLF001 - as PySpark itself asks
        check_surroundings(entries.get(submit.JAVA_OPTIONS, ""))
        _launch(entries)
    spark = SparkSession.builder.config(map=entries).getOrCreate()
    # Delta names its commits with the digits of the locale: another process would not find them
    spark._jvm.java.util.Locale.setDefault(spark._jvm.java.util.Locale.ROOT)  # noqa: SLF001 - no entry of Spark does it
    spark.sparkContext.setLogLevel(logs.SPARK_LEVELS[settings.log.level])
    return spark


def _launch(entries: Mapping[str, str]) -> None:
    """Start the JVM with its entries in a file: PySpark would put them on its command line, for all users to read."""
    before = os.environ.get(ARGUMENTS)
    with TemporaryDirectory(prefix="ackstream-") as directory:
        properties = Path(directory) / "spark.properties"
        submit.write_properties(properties, entries)
        os.environ[ARGUMENTS] = f"--properties-file {shlex.quote(str(properties))} {before or 'pyspark-shell'}"
        try:
            SparkContext._ensure_initialized()  # noqa: SLF001 - the only way without a command line
        finally:
            del os.environ[ARGUMENTS]
            if before is not None:
                os.environ[ARGUMENTS] = before


FIXED = {
    "spark.sql.variable.substitute": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "false",
}
"""Entries that stored values depend on. Without the first one, Spark replaces ``${env:NAME}`` in any text of SQL."""


def locate(spark: SparkSession, name: str) -> tuple[Any, Any]:
    """Return Hadoop's file system and path of a file."""
    path = spark._jvm.org.apache.hadoop.fs.Path(name)  # noqa: SLF001 - there is no public way
    return path.getFileSystem(spark._jsc.hadoopConfiguration()), path  # noqa: SLF001


def local_directory(spark: SparkSession, name: str) -> Path | None:
    """Return the absolute path of a local directory; ``None`` in another file system."""
    files, path = locate(spark, name)
    return Path(files.makeQualified(path).toUri().getPath()) if files.getScheme() == "file" else None


def check_disks(spark: SparkSession, places: Mapping[str, str]) -> None:
    """Refuse tables and checkpoints, by their keys, on a disk without hard links: see ``local/LocalFiles.java``."""
    own = spark.sparkContext.getConf().get("spark.hadoop.fs.AbstractFileSystem.file.impl", "") == submit.LOCAL_FILES
    for key, place in places.items() if own else ():
        directory = local_directory(spark, place)
        if directory is not None and (error := link_error(directory)) is not None:
            raise StartError(
                f"{key} = {place} is on a disk without hard links ({error.strerror}), by which a name"
                f" is given to one writer only. Set {key} to a disk that has them (ext4, XFS, APFS, NFS, but"
                " neither FAT nor SMB), or to an object store."
            )


class _Handler:
    """Sets an event when the JVM receives a signal, and silences Spark, which logs every interrupted task."""

    class Java:
        """The JVM's interface of a handler, for py4j."""

        implements = ("sun.misc.SignalHandler",)

    def __init__(self, jvm: Any, stop: threading.Event) -> None:
        log = jvm.org.apache.logging.log4j
        # objects, as the thread that handles a signal finds no classes
        self._loggers, self._off = log.LogManager.getContext(False), log.Level.OFF  # noqa: FBT003 - Java's signature
        self._stop = stop

    def handle(self, _signal: Any) -> None:
        """Set the event; the JVM calls this in a thread of its own."""
        try:
            found = self._loggers.getConfiguration()
            for name in found.getLoggers().keySet().toArray():
                found.getLoggerConfig(name).setLevel(self._off)
            self._loggers.updateLoggers()
        finally:
            self._stop.set()


@contextmanager
def driver(settings: Settings, name: str) -> Iterator[tuple[SparkSession, threading.Event]]:
    """Build the session of a program that ``spark-submit`` runs; yield the event that :data:`SIGNALS` set."""
    # An operator signals the JVM, the parent of Python. It would end at once, in the middle of a batch and without a
    # release of the lease. So it makes Python stop, and ends after it; Python itself ignores the signals.
    stop = threading.Event()
    submitted = SUBMITTED in os.environ
    before = _take_signals(stop) if submitted else {}
    spark = session(settings, name)
    submit.check_settings(spark.sparkContext.master)
    if submitted:
        # PySpark handles SIGINT even if it was ignored before
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=_end_without, args=(settings.kafka, stop), name="ackstream-end", daemon=True).start()
    yield spark, stop
    java = spark.sparkContext._jvm.sun.misc  # noqa: SLF001 - there is no public way
    for number, handler in before.items():
        # another signal ends the JVM at once
        java.Signal.handle(java.Signal(number.name[3:]), handler)


def _take_signals(stop: threading.Event) -> dict[signal.Signals, Any]:
    """Let the JVM set an event when it receives a signal; return its former handlers."""
    SparkContext._ensure_initialized()  # noqa: SLF001 - connects to the JVM, before a context is made in it
    gateway: Any = SparkContext._gateway  # noqa: SLF001
    ensure_callback_server_started(gateway)
    java, handler = gateway.jvm.sun.misc, _Handler(gateway.jvm, stop)
    before = {}
    for number in SIGNALS:
        # signals that nohup ignores stay ignored
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = java.Signal.handle(java.Signal(number.name[3:]), handler)
            signal.signal(number, signal.SIG_IGN)
    return before


def _end_without(kafka: Kafka, stop: threading.Event) -> None:
    """End the process, as a crash would, if no broker answers after the signal: Spark's clients would wait for 60 s."""
    stop.wait()
    wait_for_silence(kafka)
    log.warning("The program ends without its batch, which the next start repeats: no answer from %s", kafka.bootstrap)
    try:
        # workers would print that the JVM has ended
        for process in SparkContext._jvm.java.lang.ProcessHandle.current().descendants().toArray():  # noqa: SLF001
            if process.pid() != os.getpid():
                process.destroyForcibly()
    finally:
        os._exit(0)


def run_with_settings(run: Callable[[Settings], None], program: str) -> None:
    """Call ``run`` with settings, log (named ``program``) and metrics; exit with the product's error."""
    keep_private()
    try:
        settings = logs.begin(program)
        try:
            with serving(settings.metrics, program):
                run(settings)
        except EXPECTED as error:
            raise failure(settings.kafka, error) from error
        except (Py4JNetworkError, ConnectionError):
            raise LocalError("Spark's JVM has ended, and the job with it.") from None
    except AckstreamError as error:
        sys.exit(1 if logs.log_failure(str(error)) else str(error))


END_SECONDS = 10
"""How long to wait for a JVM to end before it is killed."""


@contextmanager
def quiet_session(settings: Settings, name: str) -> Iterator[SparkSession]:
    """Start Spark for a block, or use an active session and leave it running; raise LocalError with the remedy."""
    # The JVM and its Python workers write to ``DATA/logs/spark-NAME.log``; progress is shown on standard error. If the
    # block raises, the JVM is killed.
    if (active := SparkSession.getActiveSession()) is not None:
        yield active
        return
    console = Console(stderr=True)
    paths = jvm_jars.resolve("spark", console)
    log = settings.local.data.absolute() / "logs" / f"spark-{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output, _launching(output) as launched:
        try:
            console.print(f"Starting Spark for {name}; its log is {log}.", highlight=False, soft_wrap=True)
            with console.status("Starting Spark"):
                try:
                    options = submit.quick_start(settings.spark.conf.get(submit.JAVA_OPTIONS, ""))
                    spark = session(settings, name, jars=paths, conf={submit.JAVA_OPTIONS: options})
                except AckstreamError:
                    raise
                except Exception as error:
                    why = cause(f"{error}\n{log.read_text('utf-8', 'replace')}")
                    raise LocalError(f"Spark did not start ({why}): correct what its log {log} reports.") from error
            # it would print a stack trace when the JVM is killed
            spark.sparkContext._accumulatorServer.handle_error = lambda *_: None  # noqa: SLF001 - its base class's hook
            yield spark
            spark.stop()
        except BaseException:
            _end(launched, 0)
            raise
        _end(launched, END_SECONDS)


def _end(launched: list[subprocess.Popen[Any]], patience: float) -> None:
    """End the JVM of a session; kill it after ``patience`` seconds."""
    gateway = SparkContext._gateway  # noqa: SLF001 - see above
    if gateway is not None:
        # Python would report each object that it collects to the ended JVM, and print that this failed
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


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer signals until the end of the block, which should be short; for the main thread."""
    seen: list[int] = []
    before = {number: signal.signal(number, lambda found, _frame: seen.append(found)) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for found in seen:
            signal.raise_signal(found)
