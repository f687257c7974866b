"""What all tests share: the real broker and settings that keep tests apart on it."""

from __future__ import annotations

import os
import socket
import warnings
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING

import hypothesis
import pytest

from ackstream.settings import Kafka, Local, Settings

with warnings.catch_warnings():
    # kafka-python reads its message schemas at import by a function that Python 3.11 and 3.12 call deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    from ackstream.local.broker import Broker

from ackstream.cli.terminal import JAVA_OPTIONS, QUICK_START
from ackstream.local import jars
from ackstream.spark.session import session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

# a developer's running broker; taken out of the environment, since the settings would not know the name
RUNNING = os.environ.pop("ACKSTREAM_TEST_BOOTSTRAP", "")
_prefixes = count()

# how long an example takes says something about the machine, not about the law
hypothesis.settings.register_profile("ackstream")
hypothesis.settings.load_profile("ackstream")


def pytest_configure(config: pytest.Config) -> None:
    """Let the modules of kafka-python that are imported later be imported too, see above."""
    config.addinivalue_line("filterwarnings", "ignore:(read_text|open_text) is deprecated:DeprecationWarning")


def free_ports(number: int) -> list[int]:
    """Return ports that are free now, all different."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


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
def kafka(broker: str) -> Kafka:
    """Return Kafka settings for one test: the real broker, and a topic prefix that no other test and no run has."""
    return Kafka(bootstrap=broker, topic_prefix=f"t{os.getpid()}-{next(_prefixes)}-", partitions=2)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start the one Spark session of this process, with the product's jars and tuning."""
    base = tmp_path_factory.mktemp("spark")
    started = session(
        Settings(),
        "tests",
        jars=jars.resolve("spark"),
        conf={
            "spark.sql.warehouse.dir": str(base / "warehouse"),
            "spark.local.dir": str(base / "local"),
            JAVA_OPTIONS: QUICK_START,
        },
    )
    yield started
    started.stop()
