"""What all tests share: the real broker and settings that keep tests apart on it."""

from __future__ import annotations

import atexit
import gc
import json
import logging
import os
import re
import signal
import warnings
from collections import defaultdict
from contextlib import suppress
from functools import cache
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from ackstream.settings import Kafka, Lake, Local, Settings

with warnings.catch_warnings():
    # kafka-python reads its message schemas at import by a function that Python 3.11 and 3.12 call deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    from tests.demo.broker import Broker

from ackstream.cli.terminal import spare_proxies
from ackstream.gateway.access import passwords
from ackstream.lake import tables
from ackstream.local import jars
from ackstream.local.submit import JAVA_OPTIONS, archive_classes, quick_start
from ackstream.spark.session import session
from tests.harness.calls import remember_classes
from tests.harness.kafka import following
from tests.harness.ports import free_ports
from tests.harness.processes import QUICK
from tests.lake import empty

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

# a developer's running broker; taken out of the environment, since the settings would not know the name
RUNNING = os.environ.pop("ACKSTREAM_TEST_BOOTSTRAP", "")
_prefixes = count()
# what tests start is on this machine
spare_proxies()

# how long an example takes tells something about the machine, not about the law; a failure must come back
hypothesis.settings.register_profile(
    "ackstream",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=True,
    print_blob=True,
)
# pytest --hypothesis-profile=nightly
hypothesis.settings.register_profile(
    "nightly", hypothesis.settings.get_profile("ackstream"), derandomize=False, max_examples=10_000
)
hypothesis.settings.load_profile("ackstream")

# it takes 50 ms on purpose, and gateways of tests have the same few users
passwords._hash = cache(passwords._hash)

_NEEDS_SERVICES = {"broker", "kafka", "jvm", "spark"}
_NAMES_SERVICES = re.compile(
    r"\b(?:broker: str|kafka: Kafka|(?:jvm|spark): SparkSession|pytest\.mark\.integration)\b|\"jvm\""
)
"""What stands in each file with a test that has one of these fixtures."""
_WHOLE_SYSTEM = Path(__file__).parent / "integration"
DURATIONS = Path(__file__).parent / "durations.json"
"""Seconds of each file, as `--record-durations` wrote them."""
UNKNOWN_SECONDS = 30.0
"""For a file of the whole system that is new."""
_skipped: list[str] = []
_spent: dict[str, float] = defaultdict(float)


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """Let no test log as a program that an earlier one has run."""
    loggers = [logging.getLogger(name) for name in (None, "ackstream", "kafka")]
    before = [(logger, list(logger.handlers), logger.level) for logger in loggers]
    yield
    for logger, handlers, level in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)
    logging.captureWarnings(capture=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option by which a run of `make test` on a quiet machine keeps the durations current."""
    parser.addoption("--record-durations", action="store_true", help="write tests/durations.json, by which files start")


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C be heard, and the modules of kafka-python that are imported later be imported too, see above."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # as for what a shell starts in the background: a test that presses Ctrl-C would wait for ever
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("filterwarnings", "ignore:(read_text|open_text) is deprecated:DeprecationWarning")
    gc.disable()


def pytest_collection_finish() -> None:
    """Collect no garbage until here, and never look through what is imported and collected: all of it stays."""
    gc.freeze()
    gc.enable()
    # extensions look for leaks at the end
    atexit.register(gc.unfreeze)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let each of several processes compile its share of the files before it collects them all.

    In a clean clone, each would compile all of them at the same time otherwise.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        if not pytest_ignore_collect(file, session.config):
            # an error is reported when it is collected
            with suppress(Exception):
                import_module(".".join(file.relative_to(session.config.rootpath).with_suffix("").parts))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Run pure tests in two processes for each core: half of their time is that of timers and of programs."""
    return 2 * (os.cpu_count() or 1)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import the files with pure tests alone when these are not to run: it takes longer than many a test."""
    if not config.option.markexpr.startswith("integration ") or not collection_path.name.startswith("test_"):
        return None
    return True if _NAMES_SERVICES.search(collection_path.read_text("utf-8")) is None else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that needs the broker or Spark, wherever it stands; the longest files come first.

    Two workers take one file after the other: a long one that starts last leaves the other worker idle.
    """
    known = _durations()
    for item in items:
        if _NEEDS_SERVICES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.integration)
            if not _NAMES_SERVICES.search(item.path.read_text("utf-8")):
                raise pytest.UsageError(f"Annotate the fixtures of {item.path} as other files do: kafka: Kafka, say")

    def seconds(item: pytest.Item) -> float:
        other = UNKNOWN_SECONDS if _WHOLE_SYSTEM in item.path.parents else 0.0
        return float(known.get(item.nodeid.partition("::")[0], other))

    items.sort(key=seconds, reverse=True)


def _durations() -> dict[str, float]:
    return json.loads(DURATIONS.read_text("utf-8")) if DURATIONS.exists() else {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember skipped tests, and the time that each file takes."""
    _spent[report.nodeid.partition("::")[0]] += report.duration
    if report.skipped and not hasattr(report, "wasxfail"):
        _skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Record the files' durations on request; fail a run in CI that skipped a test, since it checked less."""
    if session.config.getoption("--record-durations") and not hasattr(session.config, "workerinput"):
        kept = {name: seconds for name, seconds in _durations().items() if (session.config.rootpath / name).exists()}
        found = {name: round(spent) for name, spent in _spent.items() if spent >= 1}
        DURATIONS.write_text(json.dumps(kept | found, indent=2, sort_keys=True) + "\n", "utf-8")
    if os.environ.get("CI") == "true" and _skipped and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why such a run failed."""
    if os.environ.get("CI") == "true" and _skipped:
        terminalreporter.write_sep("=", f"failed: {len(_skipped)} skipped, which CI=true forbids", red=True)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a real one-node Kafka on free ports for the whole run; the value is its bootstrap address.

    ``ACKSTREAM_TEST_BOOTSTRAP=localhost:9092`` takes a running one instead.
    """
    if RUNNING:
        yield RUNNING
        return
    port, controller_port = free_ports(2)
    local = Local(data=tmp_path_factory.mktemp("broker"), port=port, controller_port=controller_port)
    started = Broker(Settings(local=local))
    started.start()
    try:
        yield started.bootstrap
    finally:
        started.stop()


@pytest.fixture
def kafka(broker: str) -> Iterator[Kafka]:
    """Return Kafka settings for one test: the real broker, and a topic prefix that no other test and no run has."""
    found = Kafka(bootstrap=broker, topic_prefix=f"t{os.getpid()}-{next(_prefixes)}-", partitions=2)
    with following(found):
        yield found


@pytest.fixture(scope="session")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start the one JVM of this process, with the product's jars and conf.

    The jobs that tests start as processes of their own run the product's conf.
    """
    archive_classes()
    base = tmp_path_factory.mktemp("spark")
    started = session(
        Settings(),
        "tests",
        jars=jars.resolve("spark"),
        conf={
            "spark.sql.warehouse.dir": str(base / "warehouse"),
            "spark.local.dir": str(base / "local"),
            **QUICK,
            # a query that waits for records asks for them all the time, at the expense of other tests
            "spark.sql.streaming.pollingDelay": "100ms",
            # planning a query anew after each of its stages gains nothing with few rows
            "spark.sql.adaptive.enabled": "false",
            # nobody sees what Spark would show of each plan, and its own checks of its rules are not under test
            "spark.sql.ui.explainMode": "simple",
            "spark.sql.lightweightPlanChangeValidation": "false",
            # of the plans that have run it keeps a thousand, which Java's collector goes through
            "spark.sql.ui.retainedExecutions": "50",
            "spark.ui.retainedJobs": "100",
            "spark.ui.retainedStages": "100",
            JAVA_OPTIONS: quick_start(),
        },
    )
    with pytest.MonkeyPatch.context() as patch:
        # Spark takes longer to create a table than to write to it; `tests/lake/test_tables.py` shows that jobs do it
        patch.setattr(tables, "create", empty.create_copied)
        remember_classes(patch)
        yield started
    started.stop()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return settings of tables that no other test has."""
    return Lake(path=str(tmp_path / "lake"), checkpoints=str(tmp_path / "checkpoints"))


@pytest.fixture(scope="module")
def spark(jvm: SparkSession) -> SparkSession:
    """Return a session of the module's own: what a job writes into its session's conf stays in the module."""
    return jvm.newSession()
